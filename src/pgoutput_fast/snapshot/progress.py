"""The progress of a load, for a callback or as a bar on the terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pgoutput_fast.snapshot.ranges import ReadRange

__all__ = ["LoadProgress", "ProgressCounter", "progress_bar"]


@dataclass(frozen=True)
class LoadProgress:
    """The progress of a load.

    Attributes:
        table: table of the range finished last.
        rows: rows read.
        nbytes: bytes received from the server.
        ranges, all_ranges: number of finished ranges and of all ranges.
        table_bytes, all_table_bytes: size of the tables' pages in the finished ranges and in all ranges.
        seconds: time since the load began.
    """

    table: str
    rows: int
    nbytes: int
    ranges: int
    all_ranges: int
    table_bytes: int
    all_table_bytes: int
    seconds: float

    @property
    def eta_seconds(self) -> float | None:
        """Estimated remaining seconds at the same speed; None before the first range is finished.

        >>> LoadProgress("public.t", 10, 900, 1, 4, 8192, 4 * 8192, 2.0).eta_seconds
        6.0
        """
        if self.ranges == self.all_ranges:
            return 0.0
        if not self.table_bytes:
            return None
        return self.seconds * (self.all_table_bytes - self.table_bytes) / self.table_bytes


class ProgressCounter:
    """Counts finished ranges from any thread and calls a callback."""

    def __init__(self, ranges: list[ReadRange], callback: Callable[[LoadProgress], object] | None) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        self._rows = self._nbytes = self._done = self._table_bytes = 0
        self._all = len(ranges)
        self._all_bytes = sum(each.nbytes for each in ranges)
        self._began = time.monotonic()

    def add(self, each: ReadRange, rows: int, nbytes: int) -> None:
        """Counts a finished range."""
        with self._lock:
            self._rows += rows
            self._nbytes += nbytes
            self._done += 1
            self._table_bytes += each.nbytes
            now = LoadProgress(
                each.table,
                self._rows,
                self._nbytes,
                self._done,
                self._all,
                self._table_bytes,
                self._all_bytes,
                time.monotonic() - self._began,
            )
            if self._callback is not None:
                self._callback(now)


@contextmanager
def progress_bar(**console: Any) -> Iterator[Callable[[LoadProgress], None]]:
    """Shows a bar with rows, bytes and remaining time during the block. Pass the yielded function as `progress`.

    Args:
        console: arguments of `rich.progress.Progress`, for instance `console=`.

    Raises:
        ModuleNotFoundError: without `rich`: `pip install 'pgoutput_fast[progress]'`.
    """
    from rich.filesize import decimal
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows, {task.fields[size]}"),
        TimeRemainingColumn(),
        **console,
    )
    task = bar.add_task("snapshot", total=None, rows=0, size=decimal(0))

    def show(now: LoadProgress) -> None:
        bar.update(
            task,
            description=now.table,
            # If all tables are empty, the bar counts ranges.
            completed=now.table_bytes if now.all_table_bytes else now.ranges,
            total=now.all_table_bytes or now.all_ranges,
            rows=now.rows,
            size=decimal(now.nbytes),
        )

    with bar:
        yield show
