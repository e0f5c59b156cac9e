"""From raw payloads to tables: `write_raw` beside segments of the same payloads.

    python -m benchmarks.spark_raw

The payloads are a binary column of Parquet files in stream order, as a dump or a sink of Kafka has them. The session
has two cores. `the identity` is a `mapInArrow` that returns the payloads: what it costs to show each one to Python once
and get it back. With paths, the tasks read the files themselves. `tagged first` is `write_tables(tag(...))` with tagged
payloads that go back to the JVM and come a second time. At full size this rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import corpora
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.queries import SOURCE, cpu_of_descendants, cpu_since, identity, session
from benchmarks.timing import Measured

MARKERS = "<!-- spark raw figures -->", "<!-- end of spark raw figures -->"
TIMES = {"wide text": 4, "pgbench": 3}
ROW_GROUP = 20_000
SEGMENTS, IDENTITY = "own segments", "the identity"
PATHS, ONCE, TWICE = "write_raw(paths)", "write_raw(DataFrame)", "tagged first"


def write(directory: Path, name: str, times: int, scale: float) -> tuple[Path, Path, int]:
    """Writes a corpus `times` times, as one stream. Returns its segments, its dump, and the bytes of the payloads."""
    import pgoutput_fast as pgo
    from pgoutput_fast.segments import write_segment

    corpus, state = corpora.corpus(name, scale), None
    segments, dump = directory / "segments", directory / "dump"
    segments.mkdir(parents=True)
    dump.mkdir()
    count = len(corpus.payloads)
    for k in range(times):
        tagged, state = pgo.tag(corpus.payloads, state)
        write_segment(segments, tagged, state, source=SOURCE)
        rows = pa.table({"place": np.arange(count) + k * count, "payload": corpus.payloads})
        pq.write_table(rows, dump / f"{k:03}.parquet", row_group_size=ROW_GROUP, compression="zstd")
    return segments, dump, corpus.nbytes * times


def ways(spark: Any, segments: Path, dump: Path, transactions: Any) -> dict[str, Callable[[Path], Any]]:
    """{name: function that writes the tables below a directory, or only moves the payloads}."""
    from pgoutput_fast import spark as pgspark

    rows = spark.read.parquet(str(dump))
    payloads = rows.select("payload")

    def tagged() -> Any:
        return pgspark.tag(rows, "place", payload="payload")

    def moved(target: Path) -> None:
        target.mkdir()
        payloads.mapInArrow(identity, payloads.schema).write.format("noop").mode("overwrite").save()

    def into_segments(target: Path, source: Any) -> None:
        pgspark.write_segments(pgspark.tag(source, "place", spark=spark), target)

    ways = {
        SEGMENTS: lambda target: pgspark.write_tables(segments, target, transactions=transactions),
        IDENTITY: moved,
        PATHS: lambda target: pgspark.write_raw(dump, target, order_by="place", transactions=transactions),
        ONCE: lambda target: pgspark.write_raw(rows, target, order_by="place", transactions=transactions),
        TWICE: lambda target: pgspark.write_tables(tagged().select("*"), target, transactions=transactions),
    }
    if transactions == "as_sent":  # segments have the payloads as sent
        ways["write_segments(tag(paths))"] = lambda target: into_segments(target, dump)
    return ways


def section(spark: Any, directory: Path, name: str, times: int, scale: float, rounds: int) -> Section:
    """The table of a corpus.

    Raises:
        AssertionError: if a way writes other tables than from segments.
    """
    segments, dump, nbytes = write(directory / name, name, times, scale)
    found = Section(
        f"{name}: {nbytes / 1e9:.2f} GB of payloads",
        ["", "wall s", "CPU s a GB", "wall beside segments", "CPU beside segments"],
    )
    for transactions in ("committed", "as_sent"):
        compared = ways(spark, segments, dump, transactions)
        walls: dict[str, list[float]] = {label: [] for label in compared}
        cpus: dict[str, list[float]] = {label: [] for label in compared}
        first: Any = None
        for number in range(rounds + 1):
            for label, run in compared.items():
                target = directory / "target"
                before, own, started = cpu_of_descendants(), time.process_time(), time.perf_counter()
                written = run(target)
                wall, cpu = time.perf_counter() - started, cpu_since(before) + time.process_time() - own
                if number:
                    walls[label].append(wall)
                    cpus[label].append(max(cpu, 1e-9))
                elif written is not None:
                    tables = [(row["table"], row["rows"], row["position"]) for row in written]
                    first = first or tables
                    assert tables == first, label
                shutil.rmtree(target)
        wall_of = {label: Measured(seconds) for label, seconds in walls.items()}
        cpu_of = {label: Measured(seconds) for label, seconds in cpus.items()}
        for label in compared:
            found.rows.append(
                [
                    f"{label}, {transactions}",
                    f"{wall_of[label].seconds:.2f}",
                    f"{cpu_of[label].seconds / nbytes * 1e9:.1f}",
                    f"{wall_of[label].seconds / wall_of[SEGMENTS].seconds:.2f}",
                    f"{cpu_of[label].seconds / cpu_of[SEGMENTS].seconds:.2f}",
                ]
            )
    shutil.rmtree(directory / name)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark_raw", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of a corpus's full size")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        sections = [
            section(spark, Path(name), corpus, times, given.scale, given.rounds)
            for corpus, times in TIMES.items()
        ]
    text = "\n".join(map(str, sections))
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    print(f"{heading}\n\n{text}")
    if given.scale == 1:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()
