"""What Spark cannot take from Arrow: intervals as the server itself writes them in ISO 8601."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from pgoutput_fast.encode.values import to_text
from support import pg

pytest.importorskip("pyspark")
from pgoutput_fast.schema.plain import iso_8601, to_types
from pgoutput_fast.spark.types import spark_arrow_schema

KIND = pa.month_day_nano_interval()
MONTHS, DAYS = (0, 1, -1, 12, -13, 2**31 - 1, -(2**31)), (0, 1, -2, 2**31 - 1)
MICROS = (
    0, 1, -1, 10, 500_000, 1_000_000, -1_000_001, 60_000_000, 3_600_000_000, -3_661_000_001, 86_400_000_000, 9223372036854775,
    -9223372036854775, 123_456_789_012,
)  # fmt: skip
VALUES = [(m, d, us * 1000) for m, d, us in itertools.product(MONTHS, DAYS, MICROS)]


def test_interval_is_written_as_the_server_writes_it(database: pg.Database) -> None:
    with database.session() as connection, connection.cursor() as cursor:
        cursor.execute("SET IntervalStyle = 'iso_8601'")
        cursor.execute(
            "SELECT v::interval::text FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n",
            ([to_text("interval", value) for value in VALUES],),
        )
        said = [text for (text,) in cursor.fetchall()]
    assert iso_8601(pa.array(VALUES, KIND)).to_pylist() == said


def test_nulls_slices_and_lists() -> None:
    column = pa.array([(1, 0, 0), None, (0, 2, 0), (0, 0, 1000)], KIND)
    assert iso_8601(column).to_pylist() == ["P1M", None, "P2D", "PT0.000001S"]
    assert iso_8601(column[1:3]).to_pylist() == [None, "P2D"]
    assert iso_8601(column[:0]).to_pylist() == []
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
