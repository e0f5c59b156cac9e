"""Applies new segments: committed changes go into histories, and then, less often, into current tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from pgoutput_fast.base.display import counted
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.mirror.errors import MirrorSegmentsGoneError
from pgoutput_fast.mirror.follow.changes import Rejected, decodable, decoded_runs
from pgoutput_fast.mirror.follow.expect_segments import expect_newest, expect_segments
from pgoutput_fast.mirror.follow.history import HistoryFiles
from pgoutput_fast.mirror.follow.in_step import expect_in_step, prepare
from pgoutput_fast.mirror.follow.other_names import OtherNames
from pgoutput_fast.mirror.follow.partitions import Partitions
from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.follow.rejects import commit_rejects
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.follow.together import apply_changes
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.state.mirror_state import MirrorState, Progress
from pgoutput_fast.mirror.state.points import Point, Points
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.committed import CommittedChanges
from pgoutput_fast.segments.names import Named, named_segments
from pgoutput_fast.segments.read import read_as_filed
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.errors import LOAD_AGAIN

__all__ = ["Follower", "Pace"]

_log = logging.getLogger("pgoutput_fast.mirror")

_TAKEN = (
    "a column has the name of a metadata column, such as _seq or _lsn: rename the column, or leave it out with a "
    f"column list of the publication, and {LOAD_AGAIN}"
)
# Attempts to find a segment that was joined into another one meanwhile.
_TRIES = 3


class Pace:
    """Decides when to change the current tables: often enough, but not most of the time.

    Args:
        seconds: how old a change may become before it is applied.
        share: at most about this share of the time is spent on current tables.
        rows, nbytes: if more waits, it is applied at once.
        some_bytes: if more waits, it is applied as soon as `some_share` allows: while changes of current tables are
            quick, less is in memory.
        some_share: as `share`, above `some_bytes`.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        seconds: float,
        share: float,
        rows: int,
        nbytes: int,
        some_bytes: int,
        some_share: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._seconds, self._share, self._some_share = seconds, share, some_share
        self._rows, self._nbytes, self._some_bytes = rows, nbytes, some_bytes
        self._next = self._next_full = 0.0

    def is_full(self, rows: int, nbytes: int) -> bool:
        """Whether the waiting changes must be applied."""
        if self._is_over(rows, nbytes):
            return True
        return nbytes >= self._some_bytes and self.clock() >= self._next_full

    def is_too_full(self, rows: int, nbytes: int) -> bool:
        """Whether changes in memory must be spilled to a file, as in a transaction larger than the memory."""
        return self._is_over(rows * 2 // 3, nbytes * 2 // 3)

    def _is_over(self, rows: int, nbytes: int) -> bool:
        return rows >= self._rows or nbytes >= self._nbytes

    def is_due(self) -> bool:
        """Whether the current tables are due."""
        return self.clock() >= self._next

    def done(self, began: float) -> None:
        """Notes that all is applied, in work that began at this time of `clock`."""
        now = self.clock()
        self._next_full = began + (now - began) / self._some_share
        self._next = began + max(self._seconds, (now - began) / self._share)


class Follower:
    """Applies the segments of a directory to the tables of a mirror. After an error, make a new one.

    Args:
        store: the target.
        segments: the directory of the segments: a path or a URI.
        tables: the tables.
        server: gives types.
        options: how to decode.
        state, points, pace: of the mirror.
        run: names this process.
        progress: where to begin.
        in_step: whether current tables change only together.

    Attributes:
        read: the position in the segments. All changes before it are in the histories, and in the current tables or
            waiting for them.
        through: no transaction committed between `read.lsn` and this LSN.
        through_time: no transaction committed between `read.time` and this time, in microseconds since 1970; None if
            unknown.
        history_lsn: all histories have the commits up to this LSN.
        consumed: ordinal of the last message that all tables have, until the capture is told of it.
    """

    def __init__(
        self,
        store: Store,
        segments: str,
        tables: Tables,
        server: ServerView,
        options: Options,
        state: MirrorState,
        points: Points,
        pace: Pace,
        run: str,
        progress: Progress,
        *,
        in_step: bool = False,
    ) -> None:
        self._in_step = in_step
        self._store, self._segments, self._directory = store, open_store(segments), SegmentDirectory(segments)
        self._tables, self._server, self._options = tables, server, options
        self._state, self._points, self._pace, self._run = state, points, pace, run
        self._committed = CommittedChanges(self._segments, options)
        self._resumed = self._is_marked = False
        self.read = self.applied = progress
        self.through = progress.lsn
        self.through_time: int | None = None
        self.consumed: int | None = None
        self.history_lsn = state.history_lsn() or 0

    # ---- segments ------------------------------------------------------------------------------------------------

    def take(self, keep_going: Callable[[], bool] = lambda: True, *, alone: bool = False) -> bool:
        """Takes all new segments. Returns whether there were any.

        Args:
            keep_going: called before each segment: whether to go on.
            alone: as in `apply`, which this calls if too much waits.

        Raises:
            MirrorSegmentsGoneError: if a segment was removed before it was taken.
            MirrorError: as `apply`.
        """
        durable_lsn = self._directory.durable_lsn()
        found, took = self._new(), False
        while found and keep_going():
            each, found = found[0], found[1:]
            try:
                # Nothing else refers to the rows, so their memory is freed before the next segment is read.
                segment = [self._read(each)]
            except FileNotFoundError:
                found = self._again(each)
                continue
            self._take(each, segment)
            took = True
            is_full = self._pace.is_full(*self._waiting())
            if found or is_full:
                self._note_history_lsn(self.read.lsn)
            if is_full:
                self.apply(alone=alone, more_waits=bool(found))
        if not found:
            self.through = max(self.read.lsn, durable_lsn)
            self._note_history_lsn(max(self.read.lsn, self.through - 1))
        return took

    def expect_segments(self) -> None:
        """Refuses to start a capture in an emptied directory.

        Raises:
            MirrorSegmentsGoneError: if the segments from which the stream continues are gone.
        """
        expect_segments(self._segments, self._directory, self.read, self.history_lsn)

    def _note_history_lsn(self, lsn: int) -> None:
        """Records for readers of the histories that these have all commits up to an LSN."""
        if lsn > self.history_lsn:
            self._state.set_history_lsn(lsn)
            self.history_lsn = lsn

    def _new(self) -> list[Named]:
        segments = named_segments(self._segments)
        expect_newest(self._segments, segments, self.read)
        done = [each for each in segments if each.last_seq <= self.read.last_seq]
        new = segments[len(done) :]
        if new and new[0].first_seq > self.read.next_seq:
            raise MirrorSegmentsGoneError(
                f"{self._segments} begins at message {new[0].first_seq}, but the mirror has taken the messages up to "
                f"{self.read.last_seq}: segments in between were removed. Drop the slot with drop_slot, and repair the "
                "mirror with Mirror.repair (--repair). Let retention keep what the mirror needs (consumed=True)"
            )
        if not self._resumed:
            self._committed.resume(done)
            self._resumed = True
        return new

    def _again(self, missing: Named) -> list[Named]:
        """The new segments after one of them disappeared during a read: it may be part of another one now."""
        for _ in range(_TRIES):
            found = self._new()
            if found[:1] != [missing]:
                return found
        raise MirrorSegmentsGoneError(
            f"segment {self._segments}/{missing.name} cannot be read: somebody removed it"
        )

    def _read(self, named: Named) -> tuple[pa.Table, StreamState]:
        rows, segment = read_as_filed(self._segments.at(named.name))
        return rows, segment.state

    def _take(self, named: Named, segment: list[tuple[pa.Table, StreamState]]) -> None:
        """Takes one segment: its changes go into the histories and wait for the current tables.

        Args:
            named: the segment.
            segment: its rows and its state, which this removes from the list.
        """
        touched: dict[str, MirroredTable] = {}
        rejected: dict[str | None, list[Rejected]] = {}
        with HistoryFiles(self._store, self._run) as files:
            next_seq = self._decode(*segment.pop(), files, touched, rejected)
            # Arrow's allocator keeps what was freed on other threads.
            pa.default_memory_pool().release_unused()
            lsn, at = self._committed.last_commit or (self.read.lsn, self.read.time)
            for table in touched.values():
                table.commit_history(files, lsn)
            self._take_rejects(rejected, files, lsn)
        self.read = Progress(named.last_seq, next_seq, lsn, at, self.read.stream)

    def _decode(
        self,
        rows: pa.Table,
        state: StreamState,
        files: HistoryFiles,
        touched: dict[str, MirroredTable],
        rejected: dict[str | None, list[Rejected]],
    ) -> int:
        """Decodes the transactions that a segment completes, for the tables. Returns the ordinal after its messages."""
        other_names, partitions = OtherNames(self._tables), Partitions(self._tables)
        for batch, catalog in self._committed.of(rows, state, self.read.last_seq):
            rows_of, wrong = decodable(batch, catalog)
            for relation in wrong:
                if self._server.chosen.has(relation.qualified_name):
                    self._tables.of(relation.oid, relation.qualified_name).stop_all(_TAKEN)
            runs, rejects = decoded_runs(rows_of, self._server.typed(catalog), self._options)
            takers: dict[int, MirroredTable] = {}
            for run in runs:
                name, is_chosen = (
                    run.relation.qualified_name,
                    self._server.chosen.has(run.relation.qualified_name),
                )
                table = self._tables.of(run.relation.oid, name) if is_chosen else None
                other_names.check(run, table)
                if table is not None:
                    touched[table.directory] = table
                    table.take(run, files)
                    takers[run.relation.oid] = table
            partitions.note(self._committed.partitions_of(batch), takers)
            self._make_room()
            for each in rejects:
                if each.table is not None and not self._server.chosen.has(each.table):
                    continue
                rejected.setdefault(each.table, []).append(each)
        partitions.remember()
        return state.next_seq

    def _take_rejects(
        self, rejected: dict[str | None, list[Rejected]], files: HistoryFiles, lsn: int
    ) -> None:
        for name, found in rejected.items():
            table = None if name is None else self._tables.named(name)
            rejects = self._tables.rejects(None if table is None else table.record.table)
            if (rejects.position() or 0) >= lsn:
                continue
            if any(each.lost for each in found):
                self._stop(name, lsn, "a change of it cannot be decoded: its rejects say why")
            try:
                for each in found:
                    files.add(rejects, each.rows)
                commit_rejects(rejects, files, lsn, table)
            except ValueError as problem:  # somebody has changed the table of the rejects
                self._stop(name, lsn, str(problem))

    def _stop(self, name: str | None, lsn: int, why: str) -> None:
        """Stops the table of a change that cannot be applied; all tables if it is unknown."""
        for table in list(self._tables) if name is None else [self._tables.named(name)]:
            table.note_lost(lsn)
            if table.follows and (table.position or 0) < lsn:
                table.stop(why)

    # ---- current tables ------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Spills changes to files if too many wait in memory. A transaction is never divided."""
        while self._pace.is_too_full(*_sum(each.in_memory for each in self._tables)):
            max(self._tables, key=lambda each: each.in_memory[1]).to_file(self._options.spill_directory)

    def _waiting(self) -> tuple[int, int]:
        rows = sum(each.waiting_rows for each in self._tables)
        return rows, sum(each.waiting_bytes for each in self._tables)

    def apply_if_due(self) -> None:
        """Applies the waiting changes if due, and commits files that another thread has written anew."""
        for each in self._tables:
            each.commit_rewritten()
        if self._pace.is_due() and self.applied != self.read:
            self.finish()
        elif not self._is_marked:  # a table was loaded, and nothing has committed since
            self.mark()

    def finish(self) -> None:
        """Applies the waiting changes, unless tables in step must wait for a load or for a loaded table."""
        if self._in_step and self._can_be_common:
            prepare(self._tables)
        if not self._in_step or self._can_be_common:
            self.apply()

    def apply(self, *, alone: bool = False, more_waits: bool = False) -> None:
        """Applies the waiting changes. All current tables are then at the position that was read, which is a point.

        Args:
            alone: whether tables go on independently although they are in step. If not, and the waiting changes require
                a load of one of them, nothing is applied yet.
            more_waits: whether more segments wait. Then the tables leave work that can wait.

        Raises:
            MirrorError: if the tables are in step, and one of them is stopped.
        """
        began = self._pace.clock()
        in_step = self._in_step and not alone
        if in_step:
            loading = [each for each in self._tables if each.wants_load]
            prepare(self._tables)
            if [each for each in self._tables if each.wants_load] != loading:
                return  # the others wait for its load while there is room
        rows = self._waiting()[0]
        waiting = [each for each in self._tables if each.waiting_rows]
        apply_changes(waiting, self.read.lsn, more_waits=more_waits)
        if in_step:
            expect_in_step(self._tables)
        if rows:
            place, seconds = format_lsn(self.read.lsn), self._pace.clock() - began
            _log.info("%s applied up to %s in %.1f s", counted(rows, "change"), place, seconds)
        if self.applied != self.read:
            self._state.set_progress(self.read)
            self.applied, self.consumed = self.read, self.read.last_seq
        self.mark()
        pa.default_memory_pool().release_unused()
        self._pace.done(began)

    def mark(self) -> None:
        """Records a point, if all tables are at the same position."""
        self._is_marked = self.is_common
        if not self._is_marked:
            return
        tables = [each for each in self._tables if each.follows]
        position = max(self.read.lsn, self.ahead)
        versions = {each.record.table: each.version for each in tables if each.version is not None}
        # A table loaded after the last commit has the time of its load.
        loads = [
            gap.time
            for each in tables
            for gap in each.record.gaps[-1:]
            if gap.end > self.read.lsn and gap.time
        ]
        time_of = max([self.read.time or 0, *loads]) or None
        self._points.add(Point(position, time_of, versions, max(self.through, position), self.through_time))

    @property
    def is_common(self) -> bool:
        """Whether all tables are at the same position, except for stopped ones."""
        return self._can_be_common and not any(each.waiting_rows for each in self._tables)

    @property
    def _can_be_common(self) -> bool:
        """Whether all tables but stopped ones are at the same position once the waiting changes are applied."""
        tables = [each for each in self._tables if each.record.stage != "stopped"]
        if not tables or any(each.wants_load or each.version is None for each in tables):
            return False
        # A table that was loaded later is at a later position, which is the same if nothing committed in between.
        return self.ahead < max(self.read.lsn + 1, self.through)

    def note_position(self, lsn: int, time_now: int | None) -> None:
        """Notes that all commits up to an LSN, and before a time, are applied."""
        self.through = max(self.through, lsn)
        self._note_history_lsn(self.through - 1)
        self.through_time = time_now if time_now is not None else self.through_time
        self.mark()

    @property
    def common(self) -> int:
        """All tables that follow have the commits up to this LSN."""
        return self.through if self.applied == self.read else self.applied.lsn

    @property
    def ahead(self) -> int:
        """The largest position of a current table. A table that was loaded later is ahead of the others."""
        return max((each.position or 0 for each in self._tables if each.follows), default=0)


def _sum(found: Iterable[tuple[int, int]]) -> tuple[int, int]:
    pairs = list(found)
    return sum(rows for rows, _ in pairs), sum(nbytes for _, nbytes in pairs)
