"""Ctrl-C in a process that runs nothing but a program of this package: also while it loads modules, and when it ends.

The package calls `expect_program` before it imports anything that takes time. So this module imports little.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

__all__ = ["STOPPED", "expect_program", "leave", "stop_at_once", "stop_by_exception", "stop_no_more"]

# The exit status that a shell gives for a program that Ctrl-C has ended.
STOPPED = 130
# The exit status that Python gives if the last output cannot be written.
_UNWRITTEN = 120

_COMMAND = "pgoutput-fast"
_MODULE = "pgoutput_fast"
# Signals that come so soon after another one count as one: `timeout -s INT` sends two.
_SAME_SECONDS = 1.0


def expect_program() -> None:
    """If this process is a program of the package, Ctrl-C ends it at once from here on."""
    if _is_program():
        stop_at_once()


def _is_program() -> bool:
    name = sys.argv[0] if sys.argv else ""
    if name != "-m":
        return os.path.basename(name) == _COMMAND
    # Python still looks for the module.
    words = iter(sys.orig_argv)
    return any(each[:1] == "-" and each[-1:] == "m" for each in words) and next(words, "") == _MODULE


def stop_at_once() -> None:
    """Ctrl-C ends the process with one line. This is for a process that has done nothing yet.

    An exception would come out of an import anywhere, and some modules would hide it.
    """
    _replace(_end)


def stop_by_exception() -> None:
    """Ctrl-C is a KeyboardInterrupt from here on, if `stop_at_once` was called before."""
    if signal.getsignal(signal.SIGINT) is _end:
        _replace(_Raising())


def stop_no_more() -> None:
    """Ctrl-C does nothing from here on, if `stop_at_once` was called before: the process ends by itself."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        _replace(signal.SIG_IGN)


def leave(status: int) -> NoReturn:
    """Ends this process. What it has written is flushed. Call this when a program has closed what it opened.

    A usual exit takes the interpreter down while threads of Arrow, delta-rs and DuckDB still run. Such a thread, and a
    thread of Python in one of these libraries, may then ask for Python's lock, does not get it any more, and is ended
    within a destructor: `terminate called without an active exception`, and SIGABRT in place of the exit status.
    """
    import logging

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            status = status or _UNWRITTEN
    os._exit(status)


def _replace(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> None:
    # A process in the background of a shell ignores the signal, and a program may have a handler of its own.
    now = signal.getsignal(signal.SIGINT)
    if now in (signal.default_int_handler, _end) or isinstance(now, _Raising):
        signal.signal(signal.SIGINT, handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{_COMMAND}: stopped\n".encode())
    os._exit(STOPPED)


class _Raising:
    """Raises KeyboardInterrupt, once for signals that come together."""

    def __init__(self) -> None:
        self._at = -_SAME_SECONDS

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._at >= _SAME_SECONDS:
            self._at = now
            raise KeyboardInterrupt
