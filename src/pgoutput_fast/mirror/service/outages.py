"""Outages: a mirror that lost its server, store or catalog tries again, until they are back or it took too long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pgoutput_fast.capture.errors import AwayError
from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import CatalogAwayError, MirrorBusyError
from pgoutput_fast.tables.table import OutcomeUnknownError

__all__ = ["Outages"]

_log = logging.getLogger("pgoutput_fast.mirror")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Outages:
    """Repeats work while a server, a store or a catalog cannot be reached.

    Args:
        store: the target.
        seconds: how long one outage may last.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        self._state = MirrorState(store)
        self._since: float | None = None
        self._furthest = 0
        # Whether a commit may have been made, or come late, since the last progress.
        self._is_unknown = False

    @property
    def is_counting(self) -> bool:
        """Whether there was an outage after which the work is not known to go on yet."""
        return self._since is not None

    def over(self) -> None:
        """Notes that the work goes on: server and store are back."""
        self._since, self._is_unknown = None, False

    def further(self, done: int) -> None:
        """Notes the progress of work that restarts after each error. More than ever before ends an outage."""
        if done > self._furthest:
            self._furthest = done
            self.over()

    def outlast(self, work: Callable[[], None], stop: threading.Event) -> None:
        """Does the work, and repeats it after each error that may pass.

        A mirror that has not begun does not try again, because the cause may be a wrong name.

        Args:
            work: the work. It calls `over` or `further` when it goes on after an outage.
            stop: when it is set, there is no further attempt.

        Raises:
            Exception: the error of the work, if it cannot pass, or an outage lasts too long.
        """
        self._state.beginning()  # a store that cannot be read at the start is an error at once
        self._since, self._furthest, pause, tries = None, 0, _FIRST_PAUSE, 0
        while True:
            try:
                return work()
            except Exception as problem:
                now = time.monotonic()
                # A capture retries by itself before it gives up. One more attempt after that is enough.
                tried = problem.tried_seconds if isinstance(problem, AwayError) else 0.0
                if self._since is None:
                    self._since, pause, tries = now - tried, _FIRST_PAUSE, 0
                late = now + pause - self._since > self._seconds and (tries > 0 or not tried)
                tries += 1
                if late or stop.is_set() or not self._may_pass(problem) or not self._has_begun():
                    raise
                _log.warning("the mirror tries again in %.1f s: %s", pause, _first_line(problem))
            stop.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _may_pass(self, problem: Exception) -> bool:
        cause = problem.__cause__ if isinstance(problem, OutcomeUnknownError) else problem
        if isinstance(problem, OutcomeUnknownError):
            self._is_unknown = True
        elif isinstance(problem, MirrorBusyError) and self._is_unknown:
            self._is_unknown = False  # the commit was made after all, and late
            return True
        # A snapshot ends with the server's session.
        if isinstance(cause, AwayError | CatalogAwayError | SnapshotError):
            return True
        if is_outage(problem, local=self._store.local):
            return True
        from deltalake.exceptions import DeltaError

        # delta-rs marks some errors of a store only by this text.
        return not self._store.local and isinstance(problem, DeltaError) and "object store" in str(problem)

    def _has_begun(self) -> bool:
        """Whether the first load has begun. If unknown, the store cannot be reached, but could be before."""
        try:
            return self._state.beginning() is not None
        except OSError:
            return True


def _first_line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).partition("\n")[0]
