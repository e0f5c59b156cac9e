"""Intervals as text: as the server itself writes them in ISO 8601."""

from __future__ import annotations

import itertools

import pyarrow as pa

from pgoutput_fast.encode.values import to_text
from pgoutput_fast.schema.interval_text import iso_8601
from support import pg

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


def test_nulls_and_slices() -> None:
    column = pa.array([(1, 0, 0), None, (0, 2, 0), (0, 0, 1000)], KIND)
    assert iso_8601(column).to_pylist() == ["P1M", None, "P2D", "PT0.000001S"]
    assert iso_8601(column[1:3]).to_pylist() == [None, "P2D"]
    assert iso_8601(column[:0]).to_pylist() == []
