"""Later loads of tables, while other tables follow.

A snapshot is taken in the background, because its slot waits for all open transactions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.mirror.errors import LoadStoppedError
from pgoutput_fast.mirror.follow.follow import Follower
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.load.load import load_table
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.postgres.interruptible import stopping
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
        directory: names the table.
        take: takes the snapshot; its argument returns whether to keep waiting for open transactions.
    """

    def __init__(self, directory: str, take: Callable[[Callable[[], bool]], Snapshot]) -> None:
        self.directory = directory
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
    """Loads tables, one snapshot for each. A table that cannot be loaded now is loaded later.

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

    @property
    def is_ready(self) -> bool:
        """Whether a snapshot waits for its load. Commits after it must be applied after the load."""
        return self._taking is not None and self._taking.is_done()

    def close(self) -> None:
        """Gives up an unused snapshot."""
        if self._taking is not None:
            self._taking.close()
            self._taking = None

    def load_all(
        self,
        tables: Iterable[MirroredTable],
        settings: MirrorSettings,
        follower: Follower,
        keep_going: Callable[[], bool],
    ) -> None:
        """Loads the tables that must be loaded and can be loaded now. Arguments and errors as in `load`."""
        wanting = [each for each in tables if each.wants_load and self._may_try(each)]
        if self._taking is not None and self._taking.directory not in {each.directory for each in wanting}:
            self.close()
        is_loaded = False
        for each in wanting:
            if not keep_going():
                return
            if self._has_snapshot(each, settings):
                self.load(each, settings, follower, keep_going, fresh=False)
                is_loaded = True
        if is_loaded:
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
        try:
            try:
                snapshot = self._snapshot(table, settings, keep_going)
            except KeyError:
                return table.leave()
            with snapshot:
                if snapshot.consistent_lsn <= follower.read.lsn:
                    return self._put_off(
                        table, "its snapshot came too late: the other tables have later changes"
                    )
                load_table(
                    table,
                    snapshot,
                    self._server,
                    self._store,
                    self._run,
                    settings,
                    fresh=fresh,
                    keep_going=keep_going,
                )
        except SnapshotError as problem:
            if not keep_going():
                raise LoadStoppedError from problem
            self._put_off(table, str(problem))  # it is being altered, or is locked
        except ValueError as problem:
            table.stop(str(problem))
        except Exception as problem:
            # Such as no free slot, walsender or connection. If the server cannot be reached, the capture reports it.
            if not is_outage(problem, local=True):
                raise
            self._put_off(table, f"it cannot be loaded now ({str(problem).strip()})")
        else:
            self._pauses.pop(table.directory, None)

    def _has_snapshot(self, table: MirroredTable, settings: MirrorSettings) -> bool:
        """Whether a load of this table can begin at once. If no snapshot is being taken, starts one for it."""
        seconds = 0.0
        if self._taking is None:
            seconds, name = _SNAPSHOT_SECONDS, table.record.table
            self._taking = _Taking(
                table.directory, lambda keep_going: settings.snapshot(None, keep_going, [name])
            )
        return self._taking.directory == table.directory and self._taking.is_done(seconds)

    def _snapshot(
        self, table: MirroredTable, settings: MirrorSettings, keep_going: Callable[[], bool]
    ) -> Snapshot:
        taking, self._taking = self._taking, None
        return (
            settings.snapshot(None, keep_going, [table.record.table]) if taking is None else taking.result()
        )

    def _put_off(self, table: MirroredTable, why: str) -> None:
        """Loads a table later, while the others go on."""
        pause = min(self._pauses.get(table.directory, _RETRY_SECONDS / 2) * 2, _MOST_RETRY_SECONDS)
        self._pauses[table.directory] = pause
        self._next_try[table.directory] = time.monotonic() + pause
        if not table.wants_load or table.record.error != why:
            table.want_load(why)

    def _may_try(self, table: MirroredTable) -> bool:
        return time.monotonic() >= self._next_try.get(table.directory, 0.0)
