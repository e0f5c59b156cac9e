"""Options of `format("pgoutput")` that have the names of Spark's own sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, write_segment
from pgoutput_fast.spark.source.options import byte_count
from pgoutput_fast.spark.source.stream import NEW_SOURCES
from pyspark_pgoutput import DefaultSource

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),))


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five segments. A streamed transaction begins in the second one, and commits in the fourth."""
    directory: Path = tmp_path_factory.mktemp("segments")
    writer, state = Writer(4, streaming="on"), None
    for n in range(5):
        wal = writer.begin(100 + n, 100 * n + 100, 0)
        wal += writer.change(ORDERS, "insert", new=[str(n)]) + writer.commit(100 * n + 100, 100 * n + 108, 0)
        if n == 1:
            wal += writer.stream_start(900) + writer.change(ORDERS, "insert", new=["9"], xid=900)
            wal += writer.stream_stop()
        if n == 3:
            wal += writer.stream_commit(900, 450, 458, 0)
        tagged, state = pgo.tag(wal, state)
        write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    return directory


def _ids(path: Path, **options: str) -> list[int]:
    """What Spark gets from the process that plans, and from tasks."""
    given = CaseInsensitiveDict({"path": str(path), "table": "public.orders", **options})
    source = DefaultSource(given)
    reader = source.reader(source.schema())
    rows = (row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist())
    return sorted(row["id"] for row in rows)


def test_a_range_of_messages(segments: Path) -> None:
    """A batch read of two positions gives what a stream gives between them."""
    ends = [str(each.last_seq + 1) for each in list_segments(segments)]
    for transactions, first, second in (("committed", [2, 3, 9], [2]), ("as_sent", [2, 3], [2])):
        given = {"transactions": transactions, "startingOffsets": ends[1]}
        assert _ids(segments, **given, endingOffsets=ends[3]) == first
        assert _ids(segments, **given, endingOffsets=ends[2]) == second
    as_sent = {"transactions": "as_sent"}
    assert _ids(segments, **as_sent, endingOffsets=ends[1]) == [0, 1, 9]
    assert _ids(segments, transactions="committed", endingOffsets=ends[1]) == [0, 1]
    assert _ids(segments, **as_sent, starting=ends[3], endingOffsets="latest") == [4]
    assert _ids(segments, startingOffsets=ends[4], endingOffsets=ends[4]) == []
    assert _ids(segments, startingOffsets="earliest", endingOffsets="0", partition_bytes="1k") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "let startingOffsets be earliest or an ordinal"),
        ({"startingOffsets": "0/64"}, "option startingOffsets must be earliest, latest or the ordinal"),
        ({"endingOffsets": "earliest"}, "option endingOffsets must be latest or the ordinal"),
        ({"endingOffsets": "1000"}, "endingOffsets 1000 do not fit the segments, which have messages 0 to"),
        ({"startingOffsets": "3", "endingOffsets": "2"}, "startingOffsets 3 and endingOffsets 2 do not fit"),
        ({"startingOffsets": "3", "starting": "2"}, "options starting and startingOffsets are one option"),
        ({"partition_bytes": "64x"}, "option partition_bytes must be a number of bytes, such as"),
    ],
)
def test_wrong_values_name_their_option(segments: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ids(segments, **options)


def test_a_batch_with_the_names_of_spark(spark: Any, segments: Path) -> None:
    ends = [str(each.last_seq + 1) for each in list_segments(segments)]
    reader = spark.read.format("pgoutput").option("table", "public.orders").option("startingOffsets", ends[1])
    part = reader.option("endingOffsets", ends[3]).load(str(segments))
    assert sorted(row["id"] for row in part.collect()) == [2, 3, 9]
    with pytest.raises(
        PySparkException, match=r"endingOffsets 1 do not fit the segments, which have messages 0"
    ):
        reader.option("endingOffsets", "1").load(str(segments)).collect()
    with pytest.raises(PySparkException, match="option partition_bytes must be a number of bytes, such as"):
        _ = reader.option("partition_bytes", "64x").load(str(segments)).schema


@pytest.mark.slow
def test_a_stream_with_the_names_of_spark(spark: Any, segments: Path, tmp_path: Path) -> None:
    pgspark.register(spark)
    ends = [each.last_seq + 1 for each in list_segments(segments)]

    def run(name: str, **options: str) -> Any:
        reader = spark.readStream.format("pgoutput").option("table", "public.orders").options(**options)
        query = (
            reader.load(str(segments))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / name))
        )
        query.awaitTermination()
        return query.recentProgress

    batches = run("rows", maxFilesPerTrigger="2", startingOffsets=str(ends[0]))
    if NEW_SOURCES:
        assert len([each for each in batches if each["numInputRows"]]) == 2
        latest = [json.loads(each["sources"][0]["latestOffset"]) for each in batches if each["numInputRows"]]
        assert [each["seq"] for each in latest] == [ends[-1]] * 2
        assert latest[0]["behind_bytes"] > latest[1]["behind_bytes"] > 0
    rows = spark.read.parquet(str(tmp_path / "rows")).select("id").collect()
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4, 9]
    with pytest.raises(
        (PySparkException, StreamingQueryException), match="option maxBytesPerTrigger must be"
    ):
        run("wrong", maxBytesPerTrigger="0")


def test_numbers_of_bytes() -> None:
    assert byte_count("n", " 1Kb ") == 1024
    assert byte_count("n", "7b") == 7
    for text in ("", "m", "1.5g", "-1", "1 m", "0", "0k", "99999999p", "1e3", "\u0661k"):
        with pytest.raises(ValueError, match="option n must be a number of bytes"):
            byte_count("n", text)
