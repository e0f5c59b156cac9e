"""The progress of a load, for a callback or as a bar on the terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
        resumed_rows, resumed_bytes: of ranges that an earlier load has read: rows, and the size of their pages. They
            count in `rows` and `table_bytes`.
    """

    table: str
    rows: int
    nbytes: int
    ranges: int
    all_ranges: int
    table_bytes: int
    all_table_bytes: int
    seconds: float
    resumed_rows: int = 0
    resumed_bytes: int = 0

    def __str__(self) -> str:
        """
        >>> print(LoadProgress("public.t", 1000, 9_000_000, 1, 4, 8192, 4 * 8192, 2.0))
        1,000 rows, 9.0 MB, 25%, 500 rows/s, about 6 s left
        """
        left = "" if self.eta_seconds is None else f", about {self.eta_seconds:,.0f} s left"
        rate = f"{self.rows_per_second:,.0f} rows/s"
        return f"{self.rows:,} rows, {self.nbytes / 1e6:,.1f} MB, {self.part:.0%}, {rate}{left}"

    @property
    def part(self) -> float:
        """The part of all pages that is read, from 0 to 1; without pages, the part of the ranges."""
        if not self.all_table_bytes:
            return self.ranges / self.all_ranges if self.all_ranges else 1.0
        return self.table_bytes / self.all_table_bytes

    @property
    def rows_per_second(self) -> float:
        """Rows that this load has read, by its time."""
        return (self.rows - self.resumed_rows) / self.seconds if self.seconds else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Estimated remaining seconds at the same speed; None before the first range is finished.

        >>> LoadProgress("public.t", 10, 900, 1, 4, 8192, 4 * 8192, 2.0).eta_seconds
        6.0
        """
        if self.ranges == self.all_ranges:
            return 0.0
        read = self.table_bytes - self.resumed_bytes
        return self.seconds * (self.all_table_bytes - self.table_bytes) / read if read else None


class ProgressCounter:
    """Counts finished ranges from any thread and calls a callback.

    Args:
        ranges: all ranges.
        callback: called after each range.
        resumed: (range, rows, bytes) of those that an earlier load has read.
    """

    def __init__(
        self,
        ranges: list[ReadRange],
        callback: Callable[[LoadProgress], object] | None,
        resumed: Sequence[tuple[ReadRange, int, int]] = (),
    ) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        self._rows = self._resumed_rows = sum(rows for _, rows, _ in resumed)
        self._nbytes = sum(nbytes for _, _, nbytes in resumed)
        self._done = len(resumed)
        self._table_bytes = self._resumed_bytes = sum(each.nbytes for each, _, _ in resumed)
        self._all = len(ranges)
        self._all_bytes = sum(each.nbytes for each in ranges)
        self._began = time.monotonic()

    def add(self, each: ReadRange, rows: int, nbytes: int) -> None:
        """Counts a finished range, and calls the callback."""
        with self._lock:
            self.call(self.counted(each, rows, nbytes))

    def counted(self, each: ReadRange, rows: int, nbytes: int) -> LoadProgress:
        """The progress with one more range. One thread at a time may call this."""
        self._rows += rows
        self._nbytes += nbytes
        self._done += 1
        self._table_bytes += each.nbytes
        return LoadProgress(
            each.table,
            self._rows,
            self._nbytes,
            self._done,
            self._all,
            self._table_bytes,
            self._all_bytes,
            time.monotonic() - self._began,
            self._resumed_rows,
            self._resumed_bytes,
        )

    def call(self, now: LoadProgress) -> None:
        """Calls the callback."""
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
