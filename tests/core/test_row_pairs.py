"""Values of a column are compared with those of other rows."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast._core.columns.row_pairs import is_comparable, mark_unequal

_NAN = float("nan")
# Bits of another NaN, with a sign and a payload.
_OTHER_NAN = np.array([0xFFF8000000000123], np.uint64).view(np.float64)[0]

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int16(), [0, 1, -1, 256, None]),
    (pa.int32(), [0, 1, 1 << 24, -(1 << 31), None]),
    (pa.int64(), [0, 1, 1 << 32, -(1 << 63), None]),
    (pa.float32(), [0.0, -0.0, 1.5, _NAN, None]),
    (pa.float64(), [0.0, -0.0, 1.5, 1e300, _NAN, _OTHER_NAN, None]),
    (pa.decimal128(38, 2), [decimal.Decimal(0), decimal.Decimal(2) ** 70, decimal.Decimal(2) ** 71, None]),
    (pa.decimal256(60, 0), [decimal.Decimal(0), decimal.Decimal(2) ** 140, None]),
    (pa.binary(16), [bytes(16), bytes(15) + b"1", None]),
    (pa.binary(3), [b"abc", b"abd", None]),
    (pa.date32(), [0, 1, None]),
    (pa.timestamp("us", "UTC"), [0, 1 << 40, None]),
    (pa.string(), ["", "a", "b", "ab", "a" * 300, "a" * 299 + "b", "ä", None]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"x" * 70, None]),
    (pa.large_string(), ["", "a", "b" * 100, None]),
    (pa.large_binary(), [b"", b"a", b"b" * 100, None]),
]


def _column(rng: np.random.Generator, kind: pa.DataType, values: list[Any], nulls: bool) -> pa.ChunkedArray:
    """Chunks of different lengths, some of them empty, some of them slices."""
    values = values if nulls else [each for each in values if each is not None]
    chunks = []
    for rows in rng.integers(0, 200, 5):
        drawn = rng.integers(0, len(values), rows + 7)
        begin = int(rng.integers(0, 7))
        chunks.append(pa.array([values[k] for k in drawn], kind).slice(begin, int(rows)))
    return pa.chunked_array(chunks, kind)


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return not (math.isnan(one) and math.isnan(other))
        return math.copysign(1.0, one) != math.copysign(1.0, other) or one != other
    return bool(one != other)


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_pairs_are_as_in_python(kind: pa.DataType, values: list[Any], nulls: bool) -> None:
    assert is_comparable(kind)
    for seed in range(3):
        rng = np.random.default_rng([seed, nulls])
        column = _column(rng, kind, values, nulls)
        ones = np.sort(rng.integers(0, len(column), 500))
        others = rng.integers(0, len(column), 500)
        marks = (rng.random(500) < 0.1).astype(np.uint8)
        there = column.to_pylist()
        expected = [
            bool(mark) or _differ(there[one], there[other])
            for mark, one, other in zip(marks, ones, others, strict=True)
        ]
        mark_unequal(column, ones, others, marks)
        assert marks.tolist() == expected
        assert 0 < sum(expected) < 500


def test_what_is_not_compared() -> None:
    for kind in (
        pa.null(),
        pa.list_(pa.int32()),
        pa.struct([("a", pa.int32())]),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.int32(), 3),
    ):
        assert not is_comparable(kind), kind


@pytest.mark.parametrize(("one", "other"), [([0, 3], [0, 0]), ([0, 0], [-1, 0]), ([1 << 62, 0], [0, 0])])
def test_a_row_that_is_not_there(one: list[int], other: list[int]) -> None:
    column, marks = pa.chunked_array([["a", "b"], ["c"]]), np.zeros(2, np.uint8)
    with pytest.raises(IndexError, match="a column of 3 rows does not have all these rows"):
        mark_unequal(column, np.array(one), np.array(other), marks)
    assert not marks.any()


def test_lengths() -> None:
    column = pa.chunked_array([["a", "b"]])
    mark_unequal(column, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8))
    with pytest.raises(ValueError, match="must have the same length"):
        mark_unequal(column, np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(2, np.uint8))
    with pytest.raises(IndexError):
        mark_unequal(
            pa.chunked_array([], pa.string()),
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            np.zeros(1, np.uint8),
        )
