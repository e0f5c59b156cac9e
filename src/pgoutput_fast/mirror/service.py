"""Mirrors a database: loads its published tables once, and follows their changes."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.capture.process import CaptureProcess, Settings
from pgoutput_fast.capture.retention import Consumers, Retention
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_qualified_name
from pgoutput_fast.mirror.begin import MirrorSettings, begin
from pgoutput_fast.mirror.errors import LoadStoppedError, MirrorBusyError, MirrorError
from pgoutput_fast.mirror.follow import Follower, Pace
from pgoutput_fast.mirror.formats import FORMATS
from pgoutput_fast.mirror.layout import OWN, SEGMENTS, SPILL
from pgoutput_fast.mirror.load import load_table, logged
from pgoutput_fast.mirror.memory import Memory, Progress
from pgoutput_fast.mirror.points import MOST_POINTS, Points
from pgoutput_fast.mirror.registry import Tables
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.status import TableStatus
from pgoutput_fast.mirror.tables import MirroredTable
from pgoutput_fast.postgres.session import position_of
from pgoutput_fast.protocol.lsn import Lsn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.progress import LoadProgress
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.locks import try_lock
from pgoutput_fast.storage.stores import Store, open_store

__all__ = ["Mirror"]

_log = logging.getLogger("pgoutput_fast.mirror")

_LOCK = f"{OWN}/lock"
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


class Mirror:
    """A copy of a database's published tables in a lake: what they are now, and every change of them.

    Use it in a `with` block: only one process at a time mirrors into a target. You may kill it at any time. The next
    one goes on where this one was.

    Args:
        dsn: of the database, with a user who may read the tables and use replication slots.
        slot: name of the replication slot. The mirror makes it.
        publications: names of the publications, without SQL quotes.
        target: a directory or a URI; it is created. `current/` has the tables as they are now, `history/` has all
            changes, `_segments/` what the server sent, and `_rejects/` what could not be decoded.
        format: of the current tables: `delta`.
        segments: a directory or URI for the segments, if not `_segments` in the target.
        seconds: how old a change may become before it is in its current table, as far as the work allows that.
        options: how to decode. `transactions` and `metadata_prefix` must be the default.
        adopt: take over a slot that exists, and its segments, if there are some. Nobody else may read the slot.
        retention: which segments are removed; None for none. With `Retention(consumed=True)` they stay until all
            tables have them.
        keep_points: how many points in time can be read (see `at`). Files that only older versions have are removed.
        threads: number of sessions that read a table during a load.
        progress: called after each range of pages during a load; None to log the progress.
        storage_options: what delta-rs needs to reach the store, beside what the URI says.

    Raises:
        TypeError: if `publications` is a text instead of a list.
        ValueError: for another wrong argument.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        publications: Sequence[str],
        target: str | os.PathLike[str],
        *,
        format: str = "delta",
        segments: str | os.PathLike[str] | None = None,
        seconds: float = 10.0,
        options: Options | None = None,
        adopt: bool = False,
        retention: Retention | None = None,
        keep_points: int = MOST_POINTS,
        threads: int = 1,
        progress: Callable[[LoadProgress], object] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        expect_list("publications", publications)
        if format not in FORMATS:
            raise ValueError(f"format must be {' or '.join(map(repr, FORMATS))}, not {format!r}")
        if not seconds > 0:
            raise ValueError("seconds must be positive")
        if keep_points < 1:
            raise ValueError("keep_points must be at least 1")
        self._settings = MirrorSettings(
            dsn,
            slot,
            tuple(sorted(set(publications))),
            format,
            None if segments is None else os.fspath(segments),
            adopt,
            _decoding(options),
            threads,
            dict(storage_options or {}),
            progress,
        )
        self._store = open_store(target)
        self._segments = os.fspath(self._store.at(SEGMENTS)) if segments is None else os.fspath(segments)
        self._seconds, self._retention = seconds, retention
        self._run = secrets.token_hex(8)
        self._memory, self._points = Memory(self._store), Points(self._store, keep_points)
        self._next_cleaning = time.monotonic() + _CLEAN_SECONDS
        self._server = ServerView(dsn, publications)
        self._held = ExitStack()
        self._is_open = False
        self._tables: Tables | None = None
        self._follower: Follower | None = None
        # Directory of a table -> when to try again to load it.
        self._next_try: dict[str, float] = {}
        # The tables that were not published at the last look.
        self._missing: set[str] = set()

    def __enter__(self) -> Mirror:
        with ExitStack() as stack:
            _make(self._store)
            if self._store.local:
                # In other stores the slot keeps a second capture away.
                stack.enter_context(_locked(self._store))
            self._held = stack.pop_all()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._is_open:
            self._memory.set_run(None)
        self.close()

    def close(self) -> None:
        """Lets other processes mirror into the target."""
        self._is_open = False
        self._held.close()

    # ---- run -----------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        until_lsn: Lsn | Literal["now"] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Loads the tables if they are not loaded yet. Then follows their changes until it is told to stop.

        Args:
            until_lsn: return when everything that committed up to this LSN is in all tables: an LSN, as for
                `parse_lsn`, or `"now"` for the end of the server's log at the time of this call.
            stop: return when this event is set.

        Raises:
            MirrorError: if the mirror cannot begin or go on; the message says what to do.
            CaptureError: if the capture cannot go on.
            psycopg2.Error: if the server refuses, or is away for too long.
            OSError: if the target cannot be written.
            ValueError, TypeError: if `until_lsn` is no position.
        """
        self._expect_open()
        stop = stop if stop is not None else threading.Event()
        until = None if until_lsn is None else position_of(until_lsn, self._settings.dsn)
        time_now = self._server.now()[0] if until_lsn == "now" else None
        try:
            self._run_until(until, time_now, stop)
        except LoadStoppedError:
            self._follower = self._tables = None
        except BaseException:
            # What was taken, but not applied, must be taken again.
            self._follower = self._tables = None
            raise

    def _run_until(self, until: int | None, time_now: int | None, stop: threading.Event) -> None:
        follower = self._follow(stop)
        self._missing = set()
        self._look_at_publications()
        wanted, more = until, _MOST_MORE
        while not stop.is_set():
            self._run_capture(follower, until, stop)
            if until is None or wanted is None or stop.is_set():
                return
            follower.reached(until, time_now)
            if any(each.wants_load and (each.position or 0) < wanted for each in self._opened()):
                stop.wait(_RETRY_SECONDS)
                continue
            # A table that was loaded meanwhile is ahead of the others. They catch up to have a common position.
            if follower.is_common or not more:
                return
            until, more = max(until, follower.ahead + 1), more - 1

    def _run_capture(self, follower: Follower, until: int | None, stop: threading.Event) -> None:
        capture = CaptureProcess(self._capture_settings(until))
        capture.start()
        try:
            next_look = time.monotonic() + _LOOK_SECONDS
            while True:
                # First this, then the segments: then they are all there.
                done = not capture.check() or stop.is_set()
                self._take(follower, stop)
                if done:
                    break
                if time.monotonic() >= next_look:
                    try:
                        self._look_at_publications()
                    except Exception as problem:  # the capture says it if the server is away for too long
                        _log.warning("the publications cannot be read now: %s", str(problem).strip())
                    next_look = time.monotonic() + _LOOK_SECONDS
                stop.wait(min(max(self._seconds / 20, _POLL_SECONDS[0]), _POLL_SECONDS[1]))
        finally:
            capture.stop()
        follower.apply()
        if not stop.is_set():
            self._look_at_publications()
            self._load_tables(follower, stop)

    def _take(self, follower: Follower, stop: threading.Event) -> None:
        follower.take(lambda: not stop.is_set())
        follower.apply_if_due()
        self._load_tables(follower, stop)
        if follower.consumed is not None:
            Consumers(self._segments).set(_CONSUMER, follower.consumed)
            follower.consumed = None
        if time.monotonic() >= self._next_cleaning:
            self._clean()

    def _capture_settings(self, until: int | None) -> Settings:
        retention = None if self._retention is None else asdict(self._retention)
        return Settings(
            self._settings.dsn,
            self._settings.slot,
            self._settings.publications,
            self._segments,
            {"seconds": max(self._seconds / 2, 0.1)},
            {} if retention is None else {"retention": retention},
            until,
        )

    # ---- tables --------------------------------------------------------------------------------------------------

    def reload(self, table: str) -> None:
        """Loads a table again, as it is on the server now. It also mends a table that is stopped.

        Args:
            table: qualified name, quoted as in SQL.

        Raises:
            MirrorError: if it cannot be loaded now; the message says why.
            KeyError: if the publications do not publish it.
            psycopg2.Error: if the server refuses.
        """
        self._expect_open()
        parts = parse_qualified_name(table)
        name = table if parts is None else quote_qualified_name(*parts)
        published = self._server.published()
        if name not in published:
            raise KeyError(f"{table} is not published; published: {', '.join(published) or 'no table'}")
        try:
            follower = self._follow(threading.Event())
            found = self._opened().named(name)
            found.want_load("reload was called")
            self._load(found, threading.Event(), fresh=found.facts.history_error is not None)
            follower.mark()
        except BaseException:
            self._follower = self._tables = None
            raise
        if found.facts.stage != "follow":
            raise MirrorError(f"{name} cannot be loaded: {found.facts.error}")

    def status(self) -> list[TableStatus]:
        """The state of each table, sorted by name. Asks the server for its position, if it answers."""
        server: tuple[int, int] | None = None
        with suppress(Exception):
            server = self._server.now()
        progress = self._follower.applied if self._follower is not None else self._memory.progress()
        through = 0 if self._follower is None else self._follower.common
        return [_status(each, progress, through, server) for each in self._opened()]

    def _opened(self) -> Tables:
        if self._tables is None:
            self._tables = Tables(
                self._store,
                self._settings.format,
                self._settings.storage_options,
                self._memory,
                self._server,
            )
        return self._tables

    def _follow(self, stop: threading.Event) -> Follower:
        """The follower of this mirror. Makes the slot and loads the tables first, if that is not done."""
        if self._follower is None:
            settings = self._settings
            self._clean_up()
            progress = begin(
                settings,
                self._store,
                self._segments,
                self._memory,
                self._points,
                self._server,
                self._forgotten,
                self._run,
                lambda: not stop.is_set(),
            )
            pace = Pace(self._seconds / 2, _SHARE, _MOST_ROWS, _MOST_BYTES)
            self._follower = Follower(
                self._store,
                self._segments,
                self._opened(),
                self._server,
                self._decoding(),
                self._memory,
                self._points,
                pace,
                self._run,
                progress,
            )
            self._follower.mark()
        return self._follower

    def _forgotten(self) -> Tables:
        self._tables = None
        return self._opened()

    def _decoding(self) -> Options:
        options = self._settings.options
        if options.spill_directory is None and self._store.local:
            options = replace(options, spill_directory=self._store.at(SPILL))
        return options

    def _clean_up(self) -> None:
        """Removes what a killed mirror left."""
        before = self._memory.run()
        if before is not None:
            self._opened().remove_orphans(before)
            self._clean()
        for name in self._store.names(SPILL):
            self._store.remove(name)
        self._memory.set_run(self._run)

    def _clean(self) -> None:
        """Removes files of current tables that no point needs."""
        oldest = self._points.oldest()
        for each in self._opened():
            each.clean(oldest.get(each.facts.table))
        self._next_cleaning = time.monotonic() + _CLEAN_SECONDS

    def _look_at_publications(self) -> None:
        """Notes published tables that are not mirrored, which are loaded soon; stops those that are not published."""
        tables, published = self._opened(), self._server.published()
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

    def _load_tables(self, follower: Follower, stop: threading.Event) -> None:
        """Loads the tables that must be loaded."""
        wanting = [each for each in self._opened() if each.wants_load and self._may_try(each)]
        for each in wanting:
            if stop.is_set():
                return
            self._load(each, stop, fresh=False)
        if wanting:
            follower.mark()

    def _may_try(self, table: MirroredTable) -> bool:
        return time.monotonic() >= self._next_try.get(table.directory, 0.0)

    def _load(self, table: MirroredTable, stop: threading.Event, *, fresh: bool) -> None:
        """Loads one table with a snapshot of its own. If this cannot be, the table says why."""
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
                    wanted=lambda: not stop.is_set(),
                    threads=settings.threads,
                    progress=progress,
                )
        except SnapshotError as problem:
            # Somebody alters it right now.
            self._next_try[table.directory] = time.monotonic() + _RETRY_SECONDS
            table.want_load(str(problem))
        except ValueError as problem:
            table.stop(str(problem))

    def _expect_open(self) -> None:
        if not self._is_open:
            raise MirrorError("the mirror is not open: use it in a with block")


def _decoding(options: Options | None) -> Options:
    """The options of decoding. By default, what is damaged goes to the rejects."""
    options = Options(on_error="quarantine") if options is None else options
    if options.transactions != "as_sent" or options.metadata_prefix != "_" or options.columns is not None:
        raise ValueError(
            "a mirror needs the default of the options transactions, metadata_prefix and columns"
        )
    return options


def _make(store: Store) -> None:
    try:
        store.make()
    except (FileExistsError, NotADirectoryError) as problem:
        raise NotADirectoryError(
            f"the target {store} is a file, or lies below one: give a directory, which need not exist"
        ) from problem


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    path = Path(store.at(_LOCK))
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab") as file:
        if not try_lock(file):
            raise MirrorBusyError(
                f"another process mirrors into {store}: stop it first, or use another target"
            )
        yield


def _status(
    table: MirroredTable, progress: Progress | None, through: int, server: tuple[int, int] | None
) -> TableStatus:
    position = table.position
    time_of: int | None = None
    if table.follows and progress is not None and position is not None:
        time_of = progress.time if progress.lsn >= position else None
        position = max(position, progress.lsn)
    bytes_behind = seconds = None
    if server is not None and position is not None:
        now, end = server
        reached = max(position, through) if table.follows else position
        bytes_behind = max(0, end - reached)
        if not bytes_behind:
            seconds = 0.0
        elif time_of is not None:
            seconds = max(0.0, (now - time_of) / 1e6)
    facts = table.facts
    return TableStatus(
        facts.table,
        facts.stage,
        position,
        table.history.position(),
        table.version,
        table.waiting_rows,
        table.applied,
        bytes_behind,
        seconds,
        facts.error,
        facts.history_error,
    )
