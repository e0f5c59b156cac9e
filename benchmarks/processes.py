"""Samples processes while a block runs."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

__all__ = ["Watch", "descendants", "stat_fields"]


class Watch(ABC):
    """Samples something at regular intervals, in a thread, during a with block.

    Args:
        seconds: sampling interval.
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
        """Takes one sample."""


def descendants(pid: int) -> set[int]:
    """The descendants of a process."""
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
    """The fields of a process after its name, as in proc(5); empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
