"""Tagging in parallel on a real local Spark gives what tagging in one piece gives."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast.spark.tag_tasks import ChangedInputError, Start, TagSlices
from streams import RandomChoices, make_stream
from test_resume import everything


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


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_equals_tagging_in_one_piece(spark: Any, wal: list[bytes], partitions: int) -> None:
    lsns = [None if k % 5 == 0 else 1000 + k for k in range(len(wal))]
    got = tagged(frame(spark, wal, None, lsns), partitions=partitions)
    assert got.column_names == pgo.TAGGED_SCHEMA.names
    assert got.to_pylist() == expected(wal, lsns).to_pylist()


def test_slices_that_share_a_partition(spark: Any, wal: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 places rows by a hash only."""
    df = frame(spark, wal)
    for kind in type(df).__mro__:
        if "repartitionById" in vars(kind):
            monkeypatch.delattr(kind, "repartitionById")
    assert tagged(df, partitions=5).to_pylist() == expected(wal).to_pylist()


def test_what_runs_again_cuts_at_the_same_places(spark: Any) -> None:
    """The bounds are in the plan: nothing that a task or another run of it samples."""
    got = pgspark.tag(frame(spark, without_sessions()), "place", payload="data", partitions=3)
    plan = got._jdf.queryExecution().executedPlan().toString()
    assert "CASE WHEN (place" in plan
    assert "rangepartitioning" not in plan
    assert got.orderBy("seq", "relation").collect() == got.orderBy("seq", "relation").collect()


def test_more_partitions_than_payloads(spark: Any) -> None:
    """Most are empty, and all others begin where nobody would cut."""
    payloads = without_sessions()[:12]
    assert tagged(frame(spark, payloads), partitions=40).to_pylist() == expected(payloads).to_pylist()


def test_no_payloads(spark: Any) -> None:
    got = pgspark.tag(frame(spark, [b"E"]).where("place > 5"), "place", payload="data")
    assert got.columns == pgo.TAGGED_SCHEMA.names
    assert got.collect() == []


def test_what_is_tagged_can_be_decoded(spark: Any) -> None:
    payloads = without_sessions()
    df = pgspark.tag(frame(spark, payloads), "place", payload="data", partitions=5)
    got = pgspark.changes(df, "public.u").orderBy("_seq").toArrow()
    assert got.to_pylist() == pgo.decode(payloads).table("public.u").to_pylist()


def test_the_page_says_how(spark: Any, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "spark.md").read_text()
    section = page.split("## Untagged payloads\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    spec = encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23),))
    writer, payloads = encode.Writer(), []
    for n in range(30):
        payloads += writer.begin(n + 1, 100 * n, 0)
        payloads += writer.change(spec, "insert", new=[str(n)])
        payloads += writer.commit(100 * n, 100 * n + 8, 0)
    frame(spark, payloads).write.parquet(str(tmp_path / "dump"))
    names: dict[str, Any] = {"spark": spark, "pgspark": pgspark, "path": str(tmp_path / "dump")}
    exec(compile(block, "spark.md", "exec"), names)
    assert [row["id"] for row in names["orders"].orderBy("_seq").collect()] == list(range(30))


def test_the_same_place_twice_is_named(spark: Any) -> None:
    payloads = without_sessions()
    places = [k if k != 20 else 19 for k in range(len(payloads))]
    with pytest.raises(ValueError, match="two payloads have the same place: place = 19"):
        tagged(frame(spark, payloads, places), gaps="allow", partitions=4)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_gap_is_an_error_unless_it_is_allowed(spark: Any, partitions: int) -> None:
    payloads = without_sessions()
    df = frame(spark, payloads, [k + 10 * (k > 30) for k in range(len(payloads))])
    with pytest.raises(ValueError, match="after place = 30 comes 41: pass gaps='allow'"):
        tagged(df, partitions=partitions)
    assert tagged(df, gaps="allow", partitions=partitions).to_pylist() == expected(payloads).to_pylist()


def test_several_order_columns_of_other_types(spark: Any) -> None:
    payloads = without_sessions()
    df = frame(spark, payloads).selectExpr(
        "timestamp_seconds(place div 10) at", "cast(place % 10 as string) part", "data payload"
    )
    got = pgspark.tag(df, ["at", "part"], partitions=3).orderBy("seq", "relation").toArrow()
    assert got.to_pylist() == expected(payloads).to_pylist()
    with pytest.raises(ValueError, match=r"\(at, part\) = \(datetime.*'3'\)"):
        pgspark.tag(df.union(df.where("part = '3'").limit(1)), ["at", "part"])


def test_nulls_are_errors(spark: Any) -> None:
    df = frame(spark, without_sessions())
    with pytest.raises(ValueError, match="column data is null where place = 7"):
        tagged(df.selectExpr("place", "if(place = 7, null, data) data", "lsn"), partitions=3)
    with pytest.raises(ValueError, match="order column place has nulls"):
        tagged(df.selectExpr("nullif(place, 7) place", "data", "lsn"), gaps="allow", partitions=3)


@pytest.mark.parametrize("bad", ["boundary", "change", "both"])
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
    assert str(wanted.value) in str(caught.value)
    assert isinstance(caught.value, pgo.DecodeError) == (bad != "change")


@pytest.mark.parametrize("changed", ["fewer", "other places", "another slice"])
def test_an_input_that_changes_is_noticed(changed: str) -> None:
    payloads = without_sessions()
    rows = pa.record_batch(
        {
            "slice": pa.array([4 if changed == "another slice" else 3] * len(payloads), pa.int32()),
            "payload": pa.array(payloads, pa.binary()),
            "lsn": pa.nulls(len(payloads), pa.int64()),
            "order0": pa.array([k + (changed == "other places") for k in range(len(payloads))], pa.int64()),
        }
    )
    start = Start(pgo.StreamState().to_json(), len(payloads), "0", str(len(payloads) - 1))
    task = TagSlices({3: start}, pgo.TAGGED_SCHEMA)
    with pytest.raises(ChangedInputError, match="the table changed"):
        list(task(iter([rows.slice(0, len(payloads) - (changed == "fewer"))])))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"order_by": "nothing"}, "there is no column 'nothing'"),
        ({"order_by": []}, "must name a column"),
        ({"order_by": "place", "gaps": "maybe"}, "gaps must be"),
        ({"order_by": "place", "payload": "lsn"}, "must be binary"),
        ({"order_by": "place", "lsn": "data"}, "must be an integer"),
        ({"order_by": "place", "partitions": 0}, "must be positive"),
    ],
)
def test_misuse_is_told(spark: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        pgspark.tag(frame(spark, [b"E"]), **{"payload": "data", **more})
