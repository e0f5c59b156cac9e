"""Current tables in a database of DuckDB. Needs `pip install duckdb`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.match import Finder, check_all_gone, chosen, is_plain
from pgoutput_fast.protocol.limits import PIECE_BYTES
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.fsync import make_directory
from pgoutput_fast.storage.rows_file import RowsFile
from pgoutput_fast.tables.columns import check_names, fitted, in_schema, merged
from pgoutput_fast.tables.table import CurrentTable, HeldVersion, expect_position

__all__ = ["DuckDBCurrent"]

# One row per table of a mirror: its schema, its name, its position and its version.
_NAME = "_pgoutput_fast_positions"
_VIEW = '"_pgoutput_fast_rows"'
# How long to wait for another process that has the database open.
_SECONDS = 30.0
# The rows of a batch of a scan, roughly.
_PIECE_ROWS = 1 << 16


@dataclass(frozen=True)
class _State:
    """The state of the table in the database."""

    position: int
    version: int
    schema: pa.Schema


class DuckDBCurrent(CurrentTable):
    """A current table in a DuckDB file.

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
    def _schema(self) -> str:
        return f"{_quoted(self._catalog)}.{_quoted(self._names[0])}"

    @property
    def _table(self) -> str:
        return f"{self._schema}.{_quoted(self._names[1])}"

    @property
    def _positions(self) -> str:
        return f'{_quoted(self._catalog)}."main".{_quoted(_NAME)}'

    def __str__(self) -> str:
        return f"the table {'.'.join(map(_quoted, self._names))} in {self._path}"

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """A connection to the database.

        Raises:
            OSError: if the file cannot be read or written. The table is as before.
            RuntimeError: if another process has the database open.
        """
        make_directory(self._path.parent)
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                connection = self._duckdb.connect(os.fspath(self._path))
                break
            except (self._duckdb.IOException, self._duckdb.ResourceInUseException) as problem:
                # Another process has the file open, or another thread of this one is closing it.
                if "lock" not in str(problem) and "already attached" not in str(problem):
                    raise OSError(f"{self._path} cannot be opened as a database of DuckDB") from problem
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"another process has {self._path} open: close it there, and run this again"
                    ) from problem
                time.sleep(0.05)
        try:
            connection.execute("SET TimeZone = 'UTC'")
            self._catalog = str(connection.execute("SELECT current_database()").fetchall()[0][0])
            yield connection
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
        finally:
            connection.close()

    @contextmanager
    def _transaction(self, connection: Any, before: _State | None, position: int) -> Iterator[None]:
        """A transaction that sets the position."""
        connection.begin()
        try:
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
            connection.commit()
        except BaseException:
            with suppress(self._duckdb.Error):
                connection.rollback()
            raise

    def _state(self) -> _State | None:
        if not self._path.exists():
            return None
        with self._opened() as connection:
            return self._state_in(connection)

    def _state_in(self, connection: Any) -> _State | None:
        """The state of the table; None if there is no table.

        Raises:
            ValueError: if a mirror did not make the table.
        """
        kind, found = self._kind(connection, *self._names), []
        if kind is None:
            return None
        if self._kind(connection, "main", _NAME) is not None:
            query = (
                f'SELECT "schema", "name", "position", "version" FROM {self._positions} '
                'WHERE lower("schema") = lower(?) AND lower("name") = lower(?)'
            )
            found = connection.execute(query, [*self._names]).fetchall()
        own = [(position, version) for *names, position, version in found if names == [*self._names]]
        if found and not own:
            other, mine = (".".join(map(_quoted, names)) for names in (found[0][:2], self._names))
            raise ValueError(
                f"{self._path} has the table {other} already, and for DuckDB {mine} is the same name, because "
                "small and capital letters are the same there. Rename one of the two tables or schemas on the server, "
                "or publish only one of them, or use another format"
            )
        if not own or kind != "BASE TABLE":
            raise ValueError(f"{self} is not a table of a mirror: use another name, or remove it")
        empty = connection.sql(f"SELECT * FROM {self._table} LIMIT 0").to_arrow_table()
        position, version = map(int, own[0])
        return _State(position, version, stored_schema(empty.schema, "current"))

    def _kind(self, connection: Any, schema: str, name: str) -> str | None:
        """The type of the relation of this name, BASE TABLE or VIEW; None if there is none."""
        query = (
            "SELECT table_type FROM information_schema.tables WHERE table_catalog = current_database() "
            "AND lower(table_schema) = lower(?) AND lower(table_name) = lower(?)"
        )
        found = connection.execute(query, [schema, name]).fetchone()
        return None if found is None else str(found[0])

    def position(self) -> int | None:
        now = self._state()
        return None if now is None else now.position

    def version(self) -> int | None:
        now = self._state()
        return None if now is None else now.version

    def schema(self) -> pa.Schema | None:
        now = self._state()
        return None if now is None else now.schema

    def held(self, version: int | None = None) -> HeldVersion:
        # The next effect changes the rows, and no other process can open the file meanwhile. So a reader gets a copy.
        copy = RowsFile()
        with self._opened() as connection:
            connection.begin()
            now = self._expected(connection, version)
            place = copy.write(now.schema, self._batches(connection, now.schema))

        def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
            return (pa.Table.from_batches([batch]) for batch in copy.read(place, columns))

        return HeldVersion(now.position, now.schema, pieces, None)

    def _expected(self, connection: Any, version: int | None) -> _State:
        """The state of the table, which must have this version.

        Raises:
            FileNotFoundError: if there is no table.
            ValueError: if it has another version.
        """
        now = self._state_in(connection)
        if now is None:
            raise FileNotFoundError(f"{self} does not exist")
        if version not in (None, now.version):
            raise ValueError(f"{self} has no version but the one of now, which is {now.version}")
        return now

    def _batches(self, connection: Any, types: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows, in these columns."""
        listed = ", ".join(map(_quoted, types.names))
        for batch in connection.sql(f"SELECT {listed} FROM {self._table}").to_arrow_reader(_PIECE_ROWS):
            yield from in_schema(pa.Table.from_batches([batch]), types).combine_chunks().to_batches()

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        with self._opened() as connection:
            connection.begin()
            now = self._expected(connection, None)
            types = pa.schema([now.schema.field(name) for name in columns])
            for batch in self._batches(connection, types):
                yield pa.Table.from_batches([batch])

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        with self._opened() as connection:
            now = self._state_in(connection)
            return self._found(connection, None if now is None else now.schema, keys, columns)

    def _found(
        self, connection: Any, there: pa.Schema | None, keys: pa.Table, columns: Sequence[str]
    ) -> pa.Table:
        named = [*keys.schema.names, *columns]
        if there is None:
            return pa.table({name: pa.nulls(0) for name in named})
        wanted = in_schema(keys, fitted(there, keys.schema, str(self), _can_widen))
        known = [name for name in named if name in there.names]
        types = pa.schema([there.field(name) for name in known])
        rows = in_schema(self._matching(connection, wanted, known), types)
        for name in named:
            if name not in known:
                rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows.select(named)

    def _matching(self, connection: Any, wanted: pa.Table, columns: Sequence[str]) -> pa.Table:
        with _view(connection, wanted):
            listed = ", ".join(map(_quoted, columns))
            query = f"SELECT {listed} FROM {self._table} AS t WHERE {_is_in(wanted.schema.names)}"
            return connection.sql(query).to_arrow_table()

    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        stored = stored_schema(schema, "current")
        check_names(stored.names, str(self), folded=True)
        with self._opened() as connection:
            before = self._state_in(connection)
            with self._transaction(connection, before, position):
                self._make(connection, stored)
                for piece in _pieces(rows):
                    self._insert(connection, in_schema(piece, stored))

    def _make(self, connection: Any, schema: pa.Schema) -> None:
        """Creates the table without rows, or replaces an existing one."""
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        with _view(connection, schema.empty_table()):
            connection.execute(f"CREATE OR REPLACE TABLE {self._table} AS SELECT * FROM {_VIEW}")

    def _insert(self, connection: Any, rows: pa.Table) -> None:
        if rows.num_rows:
            with _view(connection, rows):
                connection.execute(f"INSERT INTO {self._table} BY NAME SELECT * FROM {_VIEW}")

    def apply_parts(self, parts: Iterable[Effect], position: int, after: int | None = None) -> None:
        with self._opened() as connection:
            before = self._state_in(connection)
            if before is not None and before.position >= position:
                return
            expect_position(self, None if before is None else before.position, after)
            there = None if before is None else before.schema
            with self._transaction(connection, before, position):
                for effect in parts:
                    there = self._apply_in(connection, effect, there)

    def _apply_in(self, connection: Any, effect: Effect, there: pa.Schema | None) -> pa.Schema:
        """Applies an effect in a transaction. Returns the new columns of the table."""
        effect = effect.filled_by(lambda *wanted: self._found(connection, there, *wanted))
        types = fitted(there, effect.rows.schema, str(self), _can_widen)
        schema = types if there is None else merged(there, types)
        check_names(schema.names, str(self), folded=True)
        if there is None:
            self._make(connection, schema)
        else:
            self._alter(connection, there, schema)
        self._change(connection, effect, schema)
        return schema

    def _alter(self, connection: Any, there: pa.Schema, schema: pa.Schema) -> None:
        """Adds columns, and widens columns."""
        changed = [
            field for field in schema if field.name not in there.names or field != there.field(field.name)
        ]
        if not changed:
            return
        with _view(connection, pa.schema(changed).empty_table()):
            kinds = [row[1] for row in connection.execute(f"DESCRIBE {_VIEW}").fetchall()]
        for field, kind in zip(changed, kinds, strict=True):
            what = f"ADD COLUMN {_quoted(field.name)}"
            if field.name in there.names:
                what = f"ALTER COLUMN {_quoted(field.name)} SET DATA TYPE"
            connection.execute(f"ALTER TABLE {self._table} {what} {kind}")

    def _change(self, connection: Any, effect: Effect, schema: pa.Schema) -> None:
        rows = in_schema(effect.rows, schema)
        if effect.truncated:
            connection.execute(f"DELETE FROM {self._table}")
        elif effect.key:
            types = pa.schema([schema.field(name) for name in effect.key])
            self._delete(
                connection, pa.concat_tables([in_schema(effect.gone, types), rows.select(effect.key)])
            )
        elif effect.gone.num_rows:
            gone = in_schema(effect.gone, pa.schema([schema.field(name) for name in effect.identity]))
            self._delete_copies(connection, gone, schema)
        self._insert(connection, rows)

    def _delete(self, connection: Any, wanted: pa.Table) -> None:
        """Deletes the rows that match another table by its columns."""
        if wanted.num_rows or not wanted.num_columns:
            with _view(connection, wanted):
                connection.execute(f"DELETE FROM {self._table} AS t WHERE {_is_in(wanted.schema.names)}")

    def _delete_copies(self, connection: Any, gone: pa.Table, schema: pa.Schema) -> None:
        """Deletes one copy of every row of `gone`, without a key.

        DuckDB finds rows by the columns that it compares as this package does; those of them that must stay are
        inserted again.

        Raises:
            ValueError: if one does not exist.
        """
        # Without such columns, all rows match.
        plain = gone.select([field.name for field in gone.schema if is_plain(field.type)])
        found = in_schema(self._matching(connection, plain, schema.names), schema)
        self._delete(connection, plain)
        finder = Finder(gone, keys=False)
        left = finder.counts()
        goes = chosen(finder.find(found.select(gone.schema.names)), left)
        check_all_gone(left, str(self))
        self._insert(connection, found.take(pa.array(np.setdiff1d(np.arange(found.num_rows), goes))))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _can_widen(there: pa.DataType, wide: pa.DataType) -> bool:
    return True


def _pieces(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Merges batches into larger tables."""
    waiting: list[pa.RecordBatch] = []
    for batch in rows:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= PIECE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


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
    same = [f"t.{_quoted(each)} IS NOT DISTINCT FROM w.{_quoted(each)}" for each in columns]
    return f"EXISTS (SELECT 1 FROM {_VIEW} AS w WHERE {' AND '.join(same)})" if same else "true"
