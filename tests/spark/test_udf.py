"""Functions on untagged payloads: on arrays, and on real Spark in both forms, against what a whole decoder says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.functions import col, lit

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast._core.protocol.headers import headers
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.protocol.kinds import KIND_NAMES
from pgoutput_fast.spark.udf.arrow_extension import ArrowBacked

ORDERS = RelationSpec(
    16401,
    "public",
    "orders",
    (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25), ColumnSpec("_seq", 1184), ColumnSpec("t", 1083)),
)
OTHER = RelationSpec(16402, "public", "other", (ColumnSpec("at", 1083),))
AT = "2024-02-29 12:00:00.5+02"


def _stream() -> list[bytes]:
    writer = Writer(4, streaming="on", two_phase=True)
    wal = writer.begin(7, 100, 0)
    wal += writer.change(ORDERS, "insert", new=["1", "x", AT, "01:02:03"])
    wal += writer.change(ORDERS, "update", new=["1", encode.UNCHANGED, None, None])
    wal += writer.change(ORDERS, "update", old=["1", "x", AT, None], new=["2", "y", "infinity", None])
    wal += writer.change(OTHER, "insert", new=["12:34:56.5"])
    wal += writer.change(ORDERS, "delete", key=["2", None, None, None])
    wal += writer.truncate([ORDERS])
    wal += writer.commit(100, 108, 0)
    wal += writer.stream_start(9)
    wal += writer.change(ORDERS, "insert", new=["3", "streamed", AT, None], xid=10)
    wal += writer.stream_stop()
    wal += writer.stream_commit(9, 200, 208, 0)
    wal += writer.begin_prepare(11, 300, 308, 0, "gid")
    wal += writer.prepare(11, 300, 308, 0, "gid")
    wal += writer.commit_prepared(11, 400, 408, 0, "gid")
    return wal


WAL = _stream()
# Arrow UDFs came with 4.1.
FORMS = [True, False] if hasattr(functions, "arrow_udf") else [False]


@pytest.fixture(scope="module")
def tagged() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pgo.tag(WAL)[0].to_pylist()
    return rows


@pytest.fixture(scope="module")
def raw(spark: Any) -> Any:
    rows = [(i, payload) for i, payload in enumerate(WAL)] + [(len(WAL), None)]
    return spark.createDataFrame(rows, "seq long, payload binary").repartition(2).cache()


def _values(frame: Any, column: Any) -> list[Any]:
    return [row[0] for row in frame.orderBy("seq").select(column).collect()]


def test_the_form_tells_whether_a_message_was_streamed(tagged: list[dict[str, Any]]) -> None:
    found = headers(pa.array(WAL, pa.binary()))
    by_seq = {row["seq"]: row for row in tagged}
    prefixed = [
        i for i, payload in enumerate(WAL) if payload[:1] in (b"I", b"U", b"D", b"R", b"Y", b"T", b"M")
    ]
    assert not any(found["reason"].to_pylist())
    assert [bool(found["in_stream"][i].as_py()) for i in prefixed] == [
        by_seq[i]["in_stream"] for i in prefixed
    ]
    assert any(by_seq[i]["in_stream"] for i in prefixed)


@pytest.mark.parametrize(
    "message", [i for i, payload in enumerate(WAL) if payload[:1] in (b"I", b"U", b"D", b"R", b"T")]
)
def test_no_truncated_message_has_a_form(message: int) -> None:
    cuts = [WAL[message][:cut] for cut in range(len(WAL[message]))]
    assert all(headers(pa.array(cuts, pa.binary()))["reason"].to_pylist())


def test_a_message_of_both_forms_is_not_guessed_at() -> None:
    # Plain: no prefix, five zero bytes of content. Streamed: xid 0, a prefix of one byte, no content.
    both = pa.array([b"M" + bytes(10) + b"\0\0\0\5" + bytes(5)] * 2, pa.binary())
    assert headers(both)["reason"].to_pylist() == [57, 57]
    told = headers(both, pa.array([0, 1], pa.int8()))
    assert told["reason"].to_pylist() == [0, 0]
    assert told["xid"].to_pylist() == [-1, 0]


@pytest.mark.parametrize("arrow", FORMS)
def test_headers_on_spark(raw: Any, tagged: list[dict[str, Any]], arrow: bool) -> None:
    kinds = _values(raw, pgspark.udf.message_kind("payload", arrow=arrow))
    assert kinds == [KIND_NAMES[payload[0]] for payload in WAL] + [None]
    oids = _values(raw, pgspark.udf.relation_oid(col("payload"), arrow=arrow))
    of = {row["seq"]: row["relation"] for row in tagged if row["kind"] in b"IUDR"}
    assert oids == [of.get(i) for i in range(len(WAL))] + [None]
    xids = _values(raw, pgspark.udf.xid("payload", arrow=arrow))
    own = {row["seq"]: row["xid"] for row in tagged if row["kind"] in b"BbPKrScAp"}
    own |= {row["seq"]: row["subxid"] for row in tagged if row["in_stream"] and row["kind"] in b"IUDRYTM"}
    assert [own.get(i) for i in range(len(WAL))] + [None] == xids


@pytest.mark.parametrize("arrow", FORMS)
def test_decode_row_gives_what_decode_gives(raw: Any, arrow: bool) -> None:
    (orders,) = pgo.tag(WAL)[1].catalog.named("public.orders")
    decode = pgspark.udf.decode_row(orders, details=True, arrow=arrow)
    frame = raw.orderBy("seq").select("seq", decode("payload").alias("row"))
    got = {row["seq"]: row["row"] for row in frame.toArrow().to_pylist()}
    options = pgo.Options(metadata_prefix="-")
    expected: dict[int, dict[str, Any]] = {}
    for row in pgo.decode(WAL, options=options).table("public.orders").to_pylist():
        kind, _, image = row["-change_type"].partition("_")
        if kind == "truncate":
            continue
        old = kind == "delete" or image == "preimage"
        found = expected.setdefault(
            row["-seq"],
            dict.fromkeys(("change_type", "before", "after", "key_only", "unchanged", "unrepresentable")),
        )
        found["change_type"] = kind
        found["before" if old else "after"] = {
            name: str(row[name]) if name == "t" and row[name] is not None else row[name]
            for name in ("id", "note", "_seq", "t")
        }
        if old:
            found["key_only"] = row["-key_only"]
        else:
            found["unchanged"] = row["-unchanged"]
        found["unrepresentable"] = row["-unrepresentable"] or found["unrepresentable"]
    for row in expected.values():
        for image in ("before", "after"):
            if row[image] is not None and row[image]["t"] is not None:
                row[image]["t"] += ".000000"
    assert {seq: row for seq, row in got.items() if row is not None} == expected
    assert len(expected) == 5


def test_malformed_payloads_raise_or_are_null(spark: Any) -> None:
    bad = [WAL[2][:-1], b"?", b"", b"B\0", WAL[2]]
    frame = spark.createDataFrame(
        [(i, payload) for i, payload in enumerate(bad)], "seq long, payload binary"
    ).coalesce(1)
    with pytest.raises(PySparkException, match="malformed: it has neither the form"):
        frame.where("seq = 0").select(pgspark.udf.relation_oid("payload")).collect()
    with pytest.raises(PySparkException, match="unknown message tag"):
        frame.where("seq = 1").select(pgspark.udf.message_kind("payload")).collect()
    assert _values(frame, pgspark.udf.message_kind("payload", malformed="null")) == [
        "insert",
        None,
        None,
        "begin",
        "insert",
    ]
    assert _values(frame, pgspark.udf.xid("payload", malformed="null")) == [None] * 5
    (orders,) = pgo.tag(WAL)[1].catalog.named("public.orders")
    rows = _values(frame, pgspark.udf.decode_row(orders, malformed="null")("payload", lit(False)))
    assert [row and row["after"]["id"] for row in rows] == [None, None, None, None, 1]


@pytest.mark.skipif(True in FORMS, reason="this Spark has Arrow UDFs")
def test_arrow_functions_are_refused_where_spark_has_none() -> None:
    with pytest.raises(ValueError, match=r"no Arrow UDFs: use Spark 4\.1 or later"):
        pgspark.udf.message_kind("payload", arrow=True)


def test_what_pandas_carries_is_what_it_was_given() -> None:
    array = pa.array([[None], None, [2_932_897]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    series = pd.Series(ArrowBacked(array))
    assert pa.array(series).equals(array)
    assert pa.array(series.apply(repr)[1:]).equals(array[1:])
    assert series.isna().tolist() == [False, True, False]
    assert pa.array(series[[False, True, True]]).equals(array[1:])
    assert pa.array(series.reindex([2, 9])).equals(array.take(pa.array([2, None], pa.int64())))
    assert pa.array(pd.concat([series.copy()])).equals(array)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="must be a Relation"):
        pgspark.udf.decode_row("public.orders")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="malformed must be"):
        pgspark.udf.message_kind("payload", malformed="skip")  # type: ignore[arg-type]


# --- rows of other versions ---------------------------------------------------------------------------------


def _versions_of(*columns: dict[str, int]) -> list[RelationSpec]:
    return [
        RelationSpec(16401, "public", "orders", tuple(ColumnSpec(name, kind) for name, kind in each.items()))
        for each in columns
    ]


# The second is the one that is asked for: 3 columns. Two have 4, and the last one's id does not fit.
VERSIONS = _versions_of(
    {"id": 21, "note": 25},
    {"id": 23, "note": 25, "n": 23},
    {"id": 23, "a": 25, "b": 25, "c": 25},
    {"note": 25, "b": 25, "id": 23, "d": 25},
    {"more": 25, "n": 21, "x": 25, "y": 25, "id": 23},
    {"id": 25},
)


def _rows_of_versions() -> tuple[list[bytes], pgo.Catalog]:
    writer = Writer(2, streaming="on")
    wal = writer.begin(7, 100, 0)
    for spec in VERSIONS:
        wal += writer.change(spec, "insert", new=[str(n) for n in range(len(spec.columns))])
    wal += writer.change(VERSIONS[0], "update", old=["7", "old"], new=["8", "new"])
    wal += writer.commit(100, 108, 0)
    wal += writer.stream_start(9) + writer.change(VERSIONS[0], "insert", new=["9", "streamed"], xid=9)
    return wal, pgo.tag(wal)[1].catalog


def _plain(row: Any) -> Any:
    return None if row is None else (row["change_type"], row["before"], row["after"])


@pytest.mark.parametrize("arrow", FORMS)
def test_rows_of_other_versions_are_matched_by_name_or_null(spark: Any, arrow: bool) -> None:
    """They failed the query: a row by itself tells no more than how many columns its version has."""
    wal, catalog = _rows_of_versions()
    rows = [(at, payload) for at, payload in enumerate(wal) if payload[:1] in b"IU"]
    frame = spark.createDataFrame(rows, "seq long, payload binary").coalesce(1)
    wanted = catalog.relations[1]
    alone = pgspark.udf.decode_row(wanted, arrow=arrow)("payload").alias("alone")
    known = pgspark.udf.decode_row(wanted, catalog=catalog, arrow=arrow)("payload").alias("known")
    found = frame.orderBy("seq").select(alone, known).toArrow()
    own = ("insert", None, {"id": 0, "note": "1", "n": 2})
    assert [_plain(row) for row in found.column("alone").to_pylist()] == [None, own, *[None] * 6]
    assert [_plain(row) for row in found.column("known").to_pylist()] == [
        ("insert", None, {"id": 0, "note": "1", "n": None}),
        own,
        None,
        None,
        ("insert", None, {"id": 4, "note": None, "n": 1}),
        None,
        ("update", {"id": 7, "note": "old", "n": None}, {"id": 8, "note": "new", "n": None}),
        ("insert", None, {"id": 9, "note": "streamed", "n": None}),
    ]


def test_a_damaged_row_is_still_an_error_and_a_cut_one_too() -> None:
    wal, catalog = _rows_of_versions()
    (insert,) = (payload for payload in wal[3:5] if payload[:1] == b"I")
    from pgoutput_fast.spark.tasks.payloads import _versions

    payloads = pa.array([insert, insert[:7], insert[:6], insert[:5]], pa.binary())
    counted = _versions(payloads.slice(1), np.zeros(3, np.int8), np.arange(3), catalog)
    assert counted.tolist() == [len(catalog.relations) - 1] * 3  # where they are found to be malformed
    assert _versions(payloads, np.zeros(4, np.int8), np.array([0]), catalog).tolist() == [1]


def test_registered_for_sql(spark: Any, raw: Any, tagged: list[dict[str, Any]]) -> None:
    """`spark.udf.register` takes the functions as they are, with one argument or two."""
    relation = pgo.tag(WAL)[1].catalog.named("public.orders")[-1]
    spark.udf.register("pg_kind", pgspark.udf.message_kind)
    spark.udf.register("pg_oid", pgspark.udf.relation_oid)
    spark.udf.register("pg_xid", pgspark.udf.xid)
    raw.createOrReplaceTempView("registered")
    query = "SELECT pg_kind(payload), pg_oid(payload), pg_xid(payload, null) FROM registered ORDER BY seq"
    rows = spark.sql(query).collect()
    for k, function in enumerate((pgspark.udf.message_kind, pgspark.udf.relation_oid, pgspark.udf.xid)):
        assert [row[k] for row in rows] == _values(raw, function("payload"))
    assert {row[1] for row in rows} >= {ORDERS.oid, OTHER.oid}
    named = spark.sql("SELECT pg_xid(in_stream => null, payload => payload) FROM registered ORDER BY seq")
    assert [row[0] for row in named.collect()] == [row[2] for row in rows]
    with pytest.raises(TypeError, match="can only be registered as an Arrow UDF: use Spark"):
        spark.udf.register("pg_frames", pgspark.udf.decode_row(relation, arrow=False))
    with pytest.raises(TypeError, match=r"decode_row\(relation\) makes the function to register"):
        spark.udf.register("pg_row", pgspark.udf.decode_row)
    spark.udf.register("pg_calls", lambda payload: pgspark.udf.message_kind(payload, malformed="null"))
    with pytest.raises(
        PySparkException, match=r"takes a column or its name, not byte(s|array)\. For SQL, register"
    ):
        spark.sql("SELECT pg_calls(payload) FROM registered").collect()
    if FORMS[0]:
        decode = pgspark.udf.decode_row(relation)
        spark.udf.register("pg_row", decode)
        found = [row[0] for row in spark.sql("SELECT pg_row(payload) FROM registered ORDER BY seq").collect()]
        assert found == _values(raw, decode("payload"))
        assert any(found)
