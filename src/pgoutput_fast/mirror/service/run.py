"""One run of a mirror: the work between its beginning and its end or first error."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from pgoutput_fast.base.display import no_such_name
from pgoutput_fast.capture.errors import CaptureError
from pgoutput_fast.capture.process import CaptureProcess, Settings
from pgoutput_fast.capture.retention import Consumers
from pgoutput_fast.mirror.errors import SlotLostError
from pgoutput_fast.mirror.follow.backlog import Backlog
from pgoutput_fast.mirror.follow.follow import Follower, Pace
from pgoutput_fast.mirror.follow.in_step import expect_in_step
from pgoutput_fast.mirror.follow.published import check_publications
from pgoutput_fast.mirror.follow.quiet_tables import QuietTables
from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.load.begin import begin
from pgoutput_fast.mirror.load.loads import Loads
from pgoutput_fast.mirror.load.ranges import LoadedRanges
from pgoutput_fast.mirror.repair.repair import Repair, in_stream, last_change
from pgoutput_fast.mirror.repair.repair_table import TableRepair
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.service.cleaning import Cleaning
from pgoutput_fast.mirror.service.outages import Outages
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.slot import expect_slot, in_mirror
from pgoutput_fast.mirror.state.identity import expect_same, expect_source
from pgoutput_fast.mirror.state.layout import CONSUMER, SPILL
from pgoutput_fast.mirror.state.mirror_state import MirrorState, Progress
from pgoutput_fast.mirror.state.points import Points
from pgoutput_fast.postgres.errors import NO_ANSWER
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.names import bytes_after
from pgoutput_fast.storage.paths import is_uri
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.errors import MirrorError

__all__ = ["MirrorRun"]

_log = logging.getLogger("pgoutput_fast.mirror")

# Shortest and longest pause between checks for new segments, the shortest one in an object store; and the period of
# checks for new tables.
_POLL_SECONDS, _POLL_STORE_SECONDS, _LOOK_SECONDS = (0.02, 2.0), 0.1, 30.0
# Seconds between checks that a capture is connected, after an outage.
_QUESTION_SECONDS = 1.0
# Seconds before a failed load is tried again.
_RETRY_SECONDS = 1.0
# How often other tables catch up with a loaded one. Meanwhile tables may be loaded again.
_MOST_MORE = 3
# If more waits, it is applied at once; above the last limit, as soon as that takes no large share of the time.
_MOST_ROWS, _MOST_BYTES, _SOME_BYTES = 1_000_000, 256 << 20, 32 << 20
# The longest segments. Short ones let two processes work at the same time, with less memory.
_SEGMENT_BYTES = 16 << 20
# The largest shares of the time for changes of current tables: in general, and while much waits. New rows take more
# than half as long there as in all other steps together. With a third of the time, their backlog would grow.
_SHARE, _SOME_SHARE = 1 / 3, 1 / 2


class MirrorRun:
    """The work of a mirror. After an error, make a new one: changes taken, but not applied, must be taken again.

    Args:
        settings: of the mirror.
        store: the target.
        stop: set when the work must end.
        outages: is told when server and store are back.
        check: called before each commit.
        another_source: whether another server may have replaced the one whose rows the tables have. Only a repair may
            follow then.

    Attributes:
        tables: the tables.
        follower: applies their changes.

    Raises:
        MirrorError: if the target has another mirror, or the tables of another server or database. Nothing is changed
            then.
        As `begin`: it makes the slot, unless that is done already.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        store: Store,
        stop: threading.Event,
        outages: Outages,
        check: Callable[[], object] | None = None,
        *,
        another_source: bool = False,
    ) -> None:
        self._store, self._stop, self._outages, self._check = store, stop, outages, check
        self._run = secrets.token_hex(8)
        self._state = MirrorState(store, check)
        self._points = Points(store, settings.keep_points, check, keep_seconds=settings.keep_seconds)
        # The segments of every slot have their own directory.
        self._given = settings
        self._settings = settings = in_stream(settings, self._state.progress())
        beginning = self._state.beginning()
        if beginning is not None:
            expect_same(settings, beginning, store)
            expect_source(settings, beginning, self._state, store, another=another_source)
        self._repaired: list[TableRepair] = []
        self._backlog: Backlog | None = None
        self._server = ServerView(settings.dsn, settings.publications, self._state, settings.chosen)
        # When to check next that a capture is connected; whether this run has applied all existing segments.
        self._next_question, self._caught_up = 0.0, False
        self._loads = Loads(store, self._server, self._run)
        # The tables that were not published at the last check.
        self._missing: set[str] = set()
        self.tables = self._open()
        self.tables.save_problems()
        self._expect_chosen()
        for each in self.tables:
            # Before any change is taken: those of such a table are left out from now on.
            if not settings.chosen.has(each.record.on_server):
                each.leave()
                LoadedRanges(store, each.directory).remove()
        late = settings.table_options.commits_late(local=store.local)
        self._cleaning = Cleaning(store, self._state, self._points, late=late)
        self._cleaning.clean_after_kill(self.tables)
        self.tables.fix_statistics()
        self._state.set_run(self._run)
        progress, snapshot = begin(
            settings, self._state, self._points, self._server, self._reopened, self._keep_going
        )
        if snapshot is not None:
            self._loads.begin_with(snapshot)
        self._check_names()
        self.follower = self._follower(progress)
        beginning = self._state.beginning()
        if beginning is not None and beginning.stage != "done":
            _log.warning("the repair was interrupted: it begins again")
            self.repair(stop)
        self.follower.mark()

    def _expect_chosen(self) -> None:
        """
        Raises:
            MirrorError: if a name or pattern of `tables` matches no table: all others would be left out instead.
        """
        chosen = self._settings.chosen
        if not chosen.without_match({each.record.on_server for each in self.tables}):
            return
        published = self._server.published() | {each.record.on_server for each in self.tables}
        for each in chosen.without_match(published):
            raise MirrorError(no_such_name("published table", each, published))

    def _check_names(self) -> None:
        merges = self._settings.table_options.merge
        unknown = set(merges if isinstance(merges, Mapping) else ()) - {
            each.record.table for each in self.tables
        }
        if unknown:
            _log.warning("merge names %s, which is not mirrored", ", ".join(sorted(unknown)))

    def _follower(self, progress: Progress) -> Follower:
        return Follower(
            self._store,
            self._settings.segments,
            self.tables,
            self._server,
            self._decoding(),
            self._state,
            self._points,
            _pace(self._settings),
            self._run,
            progress,
            in_step=self._settings.in_step,
        )

    def repair(self, stop: threading.Event) -> list[TableRepair]:
        """Makes another slot if the slot is lost, and gives the tables the changes in between.

        Args:
            stop: set when the repair must end.

        Returns:
            The repairs of the tables; if the slot is usable, those of the last repair by this object.

        Raises:
            As `Repair.all_tables`.
        """
        self._stop = stop
        task = Repair(
            self._given,
            self._store,
            self._state,
            self.tables,
            self._server,
            self.follower,
            self._run,
            self._keep_going,
            self._outages.further,
        )
        progress, done = task.all_tables()
        if done:
            self._repaired = done
            self._settings = in_stream(self._given, progress)
            self._cleaning.remove_spilled()  # transactions that were open when the slot was lost
            self.follower = self._follower(progress)
            self.follower.mark()
        return self._repaired

    def end(self) -> None:
        """Ends what other threads do, and notes that this run left no files."""
        self.tables.end_joining()
        self._state.set_run(None)

    def close(self) -> None:
        """Releases an unused snapshot on the server, and ends what other threads do."""
        self._loads.close()
        self.tables.give_up_joining()

    def until(self, lsn: int | None, time_now: int | None, stop: threading.Event) -> None:
        """Follows the changes until all commits up to an LSN are in all tables, or it is told to stop.

        Args:
            lsn: the LSN. None: until `stop` is set.
            time_now: a time of the server before it was at this LSN; None if unknown.
            stop: set when it must end.
        """
        self._stop = stop
        self._cleaning.begin()
        if self._settings.in_step:
            expect_in_step(self.tables)
        self._missing = set()
        self._expect_slot()
        self._check_publications()
        try:
            self._until(lsn, time_now, stop)
        finally:
            self._loads.close()

    def _until(self, lsn: int | None, time_now: int | None, stop: threading.Event) -> None:
        follower, until, more = self.follower, lsn, _MOST_MORE
        while not stop.is_set():
            self._run_capture(until)
            if until is None or lsn is None or stop.is_set():
                return
            follower.note_position(until, time_now)
            until = max(until, self._loads.awaits or 0)
            if any(each.wants_load and (each.position or 0) < lsn for each in self.tables):
                stop.wait(_RETRY_SECONDS)
                continue
            # A table that was loaded meanwhile is ahead of the others, which catch up to a common position.
            if follower.is_common or not any(each.follows for each in self.tables):
                return
            if not more:
                follower.apply()
                if any(each.wants_load for each in self.tables):
                    self._load_tables()
                    stop.wait(_RETRY_SECONDS if any(each.wants_load for each in self.tables) else 0)
                    continue
                return
            until, more = max(until, follower.ahead + 1), more - 1

    def _run_capture(self, until: int | None) -> None:
        stop = self._stop
        self.follower.expect_segments()
        capture = CaptureProcess(_capture_settings(self._settings, until))
        capture.start()
        self._backlog = Backlog(
            self.unread_bytes, not is_uri(self._settings.segments), self._settings.backlog_bytes, capture
        )
        try:
            with self._backlog:
                self._follow(capture)
        finally:
            capture.stop()
        self.follower.finish()
        if not stop.is_set():
            self._check_publications()
            self._load_tables()

    def unread_bytes(self) -> int:
        """The bytes of segments that are not in the histories yet. Any thread may call this."""
        return bytes_after(open_store(self._settings.segments), self.follower.read.last_seq)

    @property
    def is_paused(self) -> bool:
        """Whether the capture is paused."""
        return self._backlog is not None and self._backlog.is_paused

    def _follow(self, capture: CaptureProcess) -> None:
        """Takes the segments of the capture, until it ends or the mirror is told to stop."""
        stop = self._stop
        shortest = _POLL_STORE_SECONDS if is_uri(self._settings.segments) else _POLL_SECONDS[0]
        next_look = time.monotonic() + _LOOK_SECONDS
        while True:
            # Checked before the segments, so that they are complete.
            done = not self._captures(capture) or stop.is_set()
            self._take()
            self._check_outage()
            if done:
                break
            if time.monotonic() >= next_look:
                try:
                    self._check_publications()
                except NO_ANSWER as problem:  # the capture reports a server that is away for too long
                    _log.warning("the publications cannot be read now: %s", str(problem).strip())
                next_look = time.monotonic() + _LOOK_SECONDS
            stop.wait(min(max(self._settings.seconds / 20, shortest), _POLL_SECONDS[1]))

    def _captures(self, capture: CaptureProcess) -> bool:
        """Whether the capture still runs.

        Raises:
            SlotLostError: if the slot is lost.
            MirrorError: if the server is behind the tables.
            CaptureError: if the capture failed for another reason.
        """
        try:
            return capture.check()
        except CaptureError as problem:
            try:
                self._expect_slot()
            except MirrorError:
                raise
            except Exception:
                raise problem from None  # the server cannot be reached, which is not a reason of its own
            explained = in_mirror(problem)
            if isinstance(explained, SlotLostError) and (known := self._state.beginning()) is not None:
                self._state.set_beginning(replace(known, lost=str(explained)))
            if explained is problem:
                raise
            raise explained from problem

    def _expect_slot(self) -> None:
        settings, known = self._settings, self._state.beginning()
        if known is not None and known.lost is not None:
            raise SlotLostError(known.lost)
        expect_slot(settings.dsn, settings.slot, settings.segments, last_change(self.follower, self.tables))

    def _check_outage(self) -> None:
        """Notes the end of an outage: this run has applied all existing segments, and the server sends changes.

        A running capture process is no proof: it may be trying to connect.
        """
        self._caught_up = self._caught_up or self.follower.applied == self.follower.read
        if not self._outages.is_counting or not self._caught_up or time.monotonic() < self._next_question:
            return
        self._next_question = time.monotonic() + _QUESTION_SECONDS
        if self._server.sends(self._settings.slot):
            self._outages.over()

    def _take(self) -> None:
        follower, stop = self.follower, self._stop
        # Commits after a snapshot must be applied after its load.
        follower.take(lambda: not stop.is_set() and not self._loads.is_ready)
        follower.apply_if_due()
        self._load_tables()
        if follower.consumed is not None:
            Consumers(self._settings.segments).set(CONSUMER, follower.consumed)
            follower.consumed = None
        self._cleaning.clean_if_due(self.tables)

    # ---- tables --------------------------------------------------------------------------------------------------

    def _open(self) -> Tables:
        settings = self._settings
        return Tables(
            self._store,
            settings.format,
            settings.table_options,
            self._state,
            self._server,
            self._check,
            trusts_widening=settings.trusts_widening,
            renames_columns=settings.renames_columns,
        )

    def _reopened(self) -> Tables:
        self.tables = self._open()
        self.tables.save_problems()
        return self.tables

    def _decoding(self) -> Options:
        options = self._settings.options
        if options.spill_directory is None and self._store.local:
            options = replace(options, spill_directory=self._store.at(SPILL))
        return options

    def _check_publications(self) -> None:
        """Notes tables that must be loaded, and those that are no longer published."""
        quiet = QuietTables(self._store, self._run, self._server, self._decoding())
        self._missing = check_publications(
            self.tables, self._server, self._missing, self.follower.through, quiet, self._keep_going
        )

    def _load_tables(self) -> None:
        """Loads the tables that must be loaded."""
        self._loads.load_all(self.tables, self._settings, self.follower, self._keep_going)

    def load(self, table: MirroredTable, *, fresh: bool) -> None:
        """As `Loads.load`."""
        self._loads.load(table, self._settings, self.follower, self._keep_going, fresh=fresh)

    def _keep_going(self) -> bool:
        return not self._stop.is_set()


def _pace(mirror: MirrorSettings) -> Pace:
    """When current tables change. A segment is complete after half of `seconds`."""
    seconds = mirror.merge_seconds - mirror.seconds / 2
    return Pace(seconds, _SHARE, _MOST_ROWS, _MOST_BYTES, _SOME_BYTES, _SOME_SHARE)


def _capture_settings(mirror: MirrorSettings, until: int | None) -> Settings:
    """The settings of the capture process, which ends at the LSN `until`."""
    retention = mirror.retention
    more: dict[str, Any] = {} if retention is None else {"retention": asdict(retention)}
    more["adopt"], more["failover"] = mirror.adopt, mirror.failover
    # Compression does not pay for a segment that is read once and removed, unless it is sent to an object store.
    if retention is not None and retention.consumed and not is_uri(mirror.segments):
        more["compressed"] = False
    return Settings(
        mirror.dsn,
        mirror.slot,
        mirror.publications,
        mirror.segments,
        {"seconds": max(mirror.seconds / 2, 0.1), "nbytes": _SEGMENT_BYTES},
        more,
        until,
        mirror.retry_seconds,
    )
