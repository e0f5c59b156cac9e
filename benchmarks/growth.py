"""The cost of a message in streams that are long in one direction: `python -m benchmarks.growth`.

For each direction (messages, relations, columns, bytes of a cell, open transactions ...) this measures the CPU time
per unit for streams of several lengths. The time per unit must not grow: a line in docs/growth.svg that keeps rising
shows a quadratic cost. A unit may cost more once the data no longer fits into a cache. `--full` goes up to 100 million
messages, 10,000 relations and cells of 1 GB, and rewrites the table in README.md and the chart.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

from benchmarks.corpora import shapes
from benchmarks.corpora.shapes import Shape
from benchmarks.report import machine, rewrite

__all__ = ["CURVES", "Curve", "Point", "chart", "main", "measure", "table"]

README = Path(__file__).with_name("README.md")
CHART = Path(__file__).parents[1] / "docs" / "growth.svg"
BEGIN, END = "<!-- growth figures -->", "<!-- end of growth figures -->"
ROUNDS = 3
COLORS = (
    "#1f6feb",
    "#d1242f",
    "#1a7f37",
    "#9a6700",
    "#8250df",
    "#bf3989",
    "#0a7ea4",
    "#57606a",
    "#e16f24",
    "#116329",
)
GIGABYTE = 1_000_000_000


@dataclass(frozen=True)
class Curve:
    """A direction: a function that makes a stream of a given length, and lengths, some of them only for `--full`."""

    make: Callable[[int], Shape]
    unit: str
    bounded: Sequence[int]
    full: Sequence[int] = ()


@dataclass(frozen=True)
class Point:
    """CPU nanoseconds per unit of one stream."""

    curve: str
    length: int
    cost: float


def _messages(count: int) -> Shape:
    """pgbench's script `count` messages long, in calls of at most three million messages."""
    if count <= 3_000_000:
        return shapes.pgbench(count / 600_000)
    shape = shapes.pgbench(5)
    times = round(count / shape.units)
    return Shape(shape.known, shape.calls * times, shape.units * times)


