"""Iceberg tables: existing files become a snapshot of the table. Needs `pip install pyiceberg`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.paths import split_uri
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.storage.table_directories import table_of
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.iceberg.bounds import choose_bounds, with_bounds_or_without
from pgoutput_fast.tables.iceberg.fields import can_widen, change_columns, check_iceberg_names, with_field_ids
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.target import Mode, TableTarget, fitted_types

__all__ = [
    "IcebergTarget",
    "iceberg_name",
    "iceberg_root",
    "may_be_committed",
    "open_catalog",
]

# The catalog of a local target: an SQLite file.
CATALOG = "_catalog.db"
# The table properties with the position, its stream, and which transactions the table has.
_POSITION, _STREAM = "pgoutput-fast.position", "pgoutput-fast.stream"
_TRANSACTIONS = "pgoutput-fast.transactions"
_RETRIES = "commit.retry.num-retries"
# The catalog's name. SQL catalogs store it with every table.
_NAME = "pgoutput_fast"


def open_catalog(store: Store, properties: Mapping[str, str]) -> Any:
    """Opens the catalog of a target.

    Args:
        store: the target.
        properties: for `pyiceberg.catalog.load_catalog`; `name` is the catalog's name. If they are empty, a
            local target has a catalog of its own.

    Raises:
        ImportError: if `pyiceberg` is not installed.
        ValueError: if a target in an object store has no catalog.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise ImportError(
            "format='iceberg' needs pyiceberg: pip install 'pyiceberg[pyarrow,sql-sqlite]'"
        ) from None
    if properties:
        return load_catalog(**{"name": _NAME, **properties})
    if not store.local:
        raise ValueError(
            f"Iceberg tables in {store} need a catalog: pass iceberg_catalog= with the properties of a pyiceberg "
            "catalog, for example {'type': 'rest', 'uri': 'http://...'}"
        )
    from sqlalchemy.engine import URL

    uri = URL.create("sqlite", database=str(store.at(CATALOG))).render_as_string()
    return load_catalog(_NAME, type="sql", uri=uri)


def may_be_committed(problem: Exception) -> bool:
    """Whether the outcome of a failed commit is unknown: the catalog may still execute it."""
    return type(problem).__name__ == "CommitStateUnknownException"


