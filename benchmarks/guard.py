"""Compares the instruction counts of decoding with recorded counts: `python -m benchmarks.guard`.

valgrind's callgrind counts the instructions, in one process of some twenty seconds. Unlike seconds, they are the same
on a busy machine, to half a percent. This compares two things:

- The instructions per message of the benchmarks' corpora with guard.json, with the vector loops and with the portable
  loops. The counts depend on the compiler, so each compiler has its own figures. If guard.json has no figures for a
  compiler, this reports it and compares nothing. valgrind does not support AVX-512, so the vector loops are for AVX2.
- The instructions per unit of a stream that is long in one direction (relations, columns, open transactions ...) with
  those of a short stream in the same run. They must be equal. This needs no figures and works everywhere.

`--update` records the current counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.corpora import shapes
from pgoutput_fast._core.columns import column

__all__ = ["FLAT", "compare", "main", "uneven"]

FIGURES = Path(__file__).with_name("guard.json")
TOLERANCE = 0.03
CORPORA = {"wide text": 0.012, "wide binary": 0.012, "pgbench": 0.02}

# {name: (short stream, long stream, allowed ratio)}. The ratio is above 1, because the long stream also has more
# one-time costs: those of each relation, column or call.
FLAT: dict[str, tuple[Callable[[], shapes.Shape], Callable[[], shapes.Shape], float]] = {
    "messages": (lambda: shapes.pgbench(0.01), lambda: shapes.pgbench(0.04), 1.05),
    "relations known": (
        lambda: shapes.one_of_many(10, 20, 10),
        lambda: shapes.one_of_many(1000, 20, 10),
        1.05,
    ),
    # Both have 100 rows per relation, in one window. A second window would add one task per relation.
    "rows of relations": (
        lambda: shapes.relations(20, 2_000, 2_000),
        lambda: shapes.relations(160, 16_000, 16_000),
        1.1,
    ),
    "columns": (lambda: shapes.columns(100, 400), lambda: shapes.columns(1600, 400), 1.1),
    "bytes of a cell": (lambda: shapes.long_cell(20_000, 8), lambda: shapes.long_cell(2_000_000, 2), 1.1),
    "transactions": (lambda: shapes.transactions(2_000, 0), lambda: shapes.transactions(20_000, 0), 1.05),
    "open streams": (lambda: shapes.open_streams(10, 20, 8), lambda: shapes.open_streams(1000, 20, 8), 1.1),
    "prepared": (lambda: shapes.open_prepared(10, 20, 8), lambda: shapes.open_prepared(1000, 20, 8), 1.1),
    "subtransactions": (
        lambda: shapes.subtransactions(500, True),
        lambda: shapes.subtransactions(8_000, True),
        1.1,
    ),
    "prepared of one name": (lambda: shapes.namesakes(200), lambda: shapes.namesakes(4_000), 1.25),
    "Relations in subtransactions": (
        lambda: shapes.subtransactions_with_relations(200),
        lambda: shapes.subtransactions_with_relations(4_000),
        1.25,
    ),
    "bad boundaries": (lambda: shapes.damaged(200), lambda: shapes.damaged(2_000), 1.25),
    "rows of a Truncate": (
        lambda: shapes.tagged_truncate(400, 1),
        lambda: shapes.tagged_truncate(4_000, 1),
        1.25,
    ),
    "Relations again": (lambda: shapes.resent(10, 2_000), lambda: shapes.resent(100, 20_000), 1.1),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns 1 if a count is too high."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.guard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--update", action="store_true", help="record the current counts")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.run:
        _run()
        return 0
    if shutil.which("valgrind") is None:
        print(
            "bench-guard: NOT RUN, as valgrind is not installed; install the package valgrind of your system"
        )
        return 0
    key, counted, flat = count()
    print(key)
    for name, figure in counted.items():
        print(f"  {name}: {figure} instructions a message")
    for name, (short, long) in flat.items():
        print(f"  {name}: {short} instructions a unit, {long} in a long stream")
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if given.update:
        FIGURES.write_text(json.dumps({**known, key: counted}, indent=1, sort_keys=True) + "\n")
        known = {}
    elif key not in known:
        print(f"bench-guard: NOT COMPARED with earlier figures: they are for {'; '.join(sorted(known))}")
    worse = compare(known.get(key, counted), counted) + uneven(flat)
    print("\n".join(worse or ["bench-guard: passed"]))
    return 1 if worse else 0


def compare(known: dict[str, int], counted: dict[str, int]) -> list[str]:
    """Returns a line per name with more instructions than the recorded count. Names without a count are skipped."""
    return [
        f"{name}: {counted[name]} instructions a message, {counted[name] / before - 1:+.1%}: it took {before}. "
        "If this is intended, run this with --update"
        for name, before in known.items()
        if name in counted and counted[name] > before * (1 + TOLERANCE)
    ]


def uneven(flat: dict[str, tuple[float, float]]) -> list[str]:
    """Returns a line per name with more instructions per unit in the long stream than in the short one."""
    return [
        f"{name}: {long} instructions a unit in a long stream, {short} in a short one: it grows faster than its input"
        for name, (short, long) in flat.items()
        if long > short * FLAT[name][2]
    ]


def count() -> tuple[str, dict[str, int], dict[str, tuple[float, float]]]:
    """(compiler and platform, instructions per message by corpus, instructions per unit of short and long streams)."""
    for name in CORPORA:
        corpora.corpus(name, CORPORA[name])  # fills the cache, because this is slow under valgrind
    with tempfile.TemporaryDirectory() as directory:
        # At each call of getloadavg, callgrind writes the counts since the last call.
        command = ["valgrind", "--tool=callgrind", "--dump-before=getloadavg"]
        command += [
            f"--callgrind-out-file={directory}/out",
            sys.executable,
            "-m",
            "benchmarks.guard",
            "--run",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"callgrind failed: {done.stderr[-1000:]}")
        each = [
            (name, _total(Path(directory) / f"out.{2 * k + 2}") / int(units))
            for k, (units, name) in enumerate(line.split(" ", 1) for line in done.stdout.splitlines())
        ]
    streams = [figure for name, figure in each if name in FLAT]
    return (
        f"{_compiler()}, {sysconfig.get_platform()}",
        {name: round(figure) for name, figure in each if name not in FLAT},
        {name: (round(streams[2 * k], 2), round(streams[2 * k + 1], 2)) for k, name in enumerate(FLAT)},
    )


def _total(dump: Path) -> int:
    found = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"callgrind counted nothing in {dump.name}")
    return int(found[1])


def _compiler() -> str:
    """The compiler of the extensions, whose name is in the binary."""
    found = re.search(
        rb"(GCC): \([^)]*\) ([0-9.]+)|(clang) version ([0-9.]+)", Path(column.__file__).read_bytes()
    )
    return " ".join(part.decode() for part in found.groups() if part) if found else "an unknown compiler"


def _run() -> None:
    """Runs under valgrind. Decodes everything, once as a warm-up and once between two calls that write the counts."""
    for level in ("portable", "avx2"):
        if column.use_vectors(level) != level:
            continue  # this processor does not have these vector loops
        for name, scale in CORPORA.items():
            payloads = corpora.corpus(name, scale).payloads
            _counted(
                f"{name}, {level}",
                partial(pgo.decode, payloads),
                len(payloads),
            )
    for name, (short, long, _) in FLAT.items():
        for shape in (short(), long()):
            _counted(name, shape.ready(), shape.units)


def _counted(name: str, run: Callable[[], object], units: int) -> None:
    run()
    os.getloadavg()
    run()
    os.getloadavg()
    print(units, name)


if __name__ == "__main__":
    sys.exit(main())
