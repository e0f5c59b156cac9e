"""One table of a mirror: the changes that wait for its current table, and how they are applied."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.current_table import CurrentTable
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.fill import Part, parts_of
from pgoutput_fast.merge.effect.net_effect import effect_of
from pgoutput_fast.merge.effect.renames import Rename
from pgoutput_fast.merge.keys import key_of, unchecked_array
from pgoutput_fast.mirror.follow.altered_columns import first_change, with_alter
from pgoutput_fast.mirror.follow.changes import ChangeRun, commits_of, committed_after
from pgoutput_fast.mirror.follow.history import AppendTable, HistoryFiles
from pgoutput_fast.mirror.follow.waiting import PendingChanges
from pgoutput_fast.mirror.schema_changes.fingerprint import CatalogColumn, Fingerprint
from pgoutput_fast.mirror.schema_changes.versions import columns_of
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.table_record import UNPUBLISHED, Gap, KnownColumn, TableRecord
from pgoutput_fast.schema.metadata_columns import ALTER, metadata_names
from pgoutput_fast.tables.errors import LOAD_AGAIN, RELOAD

if TYPE_CHECKING:
    from pgoutput_fast.snapshot.progress import LoadProgress

__all__ = ["CANNOT_APPLY", "MirroredTable", "applying", "relation_columns"]

_log = logging.getLogger("pgoutput_fast.mirror")

_ALTERED = "its replica identity was altered in a transaction that changed rows, too"
_DROPPED = "it has no key, and a column was dropped in a transaction that changed rows, too"
# Another history would start in the middle unnoticed.
_NO_HISTORY = f"it is gone: somebody removed it. L{LOAD_AGAIN[1:]}: then a new history begins"
_STOPPED = f"%s is stopped: %s. Its current table stays as it is. {RELOAD} loads it again"
_METADATA = metadata_names("_")
#: What is raised if a current table cannot take its changes.
CANNOT_APPLY = (ValueError, LookupError, pa.ArrowException)


@dataclass
class _PendingEffects:
    """Waiting changes under one key. Without a key, they also have the same columns, which identify the rows."""

    key: tuple[str, ...]
    # The LSN since which changes have these columns; 0 with a key.
    since: int
    rows: PendingChanges = field(default_factory=PendingChanges)
    # The effect of the changes, if computed already.
    effect: Effect | None = None

    def whole_effect(self, find: Callable[[pa.Table, Sequence[str]], pa.Table]) -> Effect:
        """The effect of the changes, which are in memory, with values from the table that `find` finds."""
        (rows,) = self.rows.parts()
        return effect_of(rows, self.key).filled_by(find)

    @property
    def fills(self) -> bool:
        """Whether the changes may have rows of `alter`. Then only the table knows what other changes leave as it is."""
        return any(pc.any(pc.equal(each["_change_type"], ALTER)).as_py() for each in self.rows.parts())


def relation_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a relation without the metadata columns."""
    return pa.schema([field for field in schema if field.name not in _METADATA])


