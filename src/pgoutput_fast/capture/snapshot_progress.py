"""How far a load is: numbers for a callback, or a bar on the terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pgoutput_fast.capture.snapshot_ranges import ReadRange

__all__ = ["LoadProgress", "ProgressCounter", "progress_bar"]


@dataclass(frozen=True)
class LoadProgress:
    """How far a load is.

    Attributes:
        table: that of the range that was finished last.
        rows: that were read.
        nbytes: that came from the server.
        ranges, all_ranges: how many are done, and are to be.
        table_bytes, all_table_bytes: the tables' pages behind those ranges.
        seconds: since it began.
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
        """How long the rest will take, if it goes on as it went; None as long as nothing is done.

        >>> LoadProgress("public.t", 10, 900, 1, 4, 8192, 4 * 8192, 2.0).eta_seconds
        6.0
        """
        if self.ranges == self.all_ranges:
            return 0.0
        if not self.table_bytes:
            return None
        return self.seconds * (self.all_table_bytes - self.table_bytes) / self.table_bytes


class ProgressCounter:
    """Counts ranges, from any thread, and tells a callback."""

    def __init__(self, ranges: list[ReadRange], callback: Callable[[LoadProgress], object] | None) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        self._rows = self._nbytes = self._done = self._table_bytes = 0
        self._all = len(ranges)
        self._all_bytes = sum(each.nbytes for each in ranges)
        self._began = time.monotonic()

    def add(self, each: ReadRange, rows: int, nbytes: int) -> None:
        """A range is done."""
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
    """A bar with rows, bytes and the time that is left, for as long as the block lasts; pass what it gives on.

    Args:
        console: for `rich.progress.Progress`, for instance `console=`.

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
            # Empty tables have no bytes: then ranges are all that moves.
            completed=now.table_bytes if now.all_table_bytes else now.ranges,
            total=now.all_table_bytes or now.all_ranges,
            rows=now.rows,
            size=decimal(now.nbytes),
        )

    with bar:
        yield show
