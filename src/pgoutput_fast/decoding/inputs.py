"""Converts a caller's payloads and LSNs to Arrow arrays for the compiled core."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pgoutput_fast.protocol.lsn import parse_lsn
from pgoutput_fast.schema.foreign import cast, checked

__all__ = ["as_binary_arrays", "as_int64", "as_lsns"]

_EXPECTED = (
    "must be a pyarrow BinaryArray, LargeBinaryArray, BinaryViewArray or ChunkedArray of them without nulls, "
    "or an iterable of bytes"
)
_ONE = (
    "For one message pass a list, [message]. For a file that `pg_recvlogical -f` wrote, pass "
    "pgoutput_fast.read_recvlogical(path)"
)
_TEXT = (
    "Text such as '\\x42...' comes from SQL output: read the data column as bytes, for instance with COPY (FORMAT "
    "binary) or as psycopg2's memoryview, or pass bytes.fromhex(text.removeprefix('\\\\x'))"
)


# Tuples, not unions, which Python would build at every call: 1 of the 45 us of a call with ten messages.
_BYTES = (bytes, bytearray, memoryview)
_NO_PAYLOADS = (dict, set, frozenset, pa.RecordBatch, pa.Table)
_ROWS = (tuple, list, dict)


def as_binary_arrays(payloads: Any, what: str = "payloads") -> list[pa.Array]:
    """Binary or large binary arrays with the payloads in order. Arrow arrays are not copied, except binary views.

    Args:
        payloads: as `Decoder.decode` takes them.
        what: name of the argument in errors.

    Raises:
        TypeError: for nulls and for anything that is not bytes; the error text says what to pass.
        ValueError: for an array whose buffers are too short. Offsets are checked later, during decoding.
    """
    if isinstance(payloads, pa.ChunkedArray):
        if not payloads.num_chunks:
            return [_binary(pa.array([], payloads.type), what)]
        return [_binary(chunk, what) for chunk in payloads.chunks]
    if isinstance(payloads, pa.Array):
        return [_binary(payloads, what)]
    if isinstance(payloads, str):
        raise TypeError(f"{what} {_EXPECTED}; not str. {_TEXT}")
    if isinstance(payloads, _BYTES):
        raise TypeError(f"{what} {_EXPECTED}; not {type(payloads).__name__}. {_ONE}")
    if isinstance(payloads, _NO_PAYLOADS):
        raise TypeError(f"{what} {_EXPECTED}; not {type(payloads).__name__}")
    if not isinstance(payloads, Iterable):
        raise TypeError(f"{what} {_EXPECTED}; not {type(payloads).__name__}")
    # Through an iterator, because list() would also call `len`, which reads a whole pg_recvlogical file.
    items = payloads if isinstance(payloads, list) else list(iter(payloads))
    for kind in set(map(type, items)):
        if kind is type(None):
            raise TypeError(f"{what} {_EXPECTED}; there is None among them")
        if issubclass(kind, _ROWS):
            raise TypeError(
                f"{what} {_EXPECTED}; there is a {kind.__name__} among them{_of_rows(what, items, kind)}"
            )
        if issubclass(kind, str):
            raise TypeError(f"{what} {_EXPECTED}; there is a {kind.__name__} among them. {_TEXT}")
        # NumPy's fixed-width strings drop trailing zero bytes.
        if not issubclass(kind, _BYTES) or kind.__module__ == "numpy":
            raise TypeError(f"{what} {_EXPECTED}; there is a {kind.__name__} among them")
    # pyarrow returns more than 2 GiB as chunks.
    array = pa.array(items, pa.binary())
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def _of_rows(what: str, items: list[Any], kind: type) -> str:
    """A hint what to pass instead of rows of a peek query: (lsn, xid, data), or some of these columns."""
    row: Any = next(item for item in items if type(item) is kind)
    places = list(row) if isinstance(row, dict) else range(len(row))
    data = [place for place in places if isinstance(row[place], _BYTES)]
    if len(data) != 1:
        return ""
    # psycopg2 and psycopg return a pg_lsn as text.
    lsn = [place for place in places if isinstance(row[place], str) and "/" in row[place]]
    more = f", lsn=[row[{lsn[0]!r}] for row in rows]" if lsn else ""
    return f". Of such rows pass {what}=[bytes(row[{data[0]!r}]) for row in rows]{more}"


def _binary(array: pa.Array, what: str) -> pa.Array:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        raise TypeError(f"{what} {_EXPECTED}; not {array.type}. {_TEXT}")
    views = getattr(pa.types, "is_binary_view", lambda _: False)(array.type)
    if not views and not pa.types.is_binary(array.type) and not pa.types.is_large_binary(array.type):
        raise TypeError(f"{what} {_EXPECTED}; not {array.type}")
    array = checked(array, what)
    if views:
        array = cast(array, what, pa.large_binary())
    if array.null_count:
        raise TypeError(f"{what} {_EXPECTED}; {array.null_count} of {len(array)} are null")
    return array


def as_int64(values: Any, count: int, what: str, *, nulls: bool = True) -> pa.Array | None:
    """An int64 array of `count` values. Nulls become 0 if they are allowed. None stays None.

    Raises:
        TypeError: for values that are not integers.
        ValueError: for another number of values than `count`, a value beyond int64, a null that is not allowed, or a
            damaged array.
    """
    if values is None:
        return None
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        # Let pyarrow infer the type: a requested int64 would truncate fractions.
        try:
            values = pa.array(values)
        except pa.ArrowInvalid as problem:
            raise TypeError(f"{what} must be integers: {problem}") from None
        except OverflowError:
            raise ValueError(f"{what} must fit int64") from None
    if not pa.types.is_integer(values.type) and not pa.types.is_null(values.type):
        raise TypeError(f"{what} must be integers, not {values.type}")
    if isinstance(values, pa.ChunkedArray):
        chunks = [checked(chunk, what) for chunk in values.chunks]
        values = pa.chunked_array(chunks, values.type).combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # older pyarrow, without chunks
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    values = cast(checked(values, what), what, pa.int64())
    if len(values) != count:
        raise ValueError(f"{what} must have a value per payload: {count} payloads, {len(values)} values")
    if values.null_count:
        if not nulls:
            raise ValueError(f"{what} must have no nulls")
        values = values.fill_null(0)
    return values


def as_lsns(values: Any, count: int) -> pa.Array | None:
    """An int64 array of `count` LSNs, from any form that `parse_lsn` takes. Nulls become 0. None stays None.

    Integers, the usual case, are converted in one step.

    Raises:
        TypeError: for values that are not LSNs.
        ValueError: for another number of values than `count`, text that is not an LSN, a negative value or one
            beyond int64, or a damaged array.
    """
    if isinstance(values, str):
        raise TypeError("lsn must have a value per payload, not be a str")
    if values is None:
        return None
    if not isinstance(values, pa.Array | pa.ChunkedArray) and not hasattr(values, "dtype"):
        try:
            if hasattr(values, "__arrow_c_array__"):
                values = pa.array(values)
            elif hasattr(values, "__arrow_c_stream__"):
                values = pa.chunked_array(values)
        except pa.ArrowInvalid as problem:
            raise TypeError(f"lsn must be integers: {problem}") from None
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = values if isinstance(values, range) or hasattr(values, "dtype") else list(values)
        if _are_parsed(values):
            values = _parsed(values)
    elif _is_parsed(values.type):
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        texts = [text for chunk in chunks for text in checked(chunk, "lsn", full=True).to_pylist()]
        values = _parsed(texts)
    lsns = as_int64(values, count, "lsn")
    if lsns is not None and count:
        values = lsns.to_numpy()
        if values.min() < 0:
            at = int(values.argmin())
            raise ValueError(f"lsn[{at}] cannot be negative, as {values[at]} is")
    return lsns


def _are_parsed(values: Any) -> bool:
    if isinstance(values, range) or getattr(getattr(values, "dtype", None), "kind", "O") not in "OU":
        return False
    return any(issubclass(kind, str | Decimal) for kind in set(map(type, values)))


def _is_parsed(kind: pa.DataType) -> bool:
    texts = (
        pa.types.is_string,
        pa.types.is_large_string,
        getattr(pa.types, "is_string_view", lambda _: False),
    )
    return pa.types.is_decimal(kind) or any(is_text(kind) for is_text in texts)


def _parsed(values: Iterable[Any]) -> pa.Array:
    lsns = []
    for place, value in enumerate(values):
        try:
            lsns.append(None if value is None else parse_lsn(value))
        except (ValueError, TypeError) as problem:
            raise type(problem)(f"lsn[{place}]: {problem}") from None
    try:
        return pa.array(lsns, pa.int64())
    except OverflowError:
        raise ValueError("lsn must fit int64") from None
