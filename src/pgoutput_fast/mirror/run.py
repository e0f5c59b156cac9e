"""One run of a mirror: the work between its beginning and its end or first error."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import asdict, replace

from pgoutput_fast.capture.process import CaptureProcess, Settings
from pgoutput_fast.capture.retention import Consumers
from pgoutput_fast.mirror.begin import begin
from pgoutput_fast.mirror.follow import Follower, Pace
from pgoutput_fast.mirror.layout import SPILL
from pgoutput_fast.mirror.load import load_table, logged
from pgoutput_fast.mirror.memory import Memory
from pgoutput_fast.mirror.points import Points
from pgoutput_fast.mirror.registry import Tables
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.tables import MirroredTable
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.stores import Store

__all__ = ["MirrorRun"]

_log = logging.getLogger("pgoutput_fast.mirror")

# The name of the mirror among the consumers of the segments.
_CONSUMER = "mirror"
# The least and the most time until new segments are looked for again; and how often new tables are looked for.
_POLL_SECONDS, _LOOK_SECONDS = (0.1, 2.0), 30.0
# How often files are removed that no point needs.
_CLEAN_SECONDS = 600.0
# How long to wait until a table is loaded again that could not be loaded.
_RETRY_SECONDS = 1.0
# How often others catch up with a table that was loaded. Meanwhile tables may be loaded again.
_MOST_MORE = 3
_UNPUBLISHED = "it is not published any more"
# If more changes wait, they are applied at once.
_MOST_ROWS, _MOST_BYTES = 1_000_000, 256 << 20
# At most about this part of the time goes into changes of current tables.
_SHARE = 1 / 3


class MirrorRun:
    """The work of a mirror. After an error, make a new one: what was taken, but not applied, must be taken again.

    Args:
        settings: of the mirror.
        store: the target.
        stop: set when the work shall end.

    Attributes:
        tables: the tables.
        follower: takes their changes.

    Raises:
        As `begin`: it makes the slot and loads the tables, if that is not done.
    """

    def __init__(self, settings: MirrorSettings, store: Store, stop: threading.Event) -> None:
        self._settings, self._store, self._stop = settings, store, stop
        self._run = secrets.token_hex(8)
        self._memory, self._points = Memory(store), Points(store, settings.keep_points)
        self._server = ServerView(settings.dsn, settings.publications)
        self._next_cleaning = time.monotonic() + _CLEAN_SECONDS
        # Directory of a table -> when to try again to load it.
        self._next_try: dict[str, float] = {}
        # The tables that were not published at the last look.
        self._missing: set[str] = set()
        self.tables = self._open()
        self._clean_up()
        progress = begin(
            settings,
            store,
            self._memory,
            self._points,
            self._server,
            self._reopened,
            self._run,
            lambda: not self._stop.is_set(),
        )
        self.follower = Follower(
            store,
            settings.segments,
            self.tables,
            self._server,
            self._decoding(),
            self._memory,
            self._points,
            Pace(settings.seconds / 2, _SHARE, _MOST_ROWS, _MOST_BYTES),
            self._run,
            progress,
        )
        self.follower.mark()

    def end(self) -> None:
        """Notes that this run left nothing behind."""
        self._memory.set_run(None)

    def until(self, lsn: int | None, time_now: int | None, stop: threading.Event) -> None:
        """Follows the changes until everything that committed up to an LSN is in all tables, or it is told to stop.

        Args:
            lsn: the LSN. None: only `stop` ends it.
            time_now: the server's time before which it was at this LSN; None if not known.
            stop: set when it shall end.
        """
        self._stop = stop
        follower, until = self.follower, lsn
        self._missing = set()
        self._look_at_publications()
        more = _MOST_MORE
        while not stop.is_set():
            self._run_capture(until)
            if until is None or lsn is None or stop.is_set():
                return
            follower.reached(until, time_now)
            if any(each.wants_load and (each.position or 0) < lsn for each in self.tables):
                stop.wait(_RETRY_SECONDS)
                continue
            # A table that was loaded meanwhile is ahead of the others. They catch up to have a common position.
            if follower.is_common or not more:
                return
            until, more = max(until, follower.ahead + 1), more - 1

    def _run_capture(self, until: int | None) -> None:
        stop = self._stop
        capture = CaptureProcess(self._capture_settings(until))
        capture.start()
        try:
            next_look = time.monotonic() + _LOOK_SECONDS
            while True:
                # First this, then the segments: then they are all there.
                done = not capture.check() or stop.is_set()
                self._take()
                if done:
                    break
                if time.monotonic() >= next_look:
                    try:
                        self._look_at_publications()
                    except Exception as problem:  # the capture says it if the server is away for too long
                        _log.warning("the publications cannot be read now: %s", str(problem).strip())
                    next_look = time.monotonic() + _LOOK_SECONDS
                stop.wait(min(max(self._settings.seconds / 20, _POLL_SECONDS[0]), _POLL_SECONDS[1]))
        finally:
            capture.stop()
        self.follower.apply()
        if not stop.is_set():
            self._look_at_publications()
            self._load_tables()

    def _take(self) -> None:
        follower, stop = self.follower, self._stop
        follower.take(lambda: not stop.is_set())
        follower.apply_if_due()
        self._load_tables()
        if follower.consumed is not None:
            Consumers(self._settings.segments).set(_CONSUMER, follower.consumed)
            follower.consumed = None
        if time.monotonic() >= self._next_cleaning:
            self._clean()

    def _capture_settings(self, until: int | None) -> Settings:
        retention = None if self._settings.retention is None else asdict(self._settings.retention)
        return Settings(
            self._settings.dsn,
            self._settings.slot,
            self._settings.publications,
            self._settings.segments,
            {"seconds": max(self._settings.seconds / 2, 0.1)},
            {} if retention is None else {"retention": retention},
            until,
        )

    # ---- tables --------------------------------------------------------------------------------------------------

    def _open(self) -> Tables:
        settings = self._settings
        return Tables(self._store, settings.format, settings.storage_options, self._memory, self._server)

    def _reopened(self) -> Tables:
        self.tables = self._open()
        return self.tables

    def _decoding(self) -> Options:
        options = self._settings.options
        if options.spill_directory is None and self._store.local:
            options = replace(options, spill_directory=self._store.at(SPILL))
        return options

    def _clean_up(self) -> None:
        """Removes what a killed mirror left."""
        before = self._memory.run()
        if before is not None:
            self.tables.remove_orphans(before)
            self._clean()
        for name in self._store.names(SPILL):
            self._store.remove(name)
        self._memory.set_run(self._run)

    def _clean(self) -> None:
        """Removes files of current tables that no point needs."""
        oldest = self._points.oldest()
        for each in self.tables:
            each.clean(oldest.get(each.facts.table))
        self._next_cleaning = time.monotonic() + _CLEAN_SECONDS

    def _look_at_publications(self) -> None:
        """Notes published tables that are not mirrored, which are loaded soon; stops those that are not published."""
        tables, published = self.tables, self._server.published()
        for name in published:
            if name not in tables:
                tables.named(name)
            elif (table := tables.named(name)).facts.error == _UNPUBLISHED:
                table.want_load("it is published again")
        missing = {each.facts.table for each in tables if each.facts.stage != "stopped"} - set(published)
        # What changed before is taken first. So a table is stopped when it is missing for the second time.
        for name in sorted(missing & self._missing):
            tables.named(name).stop(_UNPUBLISHED)
        self._missing = missing

    def _load_tables(self) -> None:
        """Loads the tables that must be loaded."""
        wanting = [each for each in self.tables if each.wants_load and self._may_try(each)]
        for each in wanting:
            if self._stop.is_set():
                return
            self.load(each, fresh=False)
        if wanting:
            self.follower.mark()

    def _may_try(self, table: MirroredTable) -> bool:
        return time.monotonic() >= self._next_try.get(table.directory, 0.0)

    def load(self, table: MirroredTable, *, fresh: bool) -> None:
        """Loads one table with a snapshot of its own. If this cannot be, the table says why.

        Args:
            table: the table.
            fresh: whether its history goes, too.

        Raises:
            LoadStoppedError: if it is told to stop.
        """
        settings, name = self._settings, table.facts.table
        _log.info("loading %s: %s", name, table.facts.error)
        try:
            try:
                snapshot = Snapshot(
                    settings.dsn, settings.publications, tables=[name], options=settings.options
                )
            except KeyError:
                return table.stop(_UNPUBLISHED)
            with snapshot:
                progress = settings.progress or logged([name])
                load_table(
                    table,
                    snapshot,
                    self._server,
                    self._store,
                    self._run,
                    fresh=fresh,
                    wanted=lambda: not self._stop.is_set(),
                    threads=settings.threads,
                    progress=progress,
                )
        except SnapshotError as problem:
            # Somebody alters it right now.
            self._next_try[table.directory] = time.monotonic() + _RETRY_SECONDS
            table.want_load(str(problem))
        except ValueError as problem:
            table.stop(str(problem))
