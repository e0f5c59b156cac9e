"""`format("pgoutput")` on segments: executors read and decode what this process would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, write_segment

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
WIDER = RelationSpec(
    16401,
    "public",
    "orders",
    (ColumnSpec("id", 20, key=True), ColumnSpec("note", 25), ColumnSpec("tags", 1009)),
)
OTHER = RelationSpec(16402, "public", "Other, Table", (ColumnSpec("at", 1083), ColumnSpec("seen", 1184)))
SOURCE = Source("1", "shop", "slot")


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
    return spark.read.format("pgoutput").options(**options).load(str(path))


def _rows(frame: Any) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["_seq"])


def test_a_table_is_what_changes_give(spark: Any, segments: Path) -> None:
    frame = _read(spark, segments, table="public.orders")
    expected = pgspark.changes(spark.read.parquet(str(segments)), "public.orders")
    assert frame.dtypes == expected.dtypes
    assert _rows(frame) == _rows(expected)
    assert frame.count() == 202
    assert frame.rdd.getNumPartitions() == len(list_segments(segments))
    assert _read(spark, segments, table="16401", partition_bytes="1").rdd.getNumPartitions() > 3


def test_committed_transactions_only(spark: Any, segments: Path, payloads: list[bytes]) -> None:
    frame = _read(spark, segments, table="public.orders", transactions="committed")
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


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters(spark: Any, segments: Path, pushed: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        frame = _read(spark, segments, table="public.orders")
        chosen = frame.where("_seq > 200 and _seq <= 230 and id <> 170")
        assert _rows(chosen) == [row for row in _rows(frame) if 200 < row["_seq"] <= 230 and row["id"] != 170]
        assert 10 < chosen.count() < 30
        # Segments without such ordinals are not read, since 4.1.
        pushes = pushed == "true" and hasattr(functions, "arrow_udf")
        assert frame.where("_seq = 3").rdd.getNumPartitions() == (1 if pushes else 3)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option table"),
        ({"table": "public.nothing"}, r"public\.orders"),
        ({"table": "public.orders", "colums": "id"}, "no option 'colums'"),
        ({"table": "public.orders", "columns": "id,nr"}, "no column 'nr'"),
        ({"table": "public.orders", "transactions": "all"}, "as_sent"),
        ({"table": "public.orders", "partition_bytes": "many"}, "partition_bytes"),
        ({"table": "public.orders,16401"}, "named twice"),
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


def test_the_page_says_what_is_so(spark: Any, tmp_path: Path) -> None:
    """The examples of docs/spark.md, on two tables that it names."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "spark.md").read_text()
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
        if "format(" in block:
            exec(compile(block, "spark.md", "exec"), names)
    assert [row["id"] for row in names["orders"].collect()] == [1]
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
