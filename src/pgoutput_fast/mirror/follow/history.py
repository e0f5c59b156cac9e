"""History tables: every committed change of a table of the server, appended to a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Literal

import pyarrow as pa

from pgoutput_fast.mirror.view.changes import Changes, read_changes
from pgoutput_fast.schema.evolution import widest
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.data_files import row_groups, rows_in
from pgoutput_fast.tables.errors import MirrorBusyError
from pgoutput_fast.tables.files import TableFiles, WrittenFile, file_prefix, remove_files
from pgoutput_fast.tables.formats import open_history
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import Commit, CommitLsn, ConflictError, DataFile, Joining

__all__ = ["AppendTable", "HistoryFiles"]

# After this many commits, or with as many files when the table is opened, small files may be worth joining.
_MOST_COMMITS = 100
_LAST_LSN = (1 << 63) - 1


class AppendTable:
    """A Delta table that only grows. Its position is the LSN up to which it has all commits.

    Args:
        store: the target.
        directory: of the table, in the target.
        options: how to reach it.
        check: called before each commit.

    Attributes:
        problem: why the table could not be read when it was opened; None if it could.
    """

    def __init__(
        self,
        store: Store,
        directory: str,
        options: TableOptions,
        check: Callable[[], object] | None = None,
    ) -> None:
        self.directory = directory
        self._store, self._check = store, check
        self._open = partial(open_history, store, directory, options)
        self._table = self._open()
        self._position: int | None = None
        self.problem: str | None = None
        try:
            self._position = self._lsn()
        except ValueError as problem:
            self.problem = str(problem)
        self._joining: Joining | None = None
        self._commits: int | None = None

    def _lsn(self) -> int | None:
        """The position of the table as this process knows it."""
        known = self._table.known
        return None if known is None or known.position is None else known.lsn

    @property
    def _schema(self) -> pa.Schema:
        known = self._table.known
        return pa.schema([]) if known is None else known.schema

    def position(self) -> int | None:
        """The table's position; None if there is no table."""
        return self._position

    def count(self) -> int:
        """How many rows the table has."""
        known = self._table.known
        files = () if known is None else known.files
        return sum(rows_in(self._store, self.directory, file) for file in files)

    def expect_own(self, *, known: bool) -> None:
        """Checks that the mirror would not write into a table that it did not make.

        Args:
            known: whether this mirror has made a table here.

        Raises:
            ValueError: if it would.
        """
        self._table = self._open()  # the table may have been removed
        self._position, self.problem = self._lsn(), None
        if self._table.known is None:
            return
        what = f"the table in {self._store}/{self.directory}"
        if self._position is None:
            raise ValueError(f"{what} is not a table of a mirror: use another target, or remove it")
        if not known:
            raise ValueError(
                f"{what} is the history of a mirror whose state is gone: restore _mirror, use another target, or move "
                "the history away"
            )

    def expect_writer(self) -> None:
        """Checks that this process may still write into the target."""
        if self._check is not None:
            self._check()

    def fitted(self, schema: pa.Schema) -> pa.Schema:
        """The types that rows need to be added. Some may be wider than those of the table: see `widened`.

        Raises:
            ValueError: if a column has a type that does not fit.
        """
        return self._table.fitted(schema)

    def widened(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table after rows of a schema are added, in types that hold the values of both."""
        return widest([self._schema, schema], self.directory, more_fields=True)

    def is_narrower(self, schema: pa.Schema) -> bool:
        """Whether a column must become wider before rows of a schema can be added."""
        wide = self.widened(schema)
        return any(not field.type.equals(wide.field(field.name).type) for field in self._schema)

    def files(self) -> list[DataFile]:
        """All files of the table."""
        known = self._table.known
        return [] if known is None else sorted(known.files, key=lambda file: file.name)

    def commit(
        self, files: list[WrittenFile], position: int, schema: pa.Schema, *, replace: bool = False
    ) -> None:
        """Adds files in one step, and sets the position.

        Args:
            files: the files.
            position: the new position.
            schema: the columns of all rows.
            replace: whether the files replace all existing ones.

        Raises:
            ValueError: if the schema does not fit.
            MirrorBusyError: if another process has changed the table.
        """
        self.expect_writer()
        self._expect_alone()
        try:
            schema = schema if replace else self._table.fitted(schema)
            removed: Literal["all"] | tuple[str, ...] = "all" if replace else ()
            before = len(self.files()) if self._commits is None else self._commits
            self._table.commit(Commit(self._table.known, schema, CommitLsn(position), files, removed))
        except ConflictError:
            self._expect_alone()
            raise
        except ValueError:
            for each in files:
                self._store.remove(f"{each.directory}/{each.name}")
            raise
        self._position = position
        self._commits = before + 1
        if self._joining is None and self._commits >= _MOST_COMMITS:
            self._joining, self._commits = self._table.begin_joining(), 0
        elif self._joining is not None and self._joining.work.is_done:
            self.end_joining()

    def end_joining(self, within: float | None = None) -> None:
        """Waits until small files are joined, if another thread does that, and commits the result.

        Args:
            within: gives the work up if it takes so many more seconds. None: never.
        """
        joining, self._joining = self._joining, None
        if joining is not None:
            if self._check is not None:
                self._check()
            self._table.end_joining(joining, within)

    def give_up_joining(self) -> None:
        """Ends the joining of small files, if another thread does that, and removes its files."""
        joining, self._joining = self._joining, None
        for each in () if joining is None else joining.work.give_up() or ():
            self._store.remove(f"{each.directory}/{each.name}")

    def fix_statistics(self) -> None:
        """Makes all rows visible to every reader, as `CurrentRows.fix_statistics`."""
        self.expect_writer()
        self._table.fix_statistics()

    def after(self, position: int) -> pa.Table:
        """The changes that committed after a position, in the order of application."""
        changes = self.between(position, _LAST_LSN)
        return changes.read(changes.schema.names)

    def between(self, after: int, through: int) -> Changes:
        """The changes that committed after an LSN and up to another one.

        Raises:
            FileNotFoundError: if the table does not exist.
        """
        return read_changes(self._table, after, through)

    def _expect_alone(self) -> None:
        """Checks that the table is where this mirror left it. If it moves after this check, Delta refuses the commit.

        Raises:
            MirrorBusyError: if another process has changed it.
        """
        if self._lsn() != self._position:
            raise MirrorBusyError(
                f"{self._store}/{self.directory} has another position than this mirror gave it: another process "
                "mirrors into it. Stop one of them, and run the other one again"
            )

    def remove_orphans(self, runs: Sequence[str]) -> None:
        """Removes the files that earlier runs wrote and did not commit."""
        if self.problem is not None:
            return  # nobody knows which files the table has
        prefixes = tuple(file_prefix(run, False) for run in runs)
        found = [name for name in self._store.names(self.directory) if _base(name).startswith(prefixes)]
        if found:
            # A commit that came late may have added files after this table was opened.
            version = self._table.version()
            committed = set() if version is None else version.names
            for name in found:
                if _base(name) not in committed:
                    self._store.remove(name)


def _base(name: str) -> str:
    return name.rpartition("/")[2]


class HistoryFiles:
    """Files of rows for several tables, which are committed later. A context manager: after an error they are removed.

    Args:
        store: the target.
        run: names the process that will commit the files.
        replace: whether the files will replace all rows of the tables. Then rows need not fit into these.
    """

    def __init__(self, store: Store, run: str, *, replace: bool = False) -> None:
        self._store = store
        self._replace = replace
        self._run = run
        self._open: dict[str, TableFiles] = {}
        self._types: dict[str, pa.Schema] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._written: dict[str, list[WrittenFile]] = {}
        # Directories of tables whose files do not have the same types.
        self._mixed: set[str] = set()

    def __enter__(self) -> HistoryFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for files in self._open.values():
            files.__exit__(kind, error, trace)
        self._open.clear()
        if kind is not None:
            for written in self._written.values():
                remove_files(self._store, written)

    def add(self, table: AppendTable, rows: pa.Table) -> None:
        """Adds rows of a table.

        Raises:
            ValueError: if they do not fit into the table. Earlier rows stay.
        """
        if not rows.num_rows:
            return
        schema = stored_schema(rows.schema if self._replace else table.fitted(rows.schema), "table")
        directory = table.directory
        before = self._schemas.get(directory, schema)
        whole = widest([before, schema], directory, more_fields=True)
        if any(
            not part.field(name).type.equals(whole.field(name).type)
            for part in (before, schema)
            for name in part.names
        ):
            self._mixed.add(directory)
        if directory in self._open and not self._types[directory].equals(schema):
            self._close(directory)
        if directory not in self._open:
            self._open[directory] = TableFiles(self._store, self._run, False)
        self._types[directory], self._schemas[directory] = schema, whole
        for batch in to_types(rows, schema).combine_chunks().to_batches():
            self._open[directory].add(directory, batch)

    def of(self, table: AppendTable) -> tuple[list[WrittenFile], pa.Schema | None]:
        """(the files of a table, the columns of all their rows). After an error, these files are no longer removed."""
        self._close(table.directory)
        return self._written.pop(table.directory, []), self._schemas.pop(table.directory, None)

    def must_widen(self, table: AppendTable, schema: pa.Schema) -> bool:
        """Whether files of a table, or those added to it, have narrower types than all rows together."""
        return table.directory in self._mixed or table.is_narrower(schema)

    def widened(
        self, table: AppendTable, written: list[WrittenFile], schema: pa.Schema
    ) -> tuple[list[WrittenFile], pa.Schema]:
        """Rewrites all rows of a table and those added to it, in types that hold the values of both.

        Args:
            table: the table.
            written: the files that were added. They are removed.
            schema: the columns of their rows.

        Returns:
            Files that replace all of the table, and their columns.
        """
        whole = table.widened(schema)
        with TableFiles(self._store, self._run, False) as files:
            for file in [*table.files(), *map(DataFile.of, written)]:
                for _, rows in row_groups(self._store, table.directory, file, whole, whole.names):
                    for batch in rows.combine_chunks().to_batches():
                        files.add(table.directory, batch)
        for each in written:
            self._store.remove(f"{each.directory}/{each.name}")
        return files.written, whole

    def _close(self, directory: str) -> None:
        files = self._open.pop(directory, None)
        if files is not None:
            files.__exit__(None, None, None)
            self._written.setdefault(directory, []).extend(files.written)
