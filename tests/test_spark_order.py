"""How rows lie, and where they are cut; on the executors' side and on the driver's."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.spark.order import Surveyed, slice_column, survey
from pgoutput_fast.spark.order_tasks import FIRST, LAST, SAMPLE, Survey, ascending, runs_of

SCHEMA = pa.schema(
    [
        ("piece", pa.int64()),
        ("what", pa.int8()),
        ("rows", pa.int64()),
        ("ascending", pa.bool_()),
        ("text", pa.string()),
        ("order0", pa.int64()),
    ]
)
SEVERAL = {
    "int": ([-3, 0, 9, 2**40], pa.int64()),
    "text": (["", "B", "a", "b", "é"], pa.string()),
    "bytes": ([b"", b"\1", b"\x80", b"\xff"], pa.binary()),
    "number": ([decimal.Decimal(k) for k in ("-1.00", "0.50", "7.25")], pa.decimal128(9, 2)),
    "time": ([datetime.datetime(2024, 1, d) for d in (1, 2, 3)], pa.timestamp("us")),
    "bool": ([False, True], pa.bool_()),
}


@pytest.mark.parametrize("first", SEVERAL)
@pytest.mark.parametrize("second", [None, "text", "int"])
def test_ascending_rows_are_told(first: str, second: str | None) -> None:
    chance = random.Random(f"{first} {second}")
    kinds = [SEVERAL[name] for name in (first, second) if name is not None]
    every = list(itertools.product(*(values for values, _ in kinds)))
    found = set()
    for _ in range(200):
        rows = [chance.choice(every) for _ in range(chance.randrange(1, 5))]
        rows = (
            sorted(set(rows)) if chance.randrange(3) == 0 else sorted(rows) if chance.randrange(3) else rows
        )
        columns = [
            pa.array(column, kind) for column, (_, kind) in zip(zip(*rows, strict=True), kinds, strict=True)
        ]
        assert ascending(columns) == (rows == sorted(set(rows)))
        found.add(ascending(columns))
    assert found == {True, False}


def test_what_has_no_order_is_in_none() -> None:
    assert not ascending([pa.array([1, None])])
    assert not ascending([pa.array([0.5, float("nan")])])
    assert not ascending([pa.array([[1], [2]])])


def batches(pieces: list[tuple[int, list[int]]], size: int) -> list[pa.RecordBatch]:
    rows = [(number, value) for number, values in pieces for value in values]
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in zip(*rows[at : at + size], strict=True)],
            names=["piece", "order0"],
        )
        for at in range(0, len(rows), size)
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_survey_tells_the_ends_and_samples_evenly(size: int) -> None:
    pieces = [(7, list(range(5000, 9000))), (-1, [3]), (7, [9, 8]), (2, list(range(100)))]
    rows = [row for batch in Survey(SCHEMA)(iter(batches(pieces, size))) for row in batch.to_pylist()]
    ends = [row for row in rows if row["what"] != SAMPLE]
    assert [row["what"] for row in ends] == [FIRST, LAST] * 4
    assert [(row["piece"], row["order0"], row["rows"], row["ascending"]) for row in ends] == [
        (7, 5000, 4000, True), (7, 8999, 4000, True),
        (-1, 3, 1, True), (-1, 3, 1, True),
        (7, 9, 2, False), (7, 8, 2, False),
        (2, 0, 100, True), (2, 99, 100, True),
    ]  # fmt: skip
    assert [row["text"] for row in ends[:2]] == ["5000", "8999"]
    samples = [row["order0"] for row in rows if row["what"] == SAMPLE and row["order0"] >= 5000]
    assert samples == list(range(5000, 9000, 32))
    assert {row["rows"] for row in rows if row["what"] == SAMPLE and row["order0"] >= 5000} == {32}


def test_runs_end_where_the_number_changes() -> None:
    pieces = [(1, [1, 2]), (2, [3]), (1, [4, 5, 6])]
    for size in (1, 2, 10):
        found = [
            (number, [value for part in parts for value in part.column(1).to_pylist()])
            for number, parts in runs_of(iter(batches(pieces, size)))
        ]
        assert found == pieces
    assert list(runs_of(iter([]))) == []


def surveyed(samples: list[tuple[Any, int]]) -> Surveyed:
    return Surveyed(None, True, [], samples)  # type: ignore[arg-type]


def test_bounds_cut_into_ranges_of_a_size() -> None:
    assert surveyed([(k, 1) for k in range(100)]).bounds(4) == [25, 50, 75]
    assert surveyed([(0, 97), (1, 1), (2, 1), (3, 1)]).bounds(4) == [1, 2, 3]
    assert surveyed([(5, 1)] * 10).bounds(4) == [5]
    assert surveyed([]).bounds(4) == []
    assert surveyed([(k, 1) for k in range(10)]).bounds(1) == []
    chance = random.Random(5)
    for _ in range(100):
        samples = sorted(
            (chance.randrange(50), chance.choice([1, 8])) for _ in range(chance.randrange(1, 200))
        )
        bounds = surveyed(samples).bounds(chance.randrange(1, 12))
        assert bounds == sorted(set(bounds))


def test_bounds_on_spark_cut_where_the_driver_says(spark: Any) -> None:
    """Of times of day, too, in an hour that there is twice."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.range(0, 240, 1, 3).selectExpr(
            "timestamp_seconds(1729980000 + 60 * id) at",  # 2024-10-27 00:00 in Berlin
            "timestamp_ntz '2024-10-27 00:00:00' + make_interval(0, 0, 0, 0, 0, id) there",
            "unhex(printf('%02x', id)) bytes",
            "cast(id as decimal(9, 2)) number",
        )
        for name in frame.columns:
            found = survey(frame, [name])
            assert found.in_order
            bounds = found.bounds(6)
            assert len(bounds) == 5
            counts = (
                frame.groupBy(slice_column(frame, name, bounds).alias("slice"))
                .count()
                .orderBy("slice")
                .collect()
            )
            assert [row["slice"] for row in counts] == list(range(6))
            assert all(30 <= row["count"] <= 50 for row in counts), name
            assert not survey(frame.orderBy(name), [name]).stable
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
