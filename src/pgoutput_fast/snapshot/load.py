"""Reads a snapshot's ranges in parallel, into record batches or files."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pyarrow as pa

from pgoutput_fast.postgres.errors import StoppedError
from pgoutput_fast.snapshot.ranges import ReadRange
from pgoutput_fast.snapshot.read import SnapshotReader, TableLostError

__all__ = ["Work", "run_readers", "streamed"]

_log = logging.getLogger("pgoutput_fast.capture")

# How often a waiting thread checks whether to stop.
_WAIT_SECONDS = 0.2

Work = Callable[[SnapshotReader, ReadRange], None]


class _StoppedError(Exception):
    """The consumer has stopped."""


def run_readers(
    connect: Callable[[], SnapshotReader],
    ranges: list[ReadRange],
    threads: int,
    work: Work,
    lost: dict[str, TableLostError],
    stop: threading.Event,
    keep_waiting: Callable[[], bool] | None = None,
) -> None:
    """Reads all ranges in threads with their own sessions. Ranges of lost tables are skipped.

    Args:
        connect: opens a session.
        ranges: the ranges in processing order.
        threads: maximum number of threads.
        work: reads a range. If it raises TableLostError, the table is added to `lost`.
        lost: lost tables, by qualified name.
        stop: set by the caller to stop the work, and by this function if a thread fails.
        keep_waiting: called from time to time; returns whether to go on. None to go on.

    Raises:
        StoppedError: if `keep_waiting` became false.
        The error of the first thread that failed; the other threads are stopped.
    """
    pool = _ReaderPool(connect, ranges, work, lost, stop)
    pool.start(max(1, min(threads, len(ranges))))
    try:
        pool.wait(keep_waiting)
    finally:
        pool.cancel()
    pool.raise_failure()


class _ReaderPool:
    """Threads that read ranges, with the arguments of `run_readers`."""

    def __init__(
        self,
        connect: Callable[[], SnapshotReader],
        ranges: list[ReadRange],
        work: Work,
        lost: dict[str, TableLostError],
        stop: threading.Event,
    ) -> None:
        self._connect = connect
        self._work = work
        self._lost = lost
        self._stop = stop
        self._left: queue.SimpleQueue[ReadRange] = queue.SimpleQueue()
        for each in ranges:
            self._left.put(each)
        self._readers: list[SnapshotReader] = []
        self._failed: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, threads: int) -> None:
        self._threads = [
            threading.Thread(target=self._run, name=f"pgoutput_fast-snapshot-{k}", daemon=True)
            for k in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, keep_waiting: Callable[[], bool] | None) -> None:
        """Waits until all threads have ended or the work is stopped."""
        for thread in self._threads:
            while thread.is_alive() and not self._stop.is_set():
                thread.join(_WAIT_SECONDS)
                if keep_waiting is not None and not keep_waiting():
                    raise StoppedError("the read of the snapshot was told to stop")

    def cancel(self) -> None:
        """Cancels the reads, which would otherwise run to the end of their ranges, and ends the threads."""
        self._stop.set()
        for thread in self._threads:
            while thread.is_alive():
                for reader in list(self._readers):
                    with contextlib.suppress(psycopg2.Error):
                        reader.cancel()
                thread.join(_WAIT_SECONDS)

    def raise_failure(self) -> None:
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        try:
            reader = self._connect()
            self._readers.append(reader)
            with contextlib.closing(reader):
                self._read_ranges(reader)
        except _StoppedError:
            pass
        except BaseException as problem:
            self._failed.append(problem)
            self._stop.set()

    def _read_ranges(self, reader: SnapshotReader) -> None:
        while not self._stop.is_set():
            try:
                each = self._left.get_nowait()
            except queue.Empty:
                return
            if each.table in self._lost:
                continue
            try:
                self._work(reader, each)
            except TableLostError as problem:
                if self._lost.setdefault(each.table, problem) is problem:
                    _log.warning("%s", problem)


def streamed(
    run: Callable[[Callable[[str, pa.RecordBatch], None], threading.Event], None],
    most_waiting: int,
    keep_waiting: Callable[[], bool] | None = None,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields in this thread the batches that `run` produces in others. At most `most_waiting` are queued.

    Args:
        run: called with a function that puts (table, batch) and blocks while the queue is full, and with a stop event.
        most_waiting: maximum number of queued batches.
        keep_waiting: called during waits; returns whether to keep waiting. None to wait indefinitely.

    Raises:
        StoppedError: if `keep_waiting` became false.
        The error of `run`.
    """
    waiting: queue.Queue[Any] = queue.Queue(most_waiting)
    stop = threading.Event()
    failed: list[BaseException] = []

    def put(table: str, batch: pa.RecordBatch) -> None:
        while True:
            if stop.is_set():
                raise _StoppedError
            try:
                waiting.put((table, batch), timeout=_WAIT_SECONDS)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            run(put, stop)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=produce, name="pgoutput_fast-snapshot", daemon=True)
    thread.start()
    try:
        while thread.is_alive() or not waiting.empty():
            try:
                item = waiting.get(timeout=0.05)
            except queue.Empty:
                if keep_waiting is not None and not keep_waiting():
                    raise StoppedError("the read of the snapshot was told to stop") from None
                continue
            yield item
            del item
        if failed:
            raise failed[0]
    finally:
        stop.set()
        thread.join()
