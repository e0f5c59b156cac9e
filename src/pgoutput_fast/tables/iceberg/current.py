"""Current tables in Iceberg format. Needs `pip install 'pyiceberg[pyarrow,sql-sqlite]>=0.12'`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.paths import absolute
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.damaged import DamagedError
from pgoutput_fast.tables.data_files import FILE_BYTES, DataFile, Version
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN
from pgoutput_fast.tables.file_table import ChangedError, FileTable
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.iceberg.appended import iceberg_name, iceberg_root, open_catalog
from pgoutput_fast.tables.iceberg.bounds import choose_bounds, with_bounds_or_without
from pgoutput_fast.tables.iceberg.fields import can_widen, change_columns, check_iceberg_names, with_field_ids

__all__ = ["IcebergCurrent"]

# The snapshot property with the position. `write_tables` has a table property, for ordinals.
_POSITION = "pgoutput-fast.mirror-position"
_RETRIES = "commit.retry.num-retries"
# Without these, the catalog keeps a metadata file per commit.
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


class IcebergCurrent(FileTable):
    """A current table in Iceberg format.

    The position is the property `pgoutput-fast.mirror-position` of a snapshot. A version is the sequence number of a
    snapshot. A commit is one snapshot, which replaces files.

    Args:
        target: the directory or URI with all tables.
        directory: the table's directory in it, as `delta_directory` names it.
        properties: of a pyiceberg catalog. Without them, a local target has a catalog in the file `_catalog.db`.
        file_bytes: the largest size of a file, roughly.

    Raises:
        ImportError: if `pyiceberg` is not installed.
        ValueError: for a target in an object store without the properties of a catalog.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        directory: str,
        properties: Mapping[str, str] | None = None,
        *,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        # A table has an absolute location, independent of the working directory of this process.
        super().__init__(open_store(absolute(target)), directory, file_bytes)
        self._store.make()
        self._catalog = open_catalog(self._store, properties or {})
        # A catalog in a file keeps the file open, but opens a new connection on demand.
        self._catalog.close()
        self._identifier = iceberg_name(directory)
        self._location = f"{iceberg_root(self._store)}/{directory}"
        # The last version that was read, and its files in pyiceberg's form.
        self._known: tuple[Version, dict[str, Any]] | None = None

    _remove = "remove it from the catalog"

    def _can_widen(self, there: pa.DataType, wide: pa.DataType) -> bool:
        return can_widen(there, wide)

    # ---- versions ------------------------------------------------------------------------------------------------

    def _table(self) -> Any:
        """The table in the catalog; None if there is none.

        Raises:
            ValueError: if the catalog has a table of this name elsewhere.
            DamagedError: if the metadata file named by the catalog is missing or damaged.
        """
        from pyiceberg.exceptions import NoSuchTableError, ValidationError

        try:
            table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None
        except (FileNotFoundError, ValidationError) as problem:
            raise DamagedError(self, problem, self._remove) from problem
        finally:
            self._catalog.close()
        if table.location() != self._location:
            raise ValueError(
                f"the catalog has the table {'.'.join(self._identifier)} at {table.location()}, not at "
                f"{self._location}: use another catalog for each target"
            )
        return table

    def _load(self, number: int | None = None) -> Version | None:
        table = self._table()
        snapshot = None if table is None else table.current_snapshot()
        if number is not None:
            snapshots = () if table is None else table.metadata.snapshots
            snapshot = next((each for each in snapshots if each.sequence_number == number), None)
            if snapshot is None:
                raise FileNotFoundError(f"{self} has no version {number}, or has it no more")
        if table is None:
            return None
        position = None if snapshot is None else snapshot.summary.additional_properties.get(_POSITION)
        if snapshot is None or position is None:
            raise ValueError(
                f"{self} is not a table of a mirror, or something else changed it: use another target, or remove it"
            )
        if self._known is not None and self._known[0].number == snapshot.sequence_number:
            return self._known[0]
        try:
            self._known = self._version(table, snapshot, int(position))
        except (OSError, ValueError) as problem:
            if number is None and isinstance(problem, FileNotFoundError):
                raise DamagedError(self, problem, self._remove) from problem
            raise
        except Exception as problem:  # pyiceberg has no error of its own for damaged manifests
            raise DamagedError(self, problem, self._remove) from problem
        return self._known[0]

    def _version(self, table: Any, snapshot: Any, position: int) -> tuple[Version, dict[str, Any]]:
        files: dict[str, Any] = {}
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
            name = task.file.file_path.removeprefix(f"{self._location}/")
            if task.delete_files or task.file.file_path != f"{self._location}/{name}":
                raise ValueError(
                    f"{self} was changed by something else: it has deletes or files that a mirror does not know. "
                    f"Remove the table from the catalog, and {LOAD_ANY_AGAIN}"
                )
            files[name] = task.file
        schema = table.schemas()[snapshot.schema_id]
        columns = with_field_ids(stored_schema(schema.as_arrow(), "current"), schema)

        def bounds(column: str) -> tuple[pa.Array, pa.Array]:
            field, kind = schema.find_field(column), columns.field(column).type
            lows, highs = (
                [_value(field, getattr(each, which)) for each in files.values()]
                for which in ("lower_bounds", "upper_bounds")
            )
            return pa.array(lows, kind), pa.array(highs, kind)

        data = [DataFile(name, each.record_count, each.file_size_in_bytes) for name, each in files.items()]
        return Version(snapshot.sequence_number, position, columns, data, bounds), files

    # ---- commits -------------------------------------------------------------------------------------------------

    def _commit(
        self,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        def commit(has_bounds: bool) -> None:
            gone: list[Any] = []
            if before is None:
                self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
                transaction = self._created(schema)
            else:
                table = self._table()
                if self._load() is not before or self._known is None or table is None:
                    raise ChangedError
                gone = [file for name, file in self._known[1].items() if removed is None or name in removed]
                # pyiceberg would retry the same files on top of another commit. This changes only the copy in memory.
                table.metadata.properties[_RETRIES] = "0"
                transaction = table.transaction()
                if not before.schema.equals(schema):
                    change_columns(
                        transaction, before.schema, stored_schema(schema, "table"), replaced=removed is None
                    )
            with transaction:
                choose_bounds(transaction, of_dates=has_bounds)
                self._overwrite(transaction, position, added, gone)

        try:
            with_bounds_or_without(commit)
        except (CommitFailedException, TableAlreadyExistsError) as problem:
            raise ChangedError from problem
        finally:
            self._catalog.close()

    def _created(self, schema: pa.Schema) -> Any:
        """A transaction that creates the table."""
        return self._catalog.create_table_transaction(
            self._identifier, stored_schema(schema, "table"), location=self._location, properties=_PROPERTIES
        )

    def _in_files(self, before: Version | None, schema: pa.Schema) -> pa.Schema:
        check_iceberg_names(schema, str(self))
        if before is not None and before.schema.equals(schema):
            return before.schema
        table = self._table()
        # This transaction is not committed. The commit repeats it, and pyiceberg compares the ids.
        if table is None:
            transaction = self._created(schema)
        else:
            transaction, there = table.transaction(), stored_schema(table.schema().as_arrow(), "table")
            if before is not None or not there.equals(stored_schema(schema, "table")):
                change_columns(transaction, there, stored_schema(schema, "table"), replaced=before is None)
        self._catalog.close()
        return with_field_ids(schema, transaction.table_metadata.schema())

    def _overwrite(
        self, transaction: Any, position: int, added: Sequence[WrittenFile], gone: Sequence[Any]
    ) -> None:
        """Creates one snapshot, which replaces files."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file
        from pyiceberg.table import TableProperties

        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        with transaction.update_snapshot(
            snapshot_properties={_POSITION: str(position)}
        ).overwrite() as snapshot:
            existing = snapshot._existing_manifests
            # pyiceberg would keep the manifests of files removed by earlier snapshots, one per commit.
            snapshot._existing_manifests = lambda: list(filter(_is_live, existing()))
            for each in added:
                path = f"{self._location}/{each.name}"
                snapshot.append_data_file(
                    parquet_file_to_data_file(
                        io=transaction._table.io, table_metadata=transaction.table_metadata, file_path=path
                    )
                )
            for file in gone:
                snapshot.delete_data_file(file)

    def _kept(self, now: Version, keep: int) -> Iterator[Version]:
        """Expires older snapshots, so that none names removed files."""
        table = self._table()
        ordered = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number)
        old = [each.snapshot_id for each in ordered[:-keep]]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
            self._catalog.close()
        for each in ordered[-keep:]:
            with suppress(FileNotFoundError):
                version = self._load(each.sequence_number)
                if version is not None:
                    yield version

    def vacuum(self, keep: int = 1) -> int:
        removed = super().vacuum(keep)
        table = self._table()
        if table is None:
            return removed
        # pyiceberg cannot remove files that only expired snapshots need.
        kept = set()
        for snapshot in table.metadata.snapshots:
            named = [snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io))]
            kept |= {each.rpartition("/")[2] for each in named}
        for name in self._store.names(f"{self._directory}/metadata"):
            if name.endswith(".avro") and name.rpartition("/")[2] not in kept:
                removed += self._store.remove(name)
        return removed


def _is_live(manifest: Any) -> bool:
    """Whether a manifest has live files. Later snapshots need no others."""
    return bool(manifest.added_files_count != 0 or manifest.existing_files_count != 0)


def _value(field: Any, bounds: Mapping[int, bytes] | None) -> Any:
    """A bound of a column in a file; None if unknown."""
    from pyiceberg.conversions import from_bytes

    found = None if bounds is None else bounds.get(field.field_id)
    if found is None:
        return None
    # Days for dates, microseconds for timestamps.
    return from_bytes(field.field_type, found)
