"""Loads of tables, while the capture runs and other tables follow: the first load, and later ones.

A snapshot is taken in the background, because its slot waits for all open transactions. All tables that wait for a load
share it. The first one is that of the mirror's own slot.

A table whose load was interrupted has ranges of an earlier snapshot (`ranges.py`). Its load goes on when the history
has the changes up to the new snapshot, which stays open meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.mirror.errors import LoadStoppedError
from pgoutput_fast.mirror.follow.follow import Follower
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.load.load import load_table, source_of
from pgoutput_fast.mirror.load.ranges import LoadedRanges
from pgoutput_fast.mirror.load.source import Followed, TableSource, is_beside, is_small
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.postgres.interruptible import stopping
from pgoutput_fast.postgres.row_age import of_one_table
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.stores import Store

__all__ = ["Loads"]

_log = logging.getLogger("pgoutput_fast.mirror")

# Pauses before a failed load of a table is tried again: first, and at most.
_RETRY_SECONDS, _MOST_RETRY_SECONDS = 1.0, 30.0
# A snapshot is nearly always ready in this time. If it waits for open transactions, the other tables go on.
_SNAPSHOT_SECONDS = 2.0


class _Taking:
    """Takes a snapshot in a thread, while other tables go on.

    Args:
        take: takes the snapshot; its argument returns whether to keep waiting for open transactions.
    """

    def __init__(self, take: Callable[[Callable[[], bool]], Snapshot]) -> None:
        self._take = take
        self._stop = threading.Event()
        self._snapshot: Snapshot | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgoutput_fast-taking", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with stopping(self._stop):
                self._snapshot = self._take(lambda: not self._stop.is_set())
        except BaseException as problem:
            self._problem = problem

    def is_done(self, seconds: float = 0.0) -> bool:
        """Whether `result` returns at once. Waits for the snapshot for at most `seconds`."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> Snapshot:
        """The snapshot, which the caller closes.

        Raises:
            BaseException: if it could not be taken.
        """
        self._thread.join()
        if self._snapshot is None:
            assert self._problem is not None
            raise self._problem
        return self._snapshot

    def close(self) -> None:
        """Gives up, or closes an unused snapshot."""
        self._stop.set()
        self._thread.join()
        if self._snapshot is not None:
            self._snapshot.close()


