"""Values as text for people: short, and without terminal control characters."""

from __future__ import annotations

import codecs
from datetime import UTC, datetime, timedelta

__all__ = ["format_binary", "format_size", "format_text", "format_time"]

# Limits of a formatted value.
_TEXT_CHARACTERS, _BINARY_BYTES = 60, 32

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def format_size(size: int) -> str:
    """A number of bytes.

    >>> format_size(1), format_size(1200)
    ('1 byte', '1,200 bytes')
    """
    return "1 byte" if size == 1 else f"{size:,} bytes"


def format_text(value: bytes) -> str:
    r"""The beginning of a text in quotes; bytes that are not UTF-8 as hex digits.

    >>> format_text(b"first\n"), format_text(b"\xff"), format_text(b"x" * 100)[-6:]
    ("'first\\n'", 'not UTF-8, hex ff', "xx'...")
    """
    beginning = value[: _TEXT_CHARACTERS * 4]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) == len(value))
    except UnicodeDecodeError:
        return f"not UTF-8, {format_binary(value)}"
    quoted = repr(text[:_TEXT_CHARACTERS])
    return quoted if len(text) <= _TEXT_CHARACTERS and len(beginning) == len(value) else f"{quoted}..."


def format_binary(value: bytes) -> str:
    r"""The beginning of binary data as hex digits.

    >>> format_binary(b"\0\0\0\7"), format_binary(b""), len(format_binary(bytes(1000)))
    ('hex 00000007', 'empty', 71)
    """
    if not value:
        return "empty"
    return f"hex {value[:_BINARY_BYTES].hex()}{'...' if len(value) > _BINARY_BYTES else ''}"


def format_time(microseconds: int) -> str:
    """A time of the protocol in ISO 8601.

    Args:
        microseconds: since 2000-01-01 UTC.

    >>> format_time(0), format_time(825505200123456), format_time(-(1 << 63))
    ('2000-01-01T00:00:00Z', '2026-02-27T11:00:00.123456Z', 'beyond the years 1 to 9999')
    """
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return "beyond the years 1 to 9999"
    return moment.isoformat().replace("+00:00", "Z")
