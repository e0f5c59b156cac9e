"""The cost of tagging payloads on Spark: `python -m benchmarks.spark.tag`.

This compares `tag` with an identity `mapInArrow` over the same bytes, in one session on local[2], into the noop sink,
in interleaved rounds. Every round calls `tag` again, so its time includes both passes and the preceding check of the
order. Before the timing, this compares the tags of the corpus with those of `pgo.tag`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.spark.measuring import measured, peak_of_workers, to_noop
from benchmarks.spark.queries import identity, session
from pgoutput_fast import spark as pgspark

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
        spark = session()
        spark.conf.set("spark.sql.shuffle.partitions", 16)
        print(json.dumps(measure(spark, Path(directory), payloads, given.copies, given.rounds), indent=1))
        spark.stop()


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


def measure(spark: Any, directory: Path, payloads: pa.Array, copies: int, rounds: int) -> dict[str, Any]:
    """Medians of wall and CPU seconds, and of their ratios to the identity in the same round.

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
        "identity": lambda: frames["ordered"].mapInArrow(identity, schema),
        "in order": lambda: pgspark.tag(frames["ordered"], "seq"),
        "first pass in order": lambda: pgspark.tag(frames["ordered"], "seq").limit(0),
        "with the sort": lambda: pgspark.tag(frames["shuffled"], "seq"),
        "first pass with the sort": lambda: pgspark.tag(frames["shuffled"], "seq").limit(0),
    }
    walls: dict[str, list[float]] = {name: [] for name in tasks}
    cpus: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            wall, cpu = measured(to_noop(task))
            if number:
                walls[name].append(wall)
                cpus[name].append(cpu)
    found: dict[str, Any] = {
        "bytes of payloads": (payloads.nbytes - 4 * len(payloads)) * copies,
        "messages": len(payloads) * copies,
        "peak of a worker, MB": round(peak_of_workers()),
    }
    for clock, seconds in (("wall", walls), ("CPU", cpus)):
        found[f"{clock} seconds"] = {
            name: round(statistics.median(each), 2) for name, each in seconds.items()
        }
        found[f"{clock} time beside the identity"] = {
            name: round(statistics.median(b / a for a, b in zip(seconds["identity"], each, strict=True)), 2)
            for name, each in seconds.items()
        }
    return found


if __name__ == "__main__":
    main()
