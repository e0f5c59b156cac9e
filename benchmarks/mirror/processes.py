"""CPU time and memory of a process and all its descendants."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.processes import Watch, descendants, stat_fields

__all__ = ["ProcessTree"]

_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessTree(Watch):
    """A process with its descendants. In a with block, it samples their memory.

    Args:
        pid: of the process.
        seconds: sampling interval.

    Attributes:
        peak: the peak memory of all processes together so far, in bytes. Shared pages count once.
    """

    def __init__(self, pid: int, seconds: float = 0.5) -> None:
        super().__init__(seconds)
        self._pid = pid
        self.peak = 0

    @property
    def cpu(self) -> float:
        """CPU seconds of the processes so far, including those that have ended."""
        return sum(_ticks(each) for each in self._pids()) / _TICKS

    def look(self) -> None:
        self.peak = max(self.peak, sum(_memory(each) for each in self._pids()))

    def _pids(self) -> set[int]:
        return {self._pid, *descendants(self._pid)}


def _ticks(pid: int) -> int:
    """CPU time of a process, and of its ended children."""
    return sum(map(int, stat_fields(pid)[11:15]))


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
