"""Assigns rows to buckets by the values of columns: the same values have the same bucket in all tasks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.match import float_bits, storage

__all__ = ["buckets_of"]

_Hashes: TypeAlias = npt.NDArray[np.uint64]
_FACTOR, _OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
# Of a text or bytes, only the first and last bytes, this many each, and the length are hashed.
_ENDS = 16


def buckets_of(rows: pa.Table, columns: Sequence[str], count: int) -> npt.NDArray[np.int32]:
    """Returns a bucket from 0 up to `count` for each row.

    Null counts as a missing column, -0.0 as 0.0, and all NaNs as equal. Lists and structs are ignored.

    Args:
        rows: rows whose columns have the same types in every task.
        columns: the columns to hash.
        count: the number of buckets.

    >>> import pyarrow as pa
    >>> rows = pa.table({"id": [1, 2, 1], "note": ["a", "a", "a"]})
    >>> first, other, same = buckets_of(rows, ["id", "note"], 1000)
    >>> first == same, first == other
    (np.True_, np.False_)
    """
    found = np.zeros(rows.num_rows, np.uint64)
    if count == 1:
        return found.astype(np.int32)
    for name in columns:
        column = storage(rows.column(name)).combine_chunks()
        for values in _numbers(column):
            mixed = _mixed(values.astype(np.uint64) ^ np.uint64(zlib.crc32(name.encode())))
            if column.null_count:
                mixed[column.is_null().to_numpy(zero_copy_only=False)] = 0
            found += mixed
    return (_mixed(found) % np.uint64(count)).astype(np.int32)


def _mixed(values: _Hashes) -> _Hashes:
    values = (values ^ (values >> np.uint64(30))) * _OTHER
    values = (values ^ (values >> np.uint64(27))) * _FACTOR
    return values ^ (values >> np.uint64(31))


def _numbers(column: pa.Array | pa.ChunkedArray) -> list[npt.NDArray[Any]]:
    """Integers that are equal if the values are."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = whole.type
    if pa.types.is_floating(kind):
        zero = pc.add(whole, pa.scalar(0.0, kind))  # -0.0 + 0.0 is 0.0
        return [_filled(float_bits(pa.chunked_array([zero])))]
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return [_filled(whole.cast(pa.int64()))]
    if pa.types.is_date32(kind):
        return [_filled(whole.cast(pa.int32()))]
    if pa.types.is_timestamp(kind):
        return [_filled(whole.cast(pa.int64()))]
    if pa.types.is_decimal128(kind):
        halves = np.frombuffer(whole.buffers()[1], np.uint64)[
            2 * whole.offset : 2 * (whole.offset + len(whole))
        ]
        return [halves[::2], halves[1::2] ^ _FACTOR]
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return []
    return [_text_numbers(whole.cast(pa.large_binary()))]


def _filled(integers: Any) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = pc.fill_null(integers, 0).to_numpy(zero_copy_only=False)
    return values


def _text_numbers(values: pa.LargeBinaryArray) -> _Hashes:
    if not len(values):
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    begins, lengths = offsets[:-1], np.diff(offsets)
    found = lengths.astype(np.uint64) * _FACTOR
    if not len(data):
        return found
    places = np.arange(_ENDS)
    for begin in (begins, begins + np.maximum(lengths - _ENDS, 0)):
        at = begin[:, None] + places
        has = places < np.minimum(lengths, _ENDS)[:, None]
        taken = np.where(has, data[np.minimum(at, len(data) - 1)], np.uint8(0))
        for half in np.ascontiguousarray(taken).view(np.uint64).T:
            found = _mixed(found ^ half)
    return found
