"""Iceberg tables. Needs `pip install 'pyiceberg[pyarrow,sql-sqlite]>=0.12'`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.paths import absolute, split_uri
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.storage.table_directories import table_of
from pgoutput_fast.tables.columns import column_id
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN, CatalogAwayError
from pgoutput_fast.tables.iceberg.bounds import choose_bounds, with_bounds_or_without
from pgoutput_fast.tables.iceberg.catalog import NAME, asked, open_catalog
from pgoutput_fast.tables.iceberg.deletes import (
    PositionDeletes,
    delete_entries,
    equality_deletes,
    write_deletes,
)
from pgoutput_fast.tables.iceberg.expiry import Expired, expired
from pgoutput_fast.tables.iceberg.fields import (
    can_widen,
    change_columns,
    check_iceberg_names,
    rename_columns,
    with_field_ids,
)
from pgoutput_fast.tables.iceberg.overwrite import begin_overwrite
from pgoutput_fast.tables.iceberg.transaction import begin_transaction, keep_files
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import (
    Commit,
    CommitLsn,
    ConflictError,
    DataFile,
    ListedFiles,
    MarkedRows,
    Ordinal,
    OutcomeUnknownError,
    Table,
    TableRole,
    Version,
)
from pgoutput_fast.tables.target import FileTarget

__all__ = ["IcebergTable", "IcebergTarget", "iceberg_name"]

# The table properties with an ordinal, its stream, and which transactions the table has.
_ORDINAL, _STREAM = "pgoutput-fast.position", "pgoutput-fast.stream"
_TRANSACTIONS = "pgoutput-fast.transactions"
# The table property that says that files of any version may have columns under former names.
_RENAMED = "pgoutput-fast.renamed-columns"
# The snapshot property with an LSN.
_LSN = "pgoutput-fast.mirror-position"
_RETRIES = "commit.retry.num-retries"
# Without the first two, the catalog keeps a metadata file per commit. Without the third, every snapshot of a table of
# changes names as many manifests as there were commits.
_MERGE = "commit.manifest-merge.enabled"
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    _MERGE: "true",
}
# The newest version of the format that pyiceberg 0.12 writes.
_NEWEST_FORMAT = 2
# Spark writes local paths like this.
_NO_AUTHORITY = re.compile(r"^file:/(?!/)")


class IcebergTarget(FileTarget):
    """Iceberg tables. All tables of a target are in one catalog."""

    roles = frozenset({"changes", "current"})
    package = "pyiceberg", "pyiceberg[pyarrow,sql-sqlite]"
    unfit = re.compile(r"[?#\x00-\x1f]")
    takes_catalog = True
    marks = True
    renames = True
    # The tables of a target share a connection to the catalog, and pyiceberg does not say that threads may.
    side_by_side = False
    sign = "/metadata", ".metadata.json"

    def __init__(self, store: Store, options: TableOptions) -> None:
        # A table has an absolute location, independent of the working directory of this process.
        super().__init__(open_store(absolute(store.at(""))), options)

    @classmethod
    def check(cls, store: Store, options: TableOptions, format: str) -> None:
        super().check(store, options, format)
        if not store.local and not options.iceberg_catalog:
            raise ValueError(
                f"Iceberg tables in {store} need a catalog: pass iceberg_catalog= with the properties of a pyiceberg "
                "catalog, for example {'type': 'rest', 'uri': 'http://...'}"
            )

    @cached_property
    def _catalog(self) -> Any:
        self.store.make()
        return open_catalog(self.store, self.options.iceberg_catalog or {})

    def table(self, directory: str, role: TableRole) -> IcebergTable:
        return IcebergTable(self._catalog, self.store, directory, role)


class IcebergTable(Table):
    """An Iceberg table. A version is the sequence number of a snapshot. A commit is one snapshot.

    An LSN is the property `pgoutput-fast.mirror-position` of a snapshot. An ordinal is the table property
    `pgoutput-fast.position`, its stream is `pgoutput-fast.stream`, and `pgoutput-fast.transactions` tells which
    transactions the table has.

    Args:
        catalog: the catalog of `open_catalog`.
        store, directory, role: as for `Table`.
    """

    partition_columns_stored = True
    marks = True

    def __init__(self, catalog: Any, store: Store, directory: str, role: TableRole) -> None:
        super().__init__(store, directory, role)
        self._catalog = catalog
        # A catalog in a file keeps the file open, but opens a new connection on demand.
        self._catalog.close()
        self._identifier = iceberg_name(directory)
        self._location = f"{_root(store)}/{directory}"
        # The table of the newest version that was read, and the id of its snapshot; None if there is none.
        self._opened: Any = None
        self._snapshot: int | None = None
        self.remove = (
            "if the target was moved, move it back; if another target uses this catalog, too, give each its own; if "
            f"the table is lost, remove it from the catalog (drop_table({self._identifier}) in pyiceberg)"
        )

    def __str__(self) -> str:
        return f"the Iceberg table {'.'.join(self._identifier)} in {self.store}/{self.directory}"

    def can_widen(self, before: pa.DataType, wide: pa.DataType) -> bool:
        return can_widen(before, wide)

    # ---- versions ------------------------------------------------------------------------------------------------

    def _load(self) -> Any:
        """The table in the catalog; None if there is none.

        Raises:
            ValueError: if the catalog has a table of this name elsewhere.
            DamagedError: if the metadata file named by the catalog is missing or damaged.
            CatalogAwayError: if the catalog cannot be reached.
        """
        from pyiceberg.exceptions import NoSuchTableError, ValidationError

        try:
            with asked():
                table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None
        except (FileNotFoundError, ValidationError) as problem:
            raise self.damaged(problem) from problem
        finally:
            self._catalog.close()
        if table.location() != self._location:
            raise ValueError(
                f"the catalog has the table {'.'.join(self._identifier)} at {table.location()}, not at "
                f"{self._location}: use another catalog (or warehouse) for each target"
            )
        return table

    def _read(self, number: int | None) -> Version | None:
        table = self._load()
        snapshot = None if table is None else table.current_snapshot()
        if number is not None:
            snapshots = () if table is None else table.metadata.snapshots
            snapshot = next((each for each in snapshots if each.sequence_number == number), None)
            if snapshot is None:
                raise FileNotFoundError(f"{self} has no version {number}")
            return self._version(table, snapshot)
        version, now = None, None if snapshot is None else snapshot.snapshot_id
        if table is not None:
            version = self._known
            # The properties of a table, which have an ordinal, may change without a snapshot.
            if self.role == "changes" or now is None or now != self._snapshot:
                try:
                    version = self._version(table, snapshot)
                except FileNotFoundError as problem:
                    raise self.damaged(problem) from problem
        self._opened, self._snapshot = table, now
        return version

    def _version(self, table: Any, snapshot: Any) -> Version:
        files = ListedFiles(lambda: self._listed(table, snapshot), partial(_data_files, self._location))
        schema = table.schema() if snapshot is None else table.schemas()[snapshot.schema_id]
        columns = stored_schema(schema.as_arrow(), "table")
        if self.role == "current":
            columns = with_field_ids(stored_schema(schema.as_arrow(), "current"), schema)
            len(files)  # an error of a current table is noticed when it is opened

        def bounds(column: str) -> tuple[pa.Array, pa.Array]:
            field, kind = schema.find_field(column), columns.field(column).type
            lows, highs = (
                [_value(field, getattr(each.file, which)) for each in files.listing.values()]
                for which in ("lower_bounds", "upper_bounds")
            )
            return pa.array(lows, kind), pa.array(highs, kind)

        number = 0 if snapshot is None else snapshot.sequence_number
        partition_by = tuple(field.name for field in table.spec().fields)
        return Version(
            number,
            self._position(table, snapshot),
            columns,
            files,
            bounds,
            partition_by,
            _RENAMED in table.properties,
        )

    def _position(self, table: Any, snapshot: Any) -> Ordinal | CommitLsn | None:
        if self.role != "changes":
            found = _with_position(table, snapshot)
            return None if found is None else CommitLsn(int(found.summary.additional_properties[_LSN]))
        known = table.properties
        if _ORDINAL not in known:
            return None
        stream = known.get(_STREAM)
        try:
            return Ordinal(
                int(known[_ORDINAL]),
                None if stream is None else Stream.from_json(stream),
                known.get(_TRANSACTIONS),
            )
        except ValueError as problem:
            raise self.damaged(problem) from problem

    def _listed(self, table: Any, snapshot: Any) -> dict[str, Any]:
        """The files of a snapshot with their deletes, by name."""
        if snapshot is None:
            return {}
        files: dict[str, Any] = {}
        for task in _planned(self, table, snapshot):
            names = [_name(self._location, each) for each in (task.file, *task.delete_files)]
            if self.role == "current" and any("://" in name for name in names):
                raise ValueError(
                    f"{self} was changed by something else: it has files that a mirror does not know. Remove the "
                    f"table from the catalog, and {LOAD_ANY_AGAIN}"
                )
            files[names[0]] = task
        return files

    # ---- commits -------------------------------------------------------------------------------------------------

    def in_files(self, base: Version | None, schema: pa.Schema) -> pa.Schema:
        check_iceberg_names(schema, str(self))
        if base is not None and base.schema.equals(schema) and self.role == "current":
            return base.schema
        table = self._opened if base is not None and base is self._known else self._load()
        # This transaction is not committed. The commit repeats it, and pyiceberg compares the ids.
        if table is None:
            transaction = self._created(schema)
        else:
            transaction = begin_transaction(table)
            _change_columns(transaction, schema, replaced=base is None)
        self._catalog.close()
        return with_field_ids(stored_schema(schema, "table"), transaction.table_metadata.schema())

    def _created(self, schema: pa.Schema) -> Any:
        """A transaction that creates the table."""
        with asked():
            return self._catalog.create_table_transaction(
                self._identifier,
                stored_schema(schema, "table"),
                location=self._location,
                properties=_PROPERTIES,
            )

    def _commit(self, commit: Commit) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        old: list[Expired] = []
        # If the commit fails, they stay until a vacuum: it may have been made all the same.
        rows = _marked_rows(self, commit, self._location, self._opened)
        deletes = write_deletes(self.store, self.directory, self._location, rows) if rows else []

        def attempt(has_bounds: bool) -> None:
            with self._begun(commit) as transaction:
                choose_bounds(transaction, of_dates=has_bounds)
                self._add_snapshot(transaction, commit, deletes)
                keep_files(transaction)
                old[:] = self._expire(transaction)

        try:
            with asked():
                with_bounds_or_without(attempt)
        except (CommitFailedException, TableAlreadyExistsError) as problem:
            raise ConflictError(self) from problem
        except CatalogAwayError as problem:  # the catalog may still execute it
            raise OutcomeUnknownError(self, problem) from problem
        finally:
            self._catalog.close()
        for each in old:
            self._remove_files(each)

    def _expire(self, transaction: Any) -> list[Expired]:
        """Expires old snapshots of a table of changes, in a transaction."""
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        found = expired(transaction.table_metadata) if self.role == "changes" else None
        if found is None:
            return []
        with ExpireSnapshots(transaction) as expiry:
            expiry.by_ids(found.ids)
        return [found]

    def _remove_files(self, old: Expired) -> None:
        """Removes files of expired snapshots. The table is complete without that."""
        with suppress(Exception):  # of damaged manifests, pyiceberg raises any error
            for path in old.files(self._opened.io):
                if path.startswith(f"{self._location}/"):
                    self.store.remove(f"{self.directory}/{path.removeprefix(f'{self._location}/')}")

    def _begun(self, commit: Commit) -> Any:
        """A transaction in which the table has the columns of the rows.

        Raises:
            ConflictError: if `commit.base` is not the version that was read last. Later commits of other programs
                are noticed by the catalog.
            ValueError: if another program has given the table a newer version of the format.
        """
        if commit.base is None:
            _make_namespace(self._catalog, self._identifier[:-1])
            transaction = self._created(commit.schema)
            if commit.partition_by:
                with transaction.update_spec() as spec:
                    for name in commit.partition_by:
                        spec.add_identity(name)
            return transaction
        if self.known is not commit.base:
            raise ConflictError(self)
        if self._opened.format_version > _NEWEST_FORMAT:
            raise ValueError(
                f"{self} has version {self._opened.format_version} of Iceberg's format, which this package does not "
                f"write. Remove the table from the catalog, and {self.again}"
            )
        # pyiceberg would retry the same files on top of another commit. This changes only the copy in memory.
        self._opened.metadata.properties[_RETRIES] = "0"
        transaction = begin_transaction(self._opened)
        _change_columns(transaction, commit.schema, replaced=commit.replaces)
        _expect_ids_of_files(self, transaction, commit.schema)
        return transaction

    def _add_snapshot(self, transaction: Any, commit: Commit, deletes: Sequence[Any]) -> None:
        """Creates one snapshot, which adds and removes files, and sets the position.

        Even without files: a snapshot makes the commit fail if another process has committed meanwhile.
        """
        from pyiceberg.io.pyarrow import parquet_file_to_data_file
        from pyiceberg.table import TableProperties

        # Later, pyiceberg adds new columns. Readers of older versions need those that were dropped.
        if transaction.table_metadata.name_mapping() is None:
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        summary = self._set_position(transaction, commit)
        paths = [f"{self._location}/{file.name}" for file in commit.added]
        removed, kept = _removed(commit)
        if not removed and not deletes:
            transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
            return
        with begin_overwrite(transaction, summary, deletes, kept, data_change=commit.data_change) as snapshot:
            for path in paths:
                snapshot.append_data_file(
                    parquet_file_to_data_file(
                        io=transaction._table.io, table_metadata=transaction.table_metadata, file_path=path
                    )
                )
            for file in removed:
                snapshot.delete_data_file(file)

    def _set_position(self, transaction: Any, commit: Commit) -> dict[str, str]:
        """Sets the position. Returns the properties of the snapshot."""
        position = commit.position
        if isinstance(position, CommitLsn):
            return {_LSN: str(position.lsn)}
        known = {_ORDINAL: str(position.seq)}
        known |= {} if position.stream is None else {_STREAM: position.stream.to_json()}
        known |= {} if position.transactions is None else {_TRANSACTIONS: position.transactions}
        known |= {_MERGE: transaction.table_metadata.properties.get(_MERGE, "true")}  # of earlier versions
        transaction.set_properties(known)
        if commit.replaces and commit.base is not None:
            stale = {_STREAM, _TRANSACTIONS}.intersection(self._opened.properties) - known.keys()
            transaction.remove_properties(*stale)
        return {}

    # ---- upkeep --------------------------------------------------------------------------------------------------

    def kept(self, now: Version, keep: int) -> Iterator[Version]:
        """Expires older snapshots, so that none names removed files."""
        table = self._load()
        ordered = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number)
        # After a rollback, the current one is not the newest. Another one may have its position.
        current = table.current_snapshot()
        stay = [*ordered[-keep:], current, _with_position(table, current)]
        stay_ids = {each.snapshot_id for each in stay if each is not None}
        old = [each.snapshot_id for each in ordered if each.snapshot_id not in stay_ids]
        if old:
            with asked():
                table.maintenance.expire_snapshots().by_ids(old).commit()
            self._catalog.close()
        for each in ordered:
            if each.snapshot_id in stay_ids:
                with suppress(FileNotFoundError):
                    if (version := self.version(each.sequence_number)) is not None:
                        yield version

    def needed(self, version: Version) -> set[str]:
        # Deletes of files that another program removed are still in the manifests, and some readers read them.
        table = self._opened
        snapshot = next(each for each in table.metadata.snapshots if each.sequence_number == version.number)
        return version.names | {
            _name(self._location, each.data_file) for each in delete_entries(table.io, snapshot)
        }

    def clean(self, kept: Collection[str], expired: float) -> int:
        # pyiceberg cannot remove files that only expired snapshots need.
        table, removed = self._load(), 0
        if table is None:
            return 0
        named = _manifests(table)
        for name in self.store.names(f"{self.directory}/metadata"):
            if name.endswith(".avro") and name.rpartition("/")[2] not in named:
                removed += self.store.remove(name)
        return removed


def _manifests(table: Any) -> set[str]:
    """The names of the lists of manifests, and of the manifests, that the snapshots of a table need."""
    found = set[str]()
    for snapshot in table.metadata.snapshots:
        lists = [snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io))]
        found |= {each.rpartition("/")[2] for each in lists}
    return found


def _make_namespace(catalog: Any, name: tuple[str, ...]) -> None:
    """Makes a namespace of a catalog, unless there is one."""
    try:
        catalog.create_namespace_if_not_exists(name)
    except Exception:
        # Catalogs in SQL look for it, and then insert it. Meanwhile another thread or program may have made it.
        if not catalog.namespace_exists(name):
            raise


def _change_columns(transaction: Any, schema: pa.Schema, *, replaced: bool) -> None:
    """Gives a table the columns of the rows, in a transaction."""
    if rename_columns(transaction, schema):
        transaction.set_properties({_RENAMED: "true"})
    before = stored_schema(transaction.table_metadata.schema().as_arrow(), "table")
    schema = stored_schema(schema, "table")
    if not before.equals(schema):
        change_columns(transaction, before, schema, replaced=replaced)


def _expect_ids_of_files(table: IcebergTable, transaction: Any, schema: pa.Schema) -> None:
    """Checks that the columns of files have the ids of the table. Otherwise readers would get other columns' values.

    Args:
        table: the table.
        transaction: has its columns.
        schema: the columns of the files.

    Raises:
        ValueError: if they have not.
    """
    columns = with_field_ids(schema, transaction.table_metadata.schema())
    for now, written in zip(columns, schema, strict=True):
        if column_id(written) not in (None, column_id(now)):
            raise ValueError(
                f"{table}: its files have the column {now.name!r} under another id than the table"
            )


def _with_position(table: Any, snapshot: Any) -> Any:
    """The snapshot that has the position of a snapshot; None if there is none.

    Other programs that only delete rows, or write the same rows again, leave a table at its position.
    """
    from pyiceberg.table.snapshots import Operation

    while snapshot is not None and snapshot.summary is not None:
        if _LSN in snapshot.summary.additional_properties:
            return snapshot
        if snapshot.summary.operation not in (Operation.DELETE, Operation.REPLACE):
            return None
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
    return None


def _planned(owner: Table, table: Any, snapshot: Any) -> list[Any]:
    """The files of a snapshot with their deletes, in pyiceberg's form.

    Raises:
        ValueError: if it has equality deletes. A DamagedError: if its manifests are damaged.
    """
    try:
        return list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
    except OSError:
        raise
    except ValueError as problem:
        unread = equality_deletes(table.io, snapshot)
        if not unread:
            raise
        raise ValueError(
            f"{owner} has equality deletes, which this package does not read: {', '.join(unread)}. Let the program "
            f"that made them rewrite the data files. Or remove the table from the catalog, and {owner.again}"
        ) from problem
    except Exception as problem:  # pyiceberg has no error of its own for damaged manifests
        raise owner.damaged(problem) from problem


def _name(location: str, file: Any) -> str:
    """The name of a file in the table's directory; its path if it is elsewhere."""
    return _NO_AUTHORITY.sub("file:///", str(file.file_path)).removeprefix(f"{location}/")


