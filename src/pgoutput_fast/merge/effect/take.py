"""Takes values of a column by their numbers."""

from __future__ import annotations

import pyarrow as pa

from pgoutput_fast.merge.effect.column_names import RowNumbers

__all__ = ["take"]

# An Arrow array of strings has at most this many bytes.
_ARRAY_BYTES = (1 << 31) - 1


def take(column: pa.ChunkedArray, rows: RowNumbers) -> pa.ChunkedArray:
    """Values of a column by their numbers, in any order and any number of times.

    >>> import numpy as np
    >>> take(pa.chunked_array([["a", "b"], ["c"]]), np.array([2, 0, 2])).to_pylist()
    ['c', 'a', 'c']
    """
    numbers = pa.array(rows)
    if column.nbytes > _ARRAY_BYTES:
        return column.take(numbers)
    # Taking from one array needs half the time.
    column = column.combine_chunks()
    return pa.chunked_array([column.take(numbers)], column.type)
