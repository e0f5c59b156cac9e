"""The tables of a mirror."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror.follow.alterations import ask_for_alterations
from pgoutput_fast.mirror.follow.history import AppendTable
from pgoutput_fast.mirror.follow.rejects import count_rejects
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.state.layout import HISTORY, REJECTS
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.table_record import NEW, TableRecord
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.directories import directory_of
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.options import TableOptions

__all__ = ["Tables"]

_log = logging.getLogger("pgoutput_fast.mirror")

# At the end, other threads have so many seconds to complete what they do.
_END_SECONDS = 5.0
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
        trusts_widening: whether a column that became wider has the same values.
        renames_columns: whether a column that was renamed gets its new name in place.
    """

    def __init__(
        self,
        store: Store,
        format: str,
        options: TableOptions,
        state: MirrorState,
        server: ServerView,
        check: Callable[[], object] | None = None,
        *,
        trusts_widening: bool = False,
        renames_columns: bool = False,
    ) -> None:
        self._check = check
        self._trusts_widening, self._renames_columns = trusts_widening, renames_columns
        self._store, self._format, self._options = store, format, options
        self._state, self._server = state, server
        self._tables: dict[str, MirroredTable] = {}
        # Another name of a table that was renamed -> (its oid, the table).
        self._other_names: dict[object, tuple[int, MirroredTable]] = {}
        self._rejects: dict[str, AppendTable] = {}
        for directory, record in state.tables().items():
            table = self._tables[record.table] = self._open(directory, record)
            if record.renamed is not None:
                self._other_names[record.renamed] = record.oid, table

    def __iter__(self) -> Iterator[MirroredTable]:
        return iter(sorted(self._tables.values(), key=lambda each: each.record.table))

    def __contains__(self, table: object) -> bool:
        return table in self._tables or self._renamed(table) is not None

    def of(self, oid: int, name: str) -> MirroredTable:
        """The table of a relation that changes came from. One that was renamed goes on under its first name.

        But if another table has got that name, or had the new one before, each table takes the changes that come under
        its name. The oids then show that it must be loaded.
        """
        found = self._tables.get(name)
        if found is not None:
            if found.record.renamed is not None and found.record.oid != oid:
                found.remember(renamed=None)
            return found
        for table in self._tables.values():
            if table.follows and table.record.oid == oid:
                self._other_names[name] = oid, table
                return table
        return self.named(name)

    def note_names(self, oids: Mapping[str, int]) -> None:
        """Notes which tables were renamed.

        Args:
            oids: {qualified name: oid} of the tables that are published now.
        """
        names = {oid: name for name, oid in oids.items()}
        for table in self._tables.values():
            record = table.record
            name = names.get(record.oid)
            if name is None or record.stage == "stopped":
                continue
            is_free = record.table not in oids and name not in self._tables
            renamed = name if is_free else None
            if renamed == record.renamed:
                continue
            if renamed is not None:
                self._other_names[renamed] = record.oid, table
                _log.warning(
                    "%s is %s on the server now: it goes on under its first name", record.table, renamed
                )
            table.remember(renamed=renamed)

    def _renamed(self, name: object) -> MirroredTable | None:
        """The table that was renamed to a name; None for none."""
        oid, table = self._other_names.get(name, (0, None))
        if table is None:
            return None
        is_valid = table.record.renamed == name or (table.follows and table.record.oid == oid)
        return table if is_valid else None

    def named(self, table: str) -> MirroredTable:
        """The table with a qualified name, quoted as in SQL. A new table must be loaded."""
        if table not in self._tables:
            if (renamed := self._renamed(table)) is not None:
                return renamed
            directory, why = directory_of(table, self._options.naming), None
            try:
                self._appended(f"{HISTORY}/{directory}").expect_own(known=False)
            except ValueError as problem:
                why = str(problem)
            record = TableRecord(table, error=NEW, history_error=why, owns_history=why is None)
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

    def end_joining(self) -> None:
        """Waits some seconds until another thread has joined or rewritten files, and gives up what takes longer."""
        end = time.monotonic() + _END_SECONDS
        for appended in self._appended_tables:
            appended.end_joining(max(0.0, end - time.monotonic()))
        for each in self:
            each.commit_rewritten(max(0.0, end - time.monotonic()))

    def give_up_joining(self) -> None:
        """Ends the work of another thread, and removes its files."""
        given_up = [each.give_up_joining for each in self._appended_tables]
        for give_up in (*given_up, *(each.current.give_up_rewriting for each in self)):
            with suppress(Exception):  # the store may be away, and the next run removes them
                give_up()

    @property
    def _appended_tables(self) -> list[AppendTable]:
        return [*(each.history for each in self), *self._rejects.values()]

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
            trusts_widening=self._trusts_widening,
            renames_columns=self._renames_columns,
        )

    def _appended(self, directory: str) -> AppendTable:
        return AppendTable(self._store, directory, self._options, self._check)