class MirroredTable:
    """A mirrored table.

    Args:
        directory: the name of its directories.
        record: its remembered state.
        current: its current table.
        history: its history table.
        rejects: opens the table of its rejects.
        state: keeps the record.
        columns_now: {name: column} of the relation with an oid, as the server has it now.
        ask: asks the server whether the table must be loaded, and records the answer in the table.
        trusts_widening: whether a column that became wider has the same values.
        renames_columns: whether a column that was renamed gets its new name in place.

        Problems of the table are in `record`. They are durable only after `save_problems`.

    Attributes:
        position: all commits up to this LSN are in the current table; None before the first load.
        version: the version of the current table.
        applied: how many changes were applied by this process.
        merges: how often this process has changed the current table.
        merge_seconds: the time for that.
        horizon: of the last check that saw the file of the fingerprint.
        loading: the progress of its load in this process; None if there is none now.
    """

    def __init__(
        self,
        directory: str,
        record: TableRecord,
        current: CurrentTable,
        history: AppendTable,
        rejects: Callable[[], AppendTable],
        state: MirrorState,
        columns_now: Callable[[int], dict[str, CatalogColumn]],
        ask: Callable[[MirroredTable], object],
        *,
        trusts_widening: bool = False,
        renames_columns: bool = False,
    ) -> None:
        self.directory, self.record = directory, record
        self.current, self.history = current, history
        self._open_rejects = rejects
        self._state = state
        self._columns_now = columns_now
        self._ask, self.trusts_widening = ask, trusts_widening
        self.renames_columns = renames_columns
        self._waiting: list[_PendingEffects] = []
        # The relation version of the last changes.
        self._version: int | None = None
        self.applied = self.merges = 0
        self.merge_seconds = 0.0
        self.horizon = None if record.fingerprint is None else record.fingerprint.horizon
        self.loading: LoadProgress | None = None
        self.position: int | None = None
        self.version: int | None = None
        try:
            self.read_position()
        except ValueError as problem:
            if record.stage != "stopped":
                self.record = replace(record, stage="stopped", error=str(problem))
        if self.follows and self.position is None:
            self.record = replace(record, stage="load", error="its current table is gone")
        if self.follows and record.history_error is None and history.position() is None:
            self.record = replace(self.record, history_error=history.problem or _NO_HISTORY)
        self._saved = record

    def save_problems(self) -> None:
        """Makes problems durable that were seen when the table and its history were opened."""
        found, before = self.record, self._saved
        self._saved = found
        if found.history_error != before.history_error:
            self._stop_history(ValueError(found.history_error))
        if (found.stage, found.error) != (before.stage, before.error):
            (self.want_load if self.wants_load else self.stop)(found.error or "")

    def read_position(self) -> None:
        """Reads the position and version of the current table.

        Raises:
            ValueError: if the table is damaged, or was not made by a mirror.
        """
        self.position, self.version = self.current.position_and_version()

    def fix_statistics(self) -> None:
        """Makes all rows of the table and its history visible to every reader, as `CurrentRows.fix_statistics`."""
        if self.follows and self.record.history_error is None:
            self.history.fix_statistics()
        if self.follows:
            self.current.fix_statistics()
            self.read_position()

    @property
    def rejects(self) -> AppendTable:
        """The table of values and changes that could not be decoded or have no Arrow form."""
        return self._open_rejects()

    @property
    def follows(self) -> bool:
        """Whether changes are applied."""
        return self.record.stage == "follow"

    @property
    def wants_load(self) -> bool:
        """Whether it must be loaded before it can go on."""
        return self.record.stage == "load"

    @property
    def waiting_rows(self) -> int:
        """The number of waiting changes."""
        return sum(each.rows.num_rows for each in self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of waiting changes."""
        return sum(each.rows.nbytes for each in self._waiting)

    @property
    def in_memory(self) -> tuple[int, int]:
        """(rows, bytes) of the changes that wait in memory."""
        found = [each.rows.in_memory for each in self._waiting]
        return sum(rows for rows, _ in found), sum(nbytes for _, nbytes in found)

    def to_file(self, directory: str | os.PathLike[str] | None) -> None:
        """Spills the waiting changes to a file.

        Args:
            directory: of the file; None for the directory of temporary files.
        """
        for each in self._waiting:
            each.effect = None
            each.rows.to_file(directory)

    def remember(self, **changed: object) -> None:
        """Changes the record durably."""
        self._set(replace(self.record, **changed))  # type: ignore[arg-type]

    def _set(self, record: TableRecord) -> None:
        self.record = record
        self._state.set_table(self.directory, record)

    def want_load(self, why: str) -> None:
        """Stops the current table until the mirror loads it again, which happens soon."""
        _log.warning("%s must be loaded: %s", self.record.table, why)
        self._waiting = []
        self.remember(stage="load", error=why)

    def stop(self, why: str) -> None:
        """Stops the current table until it is loaded again."""
        _log.error(_STOPPED, self.record.table, why)
        self._waiting = []
        # Its history has changes from now on, and the next load does not remove them.
        self.remember(stage="stopped", error=why, is_first=False)

    def leave(self) -> None:
        """Stops following a table that is no longer published, after its waiting changes are applied."""
        if self.record.is_unpublished:
            return
        if self._waiting:
            self.apply(self._waiting[-1].rows.last)
        _log.warning(
            "%s is not published any more: its current table and its history stay as they are. If it is published "
            "again, the mirror loads it",
            self.record.table,
        )
        self.remember(stage="stopped", error=UNPUBLISHED, renamed=None)

    def stop_all(self, why: str) -> None:
        """Stops the current table and the history."""
        if self.record.history_error is None:
            self.remember(history_error=why)
        if self.record.stage != "stopped":
            self.stop(why)

    def loaded(
        self, oid: int, columns: dict[str, KnownColumn], gap: Gap, begin: int, fingerprint: Fingerprint | None
    ) -> None:
        """Notes a complete load: the table follows the changes from its position on.

        Args:
            oid: of the relation.
            columns: its columns.
            gap: the LSNs between which the content of the table is unknown.
            begin: all rows were read when the server had the commits up to this LSN, or later.
            fingerprint: of the table in the snapshot.
        """
        self._waiting, self._version, self.loading = [], None, None
        self._set(self.record.loaded(oid, columns, gap, begin, fingerprint))
        self.horizon = None if fingerprint is None else fingerprint.horizon

    def note_lost(self, lsn: int) -> None:
        """Records for a load that a change which commits at an LSN cannot be applied."""
        if self.wants_load and lsn > self.record.lost_lsn:
            self.remember(lost_lsn=lsn)

    def clean(self, oldest: int | None) -> None:
        """Removes files that only versions before `oldest` have, and files of unfinished commits."""
        versions = self.current.table.versions
        if versions == "none" or self.version is None:
            return
        try:
            self.current.vacuum(1 if oldest is None else max(1, self.version - oldest + 1))
            if versions == "table" and (self.record.gaps or len(self.record.keys) > 1):
                _forget(self, oldest)
        except ValueError as problem:
            if self.record.stage != "stopped":
                self.stop(str(problem))

    # ---- changes -------------------------------------------------------------------------------------------------

    def take(self, run: ChangeRun, files: HistoryFiles) -> None:
        """Takes changes: into files of the history, and into the queue of the current table."""
        first = self._first_of_version(run)
        before = self.record if first is None else self.record.before(first)
        is_remembered = before is not self.record
        columns = None if first is None else self._columns_of(run, before, first)
        run, columns = with_alter(run, columns, self.position, before.columns)
        position = self.history.position()
        self.add_history(run.rows if position is None else committed_after(run.rows, position), files)
        if not self.follows:
            if run.unclear is not None:
                self.note_lost(run.unclear[1])
            return
        assert self.position is not None
        key, known = key_of(run.relation), self.record.keys[-1][1] if self.record.keys else None
        is_new = run.rows.num_rows and int(commits_of(run.rows)[-1]) > self.position
        if is_new and known is not None and (why := unchecked_array(run.rows.schema, key, known)) is not None:
            self.want_load(why)
            return
        # Readers of the history need the key even if another process has advanced the current table.
        if run.rows.num_rows and (begin := int(commits_of(run.rows)[0])) > self.record.last_key:
            self.note_key(key, begin)
        if not (rows := committed_after(run.rows, self.position)).num_rows:
            return
        # Before the commit of the history: its readers apply it to any table that is not stopped.
        if run.unclear is not None and run.unclear[1] > self.position:
            return self.stop(run.unclear[0])
        if not self.record.truncated and pc.any(pc.equal(rows["_change_type"], "truncate")).as_py():
            self.remember(truncated=True)
        if isinstance(columns, ValueError):
            return self.stop(str(columns))
        if isinstance(columns, str):
            return self.want_load(columns)
        # Changes that are read again were remembered with their columns, and later ones.
        if first is not None and columns is not None and not is_remembered and columns != before.columns:
            self._remember_columns(columns, first)
        self._version = run.relation.version
        commit = int(commits_of(rows)[0])
        since = 0 if key else self.record.shape_at(commit)[0]
        last = self._waiting[-1] if self._waiting else None
        if last is None or (last.key, last.since) != (key, since):
            if last is not None and commit <= last.rows.last:
                self.want_load(_ALTERED if last.key != key else _DROPPED)
                return
            self.note_key(key, commit)
            self._waiting.append(_PendingEffects(key, since))
        self._waiting[-1].rows.add(rows)
        self._waiting[-1].effect = None

    def _first_of_version(self, run: ChangeRun) -> tuple[int, int] | None:
        """(LSN of the commit, ordinal) of the first change for the current table, if its relation has another version
        than the last changes; None if nothing is new.

        An earlier version that comes back may have another column with an old name. So only the last one is remembered.
        """
        is_new = self.follows and run.relation.version != self._version
        return first_change(run, self.position) if is_new else None

    def _columns_of(
        self, run: ChangeRun, before: TableRecord, first: tuple[int, int]
    ) -> dict[str, KnownColumn] | str | ValueError:
        """The columns of the relation for the version of changes; or why the table must be loaded first, or stops.

        Args:
            run: the changes.
            before: the record before them.
            first: (LSN of the commit, ordinal) of the first one.
        """
        columns, is_known = relation_columns(run.rows.schema), self._version is not None
        trusts, ask = self.trusts_widening, self._columns_now
        try:
            return columns_of(before, run.relation, columns, self.current, ask, first, is_known, trusts)
        except ValueError as problem:
            return problem

    def _remember_columns(self, columns: Mapping[str, KnownColumn], first: tuple[int, int]) -> None:
        """Records columns that a change has, and those before it until the history and the table have the change."""
        history = None if self.record.history_error is not None else self.history.position()
        done = min(each for each in (history, self.position) if each is not None)
        self._set(self.record.altered_by(columns, first, done, in_place=self.renames_columns))

    def note_key(self, key: tuple[str, ...], lsn: int) -> None:
        """Records for readers of the history the key of the changes that commit at an LSN or later."""
        if self.record.key_at(lsn) != key:
            self.remember(keys=(*self.record.keys, (lsn, key)))

    def add_history(self, rows: pa.Table, files: HistoryFiles) -> None:
        """Adds rows to the files of the history, unless it is stopped. It is stopped if it cannot take them."""
        if self.record.history_error is not None:
            return
        try:
            files.add(self.history, rows)
        except ValueError as problem:
            self._stop_history(problem)

    def commit_history(
        self, files: HistoryFiles, position: int, empty: pa.Schema | None = None, *, replace: bool = False
    ) -> None:
        """Commits the files of the history, unless it is stopped.

        Args:
            files: has the files.
            position: the new position of the history.
            empty: the columns of a history without rows. None: without rows there is no commit.
            replace: whether the files replace all rows of the history.
        """
        written, schema = files.of(self.history)
        schema = empty if schema is None else schema
        if schema is None or self.record.history_error is not None:
            return
        try:
            if not replace and files.must_widen(self.history, schema):
                _log.info("%s has a wider column: its history is rewritten", self.record.table)
                written, schema = files.widened(self.history, written, schema)
                replace = True
            self.history.commit(written, position, schema, replace=replace)
        except ValueError as problem:
            self._stop_history(problem)

    def _stop_history(self, problem: ValueError) -> None:
        _log.error("the history of %s does not go on: %s", self.record.table, problem)
        self.remember(history_error=str(problem))

    # ---- current -------------------------------------------------------------------------------------------------

    def apply(self, position: int, *, more_waits: bool = False) -> None:
        """Applies the waiting changes: the current table then has all commits up to a position.

        If it cannot take them, it is stopped, or must be loaded.

        Args:
            position: the LSN.
            more_waits: as for `CurrentTable`.
        """
        with applying(self):
            self.change(position, more_waits=more_waits)
            self.changed()

    def change(self, position: int, *, more_waits: bool = False) -> None:
        """Changes the current table by the waiting changes, which wait until `changed` is called after the commit.

        Args:
            position, more_waits: as for `apply`.

        Raises:
            One of CANNOT_APPLY: if the table cannot take the changes.
        """
        began = time.monotonic()
        self.current.more_waits = more_waits
        at = self.position
        renames = self.record.renames_between(-1 if at is None else at, position)
        for each in self._waiting:
            after, at = at, position if each is self._waiting[-1] else each.rows.last
            self.current.apply_parts(_Effects(each, renames), at, after)
        self.merge_seconds += time.monotonic() - began

    def commit_rewritten(self, within: float | None = None) -> None:
        """Commits files of the current table that another thread has written anew, as `CurrentTable`."""
        with applying(self):
            if self.follows and self.current.commit_rewritten(within):
                self.read_position()

    def changed(self) -> None:
        """Notes that the changes of `change` are committed."""
        self.applied += self.waiting_rows
        self.merges += len(self._waiting)
        self._waiting = []
        self.read_position()

    def prepare(self) -> None:
        """Computes the effect of the waiting changes. If that fails, the table is stopped, or must be loaded."""
        # Changes under a later key can be computed only after those before are applied; those in a file, part by part.
        for each in self._waiting[:1]:
            if each.rows.in_file or each.fills:
                return
            try:
                each.effect = each.effect or each.whole_effect(self.current.find)
            except CANNOT_APPLY as problem:
                return self.cannot_apply(problem)

    def cannot_apply(self, problem: Exception) -> None:
        """Stops the table, unless it was altered on the server and must be loaded.

        The stream does not show how types and tables were altered. So a change may name a row as the server has it now,
        while the mirror has it in its old form. The next check of the catalogs would be too late: it ignores stopped
        tables.
        """
        _log.warning("%s cannot take its changes: %s", self.record.table, problem)
        self._ask(self)
        if self.follows:
            self.stop(str(problem))


def _forget(table: MirroredTable, oldest: int | None) -> None:
    """Forgets gaps and keys that end before the oldest readable version of a current table."""
    try:
        begin = table.current.open(oldest).position
    except FileNotFoundError:  # the next point has an existing version
        return
    gaps, keys = table.record.gaps_and_keys_since(begin)
    if (gaps, keys) != (tuple(table.record.gaps), tuple(table.record.keys)):
        table.remember(gaps=gaps, keys=keys)


@contextmanager
def applying(table: MirroredTable) -> Iterator[None]:
    """Stops a table that cannot take its changes, or lets it be loaded."""
    try:
        yield
    except CANNOT_APPLY as problem:
        with suppress(ValueError):  # some of the changes may be committed
            table.read_position()
        table.cannot_apply(problem)


class _Effects:
    """The effects of changes, part by part. They are computed on demand."""

    def __init__(self, changes: _PendingEffects, renames: Sequence[Rename]) -> None:
        self._changes, self._renames = changes, renames

    def __iter__(self) -> Iterator[Part]:
        if self._changes.effect is not None:
            yield self._changes.effect
            return
        for rows in self._changes.rows.parts():
            yield from parts_of(rows, self._changes.key, self._renames)
