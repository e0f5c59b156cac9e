"""Numbers for rows: two rows have the same number exactly if PostgreSQL stores the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Codes", "float_bits", "is_nested", "row_codes", "storage"]

Codes: TypeAlias = npt.NDArray[np.int32]


def row_codes(columns: Sequence[pa.ChunkedArray]) -> tuple[Codes, int]:
    """The numbers of the rows, from 0 up, and how many numbers there are.

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


def storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without its extension type, if it has one."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def is_nested(kind: pa.DataType) -> bool:
    """Whether values of the type consist of other values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_struct(kind))


def float_bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The floats as integers. All NaN become the same one, as they are equal in PostgreSQL."""
    kind = column.type
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), column)
    integer = pa.int64() if pa.types.is_float64(kind) else pa.int32()
    return pa.chunked_array([chunk.view(integer) for chunk in one_nan.chunks], integer)


def _column_codes(column: pa.ChunkedArray) -> tuple[Codes, int]:
    column = storage(column)
    if is_nested(column.type):
        whole = column.combine_chunks()
        return _struct_codes(whole) if pa.types.is_struct(column.type) else _list_codes(whole)
    return _numbered(float_bits(column) if pa.types.is_floating(column.type) else column)


def _numbered(column: pa.ChunkedArray) -> tuple[Codes, int]:
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    if not encoded.num_chunks:
        return np.empty(0, np.int32), 0
    # The last chunk's dictionary has the values of all chunks.
    count = len(encoded.chunk(encoded.num_chunks - 1).dictionary)
    return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]), count


def _joined(codes: Sequence[Codes]) -> tuple[Codes, int]:
    """Numbers the combinations of several columns' numbers, as values of fixed size."""
    together = np.stack(codes, axis=1)
    kind = pa.binary(together.shape[1] * together.itemsize)
    return _numbered(
        pa.chunked_array([pa.Array.from_buffers(kind, len(together), [None, pa.py_buffer(together)])])
    )


def _list_codes(lists: pa.Array) -> tuple[Codes, int]:
    """Numbers lists by the bytes of their elements' numbers."""
    ends = lists.offsets.to_numpy().astype(np.int64)
    elements, _ = _column_codes(pa.chunked_array([lists.values.slice(ends[0], ends[-1] - ends[0])]))
    valid = np.packbits(lists.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    offsets = (ends - ends[0]) * elements.itemsize
    buffers = [pa.py_buffer(each) for each in (valid, offsets, np.ascontiguousarray(elements))]
    return _numbered(pa.chunked_array([pa.Array.from_buffers(pa.large_binary(), len(lists), buffers)]))


def _struct_codes(structs: pa.Array) -> tuple[Codes, int]:
    valid = structs.is_valid().to_numpy(zero_copy_only=False).astype(np.int32)
    return _joined([valid, *(_column_codes(pa.chunked_array([field]))[0] for field in structs.flatten())])
