"""The bytes of rows are the same exactly if the rows are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast.merge.match import row_codes
from pgoutput_fast.mirror.repair.compare.row_bytes import row_bytes
from support.histories import VALUES


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    count = draw(st.integers(0, 8))
    columns = {}
    for name in names:
        kind, values = VALUES[name]
        drawn = draw(st.lists(st.sampled_from([None, *values]), min_size=count, max_size=count))
        columns[name] = pa.chunked_array([pa.array(drawn[:3], kind), pa.array(drawn[3:], kind)], kind)
    return pa.table(columns)


@settings(deadline=None)
@given(_tables(), st.integers(0, 3))
def test_bytes_are_the_same_exactly_if_rows_are(rows: pa.Table, begin: int) -> None:
    """As the numbers of rows say it, which another test checks. Slices have the bytes of their rows."""
    found = row_bytes(rows.columns).to_pylist()
    codes, _ = row_codes(rows.columns)
    assert [[a == b for b in found] for a in found] == [[bool(a == b) for b in codes] for a in codes]
    assert row_bytes(rows.slice(begin).columns).to_pylist() == found[begin:]
    assert row_bytes(rows.slice(begin).combine_chunks().columns).to_pylist() == found[begin:]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.list_(pa.string()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.string())],
)
def test_null_is_no_empty_value(kind: pa.DataType) -> None:
    empty = {"string": "", "list": [], "map": [], "struct": {"a": None}}[str(kind).partition("<")[0]]
    null, other = row_bytes([pa.array([None, empty], kind)]).to_pylist()
    assert null != other


def test_a_value_does_not_move_into_the_next_column() -> None:
    rows = pa.table({"a": ["xy", "x", ""], "b": ["z", "yz", "xyz"]})
    assert len(set(row_bytes(rows.columns).to_pylist())) == 3


def test_all_nans_are_the_same() -> None:
    bits = pa.array([0x7FF8000000000000, 0x7FF8000000000001, -0x8000000000000], pa.int64()).view(pa.float64())
    assert len(set(row_bytes([bits]).to_pylist())) == 1
