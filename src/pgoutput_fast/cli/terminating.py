"""Lets commands clean up after SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["terminating"]

# The exit status that a shell reports for a program ended by SIGTERM.
_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def terminating() -> Iterator[None]:
    """During the block, SIGTERM ends the program by an exception, so that it cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
