"""Looks at processes from time to time while a block runs."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

__all__ = ["Watch", "descendants", "stat_fields"]


class Watch(ABC):
    """Looks at something from time to time, in a thread, as long as a with block lasts.

    Args:
        seconds: how often.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._stop = seconds, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Looks once."""


def descendants(pid: int) -> set[int]:
    """The processes below a process, without itself."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat_fields(int(name))
        if fields:
            parents[int(name)] = int(fields[1])
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def stat_fields(pid: int) -> list[str]:
    """The fields of a process behind its name, as proc(5) has them; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
