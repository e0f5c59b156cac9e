"""The cost of a segment for a capture with many known relations: `python -m benchmarks.segments`.

This measures the CPU time to write a segment with one row, read it back and make it durable, depending on the number of
relation versions in the stream. It also measures the CPU time of every night's segment during a year in which every
night creates tables, fills them and drops them. The times must not grow: data that is too large for a footer is in
files next to the segment. `--full` goes up to 20,000 tables of 100 columns, 100,000 relation versions and 365 nights,
and rewrites the table in README.md and docs/segments.svg.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.growth import Point, chart
from benchmarks.report import machine, rewrite
from pgoutput_fast.capture import Limits
from pgoutput_fast.capture.recorder import Recorder
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.postgres.walsender import Received
from pgoutput_fast.segments import Source, newest_segment
from pgoutput_fast.segments.names import name_of

__all__ = ["CURVES", "main", "measure", "table"]

README = Path(__file__).with_name("README.md")
CHART = Path(__file__).parents[1] / "docs" / "segments.svg"
BEGIN, END = "<!-- segment figures -->", "<!-- end of segment figures -->"
SOURCE = Source("1", "shop", "slot")
ROUNDS = 15
TABLES_A_NIGHT, SESSION_NIGHTS = 50, 30


@dataclass(frozen=True)
class Curve:
    """A direction: lengths that are always measured, and lengths that are measured only with `--full`."""

    measure: Callable[[Sequence[int]], Iterator[tuple[int, float]]]
    bounded: Sequence[int]
    full: Sequence[int] = ()


class _Capture:
    """A recorder that gets transactions and writes a segment per transaction."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._writer, self._lsn = recorder, Writer(), 0

    def segment(self, tables: Sequence[RelationSpec]) -> float:
        """Writes a segment with one row of every table. Returns the CPU seconds."""
        self._lsn += 100
        wal = list(self._writer.begin(7, self._lsn, 0))
        for spec in tables:
            wal += self._writer.change(spec, "insert", new=["1", *[None] * (len(spec.columns) - 1)])
        wal += self._writer.commit(self._lsn, self._lsn + 8, 0)
        lsns = pa.array([0] * len(wal), pa.int64())
        begun = time.process_time()
        self._recorder.offer(Received(pa.array(wal, pa.binary()), lsns, sum(map(len, wal))), 600)
        self._recorder.make_durable()
        return time.process_time() - begun


@contextmanager
def _capture(directory: str) -> Iterator[_Capture]:
    """A session of a capture into a directory."""
    target = SegmentDirectory(directory)
    with target.owned():
        newest = target.newest()
        state = None if newest is None else newest.state
        with Recorder(target, SOURCE, state, 0, Limits(rows=1)) as recorder:
            yield _Capture(recorder)


def _tables(first: int, count: int, columns: int) -> list[RelationSpec]:
    names = [f"column_{k}" for k in range(columns)]
    described = tuple(ColumnSpec(name, 25, key=name == "column_0") for name in names)
    return [RelationSpec(16_384 + k, "public", f"t{k}", described) for k in range(first, first + count)]


def _known(columns: int) -> Callable[[Sequence[int]], Iterator[tuple[int, float]]]:
    def measured(lengths: Sequence[int]) -> Iterator[tuple[int, float]]:
        with tempfile.TemporaryDirectory() as directory, _capture(directory) as capture:
            known = 0
            for length in lengths:
                for first in range(known, length, 500):
                    capture.segment(_tables(first, min(500, length - first), columns))
                known = length
                yield length, min(capture.segment(_tables(0, 1, columns)) for _ in range(ROUNDS))

    return measured


def _segments(lengths: Sequence[int]) -> Iterator[tuple[int, float]]:
    """(segments in the directory, the cost of one more). Only the newest one is read, so the others are empty."""
    with tempfile.TemporaryDirectory() as directory, _capture(directory) as capture:
        # The newest one begins with a later message than the empty ones.
        before = len([capture.segment(_tables(0, 1, 5)) for _ in range(2)])
        for length in lengths:
            for k in range(before, length):
                (Path(directory) / name_of(0, k)).touch()
            before = length
            yield length, min(capture.segment(_tables(0, 1, 5)) for _ in range(ROUNDS))


def _nights(lengths: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yields (night, its cost): the lowest cost of the five nights up to this one."""
    with tempfile.TemporaryDirectory() as directory:
        costs: list[float] = []
        while len(costs) < max(lengths):
            with _capture(directory) as capture:
                for _ in range(min(SESSION_NIGHTS, max(lengths) - len(costs))):
                    tables = _tables(TABLES_A_NIGHT * len(costs), TABLES_A_NIGHT, 20)
                    costs.append(capture.segment(tables))
        newest = newest_segment(directory)
        assert newest is not None
        assert len(newest.catalog) <= TABLES_A_NIGHT * SESSION_NIGHTS + 1
    yield from ((length, min(costs[max(0, length - 5) : length])) for length in lengths)


CURVES: dict[str, Curve] = {
    "tables of 100 columns known": Curve(_known(100), (10, 100, 1_000), (4_000, 20_000)),
    "relation versions known": Curve(_known(5), (10, 100, 1_000), (10_000, 100_000)),
    "segments in the directory": Curve(_segments, (10, 100, 1_000), (10_000, 100_000)),
    f"nights with {TABLES_A_NIGHT} tables created and dropped": Curve(_nights, (5, 30, 60), (120, 240, 365)),
}


def measure(curve: Curve, lengths: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yields (length, CPU nanoseconds of a segment) for every length, in ascending order."""
    return ((length, seconds * 1e9) for length, seconds in curve.measure(lengths))


def table(points: Sequence[Point]) -> str:
    """The curves as Markdown: one row per curve, CPU milliseconds of a segment by length."""
    lines = ["| | CPU ms of a segment at |", "| --- | --- |"]
    for name in dict.fromkeys(point.curve for point in points):
        own = [f"{p.length:,}: {p.cost / 1e6:.1f}" for p in points if p.curve == name]
        lines.append(f"| {name} | {'; '.join(own)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.segments", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--full",
        action="store_true",
        help="measure the greatest lengths too; rewrite the table in README.md and the chart",
    )
    given = parser.parse_args(arguments)
    points = []
    for name, curve in CURVES.items():
        for length, cost in measure(curve, [*curve.bounded, *(curve.full if given.full else ())]):
            points.append(Point(name, length, cost))
            print(f"{name}: {length:,}: {cost / 1e6:.1f} ms", flush=True)
    if given.full:
        rewrite(README, f"{machine()}\n\n{table(points)}", BEGIN, END)
        CHART.write_text(chart(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
