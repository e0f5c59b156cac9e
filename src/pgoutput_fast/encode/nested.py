"""Nested values, in text and in binary, byte for byte as a server sends them.

Inner values are passed in encoded form, from `encode.values` or this module: a str in text, bytes in binary, None for
null. So values of any depth are built from the inside out.

>>> from pgoutput_fast.encode.values import array_to_text
>>> array_to_text([record_to_text(["1", range_to_text("a b", None)]), None])
'{"(1,\\\\"[\\\\"\\\\"a b\\\\"\\\\",)\\\\")",NULL}'
"""

import struct
from collections.abc import Sequence
from typing import Literal

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.encode.values import to_binary, to_text

__all__ = [
    "EMPTY_RANGE_BINARY",
    "EMPTY_RANGE_TEXT",
    "list_to_binary",
    "multirange_to_binary",
    "multirange_to_text",
    "point_to_binary",
    "point_to_text",
    "range_to_binary",
    "range_to_text",
    "record_to_binary",
    "record_to_text",
]

Brackets = Literal["[)", "[]", "()", "(]"]

EMPTY_RANGE_TEXT = "empty"
EMPTY_RANGE_BINARY = b"\1"

_LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _NO_LOWER, _NO_UPPER = 2, 4, 8, 16
_SPECIAL_IN_RECORDS = frozenset('"\\(), \t\n\r\v\f')
_SPECIAL_IN_RANGES = _SPECIAL_IN_RECORDS | frozenset("[]")


def range_to_text(lower: str | None, upper: str | None, brackets: Brackets = "[)") -> str:
    """A range with these bounds; None is no bound, which is never included.

    >>> range_to_text("2000-01-01 00:00:00", None, "[]")
    '["2000-01-01 00:00:00",)'
    """
    opening, closing = _brackets(brackets)
    return "".join(
        (
            opening if lower is not None else "(",
            "" if lower is None else _quoted(lower, _SPECIAL_IN_RANGES),
            ",",
            "" if upper is None else _quoted(upper, _SPECIAL_IN_RANGES),
            closing if upper is not None else ")",
        )
    )


def range_to_binary(lower: bytes | None, upper: bytes | None, brackets: Brackets = "[)") -> bytes:
    """A range with these bounds; None is no bound, which is never included."""
    opening, closing = _brackets(brackets)
    flags = 0
    flags |= _NO_LOWER if lower is None else _LOWER_INCLUSIVE * (opening == "[")
    flags |= _NO_UPPER if upper is None else _UPPER_INCLUSIVE * (closing == "]")
    return bytes([flags]) + b"".join(_sized(bound) for bound in (lower, upper) if bound is not None)


def multirange_to_text(ranges: Sequence[str]) -> str:
    """A multirange of ranges, which are neither null nor empty, in ascending order."""
    expect_list("ranges", ranges, "ranges")
    if EMPTY_RANGE_TEXT in ranges:
        raise ValueError("a multirange cannot contain an empty range")
    return "{" + ",".join(ranges) + "}"


def multirange_to_binary(ranges: Sequence[bytes]) -> bytes:
    """A multirange of ranges, which are neither null nor empty, in ascending order."""
    expect_list("ranges", ranges, "ranges")
    if EMPTY_RANGE_BINARY in ranges:
        raise ValueError("a multirange cannot contain an empty range")
    return struct.pack(">i", len(ranges)) + b"".join(map(_sized, ranges))


def record_to_text(fields: Sequence[str | None]) -> str:
    """A composite of these fields.

    >>> record_to_text(["1", None, "", 'a "b" c'])
    '(1,,"","a ""b"" c")'
    """
    expect_list("fields", fields, "fields")
    return "(" + ",".join("" if each is None else _quoted(each, _SPECIAL_IN_RECORDS) for each in fields) + ")"


def record_to_binary(fields: Sequence[tuple[int, bytes | None]]) -> bytes:
    """A composite of these fields, as (oid, value)."""
    expect_list("fields", fields, "fields")
    parts = [struct.pack(">i", len(fields))]
    for oid, value in fields:
        parts += (struct.pack(">I", oid), _sized(value))
    return b"".join(parts)


def list_to_binary(elem_oid: int, items: Sequence[bytes | None], lower_bound: int = 1) -> bytes:
    """A one-dimensional array of elements whose type has the oid `elem_oid`."""
    expect_list("items", items, "items")
    head = struct.pack(">iiI", 1 if items else 0, any(item is None for item in items), elem_oid)
    bounds = struct.pack(">ii", len(items), lower_bound) if items else b""
    return head + bounds + b"".join(map(_sized, items))


def point_to_text(x: float, y: float) -> str:
    """A point of the plane."""
    return f"({to_text('float8', x)},{to_text('float8', y)})"


def point_to_binary(x: float, y: float) -> bytes:
    """A point of the plane."""
    return to_binary("float8", x) + to_binary("float8", y)


def _brackets(brackets: str) -> tuple[str, str]:
    if brackets not in ("[)", "[]", "()", "(]"):
        raise ValueError("brackets must be '[)', '[]', '()' or '(]'")
    return brackets[0], brackets[1]


def _quoted(value: str, special: frozenset[str]) -> str:
    if value and not special.intersection(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
