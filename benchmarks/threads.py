"""Decoding on several threads compared with one thread, in wall time.

The upper limit of the machine is shown by as many independent processes as threads, each of which decodes the whole
stream.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pgoutput_fast as pgo
from benchmarks import corpora

__all__ = ["HEADER", "rows"]

HEADER = ["", "threads", "wall ms", "speed beside one", "CPU beside one", "processes beside one"]


def rows(scale: float, rounds: int, seed: int) -> Iterator[list[str]]:
    """One row per corpus and number of threads. The numbers are two and the number of cores."""
    for name in corpora.FULL_MESSAGES:
        payloads = corpora.corpus(name, scale, seed).payloads
        one = pgo.decode(payloads)
        for threads in sorted({2, max(2, os.cpu_count() or 1)}):
            many = pgo.decode(payloads, options=pgo.Options(threads=threads))
            assert [x.batch.num_rows for x in one.changes] == [x.batch.num_rows for x in many.changes]
            assert all(x.batch.equals(y.batch) for x, y in zip(one.changes, many.changes, strict=True))
            del many
            yield [name, str(threads), *_row(payloads, threads, rounds)]


def _row(payloads: object, threads: int, rounds: int) -> list[str]:
    options = pgo.Options(threads=threads)
    with _processes(payloads, threads, rounds + 1) as decode_in_all:
        tasks: list[Callable[[], object]] = [
            lambda: pgo.decode(payloads),
            lambda: pgo.decode(payloads, options=options),
            decode_in_all,
        ]
        measured: list[list[tuple[float, float]]] = [[] for _ in tasks]
        gc.collect()
        gc.disable()
        try:
            for number in range(rounds + 1):
                for task, spent in zip(tasks, measured, strict=True):
                    wall, cpu = time.perf_counter(), time.process_time()
                    result = task()
                    taken = (time.perf_counter() - wall, time.process_time() - cpu)
                    del result
                    if number:
                        spent.append(taken)
        finally:
            gc.enable()
    one, many, processes = measured
    return [
        f"{statistics.median(wall for wall, _ in many) * 1e3:.1f}",
        f"{statistics.median(a[0] / b[0] for a, b in zip(one, many, strict=True)):.2f}",
        f"{statistics.median(b[1] / a[1] for a, b in zip(one, many, strict=True)):.2f}",
        f"{statistics.median(threads * a[0] / b[0] for a, b in zip(one, processes, strict=True)):.2f}",
    ]


@contextmanager
def _processes(payloads: object, count: int, rounds: int) -> Iterator[Callable[[], object]]:
    """Yields a function that lets `count` processes decode the payloads at the same time. Call it `rounds` times."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count + 1, timeout=60)

    def decode() -> None:
        for _ in range(rounds):
            barrier.wait()
            result = pgo.decode(payloads)
            barrier.wait()
            del result

    def decode_in_all() -> None:
        barrier.wait()
        barrier.wait()

    started = [context.Process(target=decode, daemon=True) for _ in range(count)]
    for process in started:
        process.start()
    try:
        yield decode_in_all
    finally:
        for process in started:
            process.join(60)
