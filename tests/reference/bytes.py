"""The basic reads of the reference decoder."""

from __future__ import annotations

import datetime
import re
import struct
from typing import Any


class MalformedError(ValueError):
    """Bytes that no server sends. `offset` is relative to the first byte read."""

    def __init__(self, reason: str, offset: int = 0, relation: str | None = None, column: str | None = None):
        super().__init__(reason)
        self.reason, self.offset, self.relation, self.column = reason, offset, relation, column


class NoArrowFormError(Exception):
    """A legal value that its Arrow type cannot hold."""


class Reader:
    """Big-endian reads that never run past the end."""

    def __init__(self, data: bytes, position: int = 0):
        self.data, self.position = data, position

    def take(self, count: int) -> bytes:
        if count < 0:
            raise MalformedError("negative length", self.position)
        if self.position + count > len(self.data):
            raise MalformedError("ends too early", self.position)
        start, self.position = self.position, self.position + count
        return self.data[start : self.position]

    def number(self, code: str) -> int:
        return int(struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0])

    def char(self) -> str:
        return self.take(1).decode("latin-1")

    def u8(self) -> int:
        return self.number("B")

    def i16(self) -> int:
        return self.number("h")

    def u16(self) -> int:
        return self.number("H")

    def i32(self) -> int:
        return self.number("i")

    def u32(self) -> int:
        return self.number("I")

    def lsn(self) -> int:
        """A log position; Arrow's int64 cannot hold the upper half of the unsigned range."""
        start, value = self.position, self.number("q")
        if value < 0:
            raise MalformedError("LSN out of range", start)
        return value

    def timestamp(self) -> int:
        """Microseconds since 1970 from microseconds since 2000."""
        start, value = self.position, self.number("q") + EPOCH_2000_IN_MICROSECONDS
        if value > INT64_MAX:
            raise MalformedError("timestamp out of range", start)
        return value

    def zero_flags(self) -> None:
        if self.u8() != 0:
            raise MalformedError("flags that are not 0", self.position - 1)

    def zero_or_one(self) -> int:
        value = self.u8()
        if value > 1:
            raise MalformedError("flag that is neither 0 nor 1", self.position - 1)
        return value

    def string(self) -> str:
        """A NUL-terminated UTF-8 string."""
        start, end = self.position, self.data.find(b"\0", self.position)
        if end < 0:
            raise MalformedError("string without its NUL", start)
        self.position = end + 1
        try:
            return self.data[start:end].decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedError("string that is not UTF-8", start) from None

    def end(self) -> None:
        if self.position != len(self.data):
            raise MalformedError("trailing bytes", self.position)


INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EPOCH_1970 = datetime.date(1970, 1, 1)
DAYS_TO_2000 = (datetime.date(2000, 1, 1) - EPOCH_1970).days
DAYS_IN_400_YEARS = 146_097
MICROSECONDS_A_SECOND = 1_000_000
MICROSECONDS_A_DAY = 86_400 * MICROSECONDS_A_SECOND
EPOCH_2000_IN_MICROSECONDS = DAYS_TO_2000 * MICROSECONDS_A_DAY


# --- cells ---


def ascii_text(raw: bytes) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise MalformedError("bytes that are not ASCII") from None


def string(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise NoArrowFormError("text that is not UTF-8") from None


def integer(raw: bytes, least: int, greatest: int) -> int:
    if not re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", raw):
        raise MalformedError("integer")
    if not least <= int(raw) <= greatest:
        raise MalformedError("integer out of range")
    return int(raw)


def fixed(raw: bytes, code: str) -> Any:
    if len(raw) != struct.calcsize(">" + code):
        raise MalformedError("binary value of a wrong length")
    return struct.unpack(">" + code, raw)[0]


def jsonb_from_binary(raw: bytes) -> str:
    if raw[:1] != b"\1":
        raise MalformedError("jsonb of an unknown version")
    return string(raw[1:])
