"""Commands that SIGTERM ends: files that must not stay are removed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["terminating"]

# What a shell gives for a program that SIGTERM has ended.
_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def terminating() -> Iterator[None]:
    """During the block, SIGTERM ends the program by an exception, and what must not stay is removed."""
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
