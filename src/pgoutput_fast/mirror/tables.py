"""One table of a mirror: what waits for its current table, and how it is applied."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.mirror.changes import Run, behind, commits_of, key_of, unchecked_array
from pgoutput_fast.mirror.current.file_table import FileTable
from pgoutput_fast.mirror.current.table import CurrentTable
from pgoutput_fast.mirror.effect.effect import Effect
from pgoutput_fast.mirror.effect.net_effect import effect_of
from pgoutput_fast.mirror.errors import LOAD_AGAIN, RELOAD
from pgoutput_fast.mirror.fingerprint import CatalogColumn, Fingerprint
from pgoutput_fast.mirror.history import AppendTable, HistoryFiles
from pgoutput_fast.mirror.memory import UNPUBLISHED, Gap, KnownColumn, Memory, TableFacts
from pgoutput_fast.mirror.versions import columns_of
from pgoutput_fast.mirror.waiting import WaitingRows
from pgoutput_fast.schema.metadata_columns import metadata_names

__all__ = ["MirroredTable", "relation_columns"]

_log = logging.getLogger("pgoutput_fast.mirror")

_ALTERED = "its replica identity was altered in a transaction that changed rows, too"
_DROPPED = "it has no key, and a column was dropped in a transaction that changed rows, too"
# Another history would begin in the middle, and nobody would see that.
_NO_HISTORY = f"it is gone: somebody removed it. L{LOAD_AGAIN[1:]}: then a new history begins"
_STOPPED = f"%s is stopped: %s. Its current table stays as it is. {RELOAD} loads it again"
_METADATA = metadata_names("_")


@dataclass
class _Stretch:
    """Changes that wait, under one key. Without a key, they also have the same columns: these tell rows apart."""

    key: tuple[str, ...]
    # The LSN since which changes have these columns; 0 with a key.
    since: int
    rows: WaitingRows = field(default_factory=WaitingRows)
    # What the changes do, if that is computed already.
    effect: Effect | None = None


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
        rejects: opens the table of its rejects.
        memory: keeps the facts.
        columns_now: {name: column} of the relation with an oid, as the server has it now.
        ask: asks the server whether the table must be loaded, and notes it here.

    What is wrong with the table is in `facts`. It is durable only behind `settle`.

    Attributes:
        position: everything that committed up to this LSN is in the current table; None before the first load.
        version: the version of the current table.
        applied: how many changes were applied by this process.
        merges: how often this process has changed the current table.
        merge_seconds: the time that took.
        horizon: of the last look that saw the file of the fingerprint.
    """

    def __init__(
        self,
        directory: str,
        facts: TableFacts,
        current: CurrentTable,
        history: AppendTable,
        rejects: Callable[[], AppendTable],
        memory: Memory,
        columns_now: Callable[[int], dict[str, CatalogColumn]],
        ask: Callable[[MirroredTable], object],
    ) -> None:
        self.directory = directory
        self.facts = facts
        self.current = current
        self.history = history
        self._open_rejects = rejects
        self._memory = memory
        self._columns_now = columns_now
        self._ask = ask
        self._waiting: list[_Stretch] = []
        # The relation version of the last changes.
        self._version: int | None = None
        self.applied = self.merges = 0
        self.merge_seconds = 0.0
        self.horizon = None if facts.fingerprint is None else facts.fingerprint.horizon
        self.position: int | None = None
        self.version: int | None = None
        try:
            self.look()
        except ValueError as problem:
            if facts.stage != "stopped":
                self.facts = replace(facts, stage="stopped", error=str(problem))
        if self.follows and self.position is None:
            self.facts = replace(facts, stage="load", error="its current table is gone")
        if self.follows and facts.history_error is None and history.position() is None:
            self.facts = replace(self.facts, history_error=_NO_HISTORY)
        self._settled = facts

    def settle(self) -> None:
        """Remembers, durably, what is wrong with the table and its history, as was seen when they were opened."""
        found, before = self.facts, self._settled
        self._settled = found
        if found.history_error != before.history_error:
            self._stop_history(ValueError(found.history_error))
        if (found.stage, found.error) != (before.stage, before.error):
            (self.want_load if self.wants_load else self.stop)(found.error or "")

    def look(self) -> None:
        """Reads position and version of the current table.

        Raises:
            ValueError: if the table is damaged, or something else made it.
        """
        self.position, self.version = self.current.reached()

    def mend(self) -> None:
        """Lets every reader find all rows of the table and its history, as `CurrentTable.mend`."""
        if self.follows and self.facts.history_error is None:
            self.history.mend()
        if self.follows:
            self.current.mend()
            self.look()

    @property
    def rejects(self) -> AppendTable:
        """What could not be decoded of this table, or has no Arrow form."""
        return self._open_rejects()

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
        return sum(each.rows.num_rows for each in self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the changes have that wait."""
        return sum(each.rows.nbytes for each in self._waiting)

    @property
    def held(self) -> tuple[int, int]:
        """(rows, bytes) of the changes that wait in memory."""
        found = [each.rows.held for each in self._waiting]
        return sum(rows for rows, _ in found), sum(nbytes for _, nbytes in found)

    def to_file(self, directory: str | os.PathLike[str] | None) -> None:
        """Lets the changes wait in a file.

        Args:
            directory: where there is space; None for the directory of temporary files.
        """
        for each in self._waiting:
            each.effect = None
            each.rows.to_file(directory)

    def remember(self, **changed: object) -> None:
        """Changes the facts, durably."""
        self._set(replace(self.facts, **changed))  # type: ignore[arg-type]

    def _set(self, facts: TableFacts) -> None:
        self.facts = facts
        self._memory.set_table(self.directory, facts)

    def want_load(self, why: str) -> None:
        """Stops the current table, until the mirror has loaded it again, which it does soon."""
        _log.warning("%s must be loaded: %s", self.facts.table, why)
        self._waiting = []
        self.remember(stage="load", error=why)

    def stop(self, why: str) -> None:
        """Stops the current table, until it is loaded again."""
        _log.error(_STOPPED, self.facts.table, why)
        self._waiting = []
        self.remember(stage="stopped", error=why)

    def leave(self) -> None:
        """Stops following a table that is not published any more. Its current table gets what waits for it before."""
        if self.facts.is_unpublished:
            return
        if self._waiting:
            self.apply(self._waiting[-1].rows.last)
        _log.warning(
            "%s is not published any more: its current table and its history stay as they are. If it is published "
            "again, the mirror loads it",
            self.facts.table,
        )
        self.remember(stage="stopped", error=UNPUBLISHED)

    def stop_all(self, why: str) -> None:
        """Stops the current table and the history."""
        if self.facts.history_error is None:
            self.remember(history_error=why)
        if self.facts.stage != "stopped":
            self.stop(why)

    def loaded(
        self,
        oid: int,
        columns: dict[str, KnownColumn],
        gap: Gap,
        fingerprint: Fingerprint | None,
    ) -> None:
        """Notes that a load is complete: from its position on, the table follows the changes.

        Args:
            oid: of the relation.
            columns: its columns.
            gap: where nobody knows what the table was.
            fingerprint: what the catalogs said of it in the snapshot.
        """
        self._waiting, self._version = [], None
        self._set(self.facts.loaded(oid, columns, gap, fingerprint))
        self.horizon = None if fingerprint is None else fingerprint.horizon

    def note_gap(self, gap: Gap) -> None:
        """Remembers that nobody knows what the table was between two LSNs, for those who read the history."""
        self.remember(gaps=(*self.facts.gaps, gap))

    def clean(self, oldest: int | None) -> None:
        """Removes the files that only versions before `oldest` have, and files of commits that never ended."""
        if not isinstance(self.current, FileTable) or self.version is None:
            return
        try:
            self.current.vacuum(1 if oldest is None else max(1, self.version - oldest + 1))
            if self.facts.gaps or len(self.facts.keys) > 1:
                self._forget(self.current, oldest)
        except ValueError as problem:
            if self.facts.stage != "stopped":
                self.stop(str(problem))

    def _forget(self, current: FileTable, oldest: int | None) -> None:
        """Forgets gaps and keys that end before the oldest version of the current table that can be read."""
        try:
            begin = current.held(oldest).position
        except FileNotFoundError:  # the next point has a version that is there
            return
        gaps, keys = self.facts.gaps_and_keys_since(begin)
        if (gaps, keys) != (tuple(self.facts.gaps), tuple(self.facts.keys)):
            self.remember(gaps=gaps, keys=keys)

    # ---- changes -------------------------------------------------------------------------------------------------

    def take(self, run: Run, files: HistoryFiles) -> None:
        """Takes changes: into files of the history, and to those that wait for the current table."""
        self._take_history(run, files)
        if not self.follows:
            return
        assert self.position is not None
        key, known = key_of(run.relation), self.facts.keys[-1][1] if self.facts.keys else None
        is_behind = run.rows.num_rows and int(commits_of(run.rows)[-1]) > self.position
        if (
            is_behind
            and known is not None
            and (why := unchecked_array(run.rows.schema, key, known)) is not None
        ):
            self.want_load(why)
            return
        # Readers of the history need the key also if somebody else has brought the current table further.
        if run.rows.num_rows and (first := int(commits_of(run.rows)[0])) > self.facts.last_key:
            self.note_key(key, first)
        if not (rows := behind(run.rows, self.position)).num_rows:
            return
        # Before the history is committed: readers of both apply what it has to a table that is not stopped.
        if run.unclear is not None and run.unclear[1] > self.position:
            return self.stop(run.unclear[0])
        if not self.facts.truncated and pc.any(pc.equal(rows["_change_type"], "truncate")).as_py():
            self.remember(truncated=True)
        first = int(commits_of(rows)[0])
        # A version that comes back may have another column with an old name, so all versions are not remembered.
        if run.relation.version != self._version:
            try:
                found = self._columns_of(run.relation, rows.schema)
            except ValueError as problem:
                return self.stop(str(problem))
            if isinstance(found, str):
                self.want_load(found)
                return
            if found != self.facts.columns:
                self.remember(columns=found, shapes=self.facts.shapes_with(found, first))
            self._version = run.relation.version
        since = 0 if key else self.facts.shape_at(first)[0]
        last = self._waiting[-1] if self._waiting else None
        if last is None or (last.key, last.since) != (key, since):
            if last is not None and first <= last.rows.last:
                self.want_load(_ALTERED if last.key != key else _DROPPED)
                return
            self.note_key(key, first)
            self._waiting.append(_Stretch(key, since))
        self._waiting[-1].rows.add(rows)
        self._waiting[-1].effect = None

    def _columns_of(self, relation: Relation, schema: pa.Schema) -> dict[str, KnownColumn] | str:
        """The columns of the relation with this version, or why the table must be loaded before it takes changes."""
        there = self.current.schema()
        assert there is not None
        columns = relation_columns(schema)
        is_first = self._version is None
        return columns_of(self.facts, relation, columns, there.names, self._columns_now, is_first=is_first)

    def note_key(self, key: tuple[str, ...], lsn: int) -> None:
        """Remembers the key of the changes that commit at an LSN or later, for those who read the history."""
        if self.facts.key_at(lsn) != key:
            self.remember(keys=(*self.facts.keys, (lsn, key)))

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
            if not replace and files.must_widen(self.history, schema):
                _log.info("%s has a wider column: its history is written again", self.facts.table)
                written, schema = files.widened(self.history, written, schema)
                replace = True
            self.history.commit(written, position, schema, replace=replace)
        except ValueError as problem:
            self._stop_history(problem)

    def _stop_history(self, problem: ValueError) -> None:
        _log.error("the history of %s does not go on: %s", self.facts.table, problem)
        self.remember(history_error=str(problem))

    # ---- current -------------------------------------------------------------------------------------------------

    def apply(self, position: int) -> None:
        """Applies what waits: the current table then has everything that committed up to a position."""
        waiting, self._waiting = self._waiting, []
        for n, each in enumerate(waiting):
            try:
                self._apply(each, position if n + 1 == len(waiting) else each.rows.last)
            except (ValueError, LookupError, pa.ArrowException) as problem:
                return self._cannot_apply(problem)

    def prepare(self) -> None:
        """Computes what the waiting changes do. If that is not possible, the table is stopped, or must be loaded."""
        # What comes behind another stretch can be computed when that one is applied; what lies in a file, part by part.
        for each in self._waiting[:1]:
            if each.rows.in_file:
                return
            try:
                each.effect = each.effect or self._effect(each)
            except (ValueError, LookupError, pa.ArrowException) as problem:
                return self._cannot_apply(problem)

    def _cannot_apply(self, problem: Exception) -> None:
        """Stops the table, unless something was done to it on the server: then it must be loaded.

        The stream does not say what was done to types and tables. So a change may name a row as the server has it now,
        and the mirror has the row as it was. The next look at the catalogs would come too late: it leaves a stopped
        table as it is.
        """
        _log.warning("%s cannot take its changes: %s", self.facts.table, problem)
        self._ask(self)
        if self.follows:
            self.stop(str(problem))

    def _effect(self, stretch: _Stretch) -> Effect:
        (rows,) = stretch.rows.parts()
        return effect_of(rows, stretch.key).filled_by(self.current.find)

    def _apply(self, stretch: _Stretch, position: int) -> None:
        began = time.monotonic()
        self.current.apply_parts(_Effects(stretch), position, self.position)
        self.applied += stretch.rows.num_rows
        self.merges += 1
        self.merge_seconds += time.monotonic() - began
        self.look()


class _Effects:
    """What a stretch does, part by part. Each part is computed when it is its turn."""

    def __init__(self, stretch: _Stretch) -> None:
        self._stretch = stretch

    def __iter__(self) -> Iterator[Effect]:
        if self._stretch.effect is not None:
            yield self._stretch.effect
            return
        for rows in self._stretch.rows.parts():
            yield effect_of(rows, self._stretch.key)
