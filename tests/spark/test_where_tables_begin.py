"""Where tables begin that a query has not written yet, and where a query begins that is killed in its first batch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.capture import retain
from pgoutput_fast.segments import compact, list_segments
from support.current_streams import batch_of
from support.forms import and_slow
from support.lakes import make_segments, tables_of
from support.spark_features import AVAILABLE_NOW

QUARANTINE = pgo.Options(on_error="quarantine")


class _Growing:
    """A directory to which segments are added one by one, and a query over it."""

    def __init__(self, spark: Any, place: Path, **segments: Any) -> None:
        self._spark, self._place = spark, place
        self.directory, self.lake = place / "segments", place / "lake"
        self.directory.mkdir()
        make_segments(place / "all", **segments)
        self.coming = [each.path for each in list_segments(place / "all")]
        pgspark.register(spark)

    def add(self, count: int) -> None:
        for _ in range(count):
            shutil.copy(self.coming.pop(0), self.directory)

    @property
    def last(self) -> int:
        return list_segments(self.directory)[-1].last_seq

    def run(self, sink: Any, **options: Any) -> None:
        """Takes what is there."""
        query = (
            self._spark.readStream.format("pgoutput")
            .options(**{"emit": "files", **options})
            .load(str(self.directory))
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(self._place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def sink(self, tables: Sequence[str] | None = None, lake: Path | None = None, **arguments: Any) -> Any:
        return pgspark.table_sink(lake or self.lake, tables, options=QUARANTINE, **arguments)

    def whole(self, first: int, **arguments: Any) -> dict[str, Any]:
        """What the tables have if nothing is added or lost: one batch takes everything from a message on."""
        lake = self._place / "whole"
        shutil.rmtree(lake, ignore_errors=True)
        batch = batch_of(self._spark, self.directory, first, self.last)
        self.sink(lake=lake, **arguments)(batch, 0)
        return _rows(tables_of(arguments.get("format", "parquet"), lake))

    def rows(self, format: str = "parquet") -> dict[str, Any]:
        return _rows(tables_of(format, self.lake))


def _rows(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: table.to_pylist() for name, table in tables.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "transactions", "price", "starting"),
    [
        ("parquet", "committed", "no number", "latest"),
        ("delta", "committed", None, "latest"),
        ("delta", "as_sent", "no number", "earliest"),
        ("parquet", "as_sent", None, "latest"),
        ("parquet", "committed", None, "40"),
    ],
)
def test_tables_that_are_added_or_lost(
    spark: Any, tmp_path: Path, format: str, transactions: Any, price: str | None, starting: str
) -> None:
    """They get what the earlier batches had, and no row comes twice, nor any reject that is there."""
    stream = _Growing(spark, tmp_path, txns=50, segments=5, price=price)
    kind = {"format": format, "transactions": transactions}
    stream.add(1)
    began = {"latest": stream.last + 1, "earliest": 0, "40": 40}[starting]
    stream.run(stream.sink(["public.t0"], **kind), starting=starting)
    stream.add(2)
    stream.run(stream.sink(["public.t0"], **kind), starting=starting, max_segments="1")
    assert set(stream.rows(format)) <= {"public.t0", "_rejects/public.t0"}
    stream.add(1)
    stream.run(stream.sink(**kind), starting=starting)
    assert stream.rows(format) == stream.whole(began, **kind)
    # Rejects are tables of their own. Here those of t0 are not lost.
    shutil.rmtree(stream.lake / "public.t0")
    shutil.rmtree(stream.lake / "public.t1")
    shutil.rmtree(stream.lake / "_rejects" / "public.t1", ignore_errors=True)
    stream.add(1)
    stream.run(stream.sink(**kind), starting=starting)
    assert stream.rows(format) == stream.whole(began, **kind)


@pytest.mark.slow
def test_segments_that_are_gone(spark: Any, tmp_path: Path) -> None:
    """A table that may be new on the server begins with what is there. What is certainly incomplete is refused."""
    stream = _Growing(spark, tmp_path, txns=50, segments=5)
    stream.add(2)
    stream.run(stream.sink(["public.t0"]))
    first, second = list_segments(stream.directory)
    Path(first.path).unlink()
    stream.add(1)
    _, third = list_segments(stream.directory)
    gone = rf"public\.t1 is not there, .* began at message 0, but the segments lack messages 0 to {first.last_seq},"
    before = stream.rows()
    with pytest.raises(StreamingQueryException, match=rf"(?s){gone}"):
        stream.run(stream.sink(["public.t0", "public.t1"], on_table_error="stop"))
    assert stream.rows() == before
    # Without names, nobody can tell a new table of the server from one that was lost.
    stream.run(stream.sink())
    expected = stream.whole(third.first_seq)
    assert {name: stream.rows()[name] for name in ("public.t1", "public.t2")} == {
        name: expected[name] for name in ("public.t1", "public.t2")
    }
    shutil.rmtree(stream.lake)
    stream.add(1)
    with pytest.raises(StreamingQueryException, match=r"public\.t0 is not there, and the query goes on"):
        stream.run(stream.sink())
    # The way out that the error names. The query is behind the tables then.
    pgspark.write_tables(stream.directory, stream.lake, options=QUARANTINE, mode="overwrite")
    stream.run(stream.sink())
    stream.add(1)
    stream.run(stream.sink())
    assert stream.rows() == stream.whole(second.first_seq)


@pytest.mark.slow
def test_a_transaction_that_was_open_where_the_query_began(spark: Any, tmp_path: Path) -> None:
    """Its rows lie before the beginning. They are written, or an error says that they are gone."""
    stream = _Growing(spark, tmp_path, txns=40, segments=8)
    stream.add(3)
    stream.run(stream.sink(), starting="latest")
    path = Path(list_segments(stream.directory)[-1].path)
    path.rename(tmp_path / path.name)
    stream.add(1)
    with pytest.raises(
        StreamingQueryException,
        match=r"public\.t0 begins after message \d+\. A transaction that began at message \d+ commits only after it",
    ):
        stream.run(stream.sink(), starting="latest")
    assert stream.rows() == {}
    (tmp_path / path.name).rename(path)
    stream.run(stream.sink(), starting="latest")
    begin = list_segments(stream.directory)[-1].first_seq
    assert "streamed" in [row["note"] for row in stream.rows()["public.t0"]]
    assert stream.rows() == stream.whole(begin)


@pytest.mark.slow
def test_a_query_that_write_tables_overtook(spark: Any, tmp_path: Path) -> None:
    """A batch leaves tables as they are that are ahead of it."""
    stream = _Growing(spark, tmp_path, txns=30, segments=3)
    stream.add(3)
    whole = stream.whole(0)
    pgspark.write_tables(stream.directory, stream.lake, ["public.t1"], options=QUARANTINE)
    sink, end = stream.sink(), 0
    for number, each in enumerate(list_segments(stream.directory)):
        sink(batch_of(spark, stream.directory, end, each.last_seq), number)
        assert stream.rows()["public.t1"] == whole["public.t1"]
        end = each.last_seq + 1
    assert stream.rows() == whole


@pytest.mark.slow
@pytest.mark.parametrize("emit", and_slow(["files"], ["rows"]))
def test_a_query_that_is_killed_in_its_first_batch(spark: Any, tmp_path: Path, emit: str) -> None:
    """Spark asks it again where it begins, and retention has moved the beginning meanwhile."""
    stream = _Growing(spark, tmp_path, txns=40, segments=4)
    stream.add(2)
    sink, rows = stream.sink(), tmp_path / "rows"
    options = {"emit": emit} | ({"table": "public.t0"} if emit == "rows" else {})

    def killed(batch: Any, batch_id: int) -> None:
        raise RuntimeError("killed in the first batch")

    def takes(batch: Any, batch_id: int) -> None:
        if emit == "files":
            sink(batch, batch_id)
        else:
            batch.select("_seq", "id").write.mode("overwrite").parquet(str(rows / str(batch_id)))

    with pytest.raises(StreamingQueryException, match=r"killed in the first batch"):
        stream.run(killed, **options)
    stream.add(1)
    path = Path(list_segments(stream.directory)[0].path)
    path.rename(tmp_path / path.name)
    with pytest.raises(
        StreamingQueryException, match=r"lacks messages 0 to \d+: their segments were removed"
    ):
        stream.run(takes, **options)
    (tmp_path / path.name).rename(path)
    stream.run(takes, **options)
    if not AVAILABLE_NOW:  # Spark runs only the batch that was killed
        stream.run(takes, **options)
    wanted = stream.whole(0)["public.t0"]
    if emit == "files":
        assert stream.rows()["public.t0"] == wanted
    else:
        found = spark.read.parquet(*map(str, rows.iterdir())).orderBy("_seq").collect()
        assert [row["_seq"] for row in found] == [row["_seq"] for row in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("starting", and_slow(["40"], ["latest", "earliest"]))
def test_segments_that_were_joined(spark: Any, tmp_path: Path, starting: str) -> None:
    """A joined segment has messages from before the query's beginning, and from before and behind a batch."""
    stream = _Growing(spark, tmp_path, txns=60, segments=6)
    stream.add(2)
    began = {"latest": stream.last + 1, "earliest": 0, "40": 40}[starting]
    stream.run(stream.sink(["public.t0"]), starting=starting)
    stream.add(1)
    stream.run(stream.sink(["public.t0"]), starting=starting)
    taken = stream.last
    stream.add(2)
    compact(stream.directory, keep=1, grace=0)
    joined, _ = list_segments(stream.directory)
    assert joined.first_seq == 0
    assert joined.last_seq > taken
    stream.run(stream.sink(), starting=starting)
    assert stream.rows() == stream.whole(began)
    stream.add(1)
    shutil.rmtree(stream.lake / "public.t1")
    stream.run(stream.sink(), starting=starting)
    assert stream.rows() == stream.whole(began)


@pytest.mark.slow
def test_retention_behind_a_query(spark: Any, tmp_path: Path) -> None:
    """The query says what it has taken, and retention removes that. Tables that go on lose nothing."""
    stream = _Growing(spark, tmp_path, txns=80, segments=8, all_end=True)
    stream.add(2)
    options = {"consumer": "lake"}
    while stream.coming:
        stream.run(stream.sink(), **options)
        retain(stream.directory, consumed=True)
        stream.add(1)
    stream.run(stream.sink(), **options)
    stream.run(stream.sink(), **options)
    retain(stream.directory, consumed=True)
    assert list_segments(stream.directory)[0].first_seq > 0
    found = stream.rows()
    shutil.rmtree(stream.directory)
    stream.directory.mkdir()
    for each in list_segments(tmp_path / "all"):
        shutil.copy(each.path, stream.directory)
    assert found == stream.whole(0)
