"""The Spark face on a real local Spark: what executors decode equals what this process decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.spark.types import spark_arrow_schema, spark_arrow_type
from pgoutput_fast.spark.workers import check_workers

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
WIDER = RelationSpec(
    16401,
    "public",
    "orders",
    (ColumnSpec("id", 20, key=True), ColumnSpec("note", 25), ColumnSpec("paid", 16)),
)
OTHER = RelationSpec(16402, "public", "Other Table", (ColumnSpec("at", 1083),))


def _stream(transactions: int) -> list[bytes]:
    """Two relations, one of which changes in mid-stream; a streamed, a rolled back and a prepared transaction."""
    writer = Writer(4, streaming="on", two_phase=True)
    wal: list[bytes] = []
    for n in range(transactions):
        lsn = 1000 * (n + 1)
        wal += writer.begin(100 + n, lsn, n)
        if n == 3:
            wal += writer.origin(77, "elsewhere")
        orders = ORDERS if n < transactions // 2 else WIDER
        paid = [] if orders is ORDERS else ["t"]
        for k in range(20):
            wal += writer.change(orders, "insert", new=[str(n * 20 + k), f"note {k}", *paid])
        wal += writer.change(orders, "update", new=[str(n * 20), "changed", *paid])
        wal += writer.change(OTHER, "insert", new=["12:34:56.5"])
        wal += writer.commit(lsn, lsn + 8, n)
    wal += writer.stream_start(900)
    wal += writer.change(WIDER, "insert", new=["-1", "streamed", None], xid=900)
    wal += writer.stream_stop()
    wal += writer.stream_commit(900, 10**6, 10**6 + 8, 5)
    wal += writer.begin_prepare(901, 10**6 + 10, 10**6 + 20, 6, "gid")
    wal += writer.origin(78, "farther")
    wal += writer.change(WIDER, "delete", key=["-1", None, None])
    wal += writer.prepare(901, 10**6 + 10, 10**6 + 20, 6, "gid")
    wal += writer.commit_prepared(901, 10**6 + 30, 10**6 + 40, 7, "gid")
    return wal


WORKERS = pytest.mark.classic("the server chooses the Python of its workers")


@pytest.fixture(scope="module")
def payloads() -> list[bytes]:
    return _stream(40)


@pytest.fixture(scope="module")
def wal(payloads: list[bytes], spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The stream, tagged piece by piece into several files, read in another order than they were written."""
    directory = tmp_path_factory.mktemp("segments")
    _write(payloads, directory)
    return spark.read.parquet(str(directory)).orderBy("payload").repartition(5)


def _write(payloads: list[bytes], directory: Path) -> None:
    state = None
    for number, start in enumerate(range(0, len(payloads), 150)):
        tagged, state = pgo.tag(payloads[start : start + 150], state)
        pq.write_table(pa.Table.from_batches([tagged]), directory / f"{number}.parquet")


def _rows(frame: Any, *order: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.orderBy(*order).toArrow().to_pylist()
    return rows


def test_changes_equal_those_of_one_process(wal: Any, payloads: list[bytes]) -> None:
    expected = pgo.decode(payloads).table("public.orders")
    got = _rows(pgspark.changes(wal, "public.orders"), "_seq")
    assert got == expected.to_pylist()
    assert len(got) == 40 * 21 + 2


@pytest.mark.slow
def test_changes_by_oid_and_by_quoted_name(wal: Any) -> None:
    by_name = _rows(pgspark.changes(wal, 'public."Other Table"'), "_seq")
    assert by_name == _rows(pgspark.changes(wal, 16402), "_seq")
    assert [row["at"] for row in by_name] == ["12:34:56.500000"] * 40


def test_versions_are_unified_by_name_and_widened(wal: Any) -> None:
    frame = pgspark.changes(wal, "public.orders")
    assert frame.schema["id"].dataType.simpleString() == "bigint"
    assert frame.where("paid is null and _change_type = 'insert'").count() == 20 * 20 + 1


def test_unknown_table_names_what_there_is(wal: Any) -> None:
    with pytest.raises(KeyError, match=r'public\."Other Table", public\.orders'):
        pgspark.changes(wal, "public.nothing")


def test_relations_are_all_versions(wal: Any, payloads: list[bytes]) -> None:
    expected = {(r.oid, r.version, r.namespace, r.name) for r in pgo.tag(payloads)[1].catalog.relations}
    rows = _rows(pgspark.relations(wal), "version")
    assert {(r["oid"], r["version"], r["namespace"], r["name"]) for r in rows} == expected
    assert len(expected) == 3


@pytest.mark.slow
def test_transactions_equal_those_of_one_process(wal: Any, payloads: list[bytes]) -> None:
    expected = pgo.decode(payloads).transactions.to_pylist()
    assert _rows(pgspark.transactions(wal), "seq") == expected
    assert [row["origin"] for row in expected].count("elsewhere") == 1


def test_damaged_payload_fails_with_its_place(spark: Any, payloads: list[bytes]) -> None:
    tagged, state = pgo.tag(payloads[:10])
    rows = tagged.to_pylist()
    rows[5]["payload"] = rows[5]["payload"][:-3]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA))
    with pytest.raises(PySparkException, match=r"message 5, relation public\.orders.*ends too early"):
        pgspark.changes(frame, "public.orders", catalog=state.catalog).collect()


def test_damaged_payload_can_be_quarantined(spark: Any, payloads: list[bytes]) -> None:
    tagged, state = pgo.tag(payloads[:10])
    rows = tagged.to_pylist()
    rows[5]["payload"] = rows[5]["payload"][:-3]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA))
    options = pgo.Options(on_error="quarantine")
    got = pgspark.changes(frame, "public.orders", catalog=state.catalog, options=options)
    assert sorted(row["_seq"] for row in got.collect()) == [2, 3, 4, 6, 7, 8, 9]


