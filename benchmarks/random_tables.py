"""Decodes random tables and compares with memcpy: `python -m benchmarks.random_tables`.

Every table is decoded in text and in binary, with the vector loops for AVX2 and AVX-512 that this processor supports.
The result is a distribution over arbitrary tables. With all 100 tables this rewrites the table in README.md and
docs/random-tables.svg.

Every case also has an approximate upper limit for the present way of finding cells: the time to find the messages and
their cells, and to fill as much memory as the columns have, without converting any cell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pgoutput_fast as pgo
from benchmarks import corpora, yardsticks
from benchmarks.corpora.random_tables import random_table
from benchmarks.growth import COLORS
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.timing import Measured, interleaved
from pgoutput_fast._core.bench import time_stages
from pgoutput_fast._core.columns.column import use_vectors

__all__ = ["Figure", "chart", "figures", "main", "section"]

CHART = Path(__file__).parents[1] / "docs" / "random-tables.svg"
BEGIN, END = "<!-- random tables -->", "<!-- end of random tables -->"
TABLES = 100
NBYTES = 24_000_000
LEVELS = ("avx2", "avx512", "neon")
UNCONVERTED = ", nothing converted"
SHARES = {"worst": 0.0, "worst decile": 0.1, "median": 0.5, "best decile": 0.9}


@dataclass(frozen=True)
class Figure:
    """The speed of decoding one table.

    Attributes:
        seed: its seed.
        case: the format of its cells and the level of the vector loops.
        of_memcpy: speed relative to memcpy into memory that was written before.
        ns_per_cell: CPU time.
        table: the types of its columns.
    """

    seed: int
    case: str
    of_memcpy: float
    ns_per_cell: float
    table: str


def figures(seed: int, nbytes: int, rounds: int, levels: Sequence[str]) -> list[Figure]:
    """The figures of a seed's table.

    Raises:
        AssertionError: if a value differs from its source value.
    """
    table = random_table(seed, nbytes)
    found = []
    for form, corpus in (("text", table.text), ("binary", table.binary)):
        tasks: dict[str, Callable[[], object]] = {
            "memcpy": yardsticks.memcpy(corpus),
            "fill": yardsticks.fill(pgo.decode(corpus.payloads)),
        }
        timed: dict[str, Callable[[], Mapping[str, float]]] = {}
        for level in levels:
            use_vectors(level)
            corpora.check(corpus)
            case = f"{form}, {level}"
            tasks[case] = lambda corpus=corpus, level=level: _decoded(corpus, level)
            timed[case] = lambda corpus=corpus, level=level, case=case: {
                case + UNCONVERTED: _cells_found(corpus, level)
            }
        measured = interleaved(tasks, timed, rounds)
        memcpy, filled = measured.pop("memcpy"), measured.pop("fill")
        for case, each in measured.items():
            if case.endswith(UNCONVERTED):
                each = Measured([a + b for a, b in zip(each.rounds, filled.rounds, strict=True)])
            ns = each.seconds / max(1, corpus.cells) * 1e9
            found.append(Figure(seed, case, each.speed_beside(memcpy), ns, str(table)))
    use_vectors(levels[-1])
    return found


def _decoded(corpus: corpora.Corpus, level: str) -> pgo.Decoded:
    use_vectors(level)
    return pgo.decode(corpus.payloads)


def _cells_found(corpus: corpora.Corpus, level: str) -> float:
    """CPU seconds to find the messages, their kinds, and their cells."""
    use_vectors(level)
    stages, _ = time_stages(corpus.payloads, pgo.Options())
    return stages["scan"] + stages["tag"] + stages["slice"]


def section(found: Sequence[Figure]) -> Section:
    """The distribution of every case."""
    result = Section(
        f"random tables: {len({each.seed for each in found})}", ["of memcpy", *SHARES, "ns/cell, median"]
    )
    for case in dict.fromkeys(each.case for each in found):
        chosen = [each for each in found if each.case == case]
        speeds = [each.of_memcpy for each in chosen]
        shares = [f"{np.quantile(speeds, share, method='lower'):.3f}" for share in SHARES.values()]
        result.rows.append([case, *shares, f"{np.median([each.ns_per_cell for each in chosen]):.1f}"])
    return result


def chart(found: Sequence[Figure]) -> str:
    """An SVG chart: per case, the speed of every table relative to memcpy, from slowest to fastest."""
    width, height, left, top, inner_w, inner_h = 800, 400, 70, 20, 480, 320
    most = max(each.of_memcpy for each in found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for step in range(6):
        y = top + inner_h * (1 - step / 5)
        parts.append(f'<path d="M{left} {y:.1f}H{left + inner_w}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{most * step / 5:.2f}</text>')
        x = left + inner_w * step / 5
        parts.append(f'<text x="{x:.1f}" y="{top + inner_h + 18}" text-anchor="middle">{step * 20} %</text>')
    parts.append(
        f'<text x="{left + inner_w / 2}" y="{height - 12}" text-anchor="middle">'
        "share of the tables that are slower; the axis on the left is speed beside memcpy</text>"
    )
    for number, case in enumerate(dict.fromkeys(each.case for each in found)):
        speeds = sorted(each.of_memcpy for each in found if each.case == case)
        line = " ".join(
            f"{left + inner_w * k / max(1, len(speeds) - 1):.1f},{top + inner_h * (1 - speed / most):.1f}"
            for k, speed in enumerate(speeds)
        )
        color = COLORS[number % len(COLORS)]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(
            f'<text x="{left + inner_w + 16}" y="{top + 14 + 18 * number}" fill="{color}">{case}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.random_tables", description=__doc__)
    parser.add_argument("--tables", type=int, default=TABLES, help="how many tables")
    parser.add_argument("--bytes", type=int, default=NBYTES, help="bytes of messages of each table in text")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repetitions")
    given = parser.parse_args(arguments)
    levels = [level for level in LEVELS if use_vectors(level) == level]
    found: list[Figure] = []
    for seed in range(given.tables):
        found += figures(seed, given.bytes, given.rounds, levels)
        print(f"\r{seed + 1} of {given.tables} tables", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    text = f"{machine()}; {given.bytes / 1e6:.0f} MB of messages a table.\n\n{section(found)}"
    print(text)
    if (given.tables, given.bytes) == (TABLES, NBYTES):
        rewrite(README, text, BEGIN, END)
        CHART.write_text(chart(found))
    first = [each for each in found if each.case == found[0].case]
    for each in sorted(first, key=lambda figure: figure.of_memcpy)[: max(1, len(first) // 10)]:
        print(
            f"{each.case}, seed {each.seed}: {each.of_memcpy:.3f}, {each.ns_per_cell:.1f} ns a cell: {each.table}"
        )


if __name__ == "__main__":
    main()
