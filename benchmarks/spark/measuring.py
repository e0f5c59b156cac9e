"""What a call costs on Spark: seconds, bytes between the JVM and Python, memory of the Python workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.processes import descendants, stat_fields

__all__ = ["Crossing", "end_workers", "measured", "peak_of_workers", "to_noop"]

# Names of Spark's SQL metrics.
_METRICS = "data sent to Python workers", "data returned from Python workers"
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def measured(run: Callable[[], Any]) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of a call. CPU time is that of this process, the JVM and its Python workers.

    Spark ends idle workers, and their time is no longer counted. So processes that have ended are left out on both
    sides.
    """
    before, own, started = _cpu_of_descendants(), time.process_time(), time.perf_counter()
    run()
    wall, own = time.perf_counter() - started, time.process_time() - own
    used = sum(seconds - before.get(process, 0.0) for process, seconds in _cpu_of_descendants().items())
    # If a worker ended without being waited for, the difference could be negative.
    return wall, max(own + used, 1e-9)


def _cpu_of_descendants() -> dict[int, float]:
    """The child processes and their children: the JVM and the Python workers that it forked. {pid: CPU seconds}."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = ((each, stat_fields(each)) for each in descendants(os.getpid()))
    return {process: sum(map(int, stat[11:15])) / tick for process, stat in fields if stat}


def to_noop(query: Callable[[], Any]) -> Callable[[], None]:
    """A function that makes a DataFrame and writes it to the noop sink."""
    return lambda: query().write.format("noop").mode("overwrite").save()


class Crossing:
    """The bytes that cross between the JVM and Python workers from here on, by Spark's SQL metrics."""

    def __init__(self, spark: Any) -> None:
        self._bus = spark.sparkContext._jsc.sc().listenerBus()
        self._store = spark._jsparkSession.sharedState().statusStore()
        self._first = 1 + max((each.executionId() for each in self._executions()), default=-1)

    def _executions(self) -> Iterator[Any]:
        # The listener of the metrics is asynchronous.
        self._bus.waitUntilEmpty()
        return _items(self._store.executionsList())

    def nbytes(self) -> tuple[float, float]:
        """(bytes to Python, bytes back). Spark rounds them to four digits for each query."""
        found = dict.fromkeys(_METRICS, 0.0)
        for execution in self._executions():
            if execution.executionId() >= self._first:
                values = self._store.executionMetrics(execution.executionId())
                for metric in _items(execution.metrics()):
                    value = values.get(metric.accumulatorId())
                    if metric.name() in found and value.isDefined():
                        found[metric.name()] += _size(value.get())
        sent, returned = found.values()
        return sent, returned


def _items(sequence: Any) -> Iterator[Any]:
    """The items of a Seq of Scala."""
    return (sequence.apply(k) for k in range(sequence.size()))


def _size(text: str) -> float:
    """Bytes of a metric as Spark prints it: the sum, or a line of names and then the sum and details of its tasks."""
    number, unit = text.splitlines()[-1].split()[:2]
    return float(number.replace(",", "")) * _UNITS[unit]


def peak_of_workers() -> float:
    """The largest resident set of a Python worker since the last call, in MB; 0 if there is none."""
    peak = 0
    for process in _workers():
        worker = Path("/proc") / str(process)
        for line in _bytes(worker / "status").splitlines():
            if line.startswith(b"VmHWM:"):
                peak = max(peak, int(line.split()[1]))
        with suppress(OSError):
            (worker / "clear_refs").write_text("5")
    return peak * 1024 / 1e6


def end_workers() -> None:
    """Ends the idle Python workers, so that the next ones do not keep memory of earlier tasks."""
    workers = _workers()
    for each in workers:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGTERM)
    while any(map(stat_fields, workers)):
        time.sleep(0.05)


def _workers() -> list[int]:
    """Python workers, which a daemon of Spark has forked."""
    forks = {
        each
        for each in descendants(os.getpid())
        if b"pyspark.daemon" in _bytes(Path(f"/proc/{each}/cmdline"))
    }
    return [each for each in forks if int((stat_fields(each) or "00")[1]) in forks]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has already ended
        return b""
