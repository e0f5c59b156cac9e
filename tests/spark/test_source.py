"""`format("pgoutput")` on segments: executors read and decode what this process would."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.types
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, segment_catalog, write_segment
from pgoutput_fast.segments import catalog as segment_catalogs
from support.paths import DOCS
from support.plans import count_partitions

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
WIDER = RelationSpec(
    16401,
    "public",
    "orders",
    (ColumnSpec("id", 20, key=True), ColumnSpec("note", 25), ColumnSpec("tags", 1009)),
)
OTHER = RelationSpec(16402, "public", "Other, Table", (ColumnSpec("at", 1083), ColumnSpec("seen", 1184)))
OTHER_NAME = 'public."Other, Table"'
SOURCE = Source("1", "shop", "slot")
AS_SENT = {"transactions": "as_sent"}


def _stream() -> list[bytes]:
    writer = Writer(4, streaming="on")
    wal: list[bytes] = []
    for n in range(20):
        wal += writer.begin(100 + n, 1000 * (n + 1), n)
        orders, more = (ORDERS, []) if n < 10 else (WIDER, ["{a,NULL}"])
        for k in range(10):
            wal += writer.change(orders, "insert", new=[str(n * 10 + k), f"note {k}", *more])
        wal += writer.change(OTHER, "insert", new=["12:34:56.5", "2024-02-29 12:00:00+00"])
        wal += writer.commit(1000 * (n + 1), 1000 * (n + 1) + 8, n)
    for xid in (900, 901):
        wal += writer.stream_start(xid)
        wal += writer.change(WIDER, "insert", new=[str(-xid), "streamed", None], xid=xid)
        wal += writer.stream_stop()
    wal += writer.stream_commit(900, 10**6, 10**6 + 8, 5)
    wal += writer.stream_abort(901)
    return wal


@pytest.fixture(scope="module")
def payloads() -> list[bytes]:
    return _stream()


@pytest.fixture(scope="module")
def segments(payloads: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("segments")
    state = None
    for start in range(0, len(payloads), 100):
        tagged, state = pgo.tag(payloads[start : start + 100], state)
        write_segment(directory, tagged, state, source=SOURCE, relation_bytes=1000, row_group_bytes=4000)
    return directory


def _read(spark: Any, path: Path, **options: str) -> Any:
    frame = spark.read.format("pgoutput").options(**{**AS_SENT, **options}).load(str(path))
    frame.schema  # noqa: B018  # Spark Connect plans nothing before something is asked for
    return frame


def _rows(frame: Any) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["_seq"])


def test_a_table_is_what_changes_give(spark: Any, segments: Path) -> None:
    frame = _read(spark, segments, table="public.orders")
    expected = pgspark.changes(spark.read.parquet(str(segments)), "public.orders")
    assert frame.dtypes == expected.dtypes
    assert _rows(frame) == _rows(expected)
    assert frame.count() == 202
    assert count_partitions(frame) == 1  # small segments share a task
    assert count_partitions(_read(spark, segments, table="16401", partition_bytes="1")) > 3


def test_committed_transactions_only(spark: Any, segments: Path, payloads: list[bytes]) -> None:
    frame = spark.read.format("pgoutput").option("table", "public.orders").load(str(segments))  # the default
    expected = pgo.decode(payloads, options=pgo.Options(transactions="committed")).table("public.orders")
    assert _rows(frame) == sorted(expected.to_pylist(), key=lambda row: row["_seq"])
    assert len(_rows(frame)) == 201


def test_columns_can_be_chosen(spark: Any, segments: Path) -> None:
    frame = _read(spark, segments, table="public.orders", columns="note, _seq")
    assert frame.columns == ["note", "_seq"]
    assert frame.count() == 202


def test_several_tables_have_a_struct_each(spark: Any, segments: Path) -> None:
    frame = _read(spark, segments, table='public.orders, public."Other, Table"')
    names = ["_relation", "public.orders", 'public."Other, Table"']
    assert frame.columns[-3:] == names
    rows = _rows(frame)
    for table in names[1:]:
        alone = _rows(_read(spark, segments, table=table))
        of_table = [row for row in rows if row["_relation"] == table]
        assert [
            {**{k: v for k, v in row.items() if k not in names}, **row[table]} for row in of_table
        ] == alone
        assert all(row[table] is None for row in rows if row["_relation"] != table)
    assert len(rows) == 222


def test_columns_that_are_left_out_are_not_decoded(spark: Any, tmp_path: Path) -> None:
    odd = RelationSpec(16404, "public", "odd", (ColumnSpec("id", 23), ColumnSpec("on", 1082)))
    writer = Writer()
    wal = writer.begin(7, 100, 0) + writer.change(odd, "insert", new=["1", "no date"])
    tagged, state = pgo.tag(wal + writer.change(OTHER, "insert", new=["24:00:00", None]))
    write_segment(tmp_path, tagged, state, source=SOURCE)
    with pytest.raises(PySparkException, match="column 'on'"):
        _read(spark, tmp_path, table="public.odd").collect()
    assert _read(spark, tmp_path, table="public.odd", columns="id").collect()[0].asDict() == {"id": 1}
    both = {"table": 'public.odd, public."Other, Table"', "columns": '_seq, _relation, public."Other, Table"'}
    rows = _rows(_read(spark, tmp_path, **both))
    assert [(row["_seq"], row["_relation"]) for row in rows] == [(2, "public.odd"), (4, OTHER_NAME)]
    assert [row[OTHER_NAME] for row in rows] == [None, {"at": None, "seen": None}]


def test_every_way_to_name_segments(spark: Any, segments: Path) -> None:
    files = sorted(str(path) for path in segments.glob("*.parquet"))
    whole = _rows(_read(spark, segments, table="public.orders"))
    for path in (
        str(segments),
        f"file://{segments}",
        f"{segments}/*.parquet",
        files,
        [f"{segments}/0*", *files[:0]],
    ):
        frame = spark.read.format("pgoutput").options(**AS_SENT).option("table", "public.orders").load(path)
        assert _rows(frame) == whole
    one = spark.read.format("pgoutput").option("table", "public.orders").load(files[0])
    assert 0 < one.count() < len(whole)
    with pytest.raises(PySparkException, match=r"no segments at .*nowhere"):
        _read(spark, segments / "nowhere", table="public.orders")


def test_latest_holds_to_a_catalog_and_union_does_not(spark: Any, segments: Path) -> None:
    known = pgo.Catalog(r for r in segment_catalog(segments).relations if "tags" not in str(r))
    old = {"table": "public.orders", "catalog": known.to_json()}
    latest = _read(spark, segments, **old)
    assert latest.schema["id"].dataType.simpleString() == "int"
    with pytest.raises(
        PySparkException,
        match=rf"relation public\.orders.*catalog {known.fingerprint()}\): plan the query again",
    ):
        latest.collect()
    whole = _read(spark, segments, table="public.orders")
    for options in ({"schema_mode": "union", **old}, {"schema_mode": "latest", "table": "public.orders"}):
        frame = _read(spark, segments, **options)
        assert frame.schema == whole.schema
        assert _rows(frame) == _rows(whole)
    # Types that a server explained come along with a catalog that knows no relations.
    types = pgo.Catalog(types=pgo.UserTypes([pgo.UserType(30004, "public", "mood", "enum", labels=("ok",))]))
    assert _read(spark, segments, table="public.orders", catalog=types.to_json()).schema == whole.schema


def test_a_schema_that_is_given_is_pinned(spark: Any, segments: Path) -> None:
    known = pgo.Catalog(r for r in segment_catalog(segments).relations if "tags" not in str(r))
    reader = spark.read.format("pgoutput").options(**AS_SENT).option("catalog", known.to_json())
    orders = reader.schema("note string, _seq bigint, id bigint, more string").option(
        "table", "public.orders"
    )
    frame = orders.option("extra_columns", "drop").load(str(segments))
    assert frame.schema.simpleString() == "struct<note:string,_seq:bigint,id:bigint,more:string>"
    whole = _rows(_read(spark, segments, table="public.orders", columns="note,_seq,id"))
    assert _rows(frame) == [{**row, "more": None} for row in whole]
    with pytest.raises(PySparkException, match=r"has 'tags', which the pinned schema lacks"):
        orders.option("extra_columns", "error").load(str(segments)).collect()
    seen = (
        spark.read.format("pgoutput")
        .schema("at string, seen timestamp not null")
        .load(str(segments), table=OTHER_NAME)
    )
    assert seen.first()["at"] == "12:34:56.500000"
    assert not seen.schema["seen"].nullable
    several = (
        spark.read.format("pgoutput")
        .options(**AS_SENT)
        .schema("_relation string, `public.orders` struct<note: string>, _seq bigint")
    )
    rows = _rows(several.load(str(segments), table=f"{OTHER_NAME}, public.orders", extra_columns="drop"))
    assert {row["_relation"] for row in rows} == {"public.orders", OTHER_NAME}
    assert [row["public.orders"] for row in rows if row["_relation"] == "public.orders"] == [
        {"note": row["note"]} for row in whole
    ]


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("id smallint, note string", {}, "values that do not fit"),
        ("id bigint, _seq string", {}, "metadata column '_seq' is bigint"),
        ("id bigint, _lsn bigint not null", {}, "'_lsn' can be null"),
        ("id bigint", {"columns": "id"}, "leave one out"),
        ("id bigint", {"schema_mode": "latest"}, "a schema needs this mode"),
        (
            "id bigint",
            {"table": "public.orders, 16402"},
            "must be a struct with the name of one of the tables",
        ),
    ],
)
def test_schemas_that_cannot_be_had(
    spark: Any, segments: Path, schema: str, options: dict[str, str], message: str
) -> None:
    reader = spark.read.format("pgoutput").schema(schema).option("extra_columns", "drop")
    with pytest.raises(PySparkException, match=message):
        reader.options(**{"table": "public.orders", **options}).load(str(segments)).collect()


def test_times_can_be_of_type_time(spark: Any, segments: Path) -> None:
    if not hasattr(pyspark.sql.types, "TimeType"):
        with pytest.raises(PySparkException, match=r"no type TIME: use Spark 4\.1 or later"):
            _read(spark, segments, table="16402", time="TIME")
        return
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        frame = _read(spark, segments, table="16402", time="TIME")
        assert frame.schema["at"].dataType == pyspark.sql.types.TimeType()
        assert frame.where("at > time'12:00:00'").count() == 20
        assert frame.select("at").first()[0] == datetime.time(12, 34, 56, 500_000)
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option table"),
        ({"table": "public.nothing"}, r"public\.orders"),
        ({"table": "public.orders", "colums": "id"}, "no option 'colums'"),
        ({"table": "public.orders", "columns": "id,nr"}, "no column 'nr'"),
        ({"table": "public.orders", "transactions": "all"}, "as_sent"),
        ({"table": "public.orders", "partition_bytes": "many"}, "partition_bytes"),
        ({"table": "public.orders,16401"}, "names a table twice"),
        ({"table": "public.orders", "columns": "id,_relation"}, "no column '_relation'"),
        ({"table": "public.orders", "columns": "id,id"}, "none of them twice"),
        ({"table": "public.orders", "columns": " "}, "must name columns, and none"),
        ({"table": "public.orders", "schema_mode": "newest"}, "schema_mode"),
        ({"table": "public.orders", "schema_mode": "pinned"}, "a schema needs this mode"),
        ({"table": "public.orders", "catalog": "{}"}, "option catalog must be"),
        ({"table": "public.orders", "time": "text"}, "time must be"),
    ],
)
def test_wrong_options_are_said(spark: Any, segments: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        _read(spark, segments, **options)


def test_damaged_payload_fails_with_its_place(spark: Any, payloads: list[bytes], tmp_path: Path) -> None:
    tagged, state = pgo.tag(payloads[:10])
    rows = tagged.to_pylist()
    rows[5]["payload"] = rows[5]["payload"][:-3]
    write_segment(tmp_path, pa.RecordBatch.from_pylist(rows, pgo.TAGGED_SCHEMA), state, source=SOURCE)
    with pytest.raises(PySparkException, match=r"message 5, relation public\.orders.*ends too early"):
        _read(spark, tmp_path, table="public.orders").collect()
    assert _read(spark, tmp_path, table="public.orders", on_error="quarantine").count() == 7


@pytest.mark.slow
def test_the_page_says_what_is_so(spark: Any, tmp_path: Path) -> None:
    """The examples of docs/spark.md, on two tables that it names."""
    page = (DOCS / "spark.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    customers = RelationSpec(16403, "public", "customers", (ColumnSpec("name", 25),))
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    wal += writer.change(ORDERS, "insert", new=["1", "first"])
    wal += writer.change(customers, "insert", new=["Ada"])
    wal += writer.commit(100, 108, 0)
    tagged, state = pgo.tag(wal)
    write_segment(tmp_path, tagged, state, source=SOURCE)
    names: dict[str, Any] = {
        "spark": spark,
        "pgspark": pgspark,
        "segments": str(tmp_path),
        "raw": spark.createDataFrame([(payload,) for payload in wal], "payload binary"),
    }
    for block in blocks:
        # test_segments runs the one with a sink, and test_auto_cdc the one with pipelines.
        others = "table_sink" in block or "pipelines" in block
        if ("format(" in block and not others) or block.startswith("pgspark.register("):
            exec(compile(block, "spark.md", "exec"), names)
    assert [row["id"] for row in names["orders"].collect()] == [1]
    assert [tuple(row) for row in names["notes"].collect()] == [(2, 1, "first")]
    assert [row["id"] for row in names["late"].collect()] == [1]
    assert [(row["_seq"], row["name"]) for row in names["customers"].collect()] == [(4, "Ada")]
    names["orders"] = state.catalog.named("public.orders")[-1]
    found = []
    for line in next(block for block in blocks if "message_kind" in block).splitlines():
        if line.startswith("raw."):
            line = f"found.append({line}.collect())"
        exec(compile(line, "spark.md", "exec"), names | {"found": found}, names)
    kinds, of_orders, rows = found
    assert {row["kind"]: row["count"] for row in kinds} == {
        "begin": 1,
        "relation": 2,
        "insert": 2,
        "commit": 1,
    }
    assert len(of_orders) == 2
    assert [row["after"]["note"] for row in rows if row["change_type"] == "insert"] == ["first"]


def test_a_catalog_that_lies_beside_the_segments(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_catalogs, "INLINE_BYTES", 500)
    writer, state, rows = Writer(), None, 0
    for k in range(3):
        wal = writer.begin(k, 100 * k + 100, 0)
        for oid in range(30000, 30010):
            spec = RelationSpec(oid, "public", f"t{oid}", (ColumnSpec("id", 23, key=True),))
            wal += writer.change(spec, "insert", new=[str(k)])
        wal += writer.commit(100 * k + 100, 100 * k + 108, 0)
        tagged, state = pgo.tag(wal, state)
        write_segment(tmp_path, tagged, state, source=Source("1", "shop", "slot"))
        rows += tagged.num_rows
    assert list((tmp_path / segment_catalogs.CATALOG_DIRECTORY).iterdir())
    assert spark.read.parquet(str(tmp_path)).count() == rows
    frame = spark.read.format("pgoutput").option("table", "public.t30009").load(str(tmp_path))
    assert sorted(row["id"] for row in frame.collect()) == [0, 1, 2]
