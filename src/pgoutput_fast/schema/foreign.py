"""Validates Arrow data from outside of this library before use.

Arrow's functions and the compiled core trust an array's description of its buffers. An array from a file, another
process or another library may claim more data than its buffers have.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["cast", "checked", "checked_table"]


def checked(array: pa.Array, what: str, *, full: bool = False) -> pa.Array:
    """Returns the array if its buffers are as long as its type, length and offset require.

    The time does not depend on the length of the array: only the first and last offsets are checked. Code that reads
    values by offset must check all offsets.

    An Arrow array without values may have no buffers: the result is an equal array with buffers.

    Args:
        array: an array of any type.
        what: name of the array in errors.
        full: also check every offset, view and index. Set it before Arrow's functions use the array.

    Raises:
        ValueError: if the array is damaged.
    """
    try:
        return _checked(array, full)
    except SystemError:
        # Python's error for a negative length.
        raise ValueError(f"{what}: the Arrow array is damaged: its length is negative") from None
    except (ValueError, pa.ArrowException) as problem:
        raise ValueError(f"{what}: the Arrow array is damaged: {problem}") from None


def _checked(array: pa.Array, full: bool) -> pa.Array:
    if array.offset < 0:
        raise ValueError(f"it begins at {array.offset}")
    if len(array) == 0:
        return pa.array([], array.type)
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        validity, offsets, data = array.buffers()
        if data is None:
            buffers = [validity, offsets, pa.py_buffer(b"")]
            array = pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)
    elif not pa.types.is_primitive(array.type):
        full = True
    array.validate(full=full)
    return array


def checked_table(table: pa.RecordBatch | pa.Table, what: str) -> pa.RecordBatch | pa.Table:
    """Returns the record batch or table if all of its columns pass a full check and have its number of rows.

    Raises:
        ValueError: if a column is damaged or has another length.
    """
    for name, column in zip(table.schema.names, table.columns, strict=True):
        place = f"column {name} of {what}"
        if len(column) != table.num_rows:
            raise ValueError(f"{place} has {len(column)} values for {table.num_rows} rows")
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            checked(chunk, place, full=True)
    return table


def cast(array: pa.Array, what: str, to: pa.DataType) -> pa.Array:
    """The array cast to the type `to`. An array of another type must have passed a full check.

    Raises:
        TypeError: if the type of the array cannot be cast to `to`.
        ValueError: if a value does not fit `to`.
    """
    if array.type.equals(to):
        return array
    try:
        return array.cast(to)
    except pa.ArrowInvalid:
        # Arrow's error contains the value, so it is not repeated.
        raise ValueError(f"{what} does not fit {to}: it is {array.type}") from None
    except pa.ArrowException:
        raise TypeError(f"{what} must be {to}, not {array.type}") from None