class Loads:
    """Loads tables. A table that cannot be loaded now is loaded later.

    Args:
        store: the target.
        server: gives the numbers of columns.
        run: names the process.
    """

    def __init__(self, store: Store, server: ServerView, run: str) -> None:
        self._store, self._server, self._run = store, server, run
        # Directory of a table -> when to try its load again, and the last pause before that.
        self._next_try: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._taking: _Taking | None = None
        # The snapshot for tables whose load was interrupted.
        self._late: Snapshot | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a snapshot waits for its loads. Commits after it must be applied after these."""
        return self._taking is not None and self._taking.is_done()

    def begin_with(self, snapshot: Snapshot) -> None:
        """Uses a snapshot for the next loads. It is closed after them."""
        self._taking = _Taking(lambda keep_going: snapshot)

    @property
    def awaits(self) -> int | None:
        """The LSN up to which the histories must have all commits before an interrupted load can go on."""
        return None if self._late is None else self._late.consistent_lsn

    def close(self) -> None:
        """Gives up unused snapshots."""
        if self._taking is not None:
            self._taking.close()
        if self._late is not None:
            self._late.close()
        self._taking = self._late = None

    def load_all(
        self,
        tables: Iterable[MirroredTable],
        settings: MirrorSettings,
        follower: Follower,
        keep_going: Callable[[], bool],
    ) -> None:
        """Loads the tables that must be loaded and can be loaded now. Arguments and errors as in `load`."""
        wanting = [each for each in tables if each.wants_load and self._may_try(each)]
        if not wanting:
            self.close()
        elif self._late is not None:
            if follower.through >= self._late.consistent_lsn:
                snapshot, self._late = self._late, None
                late = [each for each in wanting if LoadedRanges(self._store, each.directory).done]
                with snapshot:
                    # The first one releases the snapshot if ranges are read apart.
                    late = late[:1] if settings.reads_apart else late
                    self._load_in(snapshot, late, settings, follower, keep_going)
        elif self._has_snapshot(settings):
            self._load_now(wanting, settings, follower, keep_going)

    def _load_now(
        self,
        wanting: Sequence[MirroredTable],
        settings: MirrorSettings,
        follower: Follower,
        keep_going: Callable[[], bool],
    ) -> None:
        """Loads tables in the snapshot that was taken. It stays for those whose load was interrupted."""
        late = [each for each in wanting if LoadedRanges(self._store, each.directory).done]
        snapshot = self._snapshot(settings, keep_going, wanting)
        if snapshot is None:
            return
        with ExitStack() as stack:
            stack.enter_context(snapshot)
            apart = self._in_ranges(snapshot, wanting, settings, follower, keep_going)
            now = [each for each in wanting if each not in late and each not in apart]
            self._load_in(snapshot, now, settings, follower, keep_going)
            if apart:
                self._read_apart(snapshot, apart, keep_going)
            elif late and keep_going():
                self._late = snapshot
                stack.pop_all()

    def _in_ranges(
        self,
        snapshot: Snapshot,
        tables: Sequence[MirroredTable],
        settings: MirrorSettings,
        follower: Follower,
        keep_going: Callable[[], bool],
    ) -> dict[MirroredTable, TableSource]:
        """The tables with ranges to read, if each is read in a transaction of its own."""
        found: dict[MirroredTable, TableSource] = {}
        for table in tables if settings.reads_apart else ():
            if table.record.on_server not in snapshot.tables:
                continue
            with (
                self._put_off_if_away([table], keep_going),
                suppress(ValueError),
            ):  # the load says what is wrong
                source = source_of(table, snapshot, self._server, self._store, settings, keep_going)
                if source.is_in_ranges(_followed(follower)) and not source.is_complete:
                    found[table] = source
        return found

    def _read_apart(
        self, snapshot: Snapshot, tables: Mapping[MirroredTable, TableSource], keep_going: Callable[[], bool]
    ) -> None:
        """Reads the ranges of tables without their snapshot. The next one brings them to one position."""
        with self._put_off_if_away(list(tables), keep_going):
            snapshot.release()
        for table, source in tables.items():
            if not keep_going():
                return
            _log.info("loading %s, each range in a transaction of its own", table.record.table)
            with self._put_off_if_away([table], keep_going):
                try:
                    with of_one_table(table.record.on_server):
                        source.read_missing(is_later=True)
                except ValueError as problem:
                    source.ranges.remove()
                    table.stop(str(problem))

    def _load_in(
        self,
        snapshot: Snapshot,
        tables: Sequence[MirroredTable],
        settings: MirrorSettings,
        follower: Follower,
        keep_going: Callable[[], bool],
    ) -> None:
        """Loads tables, several at the same time if the sessions are more than one.

        Small ones come first, each with one of the sessions. Then all sessions read a large one, while others that were
        read before are written.
        """

        def load(n: int, each: MirroredTable) -> None:
            if keep_going():
                number, why = f"table {n} of {len(tables)}", each.record.error
                _log.info("loading %s (%s): %s", each.record.table, number, why)
                self._load(each, snapshot, settings, follower, keep_going, fresh=False)

        ordered = sorted(tables, key=lambda each: not is_small(each, snapshot))
        beside = []
        for n, each in enumerate(ordered, 1):
            if settings.threads > 1 and is_beside(each, snapshot):
                beside.append((n, each))
            else:
                load(n, each)
        with ThreadPoolExecutor(settings.threads, "pgoutput_fast-load") as pool:
            loads = [pool.submit(load, n, each) for n, each in beside]
            try:
                for done in loads:
                    done.result()
            finally:
                pool.shutdown(cancel_futures=True)
        if tables and keep_going():
            follower.mark()

    def load(
        self,
        table: MirroredTable,
        settings: MirrorSettings,
        follower: Follower,
        keep_going: Callable[[], bool],
        *,
        fresh: bool,
    ) -> None:
        """Loads one table. If that is impossible, the table has the reason.

        Args:
            table: the table.
            settings: of the mirror.
            follower: gives the position of the changes.
            keep_going: whether to go on.
            fresh: whether the history begins again, without the changes that it has.

        Raises:
            LoadStoppedError: if `keep_going` became false.
        """
        _log.info("loading %s: %s", table.record.table, table.record.error)
        LoadedRanges(self._store, table.directory).remove()  # the caller wants new rows
        snapshot = self._snapshot(settings, keep_going, [table])
        if snapshot is not None:
            with snapshot:
                self._load(table, snapshot, settings, follower, keep_going, fresh=fresh)

    def _load(
        self,
        table: MirroredTable,
        snapshot: Snapshot,
        settings: MirrorSettings,
        follower: Follower,
        keep_going: Callable[[], bool],
        *,
        fresh: bool,
    ) -> None:
        if (name := table.record.on_server) not in snapshot.tables:
            if name not in self._server.published():
                return table.leave()
            return self._put_off(table, "it was not published yet when its snapshot was taken")
        with self._put_off_if_away([table], keep_going):
            try:
                load_table(
                    table,
                    snapshot,
                    self._server,
                    self._store,
                    self._run,
                    settings,
                    fresh=fresh,
                    keep_going=keep_going,
                    followed=_followed(follower),
                )
            except ValueError as problem:
                LoadedRanges(self._store, table.directory).remove()
                return table.stop(str(problem))
            self._pauses.pop(table.directory, None)
            _log.info("%s is loaded", name)

    def _has_snapshot(self, settings: MirrorSettings) -> bool:
        """Whether a load can begin at once. If no snapshot is being taken, starts one."""
        seconds = 0.0
        if self._taking is None:
            seconds = _SNAPSHOT_SECONDS
            self._taking = _Taking(lambda keep_going: settings.snapshot(None, keep_going))
        return self._taking.is_done(seconds)

    def _snapshot(
        self, settings: MirrorSettings, keep_going: Callable[[], bool], tables: Sequence[MirroredTable]
    ) -> Snapshot | None:
        """The snapshot that was taken, or a new one; None if none can be taken now. The tables are then put off."""
        taking, self._taking = self._taking, None
        with self._put_off_if_away(tables, keep_going):
            return settings.snapshot(None, keep_going) if taking is None else taking.result()
        return None

    @contextmanager
    def _put_off_if_away(
        self, tables: Sequence[MirroredTable], keep_going: Callable[[], bool]
    ) -> Iterator[None]:
        """Loads the tables later if an error of the block may pass.

        Raises:
            LoadStoppedError: if `keep_going` became false.
        """
        try:
            yield
        except SnapshotError as problem:
            if not keep_going():
                raise LoadStoppedError from problem
            why = str(problem)  # a table is being altered, or is locked
        except Exception as problem:
            # Such as no free slot, walsender or connection. If the server cannot be reached, the capture reports it.
            if not is_outage(problem, local=True):
                raise
            why = f"it cannot be loaded now ({str(problem).strip()})"
        else:
            return
        for each in tables:
            self._put_off(each, why)

    def _put_off(self, table: MirroredTable, why: str) -> None:
        """Loads a table later, while the others go on."""
        pause = min(self._pauses.get(table.directory, _RETRY_SECONDS / 2) * 2, _MOST_RETRY_SECONDS)
        self._pauses[table.directory] = pause
        table.loading = None
        self._next_try[table.directory] = time.monotonic() + pause
        if not table.wants_load or table.record.error != why:
            table.want_load(why)

    def _may_try(self, table: MirroredTable) -> bool:
        return time.monotonic() >= self._next_try.get(table.directory, 0.0)


def _followed(follower: Follower) -> Followed:
    return Followed(follower.read.lsn, follower.through, follower.read.stream)