def _data_files(location: str, tasks: Mapping[str, Any]) -> list[DataFile]:
    """The files of a version, from those of `_listed`."""
    made = []
    for name, task in tasks.items():
        deletes = None
        if task.delete_files:
            files = sorted((_name(location, each), each.file_format.value) for each in task.delete_files)
            count = sum(each.record_count for each in task.delete_files)
            deletes = PositionDeletes(task.file.file_path, tuple(files), count)
        made.append(DataFile(name, task.file.record_count, task.file.file_size_in_bytes, deletes))
    return made


def _marked_rows(
    owner: Table, commit: Commit, location: str, table: Any
) -> list[tuple[Any, npt.NDArray[np.int64]]]:
    """Files in which a commit marks rows, in pyiceberg's form, with the positions of all that are marked then."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    rows = []
    if commit.base is not None and commit.deleted:
        assert isinstance(commit.base.files, ListedFiles)
        files, tasks = {file.name: file for file in commit.base.files}, commit.base.files.listing
        for name, new in commit.deleted.items():
            if name in files:
                marked = MarkedRows(files[name].deleted, new)
                positions = marked.positions(owner.store, owner.directory, files[name].rows)
                rows.append((tasks[name].file, positions))
            else:
                file = parquet_file_to_data_file(table.io, table.metadata, f"{location}/{name}")
                file.spec_id = table.metadata.default_spec_id
                rows.append((file, new))
    return rows


def _removed(commit: Commit) -> tuple[list[Any], set[str]]:
    """(the removed files in pyiceberg's form, the paths of the files of deletes that stay)."""
    removed: list[Any] = []
    kept = set[str]()
    if commit.base is not None:
        assert isinstance(commit.base.files, ListedFiles)
        for name, task in commit.base.files.listing.items():
            if commit.replaces or name in commit.removed:
                removed.append(task.file)
            elif name not in commit.deleted:
                kept |= {each.file_path for each in task.delete_files}
    return removed, kept


def _value(field: Any, bounds: Mapping[int, bytes] | None) -> Any:
    """A bound of a column in a file; None if unknown."""
    from pyiceberg.conversions import from_bytes

    found = None if bounds is None else bounds.get(field.field_id)
    if found is None:
        return None
    # Days for dates, microseconds for timestamps.
    return from_bytes(field.field_type, found)


def _root(store: Store) -> str:
    """The target in Iceberg's metadata: without credentials and without encoded characters."""
    if store.local:
        return f"file://{store}"
    uri = split_uri(str(store))
    return f"{uri.scheme}://{uri.netloc}{unquote(uri.path).rstrip('/')}"


def iceberg_name(directory: str) -> tuple[str, str]:
    """The names of the schema and of the table from the directory of `table_directory`.

    >>> iceberg_name("public.orders"), iceberg_name("a+2Eb.C+2Fd")
    (('public', 'orders'), ('a.b', 'C/d'))
    >>> iceberg_name("+2E+2E.orders")
    ('pgoutput_fast', '+2E+2E.orders')
    """
    below, _, directory = directory.rpartition("/")
    found = table_of(directory.replace("+", "%"))
    # A table of this package, a shortened name, or a schema such as `..`, which catalogs take for empty parts.
    if found is None or not all(part.strip() for part in found[0].split(".")):
        return NAME, f"{below}{directory}"
    return (f"{NAME}{below}", ".".join(found)) if below else found
