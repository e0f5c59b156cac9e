"""Copies of rows have the same values, and share no memory with the rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_fast.schema.own_memory import in_own_memory


def _table(pieces: int) -> pa.Table:
    whole = pa.table(
        {
            "id": pa.array(range(100), pa.int64()),
            "flag": pa.array([None if k % 3 == 0 else k % 2 == 0 for k in range(100)]),
            "text": pa.array([None if k % 7 == 0 else "x" * k for k in range(100)]),
            "list": pa.array([[k] * (k % 4) for k in range(100)], pa.list_(pa.int32())),
            "pair": pa.array([{"a": k, "b": str(k)} for k in range(100)]),
        }
    )
    step = 100 // pieces
    return pa.concat_tables(whole.slice(begin, step).combine_chunks() for begin in range(0, 100, step))


def _places(rows: pa.Table) -> set[int]:
    return {
        buffer.address
        for column in rows.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None and buffer.size
    }


@pytest.mark.parametrize("pieces", [1, 2, 10])
@pytest.mark.parametrize(("begin", "count"), [(0, 100), (0, 1), (7, 1), (7, 3), (45, 30), (99, 1), (5, 0)])
def test_a_copy(pieces: int, begin: int, count: int) -> None:
    rows = _table(pieces).slice(begin, count)
    copy = in_own_memory(rows)
    assert copy.equals(rows)
    assert copy.column("id").num_chunks <= 1
    assert not _places(copy) & _places(rows)
    copy.validate(full=True)
