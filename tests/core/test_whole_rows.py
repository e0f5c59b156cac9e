"""Hashes of whole rows, and which rows are equal."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast._core.columns.whole_rows import is_comparable, row_hashes, unequal

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
        there = column.to_pylist()
        expected = [_differ(there[one], there[other]) for one, other in zip(ones, others, strict=True)]
        assert unequal([column], ones, others).tolist() == expected
        assert 0 < sum(expected) < 500


@pytest.mark.parametrize("seed", range(5))
def test_several_columns_in_chunks_of_their_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = [_column(rng, kind, values, nulls=True) for kind, values in VALUES]
    count = min(map(len, drawn))
    columns = [column.slice(0, count) for column in drawn]
    # Rows are equal in few columns only, so the same row is compared as well.
    ones = np.sort(rng.integers(0, count, 500))
    others = np.where(rng.random(500) < 0.5, ones, rng.integers(0, count, 500))
    expected = [unequal([column], ones, others) for column in columns]
    everything = list(range(len(columns)))
    for places in (everything, [0], [3, 4], everything[::-1] + everything):
        found = unequal([columns[k] for k in places], ones, others)
        assert found.tolist() == np.any([expected[k] for k in places], axis=0).tolist()
    assert not unequal(columns, ones, ones).any()
    assert not unequal([], ones, others).any()


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_equal_values_have_the_same_hash(kind: pa.DataType, values: list[Any]) -> None:
    """The first column counts whole, so there values that differ have different hashes, but a null may look like a 0."""
    column = _column(np.random.default_rng(7), kind, values, nulls=True)
    hashes, valid = row_hashes([column]), column.is_valid().to_numpy()
    for first in range(20):
        same = ~unequal([column], np.arange(len(column)), np.full(len(column), first))
        assert len(np.unique(hashes[same])) == 1
        if valid[first]:
            assert not (hashes[~same & valid] == hashes[first]).any()
    # Chunks do not matter, nor does where they lie.
    assert row_hashes([pa.chunked_array([column.combine_chunks()])]).tolist() == hashes.tolist()
    assert row_hashes([column.slice(5)]).tolist() == hashes[5:].tolist()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_binary(), pa.list_(pa.int32()), pa.large_list(pa.int16())]
)
def test_lengths_count_behind_the_first_column(kind: pa.DataType) -> None:
    nested = bool(kind.num_fields)
    values = [[1], [0], [1, 1], [], None] if nested else ["a", "b", "ab", "", None]
    first = pa.chunked_array([[5] * 5])
    hashes = row_hashes([first, pa.chunked_array([pa.array(values, kind)])]).tolist()
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[3] == hashes[4] == row_hashes([first])[0]


def test_all_columns_count() -> None:
    rng = np.random.default_rng(3)
    columns = [pa.chunked_array([rng.integers(0, 4, 5000)]) for _ in range(6)]
    codes = np.unique(np.stack([column.to_numpy() for column in columns]), axis=1, return_inverse=True)[1]
    hashes = row_hashes(columns)
    assert len(np.unique(hashes)) == len(np.unique(np.stack([codes.ravel(), hashes]), axis=1).T)
    assert len(np.unique(hashes)) > 0.99 * len(np.unique(codes))


def test_hashes_of_no_rows_and_of_what_has_none() -> None:
    assert row_hashes([pa.chunked_array([], pa.string())]).tolist() == []
    structs = pa.chunked_array([pa.array([{"a": 1}, {"a": 2}])])
    assert row_hashes([structs, pa.chunked_array([pa.nulls(2, pa.int32())])]).tolist() == [0, 0]
    with pytest.raises(ValueError, match="the columns must have the same length"):
        row_hashes([structs, pa.chunked_array([[1]])])


def test_what_is_not_compared() -> None:
    for kind in (
        pa.null(),
        pa.list_(pa.int32()),
        pa.struct([("a", pa.int32())]),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.int32(), 3),
    ):
        assert not is_comparable(kind), kind
        one = np.zeros(1, np.int64)
        with pytest.raises(TypeError, match="are not comparable"):
            unequal([pa.chunked_array([pa.nulls(1, kind)])], one, one)


@pytest.mark.parametrize(("one", "other"), [([0, 3], [0, 0]), ([0, 0], [-1, 0]), ([1 << 62, 0], [0, 0])])
def test_a_row_that_is_not_there(one: list[int], other: list[int]) -> None:
    for chunks, rows in ([["a", "b"], ["c"]], 3), ([], 0):
        column = pa.chunked_array(chunks, pa.string())
        with pytest.raises(IndexError, match=f"a column of {rows} rows does not have all these rows"):
            unequal([column], np.array(one), np.array(other))


def test_lengths() -> None:
    column, none = pa.chunked_array([["a", "b"]]), np.zeros(0, np.int64)
    assert unequal([column], none, none).tolist() == []
    with pytest.raises(ValueError, match="must have the same length"):
        unequal([column], np.zeros(2, np.int64), np.zeros(1, np.int64))
