"""Tagging in parallel on a real local Spark gives what tagging in one piece gives."""

from __future__ import annotations

import base64
import random
import re
import subprocess
import sys
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.functions import expr

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast.parallel_tag.summary import Summary
from pgoutput_fast.segments import list_segments
from pgoutput_fast.spark.tasks.parts import Parts
from pgoutput_fast.spark.tasks.tag import ChangedInputError, Start, Starts, TagRanges
from support.forms import and_exhaustive, and_slow
from support.interleaved import everything
from support.paths import DOCS
from support.plans import count_partitions, is_sorted, plan_text
from support.streams import RandomChoices, make_stream


def frame(spark: Any, payloads: list[bytes], places: list[int] | None = None, lsns: Any = None) -> Any:
    """Rows in another order than that in which they came."""
    rows = {
        "place": pa.array(places or range(len(payloads)), pa.int64()),
        "data": pa.array(payloads, pa.binary()),
        "lsn": pa.array(lsns or [None] * len(payloads), pa.int64()),
    }
    table = pa.table(rows)
    order = list(range(len(payloads)))
    random.Random(1).shuffle(order)
    return spark.createDataFrame(table.take(pa.array(order, pa.int64()))).repartition(3)


def tagged(df: Any, **more: Any) -> pa.Table:
    return pgspark.tag(df, "place", payload="data", lsn="lsn", **more).orderBy("seq", "relation").toArrow()


def expected(payloads: list[bytes], lsns: Any = None) -> pa.Table:
    return pa.Table.from_batches([pgo.tag(payloads, lsn=lsns)[0]]).sort_by(
        [("seq", "ascending"), ("relation", "ascending")]
    )


def without_sessions() -> list[bytes]:
    stream = everything()
    return stream.payloads[: min(stream.sessions)]


@pytest.fixture(scope="module")
def wal() -> list[bytes]:
    """Some two thousand messages; with DDL, streams that interleave, subtransactions rolled back, two-phase commits."""
    payloads = without_sessions()
    for seed in range(60):
        made = make_stream(RandomChoices(seed), 10)
        at = len(payloads)
        # Streams were made apart: one that needs what another left open does not fit.
        more = made.payloads[: min(made.sessions, default=len(made.payloads))]
        try:
            pgo.tag(payloads + more)
        except pgo.DecodeError:
            continue
        payloads = payloads + more
        assert len(payloads) > at or not more
    assert len(payloads) > 300
    return payloads


@pytest.mark.parametrize("partitions", and_exhaustive(and_slow([7], [1]), [2]))
def test_equals_tagging_in_one_piece(spark: Any, wal: list[bytes], partitions: int) -> None:
    lsns = [None if k % 5 == 0 else 1000 + k for k in range(len(wal))]
    got = tagged(frame(spark, wal, None, lsns), partitions=partitions)
    assert got.column_names == pgo.TAGGED_SCHEMA.names
    assert got.to_pylist() == expected(wal, lsns).to_pylist()


