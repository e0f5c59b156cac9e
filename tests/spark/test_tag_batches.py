"""Micro-batches of raw payloads: each continues the one before, whatever fails between, on a real Spark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast.segments import list_segments, read_segment
from support.capturing import wait_until
from support.forms import and_slow
from support.interleaved import everything
from support.paths import DOCS
from support.tagged_rows import in_order

PAYLOADS = everything().payloads[: min(everything().sessions)]
BLOCKS = re.findall(
    r"```python\n(.*?)```",
    (DOCS / "streaming.md").read_text().split("## Raw payloads\n")[1].split("\n## ")[0],
    re.DOTALL,
)


EXPECTED = in_order(pgo.tag(PAYLOADS)[0].to_pylist())


def drop_file(landing: Path, payloads: list[bytes], begin: int, end: int) -> None:
    """A file of a stream's messages, last modified in the order of the stream, as the source takes them."""
    landing.mkdir(exist_ok=True)
    table = {
        "place": pa.array(range(begin, end), pa.int64()),
        "payload": pa.array(payloads[begin:end], pa.binary()),
    }
    hidden = landing / f".{begin}"
    pq.write_table(pa.table(table), hidden)
    os.utime(hidden, (1_700_000_000 + begin,) * 2)
    hidden.rename(landing / f"{begin:06}.parquet")


def _store_in(directory: Path) -> Callable[[Any, int], None]:
    def store(wal: Any, batch_id: int) -> None:
        wal.write.mode("overwrite").parquet(str(directory / f"batch={batch_id}"))

    return store


