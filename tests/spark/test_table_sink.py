"""`table_sink`: each batch of a stream is written once, wherever the stream begins, fails or ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from pgoutput_fast import spark as pgspark
from support.forms import and_exhaustive
from support.written_tables import (
    DIRECTORIES,
    NAMES,
    PAYLOADS,
    assert_same,
    expected,
    random_cuts,
    read,
    stored,
    write_segments,
)

__all__ = ["stored"]


def _finishes(spark: Any, place: Path, sink: Any) -> bool:
    """Writes what is there. Returns whether no batch failed."""
    query = (
        spark.readStream.format("pgoutput")
        .option("emit", "files")
        .option("max_segments", "1")
        .load(str(place / "segments"))
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as problem:
        if "killed after the commit" not in str(problem):
            raise
        return False
    finally:
        query.stop()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("format", and_exhaustive(["delta"], ["parquet", "iceberg"]))
def test_a_stream_writes_each_batch_once(spark: Any, tmp_path: Path, format: str) -> None:
    """Some batches fail between their commit and the checkpoint, and come again."""
    target = tmp_path / "lake"
    by = {} if format == "parquet" else {"public.t1": ["day"]}
    sink = pgspark.table_sink(target, format=format, partition_by={**by, "public.comes_later": ["x"]})
    pgspark.register(spark)
    notes = tmp_path / "notes"

    def failing(batch: Any, batch_id: int) -> None:
        sink(batch, batch_id)
        # On Spark Connect this runs in another process.
        with open(notes, "a") as file:
            file.write(f"{batch_id} ")
        if notes.read_text().split().count(str(batch_id)) == 1 and batch_id % 2:
            raise RuntimeError("killed after the commit")

    for _ in write_segments(tmp_path / "segments", random_cuts(8, 3)):
        failures = 0
        while not _finishes(spark, tmp_path, failing):
            failures += 1
            assert failures < 5
    batches = notes.read_text().split()
    assert len(batches) > len(set(batches)) >= 3
    wal = spark.read.parquet(str(tmp_path / "segments"))
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        assert_same(read(format, target, directory), expected(wal, name, "committed"))


@pytest.mark.slow
@pytest.mark.parametrize("transactions", and_exhaustive(["committed"], ["as_sent"]))
def test_a_stream_may_begin_later_and_end_within_a_joined_segment(
    spark: Any, tmp_path: Path, transactions: Any
) -> None:
    pgspark.register(spark)
    list(write_segments(tmp_path / "segments", [0, 400, len(PAYLOADS)]))
    wal = spark.read.parquet(str(tmp_path / "segments"))
    sink = pgspark.table_sink(tmp_path / "lake", transactions=transactions)
    rows = {"directory": str(tmp_path / "segments"), "path": "one"}
    ends = [(200, 299), (300, 500), (501, len(PAYLOADS) - 1)]
    for number, (first, last) in enumerate(ends):
        frame = spark.createDataFrame([{**rows, "first": first, "last": last}]).select(
            "directory", "path", "first", "last"
        )
        sink(frame, number)
    ended = {row["txn"]: row["at_seq"] for row in pgspark.outcomes(wal).where("subxid is null").collect()}
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        wanted = expected(wal, name, transactions)
        at = (
            [ended[txn] for txn in wanted["_txn"].to_pylist()]
            if transactions == "committed"
            else wanted["_seq"].to_pylist()
        )
        assert_same(
            read("parquet", tmp_path / "lake", directory),
            wanted.filter(pa.array([each >= 200 for each in at])),
        )


def _start(spark: Any, segments: Path, checkpoint: Path, options: dict[str, str]) -> None:
    reader = spark.readStream.format("pgoutput").options(**options).load(str(segments))
    reader.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start().awaitTermination()


@pytest.mark.slow
def test_wrong_streams(spark: Any, stored: Path, tmp_path: Path) -> None:
    pgspark.register(spark)
    sink = pgspark.table_sink(tmp_path)
    with pytest.raises(ValueError, match=r"table_sink needs the columns directory, path, first, last"):
        sink(spark.range(1), 0)
    with pytest.raises(TypeError, match=r"tables must be a list"):
        pgspark.table_sink(tmp_path, "public.t0")
    for options, message in (
        ({"emit": "names"}, "emit must be 'rows', 'upserts', 'files'"),
        ({"emit": "files", "columns": "id"}, "has no option 'columns'"),
    ):
        with pytest.raises(Exception, match=message):
            _start(spark, stored, tmp_path / "c", options)
    with pytest.raises(Exception, match=r"has no option emit=files"):
        spark.read.format("pgoutput").option("emit", "files").load(str(stored)).collect()
