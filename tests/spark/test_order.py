"""How rows lie, and where they are cut; on the executors' side and on the driver's."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.spark.tagging.order import bounds, pieces_of, slice_column, survey
from pgoutput_fast.spark.tasks.order import ascending, runs_of

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


def test_runs_end_where_the_number_changes() -> None:
    pieces = [(1, [1, 2]), (2, [3]), (1, [4, 5, 6])]
    for size in (1, 2, 10):
        found = [
            (number, [value for part in parts for value in part.column(1).to_pylist()])
            for number, parts in runs_of(iter(batches(pieces, size)))
        ]
        assert found == pieces
    assert list(runs_of(iter([]))) == []


def test_bounds_cut_into_ranges_of_a_size() -> None:
    assert bounds([(k, 1) for k in range(100)], 4) == [25, 50, 75]
    assert bounds([(0, 97), (1, 1), (2, 1), (3, 1)], 4) == [1, 2, 3]
    assert bounds([(5, 1)] * 10, 4) == [5]
    assert bounds([], 4) == []
    assert bounds([(k, 1) for k in range(10)], 1) == []
    chance = random.Random(5)
    for _ in range(100):
        samples = sorted(
            (chance.randrange(50), chance.choice([1, 8])) for _ in range(chance.randrange(1, 200))
        )
        cuts = bounds(samples, chance.randrange(1, 12))
        assert cuts == sorted(set(cuts))


@pytest.mark.slow
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
            surveyed = survey(frame, name, pieces_of(frame))
            assert surveyed.looks_ordered
            cuts = bounds(surveyed.samples, 6)
            assert len(cuts) == 5
            counts = (
                frame.groupBy(slice_column(frame, name, cuts).alias("slice"))
                .count()
                .orderBy("slice")
                .collect()
            )
            assert [row["slice"] for row in counts] == list(range(6))
            assert all(30 <= row["count"] <= 50 for row in counts), name
            assert not pieces_of(frame.orderBy(name)).stable
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize(
    ("order", "looks"),
    [
        ("id", True),
        ("id div 5", True),  # the same place twice is none: it is seen when all is read
        ("if(id = 77, null, id)", True),
        ("if(id = 64, null, id)", False),
        ("-id", False),
        ("id % 100", False),
        ("id % 10", False),
    ],
)
def test_a_few_rows_tell_how_all_may_lie(spark: Any, order: str, looks: bool) -> None:
    frame = spark.range(0, 300, 1, 3).selectExpr(f"{order} place")
    assert survey(frame, "place", pieces_of(frame)).looks_ordered == looks


def test_samples_stand_for_all_rows(spark: Any) -> None:
    frame = spark.range(0, 300_000, 1, 3)
    samples = survey(frame, "id", pieces_of(frame)).samples
    assert [value for value, _ in samples[:20]] == [*range(16), 16, 18, 20, 22]
    assert 3 * 100 < len(samples) < 3 * 150
    assert 0.9 * 300_000 < sum(weight for _, weight in samples) <= 300_000
    assert max(weight for _, weight in samples) <= 100_000 / 8
    shuffled = frame.selectExpr("id * 7919 % 300007 place")
    cuts = bounds(survey(shuffled, "place", pieces_of(shuffled)).samples, 4)
    assert all(abs(cut - 75_000 * k) < 10_000 for k, cut in enumerate(cuts, 1))
    empty = frame.where("id < 0")
    assert survey(empty, "id", pieces_of(empty)).samples == []
