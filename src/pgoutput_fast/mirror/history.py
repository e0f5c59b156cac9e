"""History tables: every change that committed, appended to a Delta table for each table of the server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

import pyarrow as pa

from pgoutput_fast.lake.delta import DeltaTarget
from pgoutput_fast.lake.files import TableFiles, WrittenFile, file_prefix
from pgoutput_fast.lake.target import plain_types
from pgoutput_fast.schema.evolution import widen
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.storage.stores import Store

__all__ = ["AppendTable", "HistoryFiles"]

# After so many commits, small files are joined.
_MOST_COMMITS = 100


class AppendTable:
    """A Delta table that only grows. Its position is the LSN up to which it has all commits.

    Args:
        store: the target.
        directory: of the table, in the target.
        storage_options: what delta-rs needs to reach the store, beside what the URI says.
    """

    def __init__(self, store: Store, directory: str, storage_options: Mapping[str, str]) -> None:
        self.directory = directory
        self._store = store
        self._target = DeltaTarget(str(store.at(directory)), storage_options)
        self._position = self._target.position()
        self._commits = 0

    def position(self) -> int | None:
        """The table's position; None if there is no table."""
        return self._position

    def fitted(self, schema: pa.Schema) -> pa.Schema:
        """The types that rows must have to be added.

        Raises:
            ValueError: if a column has a type that does not fit.
        """
        try:
            return self._target.fitted(schema)
        except ValueError as problem:
            what = str(problem).partition(": write to another target")[0]
            raise ValueError(f"{what}. Load the table again: then a new history begins") from None

    def commit(
        self, files: list[WrittenFile], position: int, schema: pa.Schema, *, replace: bool = False
    ) -> None:
        """Adds files in one step, and sets the position.

        Args:
            files: the files.
            position: the new position.
            schema: the columns of all rows.
            replace: whether the files take the place of all that was there.

        Raises:
            ValueError: if the schema does not fit.
        """
        try:
            self._target.commit(files, position, schema, "overwrite" if replace else "append")
        except Exception as problem:
            # delta-rs has no type of its own for columns that no table can have.
            if type(problem) is not Exception and not isinstance(problem, ValueError):
                raise
            for each in files:
                self._store.remove(f"{each.directory}/{each.name}")
            raise ValueError(f"{self.directory} cannot have these columns: {problem}") from problem
        self._position = position
        self._commits += 1
        if self._commits >= _MOST_COMMITS:
            self._target.compact()
            self._commits = 0

    def remove_orphans(self, run: str) -> None:
        """Removes the files that a killed run wrote and did not commit."""
        committed = set(self._target.committed())
        for name in self._store.names(self.directory):
            base = name.rpartition("/")[2]
            if base.startswith(file_prefix(run, False)) and base not in committed:
                self._store.remove(name)


class HistoryFiles:
    """Files of rows for several tables, which are committed later. A context manager: after an error they are removed.

    Args:
        store: the target.
        run: names the process that will commit the files.
        replace: whether the files will take the place of all that the tables have. Then rows need not fit into them.
    """

    def __init__(self, store: Store, run: str, *, replace: bool = False) -> None:
        self._store = store
        self._replace = replace
        self._run = run
        self._open: dict[str, TableFiles] = {}
        self._types: dict[str, pa.Schema] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._written: dict[str, list[WrittenFile]] = {}

    def __enter__(self) -> HistoryFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for files in self._open.values():
            files.__exit__(kind, error, trace)
        self._open.clear()
        if kind is not None:
            for each in [file for written in self._written.values() for file in written]:
                with suppress(Exception):
                    self._store.remove(f"{each.directory}/{each.name}")

    def add(self, table: AppendTable, rows: pa.Table) -> None:
        """Adds rows of a table.

        Raises:
            ValueError: if they do not fit into the table. Earlier rows stay.
        """
        if not rows.num_rows:
            return
        schema = plain_types(rows.schema if self._replace else table.fitted(rows.schema))
        directory = table.directory
        whole = _union(self._schemas.get(directory), schema, directory)
        if directory in self._open and not self._types[directory].equals(schema):
            self._close(directory)
        if directory not in self._open:
            self._open[directory] = TableFiles(self._store, self._run, False)
        self._types[directory], self._schemas[directory] = schema, whole
        for batch in to_types(rows, schema).combine_chunks().to_batches():
            self._open[directory].add(directory, batch)

    def of(self, table: AppendTable) -> tuple[list[WrittenFile], pa.Schema | None]:
        """(the files of a table, the columns of all their rows). The files are no longer removed after an error."""
        self._close(table.directory)
        return self._written.pop(table.directory, []), self._schemas.pop(table.directory, None)

    def _close(self, directory: str) -> None:
        files = self._open.pop(directory, None)
        if files is not None:
            files.__exit__(None, None, None)
            self._written.setdefault(directory, []).extend(files.written)


def _union(before: pa.Schema | None, schema: pa.Schema, place: str) -> pa.Schema:
    """The columns of both."""
    if before is None:
        return schema
    fields = {field.name: field for field in before}
    for field in schema:
        known = fields.get(field.name, field)
        wide = widen(known.type, field.type)
        if wide is None or not wide.equals(known.type) or not wide.equals(field.type):
            raise ValueError(
                f"{place}: its column {field.name!r} was {known.type} and became {field.type}: one table cannot have "
                "both"
            )
        fields[field.name] = known
    return pa.schema(list(fields.values()))
