"""Positions in a server's write-ahead log (LSNs), as numbers and as PostgreSQL's text."""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from typing import TypeAlias

__all__ = ["Lsn", "format_lsn", "parse_lsn"]

Lsn: TypeAlias = int | str | Decimal
"""A position: bytes from the log's beginning, as an int or an integral Decimal; or text such as `16/B374D848`."""

# As accepted by pg_lsn's input function.
_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_END = 1 << 64


def parse_lsn(lsn: Lsn) -> int:
    """The position as a number: bytes from the log's beginning.

    Args:
        lsn: text as PostgreSQL shows it: two hexadecimal numbers of at most 32 bits with a slash between. Or the number
            itself, as an int (NumPy's count) or a Decimal, which is what drivers give for `lsn - '0/0'`.

    Raises:
        ValueError: for text of another form, and for a number that is negative, not whole or beyond 64 bits.
        TypeError: for anything else. A float is refused: its precision is too low.

    >>> parse_lsn("0/1B0D988"), parse_lsn(Decimal(28367240)), format_lsn(parse_lsn("16/b374d848"))
    (28367240, 28367240, '16/B374D848')
    """
    if isinstance(lsn, str):
        match = _TEXT.fullmatch(lsn)
        if match is None:
            raise ValueError(f"an LSN as text is like '16/B374D848' (hex digits/hex digits), not {lsn!r}")
        return int(match[1], 16) << 32 | int(match[2], 16)
    number = _number(lsn)
    if number is None:
        raise TypeError(
            f"an LSN is an int, a Decimal or text such as '16/B374D848', not a {type(lsn).__name__}"
        )
    if number != lsn or not 0 <= number < _END:
        raise ValueError(f"an LSN is a whole number from 0 to 2**64 - 1, not {lsn!r}")
    return number


def _number(lsn: object) -> int | None:
    """The number as an int, truncated; -1 for an infinite or NaN Decimal, None for other types."""
    if isinstance(lsn, Decimal):
        return int(lsn) if lsn.is_finite() else -1
    if isinstance(lsn, bool):
        return None
    try:
        return operator.index(lsn)  # type: ignore[arg-type]
    except TypeError:
        return None


def format_lsn(lsn: Lsn) -> str:
    """The position as PostgreSQL before 19 shows it; later versions pad the second number with zeros.

    Args:
        lsn: as `parse_lsn` takes it.

    Raises:
        ValueError, TypeError: as `parse_lsn`.

    >>> format_lsn(0x16B374D848), format_lsn(0)
    ('16/B374D848', '0/0')
    """
    number = parse_lsn(lsn)
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
