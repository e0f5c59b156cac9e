"""A number for each row that is quick to have: equal rows have the same, and most other rows another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.mirror.effect.row_codes import float_bits, row_codes, storage

__all__ = ["Hashes", "row_hashes"]

Hashes: TypeAlias = npt.NDArray[np.uint64]

# An odd number whose bits are mixed well: 2 ** 64 divided by the golden ratio.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def row_hashes(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """A hash of each row. Equality is that of `row_codes`.

    Of values of fixed size the whole value counts, of texts, bytes and lists the length only. If the first column has
    such values, they count as a whole: they often identify the row.

    Args:
        columns: at least one, all of the same length.
    """
    found = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        column = storage(column)
        values = _quick(column)
        if number == 0 and not _is_fixed(column.type):
            values = row_codes([column])[0]
        if values is not None:
            found = (found ^ values.astype(np.uint64)) * _FACTOR
            found ^= found >> _SHIFT
    return found


def _is_fixed(kind: pa.DataType) -> bool:
    try:
        return kind.bit_width in (1, 8, 16, 32, 64, 128, 256)
    except ValueError:
        return False


def _quick(column: pa.ChunkedArray) -> npt.NDArray[Any] | None:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _whole(pc.list_value_length(column))
    if pa.types.is_boolean(kind):
        return _whole(column.cast(pa.uint8()))
    if pa.types.is_floating(kind):
        return _whole(float_bits(column))
    if _is_fixed(kind):
        return _raw(column.combine_chunks())
    if pa.types.is_struct(kind) or pa.types.is_null(kind):
        return None
    return _whole(pc.binary_length(column))


def _whole(integers: pa.ChunkedArray) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = pc.fill_null(integers, 0).to_numpy()
    return values


def _raw(array: pa.Array) -> npt.NDArray[Any]:
    """The bytes of values of fixed size as integers; of large values the first eight bytes."""
    width = array.type.bit_width
    step = max(width // 64, 1)
    if not len(array):
        return np.empty(0, np.uint64)
    raw = np.frombuffer(array.buffers()[1], f"u{width // step // 8}")
    values = raw[array.offset * step : (array.offset + len(array)) * step : step]
    return (
        np.where(array.is_valid().to_numpy(zero_copy_only=False), values, 0) if array.null_count else values
    )
