"""Arrow data that somebody else made: checked before anything reads it.

Arrow's own functions, and the ground floor, believe what an array says of its buffers. An array from a file, another
process or another library may say more than there is.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["cast", "checked", "checked_table"]


def checked(array: pa.Array, what: str, *, full: bool = False) -> pa.Array:
    """The array, if its buffers are as long as its type, length and offset ask for.

    This takes as long for a long array as for a short one: of offsets it looks at the first and the last. Whoever reads
    values by their offsets checks each.

    Arrow lets an array without a value have no buffers: it comes back as one that has them.

    Args:
        array: an array of any type.
        what: what it is called in errors.
        full: look at every offset, view and index, too. Whatever Arrow itself computes with must be looked at so.

    Raises:
        ValueError: if it is damaged.
    """
    try:
        return _checked(array, full)
    except SystemError:
        # What Python makes of a length below 0.
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
    """The record batch or table itself, if all of its columns are sound in full and as long as it says.

    Raises:
        ValueError: if one is not.
    """
    for name, column in zip(table.schema.names, table.columns, strict=True):
        place = f"column {name} of {what}"
        if len(column) != table.num_rows:
            raise ValueError(f"{place} has {len(column)} values for {table.num_rows} rows")
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            checked(chunk, place, full=True)
    return table


def cast(array: pa.Array, what: str, to: pa.DataType) -> pa.Array:
    """The array as another type. It must have been checked in full if it is not of that type.

    Raises:
        TypeError: for a type that cannot be cast to the other.
        ValueError: for a value that does not fit.
    """
    if array.type.equals(to):
        return array
    try:
        return array.cast(to)
    except pa.ArrowInvalid:
        # Arrow's own words name the value.
        raise ValueError(f"{what} does not fit {to}: it is {array.type}") from None
    except pa.ArrowException:
        raise TypeError(f"{what} must be {to}, not {array.type}") from None
