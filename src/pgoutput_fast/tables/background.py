"""Work on the files of a table in another thread, while commits to the table go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Generic, TypeVar

import pyarrow as pa

__all__ = ["BackgroundWork"]

_T = TypeVar("_T")

# In a process, only one thread at a time does such work. So it takes at most one core.
_TURN = threading.Lock()
# How often work that waits for its turn looks whether it was given up, in seconds.
_LOOK_SECONDS = 0.05


class _GivenUpError(Exception):
    """The work was given up before its end."""


class BackgroundWork(Generic[_T]):
    """Work that another thread does.

    Args:
        work: does it. It calls its argument often, which raises an error if the work must end. Then it removes the
            files that it has written.

    >>> BackgroundWork(lambda check: 1 + 1).result()
    2
    """

    def __init__(self, work: Callable[[Callable[[], None]], _T]) -> None:
        self._is_given_up = threading.Event()
        self._seconds = 0.0
        executor = ThreadPoolExecutor(1, "pgoutput_fast files")
        self._result = executor.submit(self._run, work)
        executor.shutdown(wait=False)

    def _run(self, work: Callable[[Callable[[], None]], _T]) -> _T:
        while not _TURN.acquire(timeout=_LOOK_SECONDS):
            self._check()
        began = time.monotonic()
        try:
            self._check()
            return work(self._check)
        finally:
            self._seconds = time.monotonic() - began
            _TURN.release()
            # Arrow's allocator would keep what a thread has freed.
            pa.default_memory_pool().release_unused()

    def _check(self) -> None:
        if self._is_given_up.is_set():
            raise _GivenUpError

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._result.done()

    @property
    def seconds(self) -> float:
        """How long it took, without the time before its turn."""
        return self._seconds

    def wait(self) -> None:
        """Waits until it has ended, for whatever reason."""
        wait([self._result])

    def result(self, within: float | None = None) -> _T | None:
        """Waits for the result. None if the work was given up.

        Args:
            within: gives the work up after so many seconds. None: never.

        Raises:
            What the work raises.
        """
        if not wait([self._result], within).done:
            self._is_given_up.set()
        try:
            return self._result.result()
        except _GivenUpError:
            return None

    def give_up(self) -> _T | None:
        """Ends the work, and waits for that. Returns its result if it had ended before."""
        with suppress(Exception):  # nobody waits for the work any more
            return self.result(0)
        return None
