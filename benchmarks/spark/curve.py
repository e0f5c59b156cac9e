"""Measures how the cost on Spark grows with the input: 1, 4, 16 and 64 times the same stream on two cores.

    python -m benchmarks.spark.curve

For every size this measures wall and CPU time to the noop sink, shuffled bytes, tasks, and the peak memory of a Python
worker. At full size this rewrites the figures in docs/performance.md and docs/curve.svg. The largest input takes some
3 GB in the temporary directory.
"""

from __future__ import annotations

import argparse
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Section, machine, rewrite
from benchmarks.spark.measuring import measured, peak_of_workers, to_noop
from benchmarks.spark.queries import TABLE, session, wide_segments

__all__ = ["Point", "chart", "measure", "on_paper", "table"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARKERS = "<!-- curve -->", "<!-- end of curve -->"
TIMES = (1, 4, 16, 64)
SCALE = 0.5
COLORS = ("#1f5fa8", "#c2571a", "#3a7d44")


@dataclass(frozen=True)
class Point:
    """One query over one size.

    Attributes:
        query: name of the query.
        times: number of repetitions of the stream.
        nbytes: bytes of the payloads.
        seconds: wall time in seconds.
        cpu: CPU time in seconds of the JVM and its Python workers.
        worker: peak of the resident memory of one Python worker, in MB.
        shuffled: bytes that tasks wrote for other tasks.
        tasks: number of tasks.
    """

    query: str
    times: int
    nbytes: int
    seconds: float
    cpu: float
    worker: float
    shuffled: int
    tasks: int


def queries(spark: Any, directory: Path) -> dict[str, Callable[[], Any]]:
    """{name: function that makes a DataFrame} of the measured queries."""
    from pgoutput_fast import spark as pgspark

    wal = spark.read.parquet(str(directory))
    source = spark.read.format("pgoutput").option("table", TABLE).option("transactions", "as_sent")
    return {
        "changes()": lambda: pgspark.changes(wal, TABLE),
        'changes(transactions="committed")': lambda: pgspark.changes(wal, TABLE, transactions="committed"),
        'format("pgoutput")': lambda: source.load(str(directory)),
    }


def measure(spark: Any, directory: Path, times: int, nbytes: int) -> list[Point]:
    """Runs every query once over the segments of a directory. The times include planning."""
    found = []
    for name, query in queries(spark, directory).items():
        group = str(uuid.uuid4())
        spark.sparkContext.setJobGroup(group, name)
        peak_of_workers()
        seconds, cpu = measured(to_noop(query))
        shuffled, tasks = _stages(spark, group)
        found.append(Point(name, times, nbytes, seconds, cpu, peak_of_workers(), shuffled, tasks))
    return found


def _stages(spark: Any, group: str) -> tuple[int, int]:
    """(shuffled bytes, tasks) of a job group."""
    context = spark.sparkContext
    context._jsc.clearJobGroup()
    # The counting listener is asynchronous.
    context._jsc.sc().listenerBus().waitUntilEmpty()
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [store.lastStageAttempt(stage) for stage in sorted({s for job in jobs for s in job.stageIds})]
    return sum(each.shuffleWriteBytes() for each in stages), sum(each.numCompleteTasks() for each in stages)


def table(points: Sequence[Point]) -> Section:
    """The figures."""
    found = Section(
        "Cost by size",
        [
            "query",
            "input",
            "payloads GB",
            "wall s",
            "MB/s",
            "CPU s per GB",
            "worker MB",
            "shuffled MB",
            "tasks",
        ],
    )
    for p in sorted(points, key=lambda each: (each.query, each.times)):
        found.rows.append(
            [
                p.query,
                f"{p.times}x",
                f"{p.nbytes / 1e9:.2f}",
                f"{p.seconds:.1f}",
                f"{p.nbytes / p.seconds / 1e6:.0f}",
                f"{p.cpu / (p.nbytes / 1e9):.1f}",
                f"{p.worker:.0f}",
                f"{p.shuffled / 1e6:.2f}",
                str(p.tasks),
            ]
        )
    return found


def on_paper(points: Sequence[Point], terabytes: int = 100, cores: int = 400) -> str:
    """A text on the cost of `terabytes` TB of payloads, if every GB costs as much as in the largest input."""
    found = Section(
        f"{terabytes} TB on paper",
        ["query", "CPU s per GB", "core hours", f"on {cores} cores"],
    )
    largest = max(p.times for p in points)
    for p in points:
        if p.times == largest:
            per_gb, gigabytes = p.cpu / (p.nbytes / 1e9), terabytes * 1000
            hours = per_gb * gigabytes / 3600
            found.rows.append(
                [
                    p.query,
                    f"{per_gb:.1f}",
                    f"{hours:,.0f}",
                    f"{hours / cores * 60:,.0f} min",
                ]
            )
    return str(found)


def chart(points: Sequence[Point]) -> str:
    """Wall time over input size as SVG, both in powers of four. A dashed line through 1x shows linear growth."""
    names = list(dict.fromkeys(p.query for p in points))
    sizes = sorted({p.nbytes for p in points})
    low, high = min(p.seconds for p in points), max(p.seconds for p in points)
    width, height, left, top, inner_w, inner_h = 640, 400, 70, 30, 420, 310

    def x(nbytes: float) -> float:
        return left + inner_w * _share(nbytes, sizes[0], sizes[-1])

    def y(seconds: float) -> float:
        return top + inner_h * (1 - _share(seconds, low / 1.5, high * 1.5))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<path d="M{left} {top}V{top + inner_h}H{left + inner_w}" fill="none" stroke="#444"/>',
    ]
    for nbytes in sizes:
        parts.append(f'<path d="M{x(nbytes):.1f} {top}V{top + inner_h}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x(nbytes):.1f}" y="{top + inner_h + 18}" text-anchor="middle">{nbytes / 1e9:.2g} GB</text>'
        )
    parts.append(f'<text x="{left + inner_w / 2}" y="{height - 12}" text-anchor="middle">payloads</text>')
    for number, name in enumerate(names):
        color = COLORS[number % len(COLORS)]
        own = sorted((p for p in points if p.query == name), key=lambda each: each.nbytes)
        line = " ".join(f"{x(p.nbytes):.1f},{y(p.seconds):.1f}" for p in own)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        for p in own:
            parts.append(f'<circle cx="{x(p.nbytes):.1f}" cy="{y(p.seconds):.1f}" r="3" fill="{color}"/>')
        for p in own if number == 0 else ():
            parts.append(
                f'<text x="{left - 8}" y="{y(p.seconds) + 4:.1f}" text-anchor="end">{p.seconds:.3g} s</text>'
            )
        parts.append(
            f'<text x="{left + 12}" y="{top + 14 + 17 * number}" fill="{color}">{_escaped(name)}</text>'
        )
    last = max((p for p in points if p.query == names[0]), key=lambda each: each.nbytes)
    start = last.seconds * sizes[0] / last.nbytes
    parts.append(
        f'<path d="M{x(sizes[0]):.1f} {min(y(start), top + inner_h):.1f}L{x(last.nbytes):.1f} {y(last.seconds):.1f}" '
        'stroke="#888" stroke-dasharray="4 4"/>'
    )
    return "\n".join([*parts, "</svg>\n"])


