"""Rows that are copies of each other, whatever their hashes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast._core.columns.whole_rows import row_hashes
from pgoutput_fast.merge.effect.copies import cancelled_copies
from pgoutput_fast.merge.match import storage
from support.histories import VALUES
from support.oracle import comparable

KINDS = st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=3)


def columns_of(kinds: list[str], rows: list[tuple[Any, ...]]) -> list[pa.ChunkedArray]:
    values = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return [
        pa.chunked_array([pa.array(column, VALUES[kind][0])])
        for kind, column in zip(kinds, values, strict=True)
    ]


@settings(deadline=None)
@given(st.data(), KINDS)
def test_the_oldest_equal_row_is_cancelled(data: st.DataObject, kinds: list[str]) -> None:
    row = st.tuples(*(st.sampled_from([*VALUES[kind][1], None]) for kind in kinds))
    drawn = data.draw(st.lists(st.tuples(row, st.booleans()), max_size=30))
    texts = [repr(comparable(list(each))) for each, _ in drawn]
    columns = columns_of(kinds, [each for each, _ in drawn])
    stored = [storage(column) for column in columns]
    hashes = dict(zip(texts, row_hashes(stored).tolist(), strict=True))
    assert row_hashes(stored).tolist() == [hashes[text] for text in texts]
    expected, left = [False] * len(drawn), dict[str, list[int]]()
    for k, (_, put) in enumerate(drawn):
        if put:
            left.setdefault(texts[k], []).append(k)
        elif left.get(texts[k]):
            expected[k] = expected[left[texts[k]].pop(0)] = True
    assert cancelled_copies(columns, np.array([put for _, put in drawn], np.bool_)).tolist() == expected


@pytest.mark.parametrize("length", [1, 1000])
def test_texts_of_the_same_length(length: int) -> None:
    """Only their length is in the hash."""
    texts = [letter * length for letter in "abcabc"]
    columns = [pa.chunked_array([[1] * 6]), pa.chunked_array([texts])]
    assert cancelled_copies(columns, np.array([True] * 3 + [False] * 3)).all()
    texts[1], texts[5] = "d" * length, "e" * length
    columns[1] = pa.chunked_array([texts])
    found = cancelled_copies(columns, np.array([True] * 3 + [False] * 3))
    assert found.tolist() == [True, False, False, True, False, False]


def test_all_nan_have_the_same_hash() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000], np.uint64).view(np.float64)
    column = pa.chunked_array([pa.array(bits)])
    assert len(set(row_hashes([column]).tolist())) == 1
    assert cancelled_copies([column], np.array([True, False])).tolist() == [True, True]


def test_parts_of_arrays() -> None:
    kinds = [*VALUES]
    rows = [tuple(VALUES[kind][1][k % 2] for kind in kinds) for k in range(6)]
    whole = columns_of(kinds, rows)
    parts = [pa.chunked_array([column.chunk(0)[1:3], column.chunk(0)[3:]]) for column in whole]
    end = [pa.chunked_array([column.chunk(0)[3:]]) for column in whole]
    assert cancelled_copies(end, np.array([True, True, False])).tolist() == [True, False, True]
    # Rows 1 to 5: those of the same parity are equal.
    found = cancelled_copies(parts, np.array([True, True, False, False, False]))
    assert found.tolist() == [True, True, True, True, False]