@pytest.mark.slow
def test_slices_that_share_a_partition(spark: Any, wal: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 places rows by a hash only."""
    df = frame(spark, wal)
    for kind in type(df).__mro__:
        if "repartitionById" in vars(kind):
            monkeypatch.delattr(kind, "repartitionById")
    assert tagged(df, partitions=5).to_pylist() == expected(wal).to_pylist()


@pytest.mark.slow
def test_what_runs_again_cuts_at_the_same_places(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are in the plan: nothing that a task or another run of it samples."""
    monkeypatch.setattr("pgoutput_fast.spark.tagging.shuffled.java_frame", lambda df: None)
    got = pgspark.tag(frame(spark, without_sessions()), "place", payload="data", partitions=3)
    plan = plan_text(got)
    assert "CASE WHEN (order0" in plan
    assert "rangepartitioning" not in plan
    assert got.orderBy("seq", "relation").collect() == got.orderBy("seq", "relation").collect()


@pytest.mark.classic("each query shuffles there")
@pytest.mark.parametrize("is_shared", and_slow([True], [False]))
def test_the_input_is_shuffled_once(
    spark: Any,
    wal: list[bytes],
    tmp_path: Path,
    is_shared: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However often the result is used; where Spark has no way to share it, the result is the same."""
    if not is_shared:
        monkeypatch.setattr("pgoutput_fast.spark.tagging.shuffled.java_session", lambda spark: None)

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / uuid.uuid4().hex).touch()
        yield from batches

    df = frame(spark, wal).select("place", "data").mapInArrow(noted, "place long, data binary")
    got = pgspark.tag(df, "place", payload="data", partitions=4)
    for _ in range(2):
        assert got.orderBy("seq", "relation").toArrow().to_pylist() == expected(wal).to_pylist()
    # Once for the look at the order, once for the shuffle; or else for each of the two passes, of which one ran twice.
    assert len(list(tmp_path.iterdir())) == 3 * (2 if is_shared else 4)
    assert ("cannot share a shuffle" in caplog.text) == (not is_shared)


@pytest.mark.classic("only there the settings are given to tasks by this package")
@pytest.mark.parametrize("partitions", and_slow([None], [4]))
def test_tasks_have_the_settings_of_the_session(
    spark: Any, wal: list[bytes], tmp_path: Path, partitions: int | None
) -> None:
    """In each pass, or else expressions of the input would mean something else there; and nothing of them stays."""
    key = "spark.sql.session.timeZone"
    before = spark.conf.get(key)

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / f"{TaskContext.get().getLocalProperty(key)} {uuid.uuid4().hex}".replace("/", "-")).touch()
        yield from batches

    spark.conf.set(key, "Asia/Tokyo")
    try:
        df = frame(spark, wal).select("place", "data").mapInArrow(noted, "place long, data binary")
        assert (
            pgspark.tag(df, "place", payload="data", partitions=partitions).count() == expected(wal).num_rows
        )
    finally:
        spark.conf.set(key, before)
    assert {path.name.split()[0] for path in tmp_path.iterdir()} == {"Asia-Tokyo"}
    assert spark.sparkContext.getLocalProperty(key) is None


def test_orders_that_are_not_those_of_bytes(spark: Any) -> None:
    df = frame(spark, without_sessions()).selectExpr("data", "collate(string(place), 'UTF8_LCASE') place")
    with pytest.raises(TypeError, match="place has the collation UTF8_LCASE: order by collate"):
        pgspark.tag(df, "place", payload="data")


@pytest.mark.slow
def test_more_partitions_than_payloads(spark: Any) -> None:
    """Most are empty, and all others begin where nobody would cut."""
    payloads = without_sessions()[:12]
    assert tagged(frame(spark, payloads), partitions=40).to_pylist() == expected(payloads).to_pylist()


def test_no_payloads(spark: Any) -> None:
    got = pgspark.tag(frame(spark, [b"E"]).where("place > 5"), "place", payload="data")
    assert got.columns == pgo.TAGGED_SCHEMA.names
    assert got.collect() == []


@pytest.mark.slow
def test_what_is_tagged_can_be_decoded(spark: Any) -> None:
    payloads = without_sessions()
    df = pgspark.tag(frame(spark, payloads), "place", payload="data", partitions=5)
    got = pgspark.changes(df, "public.u").orderBy("_seq").toArrow()
    assert got.to_pylist() == pgo.decode(payloads).table("public.u").to_pylist()


@pytest.mark.slow
def test_the_page_says_how(spark: Any, tmp_path: Path) -> None:
    page = (DOCS / "spark.md").read_text()
    section = page.split("## Untagged payloads\n")[1].split("\n## ")[0]
    how, into_tables, damaged, then, into_segments = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    spec = encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23),))
    writer, payloads = encode.Writer(), []
    for n in range(30):
        payloads += writer.begin(n + 1, 100 * n, 0)
        payloads += writer.change(spec, "insert", new=[str(n)])
        payloads += writer.commit(100 * n, 100 * n + 8, 0)
    frame(spark, payloads).write.parquet(str(tmp_path / "dump"))
    frame(spark, payloads).where("place < 32").write.parquet(str(tmp_path / "monday"))
    frame(spark, payloads).where("place >= 32").write.parquet(str(tmp_path / "tuesday"))
    places = {
        name: str(tmp_path / name)
        for name in ("monday", "tuesday", "tagged", "state_file", "segments", "lake")
    }
    names: dict[str, Any] = {"spark": spark, "pgspark": pgspark, "path": str(tmp_path / "dump"), **places}
    names["pgo"] = pgo
    for block in (how, damaged, then):
        exec(compile(block, "spark.md", "exec"), names)
        assert [row["id"] for row in names["orders"].orderBy("_seq").collect()] == list(range(30))
    late = pgspark.changes(names["tomorrow"], "public.orders").orderBy("_seq").toArrow()
    assert late.to_pylist() == names["orders"].where("_seq >= 32").orderBy("_seq").toArrow().to_pylist()
    stored = spark.read.parquet(str(tmp_path / "tagged" / "tuesday"))
    state = pgspark.state_after(names["today"])
    catalog = state.catalog.merged(pgspark.read_catalog(stored))
    alone = pgspark.changes(stored, "public.orders", catalog=catalog).orderBy("_seq").toArrow()
    assert alone.to_pylist() == late.to_pylist()
    (kept,) = re.findall(r"^    (wal\.write.*)$", section, re.MULTILINE)
    exec(compile(kept.replace("tagged/", str(tmp_path / "kept")), "spark.md", "exec"), names)
    assert spark.read.parquet(str(tmp_path / "kept")).count() == names["wal"].count()
    exec(compile(into_tables, "spark.md", "exec"), names)
    assert [(row.table, row.rows) for row in names["written"]] == [("public.orders", 30)]
    assert names["written"].state == pgspark.state_after(names["wal"])
    exec(compile(into_segments, "spark.md", "exec"), names)
    assert [segment.last_seq + 1 for segment in list_segments(tmp_path / "segments")] == [len(payloads)]


def test_the_same_place_twice_is_named(spark: Any) -> None:
    payloads = without_sessions()
    places = [k if k != 20 else 19 for k in range(len(payloads))]
    with pytest.raises(ValueError, match="two payloads have the same place: place = 19"):
        tagged(frame(spark, payloads, places), gaps="allow", partitions=4)
    nan = frame(spark, payloads).selectExpr("data", "if(place > 50, double('nan'), place) place")
    with pytest.raises(ValueError, match="two payloads have the same place: place = nan"):
        pgspark.tag(nan, "place", payload="data", partitions=4)


@pytest.mark.parametrize("partitions", and_slow([1], [4]))
def test_a_gap_is_an_error_unless_it_is_allowed(spark: Any, partitions: int) -> None:
    payloads = without_sessions()
    df = frame(spark, payloads, [k + 10 * (k > 30) for k in range(len(payloads))])
    with pytest.raises(ValueError, match="after place = 30 comes 41: pass gaps='allow'"):
        tagged(df, partitions=partitions)
    assert tagged(df, gaps="allow", partitions=partitions).to_pylist() == expected(payloads).to_pylist()


@pytest.mark.slow
def test_several_order_columns_of_other_types(spark: Any) -> None:
    payloads = without_sessions()
    df = frame(spark, payloads).selectExpr(
        "timestamp_seconds(place div 10) at", "cast(place % 10 as string) part", "data payload"
    )
    got = pgspark.tag(df, ["at", "part"], partitions=3).orderBy("seq", "relation").toArrow()
    assert got.to_pylist() == expected(payloads).to_pylist()
    with pytest.raises(ValueError, match=r"\(at, part\) = \(datetime.*'3'\)"):
        pgspark.tag(df.union(df.where("part = '3'").limit(1)), ["at", "part"])


@pytest.mark.parametrize("by_hash", and_slow([False], [True]))
def test_nulls_are_errors(spark: Any, monkeypatch: pytest.MonkeyPatch, by_hash: bool) -> None:
    df = frame(spark, without_sessions())
    for kind in type(df).__mro__ if by_hash else ():
        if "repartitionById" in vars(kind):
            monkeypatch.delattr(kind, "repartitionById")
    with pytest.raises(ValueError, match="column data is null where place = 7"):
        tagged(df.selectExpr("place", "if(place = 7, null, data) data", "lsn"), partitions=3)
    with pytest.raises(ValueError, match="order column place has nulls"):
        tagged(df.selectExpr("nullif(place, 7) place", "data", "lsn"), gaps="allow", partitions=3)


@pytest.mark.parametrize("bad", and_slow(["change"], ["boundary", "both"]))
def test_the_first_error_has_its_place(spark: Any, bad: str) -> None:
    """Neither what a summary sees nor what it does not see hides the other."""
    payloads = without_sessions()
    if bad != "boundary":
        payloads[3:3] = [encode.encode_insert(99, ["1"])]
    if bad != "change":
        payloads[40:40] = [encode.encode_stream_stop(), encode.encode_stream_stop()]
    with pytest.raises(pgo.DecodeError) as wanted:
        pgo.tag(payloads)
    assert wanted.value.seq == (3 if bad != "boundary" else wanted.value.seq)
    with pytest.raises((pgo.DecodeError, PySparkException)) as caught:
        tagged(frame(spark, payloads), partitions=6)
    reason = f"{wanted.value.reason} (place = {wanted.value.seq})"
    assert str(wanted.value).replace(wanted.value.reason, reason) in str(caught.value)
    assert isinstance(caught.value, pgo.DecodeError) == (bad != "change")


# ---- payloads that lie in order already ----------------------------------------------------------------------------


def write_files(directory: Path, payloads: list[bytes], cuts: list[int], more: Any = None) -> None:
    """A Parquet file for each range, in row groups of twenty; the names have another order than the ranges."""
    directory.mkdir()
    names = [f"{k:03}.parquet" for k in range(len(cuts) + 1)]
    random.Random(2).shuffle(names)
    for name, begin, end in zip(names, [0, *cuts], [*cuts, len(payloads)], strict=True):
        table = {
            "place": pa.array(range(begin, end), pa.int64()),
            "data": pa.array(payloads[begin:end], pa.binary()),
        }
        table |= {} if more is None else {"more": pa.array(more[begin:end], pa.bool_())}
        pq.write_table(pa.table(table), directory / name, row_group_size=20)


@pytest.mark.parametrize("split", and_slow([False], [True]))
def test_files_in_order_are_tagged_where_they_are(
    spark: Any, wal: list[bytes], tmp_path: Path, split: bool
) -> None:
    """Some are empty. Whole ones share partitions; with `split`, a task has a range of one."""
    write_files(tmp_path / "dump", wal, [3, 100, 100, 103, 700, 701, 1000])
    if split:
        spark.conf.set("spark.sql.files.maxPartitionBytes", 4000)
        spark.conf.set("spark.sql.files.openCostInBytes", 0)
    try:
        df = spark.read.parquet(str(tmp_path / "dump"))
        got = pgspark.tag(df, "place", payload="data")
        assert count_partitions(df) > 12 if split else count_partitions(df) < 8
        assert not is_sorted(got)
        assert got.orderBy("seq", "relation").toArrow().to_pylist() == expected(wal).to_pylist()
        again = pgspark.tag(df, "place", payload="data", partitions=3)
        assert is_sorted(again)
        assert again.orderBy("seq", "relation").toArrow().to_pylist() == expected(wal).to_pylist()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
        spark.conf.unset("spark.sql.files.openCostInBytes")


def test_partitions_in_order_are_tagged_where_they_are(spark: Any, wal: list[bytes]) -> None:
    """Also what Python made of files: which one it was is not asked there. Most partitions are empty."""
    rows = pa.table({"place": pa.array(range(len(wal)), pa.int64()), "data": pa.array(wal, pa.binary())})
    df = spark.createDataFrame(rows).mapInArrow(lambda batches: batches, "place long, data binary")
    got = pgspark.tag(df.where("place < 30"), "place", payload="data")
    assert not is_sorted(got)
    assert got.orderBy("seq", "relation").toArrow().to_pylist() == expected(wal[:30]).to_pylist()


def test_what_is_cut_within_one_another_is_sorted(spark: Any, wal: list[bytes], tmp_path: Path) -> None:
    """Each file is in order, but not all of them one after the other."""
    directory = tmp_path / "dump"
    directory.mkdir()
    for k in range(3):
        rows = {
            "place": pa.array(range(k, len(wal), 3), pa.int64()),
            "data": pa.array(wal[k::3], pa.binary()),
        }
        pq.write_table(pa.table(rows), directory / f"{k}.parquet")
    got = pgspark.tag(spark.read.parquet(str(directory)), "place", payload="data")
    assert is_sorted(got)
    assert got.orderBy("seq", "relation").toArrow().to_pylist() == expected(wal).to_pylist()


@pytest.mark.slow
def test_what_is_wrong_with_the_order_of_files(spark: Any, wal: list[bytes], tmp_path: Path) -> None:
    write_files(tmp_path / "dump", wal, [100, 200, 600])
    df = spark.read.parquet(str(tmp_path / "dump"))
    for some, message in (
        (df.where("place <> 100"), "after place = 99 comes 101: pass gaps='allow'"),
        (df.where("place <> 150"), "after place = 149 comes 151: pass gaps='allow'"),
        (df.union(df.where("place = 150")), "two payloads have the same place: place = 150"),
        (df.withColumn("place", expr("if(place = 100, 99, place)")), "the same place: place = 99"),
        (df.withColumn("data", expr("if(place = 150, null, data)")), "data is null where place = 150"),
    ):
        with pytest.raises(ValueError, match=message):
            pgspark.tag(some, "place", payload="data")
    allowed = pgspark.tag(df.withColumn("place", expr("place * 3")), "place", payload="data", gaps="allow")
    assert not is_sorted(allowed)
    assert allowed.orderBy("seq", "relation").toArrow().to_pylist() == expected(wal).to_pylist()


def test_other_files_when_the_result_is_used(spark: Any, wal: list[bytes], tmp_path: Path) -> None:
    write_files(tmp_path / "dump", wal, [100, 600])
    got = pgspark.tag(spark.read.parquet(str(tmp_path / "dump")), "place", payload="data")
    for path in sorted((tmp_path / "dump").glob("*.parquet")):
        table = pq.read_table(path)
        pq.write_table(table.set_column(0, "place", pc.add(table.column(0), 1)), path)
    with pytest.raises(PySparkException, match="not those that tag\\(\\) read"):
        got.collect()


FLAKY = """
import sys
from pathlib import Path
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pgoutput_fast import spark as pgspark

def flaky(batches):
    for number, batch in enumerate(batches):
        yield batch
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("a lost executor")

spark = (
    SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", False).config("spark.driver.memory", "1g")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", 7).config("spark.local.dir", sys.argv[3])
    .config("spark.sql.shuffle.partitions", 2).getOrCreate()
)
rows = pq.read_table(sys.argv[1]).sort_by("place")
dump = spark.createDataFrame(rows).mapInArrow(flaky, "place long, data binary")
for partitions in (None, 3):
    tagged = pgspark.tag(dump, "place", payload="data", partitions=partitions)
    is_sorted = "Sort [" in tagged._jdf.queryExecution().executedPlan().toString()
    assert is_sorted == (partitions is not None)
    written = list(Path(sys.argv[3]).rglob("shuffle_*.data"))
    assert bool(written) == is_sorted
    for path in written:  # as if the executor were lost that wrote them
        path.unlink()
    tagged.mapInArrow(flaky, tagged.schema).write.parquet(f"{sys.argv[2]}/{partitions}")
spark.stop()
"""


@pytest.mark.exhaustive
@pytest.mark.classic("it starts a classic Spark, whose tasks run again")
def test_tasks_that_run_again(spark: Any, tmp_path: Path) -> None:
    """Each task fails in its midst, in each pass, and what was shuffled is lost between them.

    In a Spark of its own, since this one does not try again.
    """
    payloads = without_sessions()
    write_files(tmp_path / "dump", payloads, [20, 40])
    command = [sys.executable, "-c", FLAKY, str(tmp_path / "dump"), str(tmp_path), str(tmp_path / "local")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a lost executor") > 8
    for partitions in (None, 3):
        got = spark.read.parquet(str(tmp_path / str(partitions))).orderBy("seq", "relation").toArrow()
        assert got.to_pylist() == expected(payloads).to_pylist()


# ---- sessions, and what crosses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", and_slow([None], [4]))
def test_sessions_start_where_a_column_says_so(spark: Any, tmp_path: Path, partitions: int | None) -> None:
    """A transaction is cut off by one, streams are void, logical messages come again."""
    stream = everything()
    payloads = [*stream.payloads, *stream.payloads[:5]]
    payloads += [encode.encode_message(41, "p", b"again", transactional=False), *stream.payloads]
    sessions = {*stream.sessions, len(stream.payloads), len(stream.payloads) + 5}
    decoder, rows = pgo.Decoder(), []
    for k, payload in enumerate(payloads):
        if k in sessions:
            decoder.start_session()
        some, state = pgo.tag([payload], decoder.state)
        decoder = pgo.Decoder(state=state)
        rows += some.to_pylist()
    assert [row["seq"] for row in rows if row["kind"] == 0] == sorted(sessions)
    assert not {len(stream.payloads) + 5}.intersection(
        row["seq"] for row in rows if row["kind"]
    )  # came before
    write_files(
        tmp_path / "dump", payloads, [20, 50, 100], [k in sessions or None for k in range(len(payloads))]
    )
    df = spark.read.parquet(str(tmp_path / "dump"))
    got = pgspark.tag(df, "place", payload="data", session_starts="more", partitions=partitions)
    assert is_sorted(got) == (partitions is not None)
    keys = ("seq", "kind", "relation")
    assert sorted(got.toArrow().to_pylist(), key=lambda row: [row[k] or 0 for k in keys]) == sorted(
        rows, key=lambda row: [row[k] or 0 for k in keys]
    )
    with pytest.raises(pgo.DecodeError, match=rf"Commit.*\(place = {len(stream.payloads) + 6}\)"):
        pgspark.tag(df, "place", payload="data", partitions=partitions)


def test_no_payload_of_a_change_comes_to_the_driver(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what a logical message holds: with a thousand times the changes, the same bytes come."""
    collected: list[int] = []
    original = Summary.from_bytes

    def counted(data: bytes) -> Summary:
        assert b"secret" not in zlib.decompress(data)
        assert base64.b85encode(b"secret" * 4)[5:15] not in zlib.decompress(data)
        collected.append(len(data))
        return original(data)

    monkeypatch.setattr(Summary, "from_bytes", counted)
    spec = encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 25),))
    sizes = []
    for many in (1, 1000):
        writer = encode.Writer(4, streaming="on")
        payloads = writer.begin(7, 1, 0)
        for _ in range(many):
            payloads += writer.change(spec, "insert", new=["secret" * 100])
        payloads += writer.commit(1, 2, 0)
        for k in range(many):
            payloads += writer.message(5 + k, "secret", b"secret" * 100, transactional=False)
        payloads += writer.stream_start(8)
        payloads += writer.change(spec, "insert", new=["secret" * 100], xid=8) + writer.stream_stop()
        collected.clear()
        assert pgspark.tag(frame(spark, payloads), "place", payload="data", partitions=2).count() == len(
            payloads
        )
        sizes.append(sum(collected))
    assert sizes[1] < sizes[0] + 400


