"""Ctrl-C in a process that runs only a program of this package, also during its imports and its exit.

The package calls `expect_program` before slow imports, so this module imports little.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

__all__ = ["STOPPED", "expect_program", "leave", "stop_at_once", "stop_by_exception", "stop_no_more"]

# The exit status in a shell of a program that was ended by Ctrl-C.
STOPPED = 130
# Python's exit status if the last output cannot be written.
_UNWRITTEN = 120

_COMMAND = "pgoutput-fast"
_MODULE = "pgoutput_fast"
# Signals within this time count as one: `timeout -s INT` sends two.
_SAME_SECONDS = 1.0
# An import that takes longer is interrupted; until then its end is awaited by a signal every so often.
_IMPORT_SECONDS = 10.0
_AGAIN_SECONDS = 0.02


def expect_program() -> None:
    """From now on Ctrl-C ends this process at once, if it is a program of the package."""
    if _is_program():
        stop_at_once()


def _is_program() -> bool:
    name = sys.argv[0] if sys.argv else ""
    if name != "-m":
        return os.path.basename(name) == _COMMAND
    # `python -m`: the module is not resolved yet.
    words = iter(sys.orig_argv)
    return any(each[:1] == "-" and each[-1:] == "m" for each in words) and next(words, "") == _MODULE


def stop_at_once() -> None:
    """From now on Ctrl-C ends the process with one line, which is safe before it has done any work.

    An exception could be raised within any import, and some modules would swallow it.
    """
    _replace(_end)


def stop_by_exception() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, if `stop_at_once` was called before."""
    if signal.getsignal(signal.SIGINT) is _end:
        _replace(_Raising())


def stop_no_more() -> None:
    """From now on Ctrl-C is ignored, if `stop_at_once` was called before: the process is about to end."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        _replace(signal.SIG_IGN)


def leave(status: int) -> NoReturn:
    """Flushes the output and ends this process. Call it after a program has closed its resources.

    A normal exit shuts the interpreter down while threads of Arrow, delta-rs and DuckDB still run. A thread in one of
    these libraries may then request the GIL, and is ended within a destructor: `terminate called without an active
    exception`, and SIGABRT instead of the exit status.
    """
    import logging

    from pgoutput_fast.base.private_directory import remove_private_directories

    remove_private_directories()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            status = status or _UNWRITTEN
    os._exit(status)


def _replace(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> None:
    # A background process of a shell ignores the signal, and a program may have its own handler.
    now = signal.getsignal(signal.SIGINT)
    if now in (signal.default_int_handler, _end) or isinstance(now, _Raising):
        signal.signal(signal.SIGINT, handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{_COMMAND}: stopped\n".encode())
    os._exit(STOPPED)


class _Raising:
    """Raises KeyboardInterrupt, once for signals in quick succession, and only after an import that is under way.

    Within an import some module may swallow the exception, or Python may turn it into a RuntimeError.
    """

    def __init__(self) -> None:
        self._at = -_SAME_SECONDS
        self._awaits_import = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._awaits_import:
            # The signals of `_again`, and others.
            if _imports(frame) and now - self._at < _IMPORT_SECONDS:
                return
            self._awaits_import = False
        elif now - self._at < _SAME_SECONDS:
            return
        elif _imports(frame):
            self._at, self._awaits_import = now, True
            threading.Thread(target=self._again, args=(threading.get_ident(),), daemon=True).start()
            return
        self._at = now
        raise KeyboardInterrupt

    def _again(self, main_thread: int) -> None:
        while self._awaits_import:
            time.sleep(_AGAIN_SECONDS)
            signal.pthread_kill(main_thread, signal.SIGINT)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