class Query:
    """A query that tags one dropped file per batch and writes the rows of a batch into a directory of its own."""

    def __init__(self, spark: Any, path: Path) -> None:
        self.spark, self.path = spark, path
        self.states = path / "states"
        self.store: Callable[[Any, int], None] = _store_in(path / "tagged")

    def run(self, wrapped: Callable[[Any], Any] = lambda each: each, **more: Any) -> None:
        raw = self.spark.readStream.schema("place bigint, payload binary").option("maxFilesPerTrigger", 1)
        each = wrapped(pgspark.tag_batches(self.states, more.pop("order_by", "place"), self.store, **more))
        writer = raw.parquet(str(self.path / "landing")).writeStream.foreachBatch(each)
        writer = writer.option("checkpointLocation", str(self.path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def rows(self) -> list[dict[str, Any]]:
        return in_order([row for path in (self.path / "tagged").rglob("*.parquet") for row in _rows_of(path)])


def _rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().cast(pgo.TAGGED_SCHEMA).to_pylist()
    return rows


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Query:
    made = Query(spark, tmp_path)
    edges = [0, 11, 30, 31, len(PAYLOADS)]
    for begin, end in pairwise(edges):
        drop_file(tmp_path / "landing", PAYLOADS, begin, end)
    return made


def test_batches_continue_one_another(query: Query) -> None:
    """Also in another run of the query, and in a batch that has no rows of any transaction's begin."""
    query.run()
    assert query.rows() == EXPECTED
    assert sorted(each.name for each in query.states.iterdir()) == [f"{k:020}.json" for k in range(4)]
    more = [*PAYLOADS, encode.encode_message(4000, "p", b"late", transactional=False)]
    drop_file(query.path / "landing", more, len(PAYLOADS), len(more))
    query.run()
    assert query.rows()[-1]["seq"] == len(PAYLOADS)
    assert query.rows()[:-1] == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("when", and_slow(["behind the state"], ["in the sink"]))
def test_a_batch_that_runs_again_begins_as_before(query: Query, when: str) -> None:
    """It fails once: when its state is stored and Spark's checkpoint does not know, or when rows are half written."""
    notes, states, original = query.path / "notes", query.states, query.store
    notes.mkdir()

    def fail_once() -> None:
        if not (notes / "failed").exists():
            (notes / "failed").write_text(str(len(list(states.iterdir()))))
            raise RuntimeError("a lost driver")

    def failing(wal: Any, batch_id: int) -> None:
        # On Spark Connect this runs in another process.
        with open(notes / "seen", "a") as file:
            file.write(f"{batch_id} ")
        original(wal, batch_id)
        if when == "in the sink" and batch_id == 2:
            fail_once()

    def wrapped(each: Any) -> Any:
        def run(batch: Any, batch_id: int) -> None:
            each(batch, batch_id)
            if when == "behind the state" and batch_id == 2:
                fail_once()

        return run

    query.store = failing
    with pytest.raises(PySparkException, match="a lost driver"):
        query.run(wrapped)
    assert (notes / "failed").read_text() == ("3" if when == "behind the state" else "2")
    query.run(wrapped)
    assert (notes / "seen").read_text().split() == ["0", "1", "2", "2", "3"]
    assert query.rows() == EXPECTED


@pytest.mark.slow
def test_states_of_another_checkpoint_are_refused(query: Query, tmp_path: Path) -> None:
    query.run()
    (tmp_path / "checkpoint").rename(tmp_path / "old")
    with pytest.raises(PySparkException, match="has the state after batch 3, but Spark runs batch 0"):
        query.run()
    assert query.rows() == EXPECTED


@pytest.mark.slow
def test_a_state_that_is_missing_or_damaged(query: Query, tmp_path: Path) -> None:
    query.run()
    more = [*PAYLOADS, encode.encode_message(4000, "p", b"late", transactional=False)]
    drop_file(tmp_path / "landing", more, len(PAYLOADS), len(more))
    newest = query.states / f"{3:020}.json"
    text = newest.read_text()
    document = json.loads(text)
    for damaged in ("{}", text[:50], json.dumps({**document, "batch": 2})):
        newest.write_text(damaged)
        with pytest.raises(PySparkException, match=r"0003.json is not the state after a batch: .*Restore"):
            query.run()
    newest.unlink()
    with pytest.raises(PySparkException, match="has no state after batch 3, with which batch 4 continues"):
        query.run()
    newest.write_text(text)
    query.run()
    assert query.rows()[:-1] == EXPECTED


@pytest.mark.slow
def test_a_file_that_comes_too_late_or_is_missing(query: Query, tmp_path: Path) -> None:
    late = tmp_path / "landing" / f"{11:06}.parquet"
    late.rename(tmp_path / "late")
    with pytest.raises(
        PySparkException, match=r"ended with place = 10, .* begins with place = 30: pass gaps="
    ):
        query.run()
    (tmp_path / "late").rename(late)
    (tmp_path / "landing" / f"{30:06}.parquet").unlink()
    with pytest.raises(PySparkException):
        query.run()


@pytest.mark.slow
def test_old_states_go_with_sparks_own(query: Query) -> None:
    key = "spark.sql.streaming.minBatchesToRetain"
    query.spark.conf.set(key, 1)
    try:
        query.run()
    finally:
        query.spark.conf.unset(key)
    assert sorted(each.name for each in query.states.iterdir()) == [f"{k:020}.json" for k in (2, 3)]


@pytest.mark.slow
def test_the_first_batch_may_have_a_state(query: Query, tmp_path: Path) -> None:
    """Another call of tag ended there."""
    for path in sorted((tmp_path / "landing").iterdir())[:2]:
        path.unlink()
    query.run(state=pgo.tag(PAYLOADS[:30])[1].to_json())
    assert query.rows() == [row for row in EXPECTED if row["seq"] >= 30]


def test_a_wrong_state_is_told_at_once(query: Query) -> None:
    with pytest.raises(ValueError, match="not the JSON text of a StreamState"):
        pgspark.tag_batches(query.states, "place", query.store, state="state.json")


# ---- the examples of the page --------------------------------------------------------------------------------------


def names(spark: Any, tmp_path: Path) -> dict[str, Any]:
    pgspark.register(spark)
    places = ("landing", "states", "checkpoint", "segments")
    return {"spark": spark, **{name: str(tmp_path / name) for name in places}}


@pytest.mark.slow
def test_the_example_with_files(spark: Any, query: Query, tmp_path: Path) -> None:
    there = names(spark, tmp_path)
    example = BLOCKS[0].replace("public.orders", "public.t")
    spec = encode.RelationSpec(16384, "public", "t", (encode.ColumnSpec("id", 23),))
    assert PAYLOADS[1] == encode.encode_relation(spec)
    exec(compile(example, "streaming.md", "exec"), there)
    rows = [
        row for each in list_segments(tmp_path / "segments") for row in read_segment(each.path).to_pylist()
    ]
    assert in_order(rows) == EXPECTED
    committed = pgo.decode(PAYLOADS, options=pgo.Options(transactions="committed")).table("public.t")
    assert sorted(row["_seq"] for row in there["orders"].collect()) == sorted(
        committed.column("_seq").to_pylist()
    )
    # A batch that comes again adds nothing.
    again = spark.createDataFrame(list(enumerate(PAYLOADS)), "place bigint, payload binary")
    there["store"](pgspark.tag(again, "place"), 3)
    assert len(list_segments(tmp_path / "segments")) == 4


@pytest.mark.slow
def test_the_example_with_the_columns_of_kafka(spark: Any, query: Query, tmp_path: Path) -> None:
    there = names(spark, tmp_path)
    first = BLOCKS[0].split("dropped = ")[0]
    exec(compile(first + BLOCKS[1], "streaming.md", "exec"), there)
    running = there["query"]
    try:
        wait_until(lambda: not running.isActive or len(list((tmp_path / "states").glob("*.json"))) >= 3)
    finally:
        running.stop()
    assert running.exception() is None
    reader = (
        spark.read.format("pgoutput").option("table", "public.orders").option("transactions", "committed")
    )
    ids = [row["id"] for row in reader.load(str(tmp_path / "segments")).orderBy("_seq").collect()]
    assert len(ids) >= 7
    assert ids == list(range(len(ids)))