def _share(value: float, low: float, high: float) -> float:
    from math import log

    return log(value / low) / log(high / low) if high > low else 0.5


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark.curve", description=__doc__)
    parser.add_argument(
        "--scale", type=float, default=SCALE, help="size of the input 1x, as a share of the wide corpus"
    )
    parser.add_argument("--times", type=int, nargs="+", default=list(TIMES))
    parser.add_argument("--write", action="store_true", help="rewrite the page at any size")
    given = parser.parse_args(arguments)
    spark = session()
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as name:
        # Python workers and the JVM's compiler are warm before the first measurement.
        warm = Path(name) / "warm"
        warm.mkdir()
        measure(spark, warm, 1, wide_segments(warm, 2, given.scale)[1])
        for times in given.times:
            directory = Path(name) / str(times)
            directory.mkdir()
            _, nbytes = wide_segments(directory, times, given.scale)
            points += measure(spark, directory, times, nbytes)
            print(table(points[-3:]), flush=True)
    heading = f"{machine()}; PySpark {spark.version}, local[2]; each query once."
    spark.stop()
    text = f"{heading}\n\n{table(points)}\n{on_paper(points)}"
    print(text)
    if given.write or (given.scale == SCALE and tuple(given.times) == TIMES):
        rewrite(DOCS / "performance.md", text, *MARKERS)
        (DOCS / "curve.svg").write_text(chart(points))


if __name__ == "__main__":
    main()
