"""Several readers side by side: a snapshot's ranges to record batches, or to files."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pyarrow as pa

from pgoutput_fast.capture.snapshot_ranges import ReadRange
from pgoutput_fast.capture.snapshot_read import SnapshotReader, TableLostError

__all__ = ["Work", "run_readers", "streamed"]

_log = logging.getLogger("pgoutput_fast.capture")

Work = Callable[[SnapshotReader, ReadRange], None]


class _StoppedError(Exception):
    """Nobody wants more."""


def run_readers(
    connect: Callable[[], SnapshotReader],
    ranges: list[ReadRange],
    threads: int,
    work: Work,
    lost: dict[str, TableLostError],
    stop: threading.Event,
) -> None:
    """Does the work for all ranges, each thread with a session of its own. Ranges of lost tables are passed over.

    Args:
        connect: makes a session.
        ranges: in their order.
        threads: at most so many.
        work: reads a range; where it raises TableLostError its table is noted in `lost`.
        lost: by qualified name.
        stop: set by whoever wants no more; set here when one thread fails.

    Raises:
        What the first thread that failed raised; then the others were told to stop.
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
        # Whoever is not done is not wanted any more: what the server still sends would be read to its end.
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
    """What `run` puts out in its threads, one by one in this one; so many batches wait at most.

    Args:
        run: gets a function to put (table, batch) with, which waits for room; and the event that says that nobody
            wants more.

    Raises:
        What `run` raised.
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
