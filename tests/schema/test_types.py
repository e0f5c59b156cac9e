"""The stored forms of random nested types, beside the functions that decided them before."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pgoutput_fast.mirror.follow import changes
from pgoutput_fast.schema import evolution, flat, plain
from pgoutput_fast.schema.types import leaf_pairs, stored_schema, stored_type, walk_type
from pgoutput_fast.spark import types as spark
from pgoutput_fast.tables import columns, target
from pgoutput_fast.tables.iceberg import fields

LEAVES = [
    *(pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.float32(), pa.float64()),
    *(
        pa.decimal128(5, 2),
        pa.decimal128(7, 2),
        pa.decimal128(9, 3),
        pa.decimal256(60, 3),
        pa.date32(),
        pa.date64(),
    ),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.binary(16), pa.uuid(), pa.json_(), pa.time64("us"), pa.time64("ns"), pa.time32("s")),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.month_day_nano_interval()),
    *(pa.struct([]), pa.duration("us")),
]


def random_type(chance: random.Random, depth: int = 3, large: bool = True) -> pa.DataType:
    roll = chance.random() if depth else 0
    if roll < 0.4:
        return chance.choice(LEAVES)
    if roll < 0.6:
        inner = pa.field(
            "item", random_type(chance, depth - 1, large), metadata=chance.choice([None, {"k": "v"}])
        )
        return pa.list_(inner)
    if roll < 0.7 and large:
        return pa.large_list(random_type(chance, depth - 1, large))
    return pa.struct(
        [
            pa.field(
                chance.choice("abc") * (k + 1),
                random_type(chance, depth - 1, large),
                chance.random() < 0.8,
                {"m": "n"},
            )
            for k in range(chance.randint(1, 3))
        ]
    )


def changed(chance: random.Random, kind: pa.DataType) -> pa.DataType:
    """The type with some leaves replaced, mostly by wider ones."""
    if pa.types.is_list(kind):
        return (pa.list_ if chance.random() < 0.8 else pa.large_list)(changed(chance, kind.value_type))
    if pa.types.is_struct(kind) and chance.random() < 0.9:
        more = [pa.field("zz", pa.int32())] if chance.random() < 0.1 else []
        return pa.struct([*(pa.field(each.name, changed(chance, each.type)) for each in kind), *more])
    if chance.random() < 0.5:
        return kind
    wider = {
        pa.int16(): pa.int64(), pa.int32(): pa.int64(), pa.float32(): pa.float64(), pa.decimal128(5, 2): pa.decimal128(7, 2),
        pa.string(): pa.large_string(), pa.time64("us"): pa.string(), pa.month_day_nano_interval(): pa.string(),
        pa.struct([]): pa.string(),
    }  # fmt: skip
    return wider.get(kind) or chance.choice(LEAVES)


def result(call: object, *args: object) -> object:
    try:
        return call(*args)  # type: ignore[operator]
    except ValueError as problem:
        return str(problem)


def leaf_fits(source: pa.DataType, target: pa.DataType) -> bool:
    if any(source in layouts and target in layouts for layouts in (evolution._STRINGS, evolution._BINARIES)):
        return True
    wide = evolution.widen(source, target)
    return wide is not None and bool(wide.equals(target))


def leaf_can_widen(there: pa.DataType, wide: pa.DataType) -> bool:
    if wide.equals(there) or not pa.types.is_decimal128(there):
        return True
    return bool(pa.types.is_decimal128(wide) and there.scale == wide.scale)


@pytest.mark.parametrize("seed", range(40))
def test_forms(seed: int) -> None:
    chance = random.Random(seed)
    for large in (False, True):
        for _ in range(50):
            kind = random_type(chance, large=large)
            schema = pa.schema(
                [pa.field("c", kind, chance.random() < 0.5, {"pg.a": "b"})], metadata={"x": "y"}
            )
            for old, form in ((plain.plain_schema, "parquet"), (target.plain_types, "table")):
                assert stored_schema(schema, form).equals(old(schema), check_metadata=True), kind
            old, new = (result(columns.stored_schema, schema), result(stored_schema, schema, "current"))
            if not large:  # of large lists of structs without fields, the old ones made no storable type
                assert old == new if isinstance(old, str) else new.equals(old, check_metadata=True), kind
            for time, form in (("string", "spark"), ("TIME", "spark_time")):
                assert stored_type(kind, form).equals(spark.spark_arrow_type(kind, time))
            if not large:
                if not any(a == pa.duration("us") for _, a in walk_type("", kind)):
                    assert stored_type(kind, "json").equals(flat._json_type(kind))
                assert changes._has_lists(kind) == any(pa.types.is_list(a) for _, a in walk_type("", kind))
                assert [path for path, _ in walk_type("c", kind)] == list(fields._paths("c", kind))


@pytest.mark.parametrize("seed", range(40))
def test_pairs(seed: int) -> None:
    chance, said = random.Random(seed), set()
    for _ in range(200):
        a = random_type(chance, large=False)
        b = changed(chance, a)
        new = all(leaf_fits(*pair) for pair in leaf_pairs(a, b))
        assert new == evolution.fits(a, b), (a, b)
        wide = evolution.widen(a, b)
        if wide is not None:
            assert all(leaf_can_widen(*pair) for pair in leaf_pairs(a, wide)) == fields.can_widen(a, wide)
        said.add(new)
    assert said == {True, False}
