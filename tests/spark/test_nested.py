"""Ranges, points and composites on a real local Spark: what executors decode equals what this process decodes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import pgoutput_fast as pgo
from pgoutput_fast import TypeField, UserType, UserTypes
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.spark.types import spark_arrow_schema, spark_arrow_type

PAIR, PAIRS, TIMES, MOOD = 30001, 30002, 30003, 30004
TYPES = UserTypes(
    [
        UserType(
            PAIR,
            "public",
            "pair",
            "composite",
            fields=(TypeField("at", 1083), TypeField("u", 2950), TypeField("r", 3910)),
        ),
        UserType(PAIRS, "public", "_pair", "array", of=PAIR),
        UserType(TIMES, "public", "times", "range", of=1083),
        UserType(MOOD, "public", "mood", "enum", labels=("ok",)),
    ]
)
NAMES = {each.oid: (each.namespace, each.name) for each in TYPES.values()}
COLUMNS = {
    "id": (23, "1"), "r": (3908, '["2024-02-29 12:00:00","2024-03-01 00:00:00")'), "rs": (3913, '{empty,NULL,"[2024-01-01,)"}'),
    "m": (4536, "{(,1),[5,)}"), "pt": (600, "(1,-2.5)"), "p": (PAIR, '(12:34:56.5,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,"[""2024-01-01 00:00:00+00"",)")'),
    "ps": (PAIRS, '{"(,,)",NULL,"(00:00:00,,empty)"}'), "t": (TIMES, "[01:00:00,02:00:00]"), "e": (MOOD, "ok"),
}  # fmt: skip


def test_struct_types_that_spark_refuses_in_part() -> None:
    given = pa.struct(
        [("at", pa.time64("us")), ("n", pa.list_(pa.struct([("u", pa.binary(16)), ("d", pa.date32())])))]
    )
    assert spark_arrow_type(given) == pa.struct(
        [("at", pa.string()), ("n", pa.list_(pa.struct([("u", pa.binary()), ("d", pa.date32())])))]
    )


def test_nested_values_on_real_spark(spark: Any) -> None:
    spec = RelationSpec(
        16401,
        "public",
        "t",
        tuple(ColumnSpec(name, oid, key=name == "id") for name, (oid, _) in COLUMNS.items()),
    )
    writer = Writer(types=NAMES)
    wal = writer.begin(7, 100, 0)
    wal += writer.change(spec, "insert", new=[text for _, text in COLUMNS.values()])
    wal += writer.change(spec, "insert", new=["2", *[None] * (len(COLUMNS) - 1)])
    wal += writer.commit(100, 108, 0)
    tagged, state = pgo.tag(wal, pgo.StreamState(catalog=pgo.Catalog(types=TYPES)))
    options = pgo.Options(uuid="fixed_size_binary")
    decoded = pgo.decode_tagged(tagged, state.catalog, options).table("public.t")
    assert pa.types.is_struct(decoded.schema.field("p").type)
    expected = decoded.cast(spark_arrow_schema(decoded.schema)).to_pylist()
    frame = spark.createDataFrame(pa.Table.from_batches([tagged]))
    changes = pgspark.changes(frame, "public.t", options=options, catalog=state.catalog)
    rows = sorted(changes.toArrow().to_pylist(), key=lambda row: row["_seq"])
    assert rows == expected
    from_wal = pgspark.changes(frame, "public.t", options=options, catalog=pgo.Catalog(types=TYPES))
    assert from_wal.schema == changes.schema
    assert rows[0]["p"]["at"] == "12:34:56.500000"
    assert changes.where("r.lower < timestamp_ntz'2024-03-01' and size(m) = 2 and p.r.lower_inc").count() == 1
