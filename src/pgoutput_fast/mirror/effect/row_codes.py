"""Numbers for rows: two rows have the same number exactly if their values are the same as PostgreSQL stores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Codes", "row_codes"]

Codes: TypeAlias = npt.NDArray[np.int32]


def row_codes(columns: Sequence[pa.ChunkedArray]) -> tuple[Codes, int]:
    """A number for each row, and how many numbers there are: from 0 up to this.

    Null equals null, and NaN equals NaN. 0.0 and -0.0 are different.

    Args:
        columns: at least one, all of the same length.

    >>> import pyarrow as pa
    >>> row_codes([pa.chunked_array([[7, 8, 7]]), pa.chunked_array([["a", None, "a"]])])
    (array([0, 1, 0], dtype=int32), 2)
    """
    if len(columns) == 1:
        return _column_codes(columns[0])
    return _joined([_column_codes(column)[0] for column in columns])


def _column_codes(column: pa.Array | pa.ChunkedArray) -> tuple[Codes, int]:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return _column_codes(pa.chunked_array([chunk.storage for chunk in chunks], kind.storage_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_codes(_whole(column))
    if pa.types.is_struct(kind):
        return _struct_codes(_whole(column))
    if pa.types.is_floating(kind):
        column = _bits(_whole(column))
    return _numbered(column)


def _numbered(column: pa.Array | pa.ChunkedArray) -> tuple[Codes, int]:
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        if not encoded.num_chunks:
            return np.empty(0, np.int32), 0
        # All chunks have the dictionary of the last one.
        parts = [chunk.indices.to_numpy() for chunk in encoded.chunks]
        return np.concatenate(parts), len(encoded.chunk(encoded.num_chunks - 1).dictionary)
    return encoded.indices.to_numpy(), len(encoded.dictionary)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _bits(floats: pa.Array) -> pa.Array:
    """The floats as integers. All NaN become the same one, as they are equal in PostgreSQL."""
    one_nan = pc.if_else(pc.is_nan(floats), pa.scalar(float("nan"), floats.type), floats)
    return one_nan.view(pa.int64() if pa.types.is_float64(floats.type) else pa.int32())


def _joined(codes: Sequence[Codes]) -> tuple[Codes, int]:
    """One number for the numbers of several columns: those of a row become one value of fixed size."""
    together = np.stack(codes, axis=1)
    kind = pa.binary(together.shape[1] * together.itemsize)
    return _numbered(pa.Array.from_buffers(kind, len(together), [None, pa.py_buffer(together)]))


def _list_codes(lists: pa.Array) -> tuple[Codes, int]:
    """The numbers of a list's elements become one value of bytes, so that lists are compared as such values."""
    ends = lists.offsets.to_numpy().astype(np.int64)
    elements, _ = _column_codes(lists.values.slice(ends[0], ends[-1] - ends[0]))
    valid = np.packbits(lists.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    offsets = (ends - ends[0]) * elements.itemsize
    buffers = [pa.py_buffer(each) for each in (valid, offsets, np.ascontiguousarray(elements))]
    return _numbered(pa.Array.from_buffers(pa.large_binary(), len(lists), buffers))


def _struct_codes(structs: pa.Array) -> tuple[Codes, int]:
    valid = structs.is_valid().to_numpy(zero_copy_only=False).astype(np.int32)
    return _joined([valid, *(_column_codes(field)[0] for field in structs.flatten())])
