"""Tables in a database of DuckDB. Needs `pip install duckdb`."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from pgoutput_fast.catalog.identifiers import parse_qualified_name, quoted
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.fsync import make_directory
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.storage.temporary_rows import TemporaryRows
from pgoutput_fast.tables.columns import in_schema
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import CurrentRows, OpenVersion, Versions
from pgoutput_fast.tables.target import Target

__all__ = ["DuckDBCurrent", "DuckDBTarget", "State"]

# Connections to the same file share one database. While a thread opens it, another one would find it incomplete.
_CONNECTING = threading.Lock()


class _Together(threading.local):
    """The connections of this thread whose transaction changes several tables, by the path of the database."""

    def __init__(self) -> None:
        self.connections: dict[Path, Any] = {}


_TOGETHER = _Together()
# One row per table of a mirror: its schema, its name, its position and its version.
_NAME = "_pgoutput_fast_positions"
_VIEW = '"_pgoutput_fast_rows"'
# How long to wait for another process that has the database open.
_SECONDS = 30.0
# The rows of a batch of a scan, roughly.
_PIECE_ROWS = 1 << 16


class DuckDBTarget(Target):
    """Tables in a database of DuckDB, a file beside the directory of the target."""

    roles = frozenset({"current"})
    package = "duckdb", "duckdb>=2.0"
    unfit = re.compile(r"[?]")
    renames = True

    @classmethod
    def check(cls, store: Store, options: TableOptions, format: str) -> None:
        super().check(store, options, format)
        if not store.local:
            raise ValueError(
                f"{store} is a store, but a database of DuckDB is a file of this machine: use another format"
            )

    def current(self, table: str) -> DuckDBCurrent:
        parts = parse_qualified_name(table)
        assert parts is not None
        schema, name = self.options.naming.of(None, *parts)
        return self.open(os.fspath(self.store.at("")), name, schema)

    def open(self, place: str, name: str, schema: str) -> DuckDBCurrent:
        """Opens a table of the database of a place."""
        return DuckDBCurrent(f"{place}.duckdb", name, schema)


@dataclass(frozen=True)
class State:
    """The state of the table in the database."""

    position: int
    version: int
    schema: pa.Schema


class DuckDBCurrent(CurrentRows):
    """A table in a DuckDB file, and the SQL that changes it within a transaction.

    The position is a row of the table `_pgoutput_fast_positions` in the schema `main`, set by the transaction of the
    rows. The version counts these transactions. Only the current version exists.

    DuckDB lets one process at a time write to a file, and no other process read it meanwhile. So the file is open only
    during a call, and a call waits up to 30 seconds for other processes.

    Args:
        database: the path of the file. It is created if it does not exist.
        name: the table's name.
        schema: the table's schema in the database. It is created if it does not exist.

    Raises:
        ImportError: if `duckdb` is not installed.
    """

    versions: ClassVar[Versions] = "none"
    #: Whether the table keeps the sign of zeros.
    signed_zeros = True
    # The expression for the version in the table of positions.
    _version = '"version"'

    def __init__(self, database: str | os.PathLike[str], name: str, schema: str = "main") -> None:
        try:
            import duckdb
        except ImportError:
            raise ImportError("a mirror in DuckDB needs duckdb: pip install 'duckdb>=2.0'") from None
        self._duckdb = duckdb
        self._path = Path(database)
        self._names = schema, name
        # Qualified with the catalog name that DuckDB gives the file: a schema may have the name of a catalog.
        self._catalog = ""

    @property
    def _busy(self) -> tuple[type[Exception], ...]:
        """What `_connect` raises if another process has the file open, or another thread of this one is closing it."""
        return self._duckdb.IOException, self._duckdb.ResourceInUseException

    def _connect(self) -> Any:
        """A connection whose current database is the one of the table."""
        return self._duckdb.connect(os.fspath(self._path))

    @property
    def _schema(self) -> str:
        return f"{quoted(self._catalog)}.{quoted(self._names[0])}"

    @property
    def _table(self) -> str:
        return f"{self._schema}.{quoted(self._names[1])}"

    @property
    def _positions(self) -> str:
        return f'{quoted(self._catalog)}."main".{quoted(_NAME)}'

    def __str__(self) -> str:
        return f"the table {'.'.join(map(quoted, self._names))} in {self._path}"

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """A connection to the database.

        Raises:
            OSError: if the file cannot be read or written. The table is as before.
            RuntimeError: if another process has the database open.
        """
        if self.is_together:
            with self._explained():
                yield self._named(_TOGETHER.connections[self._path])
            return
        connection = self._opened()
        try:
            with self._explained():
                connection.execute("SET TimeZone = 'UTC'")
                yield self._named(connection)
        finally:
            connection.close()

    @property
    def is_together(self) -> bool:
        """Whether this thread changes several tables of the database in one transaction now."""
        return self._path in _TOGETHER.connections

    @contextmanager
    def together(self) -> Iterator[None]:
        with self.opened() as connection, self.committed(connection):
            _TOGETHER.connections[self._path] = connection
            try:
                yield
            finally:
                del _TOGETHER.connections[self._path]

    def _named(self, connection: Any) -> Any:
        """Takes the name of the database from a connection."""
        self._catalog = str(connection.execute("SELECT current_database()").fetchall()[0][0])
        return connection

    def _opened(self) -> Any:
        """A connection. Waits while another process has the database open."""
        make_directory(self._path.parent)
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                with _CONNECTING:
                    return self._connect()
            except self._busy as problem:
                if "lock" not in str(problem) and "already" not in str(problem):
                    raise OSError(f"{self._path} cannot be opened as a database of DuckDB") from problem
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"another process has {self._path} open: close it there, and run this again"
                    ) from problem
                time.sleep(0.05)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises an OSError where DuckDB cannot read or write the file."""
        try:
            yield
        # A commit that cannot be written is a TransactionException.
        except (
            self._duckdb.IOException,
            self._duckdb.OutOfMemoryException,
            self._duckdb.TransactionException,
        ) as problem:
            raise OSError(
                f"{self._path} cannot be written: {str(problem).partition(chr(10))[0]}. The table is as before. Make "
                "space, and run it again"
            ) from problem

    @contextmanager
    def transaction(self, connection: Any, before: State | None, position: int) -> Iterator[None]:
        """A transaction that sets the position."""
        with self.committed(connection):
            yield
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._positions} "
                '("schema" VARCHAR, "name" VARCHAR, "position" UBIGINT, "version" BIGINT)'
            )
            names = [*self._names]
            connection.execute(f'DELETE FROM {self._positions} WHERE "schema" = ? AND "name" = ?', names)
            version = 0 if before is None else before.version + 1
            connection.execute(
                f"INSERT INTO {self._positions} VALUES (?, ?, ?, ?)", [*names, position, version]
            )

    @contextmanager
    def committed(self, connection: Any) -> Iterator[None]:
        """A transaction, or a part of the one that changes several tables."""
        if self.is_together:
            yield
            return
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            with suppress(self._duckdb.Error):
                connection.rollback()
            raise

    def _state(self) -> State | None:
        if not self._path.exists():
            return None
        with self.opened() as connection:
            return self.state_in(connection)

    def state_in(self, connection: Any, at: str = "") -> State | None:
        """The state of the table; None if there is no table.

        Args:
            connection: to the database.
            at: follows the names of tables in queries.

        Raises:
            ValueError: if a mirror did not make the table.
        """
        kind, found = self._kind(connection, *self._names), []
        if kind is None:
            return None
        if self._kind(connection, "main", _NAME) is not None:
            query = (
                f'SELECT "schema", "name", "position", {self._version} FROM {self._positions}{at} '
                'WHERE lower("schema") = lower(?) AND lower("name") = lower(?)'
            )
            found = connection.execute(query, [*self._names]).fetchall()
        own = [(position, version) for *names, position, version in found if names == [*self._names]]
        if found and not own:
            other, mine = (".".join(map(quoted, names)) for names in (found[0][:2], self._names))
            raise ValueError(
                f"{self._path} has the table {other} already, and DuckDB, which ignores case, cannot also have "
                f"{mine}. Rename one of the two tables or schemas on the server, publish only one of them, or use "
                "another format"
            )
        if not own or kind != "BASE TABLE":
            raise ValueError(f"{self} is not a table of a mirror: use another name, or remove it")
        empty = connection.sql(f"SELECT * FROM {self._table}{at} LIMIT 0").to_arrow_table()
        position, version = own[0]
        if version is None:  # then each table gets a transaction of its own
            raise ValueError(f"DuckLake does not know the snapshot of {self} before the transaction ends")
        return State(int(position), int(version), stored_schema(empty.schema, "current"))

    def _kind(self, connection: Any, schema: str, name: str) -> str | None:
        """The type of the relation of this name, BASE TABLE or VIEW; None if there is none."""
        query = (
            "SELECT table_type FROM information_schema.tables WHERE table_catalog = current_database() "
            "AND lower(table_schema) = lower(?) AND lower(table_name) = lower(?)"
        )
        found = connection.execute(query, [schema, name]).fetchone()
        return None if found is None else str(found[0])

    def position_and_version(self) -> tuple[int | None, int | None]:
        now = self._state()
        return (None, None) if now is None else (now.position, now.version)

    def schema(self) -> pa.Schema | None:
        now = self._state()
        return None if now is None else now.schema

    def open(self, version: int | None = None) -> OpenVersion:
        # The next effect changes the rows, and no other process can open the file meanwhile. So a reader gets a copy.
        copy = TemporaryRows()
        with self.opened() as connection:
            connection.begin()
            now, at = self._expected(connection, version)
            place = copy.write(now.schema, self._batches(connection, now.schema, at))

        def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
            return (pa.Table.from_batches([batch]) for batch in copy.read(place, columns))

        return OpenVersion(now.position, now.schema, pieces, None)

    def _expected(self, connection: Any, version: int | None) -> tuple[State, str]:
        """The state of a version of the table, and what follows the names of tables in queries of it.

        Raises:
            FileNotFoundError: if there is no table, or if it no longer has this version.
            ValueError: if tables have only the current version, which is another one.
        """
        now = self.state_in(connection)
        if now is None:
            raise FileNotFoundError(f"{self} does not exist")
        if version not in (None, now.version):
            raise ValueError(f"{self} has only its current version, {now.version}")
        return now, ""

    def _batches(self, connection: Any, types: pa.Schema, at: str = "") -> Iterator[pa.RecordBatch]:
        """All rows, in these columns."""
        listed = ", ".join(map(quoted, types.names))
        for batch in connection.sql(f"SELECT {listed} FROM {self._table}{at}").to_arrow_reader(_PIECE_ROWS):
            yield from in_schema(pa.Table.from_batches([batch]), types).combine_chunks().to_batches()

    def size(self, version: int | None = None) -> tuple[int, int | None]:
        with self.opened() as connection:
            connection.begin()
            _, at = self._expected(connection, version)
            ((rows,),) = connection.sql(f"SELECT count(*) FROM {self._table}{at}").fetchall()
            return int(rows), None

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        with self.opened() as connection:
            connection.begin()
            now, _ = self._expected(connection, None)
            types = pa.schema([now.schema.field(name) for name in columns])
            for batch in self._batches(connection, types):
                yield pa.Table.from_batches([batch])

    def matching(self, connection: Any, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Columns of the rows that are equal to other rows. Without columns, these are equal to all."""
        with _view(connection, rows):
            listed = ", ".join(map(quoted, columns))
            query = f"SELECT {listed} FROM {self._table} AS t WHERE {_is_in(rows.schema.names)}"
            return connection.sql(query).to_arrow_table()

    def make(self, connection: Any, schema: pa.Schema) -> None:
        """Creates the table without rows, or replaces an existing one."""
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        with _view(connection, schema.empty_table()):
            connection.execute(f"CREATE OR REPLACE TABLE {self._table} AS SELECT * FROM {_VIEW}")

    def insert(self, connection: Any, rows: pa.Table) -> None:
        """Adds rows."""
        if rows.num_rows:
            with _view(connection, rows):
                connection.execute(f"INSERT INTO {self._table} BY NAME SELECT * FROM {_VIEW}")

    def alter(self, connection: Any, there: pa.Schema, schema: pa.Schema) -> None:
        """Adds columns, and widens columns."""
        changed = [
            field for field in schema if field.name not in there.names or field != there.field(field.name)
        ]
        if not changed:
            return
        with _view(connection, pa.schema(changed).empty_table()):
            kinds = [row[1] for row in connection.execute(f"DESCRIBE {_VIEW}").fetchall()]
        for field, kind in zip(changed, kinds, strict=True):
            what = f"ADD COLUMN {quoted(field.name)}"
            if field.name in there.names:
                what = f"ALTER COLUMN {quoted(field.name)} SET DATA TYPE"
            connection.execute(f"ALTER TABLE {self._table} {what} {kind}")

    def rename(self, connection: Any, renamed: Mapping[str, str]) -> None:
        """Gives columns another name.

        Args:
            connection: to the database.
            renamed: {the name: the name until now}.
        """
        for name, former in renamed.items():
            connection.execute(f"ALTER TABLE {self._table} RENAME COLUMN {quoted(former)} TO {quoted(name)}")

    def fill(self, connection: Any, values: pa.Table, sources: Mapping[str, str]) -> None:
        """Sets values in all rows.

        Args:
            connection: to the database.
            values: one row: the same values in all rows.
            sources: {column: another column with its values}.
        """
        if sources:
            copied = ", ".join(f"{quoted(name)} = {quoted(source)}" for name, source in sources.items())
            connection.execute(f"UPDATE {self._table} SET {copied}")
        if values.num_columns:
            same = ", ".join(f"{quoted(name)} = w.{quoted(name)}" for name in values.column_names)
            with _view(connection, values):
                connection.execute(f"UPDATE {self._table} AS t SET {same} FROM {_VIEW} AS w")

    def replace_name(self, connection: Any, column: str, former: str, names: Sequence[str]) -> None:
        """Puts names in place of another one in a column of lists of names. Other rows stay as they are."""
        lists = quoted(column)
        new = f"flatten([CASE WHEN each = $former THEN $names ELSE [each] END FOR each IN {lists}])"
        connection.execute(
            f"UPDATE {self._table} SET {lists} = {new} WHERE list_contains({lists}, $former)",
            {"former": former, "names": [*names]},
        )

    def delete(self, connection: Any, rows: pa.Table | None = None) -> None:
        """Deletes the rows that are equal to other rows by their columns, or all rows."""
        if rows is None:
            connection.execute(f"DELETE FROM {self._table}")
        elif rows.num_rows or not rows.num_columns:
            with _view(connection, rows):
                connection.execute(f"DELETE FROM {self._table} AS t WHERE {_is_in(rows.schema.names)}")


@contextmanager
def _view(connection: Any, rows: pa.Table) -> Iterator[None]:
    """Registers an Arrow table as a view for queries. DuckDB accepts none without columns."""
    if not rows.num_columns:
        yield
        return
    connection.register(_VIEW[1:-1], rows)
    try:
        yield
    except BaseException:
        # After an error in a transaction, DuckDB refuses this as well, which must not hide the error.
        with suppress(Exception):
            connection.unregister(_VIEW[1:-1])
        raise
    connection.unregister(_VIEW[1:-1])


def _is_in(columns: Sequence[str]) -> str:
    """The condition that a row of `t` is in the view, by these columns; true without columns."""
    same = [f"t.{quoted(each)} IS NOT DISTINCT FROM w.{quoted(each)}" for each in columns]
    return f"EXISTS (SELECT 1 FROM {_VIEW} AS w WHERE {' AND '.join(same)})" if same else "true"