@WORKERS
def test_another_python_for_the_workers_is_refused(
    wal: Any, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/another-python")
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another-python")
    with pytest.raises(RuntimeError, match="PYSPARK_PYTHON"):
        check_workers(wal)


@WORKERS
def test_other_names_of_this_python_are_this_python(
    wal: Any, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    import os
    import sys

    names = [n for n in os.listdir(os.path.dirname(sys.executable)) if n in ("python", "python3")]
    for name in names:
        path = os.path.join(os.path.dirname(sys.executable), name)
        if os.path.realpath(path) == os.path.realpath(sys.executable):
            monkeypatch.setattr(spark.sparkContext, "pythonExec", path)
            monkeypatch.setenv("PYSPARK_PYTHON", path)
            check_workers(wal)


@WORKERS
def test_workers_of_a_local_spark_take_this_python_by_default(
    wal: Any, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    import sys

    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3-of-the-system")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    check_workers(wal)
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (pa.time64("us"), pa.string()),
        (pa.binary(16), pa.binary()),
        (pa.list_(pa.time64("us")), pa.list_(pa.string())),
        (pa.month_day_nano_interval(), pa.string()),
        (pa.list_(pa.month_day_nano_interval()), pa.list_(pa.string())),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.decimal128(38, 6), pa.decimal128(38, 6)),
        (pa.list_(pa.date32()), pa.list_(pa.date32())),
    ],
)
def test_types_that_spark_refuses_get_one_that_it_takes(given: pa.DataType, taken: pa.DataType) -> None:
    assert spark_arrow_type(given) == taken


EVERY_TYPE = """
CREATE TABLE every_type (
    id int PRIMARY KEY, b bool, i2 int2, i8 int8, o oid, f4 float4, f8 float8, n numeric(20,3), nn numeric, t text,
    v varchar(9), c char(4), y bytea, u uuid, j json, jb jsonb, d date, ti time, ts timestamp, tz timestamptz,
    ai int[], at text[], an numeric(6,2)[], ad date[], au uuid[], ats timestamp[], atz timestamptz[], ati time[],
    ab bool[], ay bytea[], ip inet, m money, iv interval, aiv interval[], bits varbit, q tsquery, p path, x xid)
"""
EVERY_VALUE = """
INSERT INTO every_type SELECT i, i % 2 = 0, i, i * 10::int8 ^ 12, 4000000000 + i, i / 3.0, sqrt(i), i / 7.0, i / 7.0,
    'text ' || i, 'v' || i, 'c', decode('00ff' || '0a', 'hex'), md5(i::text)::uuid, '{"a": 1}', '{"b": [1, null]}',
    date '2024-02-29' + i, time '23:59:59.999999',
    timestamp '2024-02-29 12:00' + i * interval '1.000001 s', timestamptz '1969-12-31 23:00+00',
    ARRAY[i, NULL], ARRAY['x', NULL, 'a"b', 'NULL'], ARRAY[1.25, NULL], ARRAY[date '0001-01-01'], ARRAY[md5('q')::uuid],
    ARRAY[timestamp '9999-12-31 23:59:59'], ARRAY[timestamptz '2024-01-01 00:00+00'], ARRAY[time '00:00:01'],
    ARRAY[true, NULL], ARRAY[decode('ff', 'hex')], '10.0.0.1/8', i * 1000.5::numeric::money,
    i * interval '-1 month 2 days -3.000001 hours', ARRAY[interval '1 year', NULL, i * interval '1 second'], B'0101', '!a & b',
    '[(1,2),(0.1,1e23)]', i::text::xid
FROM generate_series(1, 50) i
"""


@pytest.fixture(params=["text", "binary"])
def captured(request: pytest.FixtureRequest, database_binary: Any) -> list[bytes]:
    database_binary.execute("DROP TABLE IF EXISTS every_type", EVERY_TYPE)
    options = {"binary": "true"} if request.param == "binary" else {}
    rows = database_binary.capture([EVERY_VALUE, "INSERT INTO every_type VALUES (0)"], options=options)
    return [data for _, data in rows]


@pytest.mark.newest_server
def test_every_type_on_real_spark(captured: list[bytes], spark: Any) -> None:
    """Each type that the core decodes arrives in Spark with the value that Arrow has."""
    tagged, _ = pgo.tag(captured)
    wal = spark.createDataFrame(pa.Table.from_batches([tagged]))
    decoded = pgo.decode(captured).table("public.every_type")
    expected = to_types(decoded, spark_arrow_schema(decoded.schema)).to_pylist()
    assert _rows(pgspark.changes(wal, "public.every_type"), "_seq") == expected
    assert len(expected) == 51


def test_options_for_uuid_and_numeric_reach_the_executors(spark: Any) -> None:
    writer = Writer()
    spec = RelationSpec(1, "public", "t", (ColumnSpec("u", 2950), ColumnSpec("n", 1700)))
    wal = writer.begin(1, 1, 1)
    wal += writer.change(spec, "insert", new=["00112233-4455-6677-8899-aabbccddeeff", "1.5"])
    wal += writer.commit(1, 2, 1)
    tagged, _ = pgo.tag(wal)
    frame = spark.createDataFrame(pa.Table.from_batches([tagged]))
    options = pgo.Options(uuid="arrow.uuid", numeric=pa.decimal128(12, 4))
    row = pgspark.changes(frame, "public.t", options=options).collect()[0]
    assert bytes(row["u"]) == bytes.fromhex("00112233445566778899aabbccddeeff")
    assert str(row["n"]) == "1.5000"
