"""A number for each row that is quick to have: equal rows have the same, and most other rows another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.mirror.effect.fixed_values import fixed_values, is_fixed, validity
from pgoutput_fast.mirror.effect.row_codes import row_codes, storage

__all__ = ["Hashes", "row_hashes"]

Hashes: TypeAlias = npt.NDArray[np.uint64]

# An odd number whose bits are mixed well: 2 ** 64 divided by the golden ratio.
_FACTOR = 0x9E3779B97F4A7C15
_HALF = np.uint64(32)


def row_hashes(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """A hash of each row, in which the upper bits are mixed best. Equality is that of `row_codes`.

    Of values of fixed size the first 64 bits count, of texts, bytes and lists the length only. If the first column has
    such values, they count as a whole: they often identify the row.

    Args:
        columns: at least one, all of the same length.
    """
    found = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        column = storage(column)
        # Each column has a factor of its own, so that few sums are equal by chance.
        factor = np.uint64(pow(_FACTOR, number + 1, 1 << 64))
        if number == 0 and not is_fixed(column.type):
            found += row_codes([column])[0].astype(np.uint64) * factor
            continue
        end = 0
        # Chunk by chunk: what one step writes is in the cache for the next one.
        for chunk in column.chunks:
            begin, end = end, end + len(chunk)
            values = _quick(chunk)
            if values is not None:
                found[begin:end] += np.multiply(values, factor, dtype=np.uint64)
    return found


def _quick(chunk: pa.Array) -> npt.NDArray[Any] | None:
    """Unsigned integers, the same for equal values; None if all values count as the same."""
    kind = chunk.type
    if chunk.null_count == len(chunk):
        return None
    if is_fixed(kind):
        values = fixed_values(chunk)[0]
        # Round numbers of 64 bits differ in their upper half only.
        return values ^ (values >> _HALF) if pa.types.is_float64(kind) else values
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = np.frombuffer(chunk.buffers()[1], np.uint32)[chunk.offset : chunk.offset + len(chunk) + 1]
        lengths = offsets[1:] - offsets[:-1]
        return lengths * validity(chunk) if chunk.null_count else lengths
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _unsigned(pc.list_value_length(chunk))
    return None if pa.types.is_struct(kind) else _unsigned(pc.binary_length(chunk))


def _unsigned(lengths: pa.Array) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = pc.fill_null(lengths, 0).to_numpy()
    return values.view(f"u{values.itemsize}")
