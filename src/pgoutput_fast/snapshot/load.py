"""Runs several readers in parallel: a snapshot's ranges to record batches, or to files."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pyarrow as pa

from pgoutput_fast.snapshot.ranges import ReadRange
from pgoutput_fast.snapshot.read import SnapshotReader, TableLostError

__all__ = ["Work", "run_readers", "streamed"]

_log = logging.getLogger("pgoutput_fast.capture")

Work = Callable[[SnapshotReader, ReadRange], None]


class _StoppedError(Exception):
    """The consumer wants no more batches."""


def run_readers(
    connect: Callable[[], SnapshotReader],
    ranges: list[ReadRange],
    threads: int,
    work: Work,
    lost: dict[str, TableLostError],
    stop: threading.Event,
) -> None:
    """Does the work for all ranges. Each thread has its own session. Ranges of lost tables are skipped.

    Args:
        connect: makes a session.
        ranges: the ranges, in the order of the work.
        threads: the most threads.
        work: reads a range. If it raises TableLostError, the table is added to `lost`.
        lost: lost tables, by qualified name.
        stop: the caller sets it to stop the work. This function sets it if a thread fails.

    Raises:
        The error of the first thread that failed; the other threads were then told to stop.
    """
    left: queue.SimpleQueue[ReadRange] = queue.SimpleQueue()
    for each in ranges:
        left.put(each)
    readers: list[SnapshotReader] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            reader = connect()
            readers.append(reader)
            with contextlib.closing(reader):
                while not stop.is_set():
                    try:
                        each = left.get_nowait()
                    except queue.Empty:
                        return
                    if each.table in lost:
                        continue
                    try:
                        work(reader, each)
                    except TableLostError as problem:
                        if lost.setdefault(each.table, problem) is problem:
                            _log.warning("%s", problem)
        except _StoppedError:
            pass
        except BaseException as problem:
            failed.append(problem)
            stop.set()

    started = [
        threading.Thread(target=run, name=f"pgoutput_fast-snapshot-{k}", daemon=True)
        for k in range(max(1, min(threads, len(ranges))))
    ]
    for thread in started:
        thread.start()
    try:
        for thread in started:
            while thread.is_alive() and not stop.is_set():
                thread.join(0.2)
    finally:
        # The work of unfinished threads is no longer wanted. Without a cancel they would read the server's data to the
        # end.
        stop.set()
        for thread in started:
            while thread.is_alive():
                for reader in list(readers):
                    with contextlib.suppress(psycopg2.Error):
                        reader.cancel()
                thread.join(0.2)
    if failed:
        raise failed[0]


def streamed(
    run: Callable[[Callable[[str, pa.RecordBatch], None], threading.Event], None], most_waiting: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields, in this thread, what `run` produces in its threads. At most `most_waiting` batches wait.

    Args:
        run: receives a function that puts (table, batch) and waits for room, and an event that says that no more is
            wanted.
        most_waiting: limit of waiting batches.

    Raises:
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
                waiting.put((table, batch), timeout=0.2)
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
                continue
            yield item
            del item
        if failed:
            raise failed[0]
    finally:
        stop.set()
        thread.join()
