"""Rows that are copies of each other, whatever their hashes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast.mirror.effect.copies import find_copies
from pgoutput_fast.mirror.effect.row_hashes import row_hashes
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
def test_groups_are_those_of_equal_rows(data: st.DataObject, kinds: list[str]) -> None:
    row = st.tuples(*(st.sampled_from([*VALUES[kind][1], None]) for kind in kinds))
    drawn = data.draw(st.lists(st.tuples(row, st.booleans()), max_size=30))
    texts = [repr(comparable(list(each))) for each, _ in drawn]
    puts = np.array([put for _, put in drawn], np.bool_)
    columns = columns_of(kinds, [each for each, _ in drawn])
    hashes = dict(zip(texts, row_hashes(columns).tolist(), strict=True))
    assert row_hashes(columns).tolist() == [hashes[text] for text in texts]
    found = find_copies(columns, puts)
    groups = np.split(found.rows, np.flatnonzero(found.begins)[1:]) if len(found.rows) else []
    for group in groups:
        assert len({texts[k] for k in group}) == 1
        assert (np.diff(group) > 0).all()
    assert len({texts[group[0]] for group in groups}) == len(groups)
    # The groups that matter are there, and whole.
    for text in set(texts):
        rows = [k for k, each in enumerate(texts) if each == text]
        first_put = min((k for k in rows if puts[k]), default=len(texts))
        if any(not puts[k] and k > first_put for k in rows):
            assert rows in [group.tolist() for group in groups]


@pytest.mark.parametrize("length", [1, 1000])
def test_texts_of_the_same_length(length: int) -> None:
    """Only their length is in the hash."""
    texts = [letter * length for letter in "abcabc"]
    columns = [pa.chunked_array([[1] * 6]), pa.chunked_array([texts])]
    found = find_copies(columns, np.array([True] * 3 + [False] * 3))
    assert [group.tolist() for group in np.split(found.rows, [2, 4])] == [[0, 3], [1, 4], [2, 5]]
    assert found.begins.tolist() == [True, False] * 3


def test_all_nan_have_the_same_hash() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000], np.uint64).view(np.float64)
    column = pa.chunked_array([pa.array(bits)])
    assert len(set(row_hashes([column]).tolist())) == 1
    assert find_copies([column], np.array([True, False])).begins.tolist() == [True, False]


def test_parts_of_arrays() -> None:
    kinds = [*VALUES]
    rows = [tuple(VALUES[kind][1][k % 2] for kind in kinds) for k in range(6)]
    whole = columns_of(kinds, rows)
    parts = [pa.chunked_array([column.chunk(0)[1:3], column.chunk(0)[3:]]) for column in whole]
    assert row_hashes(parts).tolist() == row_hashes(whole).tolist()[1:]
    end = [pa.chunked_array([column.chunk(0)[3:]]) for column in whole]
    assert row_hashes(end).tolist() == row_hashes(whole).tolist()[3:]
    found = find_copies(parts, np.array([True, True, False, False, False]))
    assert sorted(found.rows.tolist()) == [0, 1, 2, 3, 4]
    assert found.begins.sum() == 2