@pytest.mark.parametrize("changed", ["fewer", "more", "another begin", "another end"])
def test_an_input_that_changes_is_noticed(changed: str) -> None:
    payloads = without_sessions()
    count = len(payloads)
    places = [
        k + (changed == "another begin" or (changed == "another end" and k == count - 1))
        for k in range(count)
    ]
    rows = pa.record_batch(
        {"payload": pa.array(payloads, pa.binary()), "order0": pa.array(places, pa.int64())}
    )
    known = count - (changed == "more")
    start = Start.of(pgo.StreamState(), known, "0", str(known - 1))
    task = TagRanges(Starts.of([start], pgo.Catalog().to_json(), Parts.of), ("place",), pgo.TAGGED_SCHEMA)
    with pytest.raises(ChangedInputError, match="the table changed"):
        list(task(iter([rows.slice(0, count - (changed == "fewer"))])))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"order_by": "nothing"}, "there is no column 'nothing'"),
        ({"order_by": []}, "must name a column"),
        ({"order_by": "place", "gaps": "maybe"}, "gaps must be"),
        ({"order_by": "place", "payload": "lsn"}, "must be binary"),
        ({"order_by": "place", "lsn": "data"}, "must be an integer"),
        ({"order_by": "place", "session_starts": "lsn"}, "column lsn must be boolean, not bigint"),
        ({"order_by": "place", "session_starts": "mark"}, "there is no column 'mark'"),
        ({"order_by": "place", "partitions": 0}, "partitions must be at least 1, not 0"),
        ({"order_by": "place", "partitions": True}, "partitions must be a whole number, not a bool"),
    ],
)
def test_misuse_is_told(spark: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        pgspark.tag(frame(spark, [b"E"]), **{"payload": "data", **more})
