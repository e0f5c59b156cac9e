"""Rows are found by their values, whatever their types are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.merge.match import Finder

_NESTED = pa.list_(pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]))


def _codes(kind: pa.DataType, given: list[Any], rows: list[Any], *, keys: bool = False) -> list[int]:
    finder = Finder(pa.table({"c": pa.array(given, kind)}), keys=keys)
    return finder.find(pa.table({"c": pa.array(rows, kind)})).tolist()


def test_nulls_and_nans_are_equal() -> None:
    assert _codes(pa.int64(), [1, None], [None, 1, 2]) == [1, 0, -1]
    assert _codes(pa.float64(), [math.nan, None], [None, math.nan, 0.0]) == [1, 0, -1]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_zeros_are_one_key_and_two_values(kind: pa.DataType) -> None:
    assert _codes(kind, [0.0], [-0.0, 0.0], keys=True) == [0, 0]
    assert _codes(kind, [0.0, -0.0], [-0.0, 0.0]) == [1, 0]
    assert _codes(pa.list_(kind), [[0.0]], [[-0.0], [0.0]]) == [-1, 0]


def test_lists_and_structs() -> None:
    values = [None, [], [None], [{"x": None, "y": None}], [{"x": 1, "y": []}], [{"x": 1, "y": ["a", None]}]]
    assert sorted(_codes(_NESTED, values, values)) == list(range(len(values)))
    for value in values:
        assert [code >= 0 for code in _codes(_NESTED, [value], values)] == [value == each for each in values]
    longer = [[{"x": 1, "y": []}] * 2, [{"x": 1, "y": ["a"]}], [{"x": 2, "y": []}], [None, None]]
    assert _codes(_NESTED, values, longer) == [-1] * 4
    assert _codes(_NESTED, [], values) == [-1] * len(values)


def test_maps() -> None:
    kind = pa.map_(pa.string(), pa.string())
    values = [None, [], [("a", None)], [("a", "")], [("", "a")], [("a", ""), ("b", "c")]]
    assert sorted(_codes(kind, values, values)) == list(range(len(values)))
    assert _codes(kind, values, [[("b", None)], [("a", "c"), ("b", "")]]) == [-1, -1]


def test_slices_and_chunks() -> None:
    column = pa.array([[{"x": n, "y": [str(n)]}] if n % 3 else None for n in range(20)], _NESTED)
    whole = pa.table({"n": pa.array(range(20)), "c": column})
    finder = Finder(whole.slice(5, 10), keys=False)
    chunked = pa.concat_tables([whole.slice(8, 3), whole.slice(0, 8), whole.slice(0, 0), whole.slice(11, 9)])
    found = finder.find(chunked)
    for code, row in zip(found.tolist(), chunked.to_pylist(), strict=True):
        assert (code >= 0) == (5 <= row["n"] < 15)
    assert len(set(found[found >= 0].tolist())) == 10


def test_columns_count_together() -> None:
    given = pa.table({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "x"]})
    finder = Finder(given, keys=True)
    assert finder.codes[0] == finder.codes[3]
    assert finder.counts().tolist().count(2) == 1
    others = pa.table({"a": [2, 1, 2, 3], "b": ["y", "y", "x", "x"]})
    assert [code >= 0 for code in finder.find(others)] == [False, True, True, False]
    with np.errstate(all="raise"):
        assert finder.find(others.slice(0, 0)).tolist() == []
