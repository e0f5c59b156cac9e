"""Calls that wait for a server, interruptible by signals and by requests to stop.

libpq waits in a call that no Python signal handler interrupts. A server may let a session wait indefinitely for a lock
or for other transactions. So the call runs in its own thread, and the caller waits for the thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from pgoutput_fast.postgres.errors import StoppedError

__all__ = ["ReplicationSession", "Session", "run_interruptible", "stopping"]

_CHECK_SECONDS = 0.2
# Time for an answer after a request to stop: an orderly end also needs answers of the server.
_GRACE_SECONDS = 2.0
# Time for a server to cancel a query.
_CANCEL_SECONDS = 1.0

_context = threading.local()


@contextlib.contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Within the block, calls of this thread stop waiting for a server soon after the event is set."""
    before = getattr(_context, "stop", None)
    _context.stop = stop
    try:
        yield
    finally:
        _context.stop = before


def run_interruptible(
    ask: Callable[[], Any],
    cancel: Callable[[], object] = lambda: None,
    *,
    late: Callable[[Any], object] = lambda _: None,
    keep_waiting: Callable[[], bool] | None = None,
) -> Any:
    """Runs a call that waits for a server, and returns its result.

    Args:
        ask: the call.
        cancel: called in another thread to end the call if its answer is no longer wanted.
        late: called with a result that arrives after this function has given up.
        keep_waiting: returns whether to keep waiting, in addition to `stopping`.

    Raises:
        StoppedError: if the answer is no longer wanted and has not arrived.
        BaseException: the error of `ask`; or of a signal handler, such as KeyboardInterrupt.
    """
    stop = getattr(_context, "stop", None)
    if stop is None and keep_waiting is None and threading.current_thread() is not threading.main_thread():
        return ask()  # signals arrive only in the main thread
    call = _BackgroundCall(ask, late)
    try:
        call.wait(stop, keep_waiting)
    except BaseException as problem:
        # The answer may still arrive.
        threading.Thread(target=_ignoring, args=(cancel,), name="pgoutput_fast-cancel", daemon=True).start()
        if call.give_up() or call.error is not None or not isinstance(problem, StoppedError):
            raise
    return call.result()


class _BackgroundCall:
    """A call in its own thread."""

    def __init__(self, ask: Callable[[], Any], late: Callable[[Any], object]) -> None:
        self._ask, self._late = ask, late
        self._done, self._lock = threading.Event(), threading.Lock()
        self._is_given_up = False
        self._value: Any = None
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name="pgoutput_fast-answer", daemon=True).start()

    def _run(self) -> None:
        try:
            self._value = self._ask()
        except BaseException as problem:
            self.error = problem
        with self._lock:
            self._done.set()
            is_given_up = self._is_given_up
        if is_given_up and self.error is None:
            _ignoring(lambda: self._late(self._value))

    def wait(self, stop: threading.Event | None, keep_waiting: Callable[[], bool] | None) -> None:
        end = None
        while not self._done.wait(_CHECK_SECONDS):
            if stop is not None and stop.is_set():
                end = end or time.monotonic() + _GRACE_SECONDS
            if (end is not None and time.monotonic() >= end) or (
                keep_waiting is not None and not keep_waiting()
            ):
                raise StoppedError("it was told to stop before the server answered")

    def give_up(self) -> bool:
        """Returns whether the call is abandoned, because it did not end soon."""
        self._done.wait(_CANCEL_SECONDS)
        with self._lock:
            self._is_given_up = not self._done.is_set()
        return self._is_given_up

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._value


def _ignoring(call: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        call()


class _Closable:
    """A connection whose `close` does not wait: during a call, the connection is closed after the call."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._lock, self._is_busy, self._is_left = threading.Lock(), False, False
        super().__init__(*arguments, **more)

    def call(self, ask: Callable[[], Any], keep_waiting: Callable[[], bool] | None = None) -> Any:
        """As `run_interruptible`, for a call that uses the connection."""
        return run_interruptible(lambda: self._call(ask), self.cancel, keep_waiting=keep_waiting)  # type: ignore[attr-defined]

    def _call(self, ask: Callable[[], Any]) -> Any:
        self._is_busy = True
        try:
            return ask()
        finally:
            with self._lock:
                self._is_busy = False
                is_left = self._is_left
            if is_left:
                super().close()  # type: ignore[misc]

    def close(self) -> None:
        with self._lock:
            self._is_left = True
            is_busy = self._is_busy
        if not is_busy:  # psycopg2 would wait for the call
            super().close()  # type: ignore[misc]


class _Cursor(psycopg2.extensions.cursor):  # type: ignore[misc]
    def execute(self, query: Any, arguments: Any = None) -> None:
        self.connection.call(lambda: super(_Cursor, self).execute(query, arguments))


class Session(_Closable, psycopg2.extensions.connection):  # type: ignore[misc]
    """A connection whose statements can be interrupted like `run_interruptible`."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.cursor_factory = _Cursor


class ReplicationSession(_Closable, psycopg2.extras.LogicalReplicationConnection):  # type: ignore[misc]
    """A connection to a walsender. Only calls through `call` can be interrupted like `run_interruptible`."""
