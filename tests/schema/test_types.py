"""The stored forms of random nested types."""

from __future__ import annotations

import random
from typing import get_args

import pyarrow as pa
import pytest

from pgoutput_fast.schema.types import Form, leaf_pairs, stored_schema, stored_type, walk_type

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

UNKNOWN = [pa.uint32(), pa.decimal256(60, 3), pa.date64(), pa.timestamp("ns"), pa.duration("us")]


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
    if roll < 0.75:
        return pa.map_(pa.string(), random_type(chance, depth - 1, large))
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


def parts(kind: pa.DataType) -> list[pa.DataType]:
    return [part for _, part in walk_type("c", kind)]


@pytest.mark.parametrize("seed", range(10))
def test_forms_of_random_types(seed: int) -> None:
    """Every leaf has its form at its place, and a form of a form is itself."""
    chance = random.Random(seed)
    for _ in range(50):
        kind = random_type(chance)
        for form in get_args(Form):
            stored = stored_type(kind, form)
            assert stored_type(stored, form).equals(stored, check_metadata=True)
            for leaf, new in leaf_pairs(kind, stored):
                assert stored_type(leaf, form).equals(new), (kind, form)


@pytest.mark.parametrize("seed", range(10))
def test_current_tables_have_types_of_every_format(seed: int) -> None:
    chance, refused = random.Random(seed), set()
    for _ in range(100):
        schema = pa.schema([pa.field("c", random_type(chance), False, {"k": "v"})])
        is_refused = any(part in UNKNOWN for part in parts(stored_type(schema.field("c").type, "table")))
        refused.add(is_refused)
        if is_refused:
            with pytest.raises(ValueError, match="a type that current tables do not have"):
                stored_schema(schema, "current")
            continue
        (field,) = stored_schema(schema, "current")
        assert field.nullable
        assert "metadata" not in pa.schema([field]).to_string()
        stored = parts(field.type)
        assert not {pa.time64("us"), pa.binary(16), pa.large_string(), pa.struct([])}.intersection(stored)
        assert not any(
            isinstance(part, pa.BaseExtensionType) or pa.types.is_interval(part) for part in stored
        )
    assert refused == {True, False}


def test_files_keep_the_metadata_of_columns() -> None:
    times = pa.list_(pa.field("item", pa.time64("us"), metadata={"k": "v"}))
    texts = pa.list_(pa.field("item", pa.string(), metadata={"k": "v"}))
    field = pa.field("c", times, False, {"pg.type": "time[]"})
    stored = stored_schema(pa.schema([field], metadata={"pg.table": "t"}), "parquet")
    assert stored.equals(pa.schema([field.with_type(texts)], metadata={"pg.table": "t"}), check_metadata=True)


@pytest.mark.parametrize("seed", range(10))
def test_pairs(seed: int) -> None:
    """Types with the same parts have one pair for each leaf; others end in the pair of those that differ."""
    chance, same = random.Random(seed), set()
    for _ in range(100):
        a = random_type(chance)
        b = changed(chance, a)
        pairs = list(leaf_pairs(a, b))
        leaves = [part for part in parts(a) if not (pa.types.is_nested(part) and part.num_fields)]
        equal = len(pairs) == len(leaves) and all(x == y for (x, _), y in zip(pairs, leaves, strict=True))
        same.add(equal)
        assert equal or any(pa.types.is_nested(x) or pa.types.is_nested(y) for x, y in pairs)
        assert all(x.equals(y) for x, y in leaf_pairs(a, a))
    assert same == {True, False}
