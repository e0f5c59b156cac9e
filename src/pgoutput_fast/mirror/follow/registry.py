"""The tables of a mirror."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror.follow.alterations import ask_for_alterations
from pgoutput_fast.mirror.follow.history import AppendTable
from pgoutput_fast.mirror.follow.rejects import count_rejects
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.state.layout import HISTORY, REJECTS
from pgoutput_fast.mirror.state.mirror_state import MirrorState, TableRecord
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.directories import directory_of
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.options import TableOptions

__all__ = ["Tables"]

_log = logging.getLogger("pgoutput_fast.mirror")

# The rejects of changes of unknown tables.
_UNKNOWN = "_unknown"


@contextmanager
def _going_on(table: MirroredTable) -> Iterator[None]:
    """Lets a mirror go on if somebody has changed a history or rejects. Their next commit stops them."""
    try:
        yield
    except ValueError as problem:
        _log.warning("%s: its history or its rejects cannot be read: %s", table.record.table, problem)


class Tables:
    """The tables of a target, opened when they are first needed.

    Args:
        store: the target.
        format: of the current tables.
        options: how to reach the tables.
        state: of the mirror.
        server: gives the columns of a table, and how it was altered.
        check: called before each commit to a table.
    """

    def __init__(
        self,
        store: Store,
        format: str,
        options: TableOptions,
        state: MirrorState,
        server: ServerView,
        check: Callable[[], object] | None = None,
    ) -> None:
        self._check = check
        self._store, self._format, self._options = store, format, options
        self._state, self._server = state, server
        self._tables: dict[str, MirroredTable] = {}
        self._rejects: dict[str, AppendTable] = {}
        for directory, record in state.tables().items():
            self._tables[record.table] = self._open(directory, record)

    def __iter__(self) -> Iterator[MirroredTable]:
        return iter(sorted(self._tables.values(), key=lambda each: each.record.table))

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def named(self, table: str) -> MirroredTable:
        """The table with a qualified name, quoted as in SQL. A new table must be loaded."""
        if table not in self._tables:
            directory, why = directory_of(table, self._options.naming), None
            try:
                self._appended(f"{HISTORY}/{directory}").expect_own(known=False)
            except ValueError as problem:
                why = str(problem)
            record = TableRecord(table, error="it is new", history_error=why, owns_history=why is None)
            self._state.set_table(directory, record)
            found = self._tables[table] = self._open(directory, record)
            found.save_problems()
            if why is not None:
                found.stop_all(why)
        return self._tables[table]

    def save_problems(self) -> None:
        """Records the problems seen when the current tables were opened."""
        for each in self:
            each.save_problems()

    def rejects(self, table: str | None) -> AppendTable:
        """The rejects of a table; None for those of unknown tables."""
        directory = _UNKNOWN if table is None else directory_of(table, self._options.naming)
        if directory not in self._rejects:
            self._rejects[directory] = self._appended(f"{REJECTS}/{directory}")
        return self._rejects[directory]

    def fix_statistics(self) -> None:
        """Makes all rows visible to every reader, also in files of an earlier version of this package."""
        for each in self:
            each.fix_statistics()
            with _going_on(each):
                self.rejects(each.record.table).fix_statistics()

    def remove_orphans(self, runs: Sequence[str]) -> None:
        """Removes the files of histories and rejects that earlier runs wrote and did not commit."""
        for each in self:
            for table in (each.history, each.rejects):
                with _going_on(each):
                    table.remove_orphans(runs)
            with _going_on(each):
                count_rejects(each)

    def _open(self, directory: str, record: TableRecord) -> MirroredTable:
        current = open_current_table(self._format, self._store, record.table, self._options)
        if isinstance(current.table, CurrentFileTable):
            current.table.check = self._check
        history = self._appended(f"{HISTORY}/{directory}")
        server = self._server
        return MirroredTable(
            directory,
            record,
            current,
            history,
            lambda: self.rejects(record.table),
            self._state,
            server.columns,
            lambda table: ask_for_alterations(table, server),
        )

    def _appended(self, directory: str) -> AppendTable:
        return AppendTable(self._store, directory, self._options, self._check)
