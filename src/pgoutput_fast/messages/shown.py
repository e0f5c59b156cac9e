"""Values as text for people: short, and without terminal control characters."""

from __future__ import annotations

import codecs
from datetime import UTC, datetime, timedelta

__all__ = ["shown_binary", "shown_size", "shown_text", "shown_time"]

# Limits of a shown value.
_TEXT_CHARACTERS, _BINARY_BYTES = 60, 32

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def shown_size(size: int) -> str:
    """A number of bytes.

    >>> shown_size(1), shown_size(1200)
    ('1 byte', '1,200 bytes')
    """
    return "1 byte" if size == 1 else f"{size:,} bytes"


def shown_text(value: bytes) -> str:
    r"""The beginning of a text in quotes; bytes that are not UTF-8 as hex digits.

    >>> shown_text(b"first\n"), shown_text(b"\xff"), shown_text(b"x" * 100)[-6:]
    ("'first\\n'", 'not UTF-8, hex ff', "xx'...")
    """
    beginning = value[: _TEXT_CHARACTERS * 4]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) == len(value))
    except UnicodeDecodeError:
        return f"not UTF-8, {shown_binary(value)}"
    shown = repr(text[:_TEXT_CHARACTERS])
    return shown if len(text) <= _TEXT_CHARACTERS and len(beginning) == len(value) else f"{shown}..."


def shown_binary(value: bytes) -> str:
    r"""The beginning of binary data as hex digits.

    >>> shown_binary(b"\0\0\0\7"), shown_binary(b""), len(shown_binary(bytes(1000)))
    ('hex 00000007', 'empty', 71)
    """
    if not value:
        return "empty"
    return f"hex {value[:_BINARY_BYTES].hex()}{'...' if len(value) > _BINARY_BYTES else ''}"


def shown_time(microseconds: int) -> str:
    """A time of the protocol in ISO 8601.

    Args:
        microseconds: since 2000-01-01 UTC.

    >>> shown_time(0), shown_time(825505200123456), shown_time(-(1 << 63))
    ('2000-01-01T00:00:00Z', '2026-02-27T11:00:00.123456Z', 'beyond the years 1 to 9999')
    """
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return "beyond the years 1 to 9999"
    return moment.isoformat().replace("+00:00", "Z")
