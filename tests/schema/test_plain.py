"""What Spark cannot take from Arrow: intervals in tables, lists and structs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_fast.schema.interval_text import iso_8601

pytest.importorskip("pyspark")
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.spark.types import spark_arrow_schema

KIND = pa.month_day_nano_interval()


def test_nulls_slices_and_lists() -> None:
    column = pa.array([(1, 0, 0), None, (0, 2, 0), (0, 0, 1000)], KIND)
    lists = pa.array([[(1, 0, 0), None], None, [], [(0, 0, 0)]], pa.list_(KIND))
    table = pa.table({"i": column, "l": lists, "n": [1, 2, 3, None]})
    target = pa.schema([("i", pa.string()), ("l", pa.list_(pa.string())), ("n", pa.int64())])
    for part in (table, table[1:], table[3:], table[:0], pa.concat_tables([table[2:], table])):
        taken = to_types(part, target)
        taken.validate(full=True)
        assert taken.schema == target
        assert taken["i"].to_pylist() == iso_8601(part["i"].combine_chunks()).to_pylist()
    assert to_types(table[1:], target)["l"].to_pylist() == [None, [], ["PT0S"]]


def test_intervals_inside_of_structs() -> None:
    """As a range or a composite has them, in a list or alone, whole or sliced."""
    inner = pa.struct([("lower", KIND), ("n", pa.int32()), ("t", pa.list_(KIND))])
    values = [
        {"lower": (1, 0, 0), "n": 1, "t": [None, (0, 1, 0)]},
        None,
        {"lower": None, "n": 2, "t": None},
        {"lower": (0, 0, 1000), "n": None, "t": []},
    ]
    expected = [
        {"lower": "P1M", "n": 1, "t": [None, "P1D"]},
        None,
        {"lower": None, "n": 2, "t": None},
        {"lower": "PT0.000001S", "n": None, "t": []},
    ]
    table = pa.table(
        {"s": pa.array(values, inner), "l": pa.array([values, None, [], values[1:]], pa.list_(inner))}
    )
    target = spark_arrow_schema(table.schema)
    for start in range(5):
        taken = to_types(table[start:], target)
        taken.validate(full=True)
        assert taken.schema == target
        assert taken["s"].to_pylist() == expected[start:]
        assert taken["l"].to_pylist() == [expected, None, [], expected[1:]][start:]


def test_structs_with_more_fields_and_fewer() -> None:
    """Those at the end are null, or left out; also in lists and structs, whole or sliced."""
    inner = pa.struct([("n", pa.int32())])
    wide = pa.struct([("n", pa.int64()), ("t", pa.string())])
    narrow_schema = pa.schema(
        {"s": inner, "l": pa.list_(inner), "o": pa.struct([("s", inner), ("k", pa.int32())])}
    )
    wide_schema = pa.schema(
        {"s": wide, "l": pa.list_(wide), "o": pa.struct([("s", wide), ("k", pa.int32())])}
    )
    rows = [
        {"s": {"n": 1}, "l": [{"n": 2}, None], "o": {"s": {"n": 3}, "k": 4}},
        {"s": None, "l": None, "o": {"s": None, "k": 5}},
        {"s": {"n": None}, "l": [], "o": None},
    ]
    table = pa.Table.from_pylist(rows, narrow_schema)
    for start in range(4):
        taken = to_types(table[start:], wide_schema)
        taken.validate(full=True)
        assert taken.schema == wide_schema
        assert to_types(taken, narrow_schema).to_pylist() == rows[start:]
    (first, *_) = to_types(table, wide_schema).to_pylist()
    assert first["s"] == {"n": 1, "t": None}
    assert first["l"] == [{"n": 2, "t": None}, None]
    assert first["o"] == {"s": {"n": 3, "t": None}, "k": 4}
