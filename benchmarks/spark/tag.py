"""The cost of tagging payloads on Spark: `python -m benchmarks.spark.tag`.

This compares `tag` with an identity `mapInArrow` over the same bytes, in one session on local[2], into the noop sink,
in interleaved rounds. Every round calls `tag` again, so its time includes both passes and the preceding check of the
order. Before the timing, this compares the tags of the corpus with those of `pgo.tag`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pgoutput_fast as pgo
from benchmarks import corpora
from pgoutput_fast import spark as pgspark
from pgoutput_fast.demo.java import spark_environment

FILES_PER_COPY = 2
ROW_GROUP = 20_000
CHECKED = ("seq", "kind", "relation", "version", "txn", "xid", "commit_lsn", "in_stream")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark.tag", description=__doc__)
    parser.add_argument("--copies", type=int, default=7, help="how often the corpus is repeated; 161 MB each")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpus's full size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=corpora.SEED)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        payloads = corpora.corpus("wide text", given.scale, given.seed).payloads
        write(Path(directory), payloads, given.copies, given.seed)
        with session(Path(directory)) as spark:
            print(json.dumps(measure(spark, Path(directory), payloads, given.copies, given.rounds), indent=1))


def write(directory: Path, payloads: pa.Array, copies: int, seed: int) -> None:
    """Writes two directories with the same number of files: `ordered` in stream order, `shuffled` in random order."""
    many, files = len(payloads) * copies, FILES_PER_COPY * copies
    whole = pa.table({"seq": np.arange(many), "payload": pa.chunked_array([payloads] * copies)})
    order = np.random.default_rng(seed).permutation(many)
    for name in ("ordered", "shuffled"):
        (directory / name).mkdir()
        for k in range(files):
            begin, end = many * k // files, many * (k + 1) // files
            if name == "ordered":
                some = whole.slice(begin, end - begin)
            else:
                at = order[begin:end]
                some = pa.table({"seq": at, "payload": payloads.take(pa.array(at % len(payloads)))})
            pq.write_table(
                some, directory / name / f"{k:03}.parquet", row_group_size=ROW_GROUP, use_dictionary=False
            )


class session:  # noqa: N801
    """A Spark session on two cores, for a `with` block."""

    def __init__(self, directory: Path) -> None:
        os.environ.update(spark_environment())
        from pyspark.sql import SparkSession

        self.spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", False)
            .config("spark.ui.showConsoleProgress", False)
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            # With loopback TCP, two full buffers can block both sides for minutes.
            .config("spark.python.unix.domain.socket.enabled", True)
            .config("spark.driver.memory", "4g")
            .config("spark.local.dir", str(directory / "local"))
            .config("spark.sql.shuffle.partitions", 16)
            .getOrCreate()
        )

    def __enter__(self) -> Any:
        return self.spark

    def __exit__(self, *_: object) -> None:
        gateway: Any = self.spark.sparkContext._gateway
        self.spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)


def _identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def measure(spark: Any, directory: Path, payloads: pa.Array, copies: int, rounds: int) -> dict[str, Any]:
    """Median wall seconds, and median ratios to the identity's time in the same round.

    Raises:
        AssertionError: if the tags differ from those of `pgo.tag`.
    """
    frames = {name: spark.read.parquet(str(directory / name)) for name in ("ordered", "shuffled")}
    schema = frames["ordered"].schema
    expected = pgo.tag(payloads)[0].select(CHECKED)
    for frame in frames.values():
        some = pgspark.tag(frame.where(f"seq < {len(payloads)}"), "seq").select(*CHECKED).orderBy("seq")
        assert pa.Table.from_batches([expected]).equals(some.toArrow().cast(expected.schema))
    tasks: dict[str, Callable[[], Any]] = {
        "identity": lambda: frames["ordered"].mapInArrow(_identity, schema),
        "in order": lambda: pgspark.tag(frames["ordered"], "seq"),
        "first pass in order": lambda: pgspark.tag(frames["ordered"], "seq").limit(0),
        "with the sort": lambda: pgspark.tag(frames["shuffled"], "seq"),
        "first pass with the sort": lambda: pgspark.tag(frames["shuffled"], "seq").limit(0),
    }
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task().write.format("noop").mode("overwrite").save()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {
        "bytes of payloads": (payloads.nbytes - 4 * len(payloads)) * copies,
        "messages": len(payloads) * copies,
        "seconds": {name: round(statistics.median(each), 2) for name, each in seconds.items()},
        "times the identity": {
            name: round(statistics.median(b / a for a, b in zip(seconds["identity"], each, strict=True)), 2)
            for name, each in seconds.items()
        },
        "peak of a child, MB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }


if __name__ == "__main__":
    main()
