"""Measures the effect of selecting columns on Spark: all of 16 columns, or three, with and without metadata columns.

    python -m benchmarks.spark.columns

The session has two cores. Every query writes to the noop sink, except those that count. At full size this rewrites the
table in README.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pgoutput_fast as pgo
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.measuring import measured, to_noop
from benchmarks.spark.queries import TABLE, identity, session, wide_segments
from benchmarks.timing import Measured

__all__ = ["queries", "section"]

TIMES = 3
ROUNDS = 5
MARKERS = "<!-- spark column figures -->", "<!-- end of spark column figures -->"
COLUMNS = ["id", "account", "price"]
ALL = "changes(): 16 columns, all metadata"
IDENTITY = "identity, tagged payloads"


def queries(spark: Any, directory: Path) -> dict[str, Callable[[], Any]]:
    """{name: function that makes a DataFrame} of the compared queries. All return every row, or their number."""
    from pgoutput_fast import spark as pgspark

    wal = spark.read.parquet(str(directory))
    three = pgo.Options(columns={TABLE: COLUMNS})
    names = ", ".join(COLUMNS)

    def read(**options: str) -> Any:
        return (
            spark.read.format("pgoutput")
            .options(table=TABLE, transactions="as_sent", **options)
            .load(str(directory))
        )

    rows = wal.where("kind in (73, 85, 68, 84)")
    return {
        ALL: lambda: pgspark.changes(wal, TABLE),
        IDENTITY: lambda: rows.mapInArrow(identity, rows.schema),
        "changes(): 16 columns, no metadata": lambda: pgspark.changes(wal, TABLE, metadata=()),
        "changes(): three columns, all metadata": lambda: pgspark.changes(wal, TABLE, options=three),
        "changes(): three columns, no metadata": lambda: pgspark.changes(
            wal, TABLE, options=three, metadata=()
        ),
        'format("pgoutput"): 16 columns, all metadata': read,
        "the same, then select() of three": lambda: read().select(*COLUMNS),
        "the same, then count()": lambda: read().groupBy().count(),
        'format("pgoutput"): three columns, all metadata': lambda: read(columns=names, metadata="all"),
        'format("pgoutput"): three columns, no metadata': lambda: read(columns=names, metadata="none"),
        'format("pgoutput"): _seq, then count()': lambda: read(columns="_seq").groupBy().count(),
    }


def section(spark: Any, directory: Path, rounds: int, rows: int) -> Section:
    """The table.

    Raises:
        AssertionError: if a query does not return every row.
    """
    compared = queries(spark, directory)
    for label, query in compared.items():
        frame = query()
        found = frame.collect()[0][0] if label.endswith("count()") else frame.count()
        assert found == rows, label
    walls: dict[str, list[float]] = {label: [] for label in compared}
    cpus: dict[str, list[float]] = {label: [] for label in compared}
    for number in range(rounds + 1):
        for label, query in compared.items():
            wall_seconds, cpu_seconds = measured(to_noop(query))
            if number:
                walls[label].append(wall_seconds)
                cpus[label].append(cpu_seconds)
    wall = {label: Measured(seconds) for label, seconds in walls.items()}
    cpu = {label: Measured(seconds) for label, seconds in cpus.items()}
    table = Section(
        f"Columns on Spark: {rows:,} rows of 16 columns",
        ["", "wall s", "CPU s", "wall beside all", "CPU beside all", "wall beside identity"],
    )
    for label in compared:
        beside = [f"{each[ALL].speed_beside(each[label]):.2f}" for each in (wall, cpu)]
        to_identity = f"{1 / wall[label].speed_beside(wall[IDENTITY]):.2f}"
        table.rows.append(
            [label, f"{wall[label].seconds:.2f}", f"{cpu[label].seconds:.2f}", *beside, to_identity]
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark.columns", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often the wide corpus is repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpus's full size")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        rows, _ = wide_segments(Path(name), given.times, given.scale)
        text = str(section(spark, Path(name), given.rounds, rows))
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    print(f"{heading}\n\n{text}")
    if given.scale == 1 and given.times == TIMES:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()