CURVES: dict[str, Curve] = {
    "messages (pgbench)": Curve(
        _messages, "message", (1_000, 10_000, 100_000, 1_000_000), (3_000_000, 10_000_000, 100_000_000)
    ),
    "relations in turn, 200 rows each": Curve(
        lambda n: shapes.relations(n, 200 * n, 200 * n), "message", (1, 10, 100, 1_000), (10_000,)
    ),
    "relations known, calls of 10 messages": Curve(
        lambda n: shapes.one_of_many(n, 200, 10), "message", (1, 10, 100, 1_000, 10_000)
    ),
    "Relations first seen, calls of 10 messages": Curve(
        shapes.first_seen, "message", (10, 100, 1_000), (10_000,)
    ),
    "Relations sent again, 200 rows each": Curve(
        lambda n: shapes.resent(n, 400 * n), "message", (1, 10, 100, 1_000), (10_000,)
    ),
    "versions of a relation, as one table": Curve(shapes.versions, "version", (10, 100, 1_000), (10_000,)),
    "columns": Curve(lambda n: shapes.columns(n, 1_000_000 // n), "cell", (1, 10, 100, 1_000, 1_600)),
    "bytes of a text": Curve(
        lambda n: shapes.long_cell(n, max(1, min(200_000, 20_000_000 // n))),
        "byte",
        (1, 100, 10_000, 1_000_000, 100_000_000),
        (GIGABYTE,),
    ),
    "bytes of a jsonb": Curve(
        lambda n: shapes.long_cell(n, max(1, min(200_000, 20_000_000 // n)), "jsonb"),
        "byte",
        (100, 10_000, 1_000_000, 100_000_000),
        (GIGABYTE,),
    ),
    "bytes of a bytea in hex": Curve(
        lambda n: shapes.long_cell(n, max(1, min(200_000, 20_000_000 // n)), "bytea hex"),
        "byte",
        (100, 10_000, 1_000_000, 100_000_000),
        (GIGABYTE,),
    ),
    "rows of a transaction": Curve(
        lambda n: shapes.transactions(max(200_000, n), n),
        "message",
        (1, 10, 100, 1_000, 10_000, 100_000),
        (1_000_000,),
    ),
    "subtransactions, rolled back": Curve(
        lambda n: shapes.subtransactions(n, True), "message", (10, 100, 1_000, 10_000, 100_000), (1_000_000,)
    ),
    "streamed transactions open, calls of 10 messages": Curve(
        lambda n: shapes.open_streams(n, 500, 8), "message", (1, 10, 100, 1_000, 10_000), (100_000,)
    ),
    "prepared transactions open, calls of 10 messages": Curve(
        lambda n: shapes.open_prepared(n, 500, 8), "message", (1, 10, 100, 1_000), (10_000,)
    ),
    "prepared transactions of one name": Curve(
        shapes.namesakes, "message", (10, 100, 1_000, 10_000), (100_000,)
    ),
    "Relations in subtransactions, rolled back": Curve(
        shapes.subtransactions_with_relations, "message", (10, 100, 1_000, 10_000), (100_000,)
    ),
    "bad boundaries, with as many relations and streams": Curve(
        shapes.damaged, "message", (10, 100, 1_000, 10_000)
    ),
    "relations of a Truncate, tagged": Curve(
        lambda n: shapes.tagged_truncate(n, max(1, 10_000 // n)),
        "row",
        (1, 10, 100, 1_000, 10_000),
        (100_000,),
    ),
}


def measure(curve: Curve, length: int) -> float:
    """CPU nanoseconds per unit of the stream of this length: the minimum of several rounds, after a warm-up round."""
    shape = curve.make(length)
    seconds = []
    for _ in range(1 if shape.units > 20_000_000 and len(shape.calls) > 1 else ROUNDS + 1):
        run = shape.ready()
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds[1:] or seconds) * 1e9 / shape.units


def table(points: Sequence[Point]) -> str:
    """The curves as Markdown: one row per curve, costs by length."""
    lines = ["| | ns per | cost at length |", "| --- | --- | --- |"]
    for name, curve in CURVES.items():
        own = [f"{p.length:,}: {_figure(p.cost)}" for p in points if p.curve == name]
        if own:
            lines.append(f"| {name} | {curve.unit} | {'; '.join(own)} |")
    return "\n".join(lines) + "\n"


def chart(points: Sequence[Point]) -> str:
    """An SVG chart: the cost relative to the curve's cheapest stream, over the length. Both axes are logarithmic."""
    width, height, left, top, inner_w, inner_h = 900, 460, 60, 20, 460, 390
    longest = max(log10(p.length) for p in points) or 1

    def x(length: float) -> float:
        return left + inner_w * log10(length) / longest

    def y(ratio: float) -> float:
        return top + inner_h * (1 - min(1, log10(ratio) / 3))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for ratio in (1, 10, 100, 1000):
        parts.append(f'<path d="M{left} {y(ratio):.1f}H{left + inner_w}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio}x</text>')
    for power in range(0, int(longest) + 1, 2):
        parts.append(
            f'<text x="{x(10**power):.1f}" y="{top + inner_h + 18}" text-anchor="middle">{10**power:,}</text>'
        )
    parts.append(f'<text x="{left + inner_w / 2}" y="{height - 8}" text-anchor="middle">length</text>')
    for number, name in enumerate(dict.fromkeys(p.curve for p in points)):
        own = [p for p in points if p.curve == name]
        color, lowest = COLORS[number % len(COLORS)], min(p.cost for p in own)
        line = " ".join(f"{x(p.length):.1f},{y(p.cost / lowest):.1f}" for p in own)
        dash = ' stroke-dasharray="5 3"' if number >= len(COLORS) else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        parts.append(
            f'<text x="{left + inner_w + 20}" y="{top + 14 + 18 * number}" fill="{color}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _figure(cost: float) -> str:
    return f"{cost:.3g}" if cost < 100 else f"{cost:,.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=__doc__.split("\n\n")[0])
    parser.add_argument("curves", nargs="*", help="measure only curves whose names contain one of these")
    parser.add_argument(
        "--full",
        action="store_true",
        help="measure the longest streams too; rewrite the table in README.md and the chart",
    )
    parser.add_argument(
        "--scale", type=float, default=1, help="skip streams longer than this share of the longest"
    )
    given = parser.parse_args(arguments)
    points = []
    for name, curve in CURVES.items():
        if given.curves and not any(part in name for part in given.curves):
            continue
        lengths = [*curve.bounded, *(curve.full if given.full else ())]
        for length in lengths:
            if length > max(lengths) * given.scale and length != lengths[0]:
                continue
            points.append(Point(name, length, measure(curve, length)))
            print(f"{name}: {length:,}: {_figure(points[-1].cost)} ns per {curve.unit}", flush=True)
    if given.full and not given.curves and given.scale == 1:
        rewrite(README, f"{machine()}\n\n{table(points)}", BEGIN, END)
        CHART.write_text(chart(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