class IcebergTarget(TableTarget):
    """An Iceberg table.

    The position is the table property `pgoutput-fast.position`, its stream is `pgoutput-fast.stream`, and
    `pgoutput-fast.transactions` tells which transactions the table has. The commit that adds the files sets them.

    Args:
        catalog: the catalog of `open_catalog`.
        store: the target with all tables.
        directory: the table's directory in it.
    """

    hidden = False  # readers read only files in the metadata
    partition_columns_stored = True

    def __init__(self, catalog: Any, store: Store, directory: str) -> None:
        self._catalog = catalog
        self._identifier = iceberg_name(directory)
        self._location = f"{iceberg_root(store)}/{directory}"

    @cached_property
    def _table(self) -> Any:
        """The current table; None if there is none.

        Raises:
            ValueError: if the catalog has a table of this name elsewhere, or if its files are missing or damaged.
        """
        from pyiceberg.exceptions import NoSuchTableError, ValidationError

        name = ".".join(self._identifier)
        try:
            table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None
        except (FileNotFoundError, ValidationError) as problem:
            raise ValueError(
                f"the catalog has the Iceberg table {name}, and names files of it that are missing or damaged: "
                f"{problem}. Restore them. If the target was moved, move it back. If another target uses this catalog, "
                f"too, give each its own. If the table is lost, remove it from the catalog "
                f"(drop_table({self._identifier}) in pyiceberg), and run it again: then it begins again"
            ) from problem
        if table.location() != self._location:
            raise ValueError(
                f"the catalog has the table {name} at {table.location()}, not at {self._location}: use another catalog "
                "(or warehouse) for each target"
            )
        return table

    def exists(self) -> bool:
        return self._table is not None

    def position(self) -> int | None:
        found = None if self._table is None else self._table.properties.get(_POSITION)
        return None if found is None else int(found)

    def stream(self) -> Stream | None:
        found = None if self._table is None else self._table.properties.get(_STREAM)
        return None if found is None else Stream.from_json(found)

    def transactions(self) -> Transactions | None:
        return None if self._table is None else self._table.properties.get(_TRANSACTIONS)

    def partition_by(self) -> tuple[str, ...]:
        if self._table is None:
            return ()
        return tuple(field.name for field in self._table.spec().fields)

    def fitted(self, schema: pa.Schema) -> pa.Schema:
        if self._table is None:
            return schema
        there = stored_schema(self._table.schema().as_arrow(), "table")
        place = f"the Iceberg table {'.'.join(self._identifier)}"
        return fitted_types(there, stored_schema(schema, "table"), place, can_widen)

    def stored(self, schema: pa.Schema, mode: Mode) -> pa.Schema:
        schema = stored_schema(schema, "table")
        check_iceberg_names(schema, f"the Iceberg table {'.'.join(self._identifier)}")
        # This transaction is not committed. The commit repeats it, and pyiceberg compares the ids.
        transaction = self._changed(schema, mode == "overwrite")
        return with_field_ids(schema, transaction.table_metadata.schema())

    def column_names(self) -> list[str]:
        return [] if self._table is None else list(self._table.schema().as_arrow().names)

    def commit(
        self,
        files: Sequence[WrittenFile],
        position: int,
        schema: pa.Schema,
        mode: Mode,
        partition_by: tuple[str, ...] = (),
        stream: Stream | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        replaced = mode == "overwrite"
        schema = stored_schema(schema if replaced else self.fitted(schema), "table")
        paths = [f"{self._location}/{each.name}" for each in files]
        known = {_POSITION: str(position)}
        known |= {} if stream is None else {_STREAM: stream.to_json()}
        known |= {} if transactions is None else {_TRANSACTIONS: transactions}

        def commit(has_bounds: bool) -> None:
            with self._begin(schema, partition_by, replaced) as transaction:
                choose_bounds(transaction, of_dates=has_bounds)
                transaction.set_properties(known)
                if replaced and self._table is not None:
                    gone = {_STREAM, _TRANSACTIONS}.intersection(self._table.properties) - known.keys()
                    transaction.remove_properties(*gone)
                # Even without files: a snapshot makes the commit fail if another process has committed meanwhile.
                transaction.add_files(paths, check_duplicate_files=False)

        try:
            with_bounds_or_without(commit)
        except (CommitFailedException, TableAlreadyExistsError) as problem:
            raise RuntimeError(
                f"something else changed the Iceberg table {'.'.join(self._identifier)} during the commit: run it "
                "again. The table has nothing of this run"
            ) from problem
        self.__dict__.pop("_table", None)

    def _begin(self, schema: pa.Schema, partition_by: tuple[str, ...], replaced: bool) -> Any:
        """A transaction in which the table has the necessary columns, and no rows if they are replaced."""
        if self._table is None:
            self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        transaction = self._changed(schema, replaced)
        if self._table is None and partition_by:
            with transaction.update_spec() as spec:
                for name in partition_by:
                    spec.add_identity(name)
        if replaced and self.committed():
            transaction.delete("true")
        return transaction

    def _changed(self, schema: pa.Schema, replaced: bool) -> Any:
        """A transaction in which the table has the columns of the rows."""
        if self._table is None:
            return self._catalog.create_table_transaction(self._identifier, schema, location=self._location)
        # pyiceberg would retry the same files on top of another run's commit. This changes only the copy in memory.
        self._table.metadata.properties[_RETRIES] = "0"
        transaction = self._table.transaction()
        change_columns(
            transaction, stored_schema(self._table.schema().as_arrow(), "table"), schema, replaced=replaced
        )
        return transaction

    def committed(self) -> Collection[str]:
        if self._table is None:
            return ()
        return {task.file.file_path.rpartition("/")[2] for task in self._table.scan().plan_files()}


def iceberg_root(store: Store) -> str:
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
        return _NAME, f"{below}{directory}"
    return (f"{_NAME}{below}", ".".join(found)) if below else found
