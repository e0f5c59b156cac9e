"""Rows as bytes: two rows of the same types have the same bytes exactly if their values are the same.

Null equals null, and NaN equals NaN, whatever its bits. 0.0 and -0.0 are different, as PostgreSQL stores them.

The bytes of a row start, for every column, with a byte that tells whether there is a value, and the value itself if its
type has a fixed size, or else its length. The values of the other columns follow, in column order. A list is the
concatenation of its elements' bytes, and a map is a list of pairs; a struct is the bytes of its fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.match import float_bits, storage

__all__ = ["row_bytes"]

_Bytes: TypeAlias = npt.NDArray[np.uint8]


def row_bytes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> pa.LargeBinaryArray:
    """The bytes of the rows.

    Args:
        columns: at least one, all of the same length.

    >>> import pyarrow as pa
    >>> row_bytes([pa.array([1, None], pa.int16()), pa.array(["a", ""])]).to_pylist()[0]
    b'\\x01\\x01\\x00\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00a'
    """
    fixed: list[_Bytes] = []
    variable: list[pa.LargeBinaryArray] = []
    for column in columns:
        values = _whole(column)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        cells = _fixed(values)
        if cells is None:
            cells_of = _variable(values)
            variable.append(cells_of)
            cells = _as_bytes(np.diff(_offsets(cells_of)))
        fixed += [valid.astype(np.uint8)[:, None], cells * valid[:, None]]
    first = _rows(np.ascontiguousarray(np.concatenate(fixed, axis=1)))
    if not variable:
        return first
    return pc.binary_join_element_wise(first, *variable, pa.scalar(b"", pa.large_binary()))


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    chunked = storage(chunked)
    if pa.types.is_floating(chunked.type):
        chunked = float_bits(chunked)
    return (
        chunked.chunk(0) if chunked.num_chunks == 1 else pa.concat_arrays([*chunked.chunks, *_none(chunked)])
    )


def _none(column: pa.ChunkedArray) -> list[pa.Array]:
    return [] if column.num_chunks else [pa.array([], column.type)]


def _fixed(values: pa.Array) -> _Bytes | None:
    """The bytes of values of a fixed size as the rows of a matrix; None for other types."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return _as_bytes(pc.fill_null(values.cast(pa.uint8()), 0).to_numpy(zero_copy_only=False))
    try:
        width = kind.bit_width // 8
    except ValueError:
        return None
    if pa.types.is_struct(kind) or pa.types.is_null(kind):
        return None
    if not len(values):
        return np.zeros((0, width), np.uint8)
    raw = np.frombuffer(values.buffers()[1], np.uint8)
    return raw[values.offset * width : (values.offset + len(values)) * width].reshape(-1, width)


def _variable(values: pa.Array) -> pa.LargeBinaryArray:
    """The bytes of values of other types; none for a null."""
    kind = values.type
    if pa.types.is_map(kind):
        pair = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
        return _variable(values.cast(pa.list_(pair)))
    if pa.types.is_struct(kind):
        found = (
            row_bytes(values.flatten())
            if kind.num_fields
            else pa.array([b""] * len(values), pa.large_binary())
        )
        return pc.if_else(values.is_valid(), found, pa.scalar(b"", pa.large_binary()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        elements = row_bytes([values.flatten()])
        # The elements of a list are adjacent.
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        places = _offsets(elements)[ends]
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            len(values),
            [None, pa.py_buffer(np.ascontiguousarray(places)), elements.buffers()[2]],
        )
    return pc.fill_null(values.cast(pa.large_binary()), b"")


def _offsets(values: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    offsets = np.frombuffer(values.buffers()[1] or b"\0" * 8, np.int64)
    return offsets[values.offset : values.offset + len(values) + 1]


def _as_bytes(values: npt.NDArray[Any]) -> _Bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)


def _rows(cells: _Bytes) -> pa.LargeBinaryArray:
    """The rows of a matrix as binary values."""
    offsets = np.arange(len(cells) + 1, dtype=np.int64) * cells.shape[1]
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(cells)]
    )
