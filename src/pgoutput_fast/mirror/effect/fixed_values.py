"""Values of fixed size as integers: two are equal exactly if the values are."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["fixed_values", "is_fixed", "validity"]

_Integers: TypeAlias = npt.NDArray[Any]


def is_fixed(kind: pa.DataType) -> bool:
    """Whether values of the type have a fixed size, so that `fixed_values` has them as integers."""
    try:
        return kind.bit_width in (1, 8, 16, 32, 64, 128, 256)
    except ValueError:
        return False


def validity(array: pa.Array) -> npt.NDArray[np.uint8]:
    """1 for each value, 0 for each null."""
    return _bits(array, 0) if array.null_count else np.ones(len(array), np.uint8)


def fixed_values(array: pa.Array) -> list[_Integers]:
    """Unsigned integers of at most 64 bits for each value: an array, or several of values of more bits.

    A null is 0. All NaN are the same.

    Args:
        array: of a type that `is_fixed`, without an extension type.

    >>> fixed_values(pa.array([7, None], pa.int32()))
    [array([7, 0], dtype=uint32)]
    >>> fixed_values(pa.array([2**70], pa.decimal128(38)))
    [array([0], dtype=uint64), array([64], dtype=uint64)]
    """
    kind = array.type
    count = max(kind.bit_width // 64, 1)
    if not len(array):
        return [np.empty(0, np.uint64)] * count
    if kind.bit_width == 1:
        values = [_bits(array, 1)]
    else:
        raw = np.frombuffer(array.buffers()[1], f"u{kind.bit_width // count // 8}")
        raw = raw[array.offset * count : (array.offset + len(array)) * count]
        if pa.types.is_floating(kind):
            raw = _with_one_nan(raw)
        values = [raw[k::count] for k in range(count)]
    if array.null_count:
        there = validity(array)
        values = [each * there for each in values]
    return values


def _bits(array: pa.Array, number: int) -> npt.NDArray[np.uint8]:
    """The bits of a buffer, one for each value."""
    raw = np.frombuffer(array.buffers()[number], np.uint8)
    end = array.offset + len(array)
    return np.unpackbits(raw, count=end, bitorder="little")[array.offset :]


def _with_one_nan(raw: _Integers) -> _Integers:
    numbers = raw.view(f"f{raw.itemsize}")
    nan = np.isnan(numbers)
    return np.where(nan, np.array(np.nan, numbers.dtype).view(raw.dtype), raw) if nan.any() else raw
