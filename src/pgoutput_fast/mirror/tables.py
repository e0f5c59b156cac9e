"""One table of a mirror: what waits for its current table, and how it is applied."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.mirror.changes import Run, behind, commits_of, key_of
from pgoutput_fast.mirror.current.file_table import FileTable
from pgoutput_fast.mirror.current.table import CurrentTable
from pgoutput_fast.mirror.effect.net_effect import net_effect
from pgoutput_fast.mirror.history import AppendTable, HistoryFiles
from pgoutput_fast.mirror.memory import KnownColumn, Memory, TableFacts
from pgoutput_fast.mirror.server import ServerColumn
from pgoutput_fast.schema.metadata_columns import metadata_names

__all__ = ["MirroredTable", "relation_columns"]

_log = logging.getLogger("pgoutput_fast.mirror")

_METADATA = metadata_names("_")


@dataclass
class _Stretch:
    """Changes that wait, under one key."""

    key: tuple[str, ...]
    rows: list[pa.Table] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The LSN of the last commit."""
        return int(commits_of(self.rows[-1])[-1])


def relation_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a relation without the metadata columns."""
    return pa.schema([field for field in schema if field.name not in _METADATA])


class MirroredTable:
    """A table that is mirrored.

    Args:
        directory: the name of its directories.
        facts: what the mirror remembers of it.
        current: its current table.
        history: its history table.
        memory: keeps the facts.
        columns_now: {name: column} of the relation with an oid, as the server has it now.

    Attributes:
        position: everything that committed up to this LSN is in the current table; None before the first load.
        version: the version of the current table.
        applied: how many changes were applied by this process.
    """

    def __init__(
        self,
        directory: str,
        facts: TableFacts,
        current: CurrentTable,
        history: AppendTable,
        memory: Memory,
        columns_now: Callable[[int], dict[str, ServerColumn]],
    ) -> None:
        self.directory = directory
        self.facts = facts
        self.current = current
        self.history = history
        self._memory = memory
        self._columns_now = columns_now
        self._waiting: list[_Stretch] = []
        self._known_versions: set[int] = set()
        self.applied = 0
        self.position: int | None = None
        self.version: int | None = None
        self.look()
        if self.follows and self.position is None:
            self.want_load("its current table is gone")

    def look(self) -> None:
        """Reads position and version of the current table."""
        self.position, self.version = self.current.position(), self.current.version()

    @property
    def follows(self) -> bool:
        """Whether changes are applied."""
        return self.facts.stage == "follow"

    @property
    def wants_load(self) -> bool:
        """Whether it must be loaded before it goes on."""
        return self.facts.stage == "load"

    @property
    def waiting_rows(self) -> int:
        """How many changes wait."""
        return sum(rows.num_rows for each in self._waiting for rows in each.rows)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the changes have that wait."""
        return sum(rows.nbytes for each in self._waiting for rows in each.rows)

    def remember(self, **changed: object) -> None:
        """Changes the facts, durably."""
        self.facts = replace(self.facts, **changed)  # type: ignore[arg-type]
        self._memory.set_table(self.directory, self.facts)

    def want_load(self, why: str) -> None:
        """Stops the current table, until the mirror has loaded it again, which it does soon."""
        _log.warning("%s must be loaded: %s", self.facts.table, why)
        self._waiting = []
        self.remember(stage="load", error=why)

    def stop(self, why: str) -> None:
        """Stops the current table, until it is loaded again."""
        _log.error(
            "%s is stopped: %s. Its current table stays as it is. Mirror.reload loads it again",
            self.facts.table,
            why,
        )
        self._waiting = []
        self.remember(stage="stopped", error=why)

    def stop_all(self, why: str) -> None:
        """Stops the current table and the history."""
        if self.facts.history_error is None:
            self.remember(history_error=why)
        if self.facts.stage != "stopped":
            self.stop(why)

    def loaded(self, oid: int, columns: dict[str, KnownColumn]) -> None:
        """Notes that a load is complete: from its position on, the table follows the changes."""
        self._waiting, self._known_versions = [], set()
        self.remember(oid=oid, columns=columns, stage="follow", error=None)

    def clean(self, oldest: int | None) -> None:
        """Removes what only versions before `oldest` have, and what commits left that never ended."""
        if isinstance(self.current, FileTable) and self.version is not None:
            self.current.vacuum(1 if oldest is None else max(1, self.version - oldest + 1))

    # ---- changes -------------------------------------------------------------------------------------------------

    def take(self, run: Run, files: HistoryFiles) -> None:
        """Takes changes: into files of the history, and to those that wait for the current table."""
        self._take_history(run, files)
        if not self.follows:
            return
        assert self.position is not None
        rows = behind(run.rows, self.position)
        if not rows.num_rows:
            return
        if run.relation.version not in self._known_versions:
            why = self._difference(run.relation, rows.schema)
            if why is not None:
                self.want_load(why)
                return
            self._known_versions.add(run.relation.version)
        key = key_of(run.relation)
        if not self._waiting or self._waiting[-1].key != key:
            self._waiting.append(_Stretch(key))
        self._waiting[-1].rows.append(rows)

    def _take_history(self, run: Run, files: HistoryFiles) -> None:
        position = self.history.position()
        self.add_history(run.rows if position is None else behind(run.rows, position), files)

    def add_history(self, rows: pa.Table, files: HistoryFiles) -> None:
        """Adds rows to the files of the history, unless it stands still. It stands still if it cannot take them."""
        if self.facts.history_error is not None:
            return
        try:
            files.add(self.history, rows)
        except ValueError as problem:
            self._stop_history(problem)

    def commit_history(
        self, files: HistoryFiles, position: int, empty: pa.Schema | None = None, *, replace: bool = False
    ) -> None:
        """Commits the files of the history, unless it stands still.

        Args:
            files: has the files.
            position: the position of the history then.
            empty: the columns of a history without rows. None: without rows there is no commit.
            replace: whether the files take the place of all that the history has.
        """
        written, schema = files.of(self.history)
        schema = empty if schema is None else schema
        if schema is None or self.facts.history_error is not None:
            return
        try:
            self.history.commit(written, position, schema, replace=replace)
        except ValueError as problem:
            self._stop_history(problem)

    def _stop_history(self, problem: ValueError) -> None:
        _log.error("the history of %s does not go on: %s", self.facts.table, problem)
        self.remember(history_error=str(problem))

    def _difference(self, relation: Relation, schema: pa.Schema) -> str | None:
        """Why the table cannot take changes of this version before it is loaded; None if it can."""
        if relation.oid != self.facts.oid:
            return "the server has another table of this name now"
        there = self.current.schema()
        assert there is not None
        known = dict(self.facts.columns)
        columns = relation_columns(schema)
        for each in columns:
            if each.name in known and known[each.name].type != str(each.type):
                return f"the type of its column {each.name!r} has changed"
        new = [each for each in columns if each.name not in known]
        now = self._columns_now(relation.oid) if new else {}
        for each in new:
            found = now.get(each.name)
            if found is None or each.name in there.names or not _is_added(found, known):
                return f"its column {each.name!r} was renamed, or added again"
            if found.filled:
                return f"its new column {each.name!r} has values in old rows, which the stream does not have"
        kept = {each.name: known[each.name] for each in columns if each.name in known}
        added = {each.name: KnownColumn(now[each.name].number, str(each.type)) for each in new}
        if kept | added != known:
            self.remember(columns=kept | added)
        return None

    # ---- current -------------------------------------------------------------------------------------------------

    def apply(self, position: int) -> None:
        """Applies what waits: the current table then has everything that committed up to a position."""
        waiting, self._waiting = self._waiting, []
        for n, each in enumerate(waiting):
            is_last = n + 1 == len(waiting)
            if not is_last and int(commits_of(waiting[n + 1].rows[0])[0]) <= each.last:
                return self.want_load(
                    "its replica identity was altered in a transaction that changed rows, too"
                )
            try:
                self._apply(each, position if is_last else each.last)
            except (ValueError, LookupError, pa.ArrowException) as problem:
                return self.stop(str(problem))

    def _apply(self, stretch: _Stretch, position: int) -> None:
        rows = pa.concat_tables(stretch.rows, promote_options="default")
        effect = net_effect(rows, stretch.key)
        keys, columns = effect.wanted()
        if columns:
            effect = effect.filled(self.current.find(keys, columns))
        self.current.apply(effect, position)
        self.applied += rows.num_rows
        self.look()


def _is_added(column: ServerColumn, known: dict[str, KnownColumn]) -> bool:
    """Whether a column is new, and not one of the known ones under another name."""
    numbers = [each.number for each in known.values()]
    return None not in numbers and column.number not in numbers
