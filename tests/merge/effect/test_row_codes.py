"""Equal rows have equal numbers, other rows have others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.merge.match import row_codes
from support.histories import VALUES
from support.oracle import comparable


def check(values: list[Any], columns: list[pa.ChunkedArray]) -> None:
    codes, count = row_codes(columns)
    assert set(codes.tolist()) == set(range(count))
    for (one, its), (other, others) in itertools.product(zip(values, codes.tolist(), strict=True), repeat=2):
        assert (comparable(one) == comparable(other)) == (its == others), (one, other)


@pytest.mark.parametrize("kind", VALUES)
def test_every_kind_of_column(kind: str) -> None:
    arrow, values = VALUES[kind]
    values = [*values, None, *reversed(values), None]
    column = pa.array(values, arrow)
    check(values, [pa.chunked_array([column])])
    check(values, [pa.chunked_array([column[:3], column[3:3], column[3:]])])
    check(values[2:-1], [pa.chunked_array([column[2:5], column[5:-1]])])
    check(values[2:-1], [pa.chunked_array([column[2:-1]])])
    check([], [pa.chunked_array([], arrow)])


@pytest.mark.parametrize("kinds", [("int", "text"), ("nested", "float", "range"), ("list", "bool", "binary")])
def test_several_columns(kinds: tuple[str, ...]) -> None:
    rows = list(itertools.product(*([*VALUES[kind][1][:4], None] for kind in kinds))) * 2
    columns = [
        pa.chunked_array([pa.array(column, VALUES[kind][0])])
        for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)
    ]
    check([list(row) for row in rows], columns)


def test_all_nan_are_equal() -> None:
    """A binary stream can bring other bits of NaN."""
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64)
    codes, count = row_codes([pa.chunked_array([pa.array(bits.view(np.float64))])])
    assert (codes.tolist(), count) == ([0, 0, 0], 1)


def test_what_stands_behind_a_null_does_not_count() -> None:
    offsets, elements = pa.array([0, 2, 2, 3]), pa.array([1, 2, 1])
    lists = pa.ListArray.from_arrays(offsets, elements, mask=pa.array([True, True, False]))
    structs = pa.StructArray.from_arrays([pa.array([1, 2, 1])], ["x"], mask=pa.array([True, True, False]))
    for column in (lists, structs):
        codes, _ = row_codes([pa.chunked_array([column])])
        assert codes[0] == codes[1] != codes[2]


def test_a_part_of_lists() -> None:
    lists = pa.array([[9] * 100, [1], [2], [1], [3], [2]])[1:]
    assert row_codes([pa.chunked_array([lists])])[0].tolist() == [0, 1, 0, 2, 1]


def test_uuids_of_arrows_own_type() -> None:
    storage = pa.array([b"a" * 16, b"b" * 16, None, b"a" * 16], pa.binary(16))
    column = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    codes, count = row_codes([pa.chunked_array([column, column[:1]])])
    assert (codes.tolist(), count) == ([0, 1, 2, 0, 0], 3)


def test_structs_without_fields() -> None:
    column = pa.chunked_array([pa.array([{}, None, {}], pa.struct([]))])
    assert row_codes([column])[0].tolist() == [0, 1, 0]
