"""The fields of messages by kind, and a reader that never reads beyond the message.

The compiled core reads the same fields faster, but keeps only those that decoding needs. This module is for displaying
all fields, and for finding the end of a message. Its errors have the same codes and offsets as the core's.
"""

from __future__ import annotations

from enum import Enum

from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.reasons import Reason

__all__ = [
    "ABORT_FIELDS",
    "COLUMN_BYTES",
    "FIELDS",
    "PREFIXED",
    "DamagedMessageError",
    "FieldReader",
    "Form",
    "is_streamed_message",
]


class Form(Enum):
    """The form of a field. The value is its size in bytes, and a word that distinguishes forms of one size."""

    LSN = 8, "lsn"
    TIME = 8, "time"
    XID = 4, "xid"
    OID = 4, "oid"
    NO_FLAGS = 1, "flags, of which none is in use"
    YES_OR_NO = 1, "0 or 1"
    NAME = 0, "name of SQL"
    TEXT = 0, "other text"

    @property
    def size(self) -> int:
        """Size in bytes; 0 for a text, which ends with a zero byte."""
        return self.value[0]


_COMMIT = (
    ("flags", Form.NO_FLAGS),
    ("commit_lsn", Form.LSN),
    ("end_lsn", Form.LSN),
    ("commit_timestamp", Form.TIME),
)
_BEGIN_PREPARE = (
    ("prepare_lsn", Form.LSN),
    ("end_lsn", Form.LSN),
    ("prepare_timestamp", Form.TIME),
    ("xid", Form.XID),
    ("gid", Form.TEXT),
)
_PREPARE = (("flags", Form.NO_FLAGS), *_BEGIN_PREPARE)

FIELDS: dict[int, tuple[tuple[str, Form], ...]] = {
    kinds.MSG_BEGIN: (("final_lsn", Form.LSN), ("commit_timestamp", Form.TIME), ("xid", Form.XID)),
    kinds.MSG_COMMIT: _COMMIT,
    kinds.MSG_BEGIN_PREPARE: _BEGIN_PREPARE,
    kinds.MSG_PREPARE: _PREPARE,
    kinds.MSG_COMMIT_PREPARED: (*_COMMIT, ("xid", Form.XID), ("gid", Form.TEXT)),
    kinds.MSG_ROLLBACK_PREPARED: (
        ("flags", Form.NO_FLAGS),
        ("prepare_end_lsn", Form.LSN),
        ("rollback_end_lsn", Form.LSN),
        ("prepare_timestamp", Form.TIME),
        ("rollback_timestamp", Form.TIME),
        ("xid", Form.XID),
        ("gid", Form.TEXT),
    ),
    kinds.MSG_STREAM_START: (("xid", Form.XID), ("first_segment", Form.YES_OR_NO)),
    kinds.MSG_STREAM_STOP: (),
    kinds.MSG_STREAM_COMMIT: (("xid", Form.XID), *_COMMIT),
    # A server with streaming=parallel also sends ABORT_FIELDS. Only the length of the message tells.
    kinds.MSG_STREAM_ABORT: (("xid", Form.XID), ("subxid", Form.XID)),
    kinds.MSG_STREAM_PREPARE: _PREPARE,
    kinds.MSG_ORIGIN: (("origin_lsn", Form.LSN), ("name", Form.TEXT)),
    kinds.MSG_TYPE: (("oid", Form.OID), ("namespace", Form.NAME), ("name", Form.NAME)),
    # Further parts follow these fields: columns, tuples, relations, the content.
    kinds.MSG_RELATION: (("oid", Form.OID), ("namespace", Form.NAME), ("name", Form.NAME)),
    kinds.MSG_INSERT: (("relation_oid", Form.OID),),
    kinds.MSG_UPDATE: (("relation_oid", Form.OID),),
    kinds.MSG_DELETE: (("relation_oid", Form.OID),),
    kinds.MSG_TRUNCATE: (),
    kinds.MSG_MESSAGE: (("transactional", Form.YES_OR_NO), ("lsn", Form.LSN), ("prefix", Form.TEXT)),
}
"""The fields after the tag byte by kind, as far as all messages of the kind have them in this order."""

ABORT_FIELDS = (("abort_lsn", Form.LSN), ("abort_timestamp", Form.TIME))
COLUMN_BYTES = Form.OID.size + 4
"""Size of a Relation message's fields after a column's name: the oid of the type, and its modifier."""

PREFIXED = frozenset((*kinds.KEPT_UNTIL_COMMIT, *kinds.DESCRIPTIONS))
"""The kinds whose messages begin with an xid inside a stream block, and only there."""


def is_streamed_message(data: bytes, at: int) -> bool:
    """Whether the logical message at `at` can be from a stream block; True if the deciding byte is missing.

    Non-transactional messages are sent between blocks. So the flags after the xid must be 1.
    """
    return data[at + 5 : at + 6] in (b"\1", b"")


# Microseconds from 1970 to 2000. A time must fit int64 as microseconds since 1970.
_LAST_TIME = (1 << 63) - 1 - 946_684_800_000_000


class DamagedMessageError(Exception):
    """A message that violates the protocol.

    Attributes:
        reason: what is wrong.
        at: offset of the wrong byte from the message's tag byte; the message's length if it ends too early.
        expected: name of the field or part that could not be read.
    """

    def __init__(self, reason: Reason, at: int, expected: str) -> None:
        super().__init__(reason, at, expected)
        self.reason = reason
        self.at = at
        self.expected = expected


class FieldReader:
    """Reads a message from `at` on. Reads raise DamagedError if the message does not have the field."""

    def __init__(self, message: bytes, at: int) -> None:
        self.message = message
        self.at = at

    def take(self, size: int, field: str) -> int:
        """Skips `size` bytes and returns their offset."""
        start = self.at
        if len(self.message) - start < size:
            what = f"{field} ({size:,} {'byte' if size == 1 else 'bytes'} from byte {start} on)"
            raise DamagedMessageError(Reason.TRUNCATED, len(self.message), what)
        self.at += size
        return start

    def unsigned(self, size: int, field: str) -> int:
        """An unsigned integer of `size` bytes."""
        start = self.take(size, field)
        return int.from_bytes(self.message[start : self.at])

    def signed(self, size: int, field: str) -> int:
        """A signed integer of `size` bytes."""
        start = self.take(size, field)
        return int.from_bytes(self.message[start : self.at], signed=True)

    def lsn(self, field: str) -> int:
        """An LSN of 63 bits."""
        value = self.unsigned(8, field)
        if value >> 63:
            raise DamagedMessageError(Reason.BAD_POSITION, self.at - 8, f"{field} below 2^63")
        return value

    def time(self, field: str) -> int:
        """Microseconds since 2000."""
        value = self.signed(8, field)
        if value > _LAST_TIME:
            raise DamagedMessageError(Reason.BAD_TIMESTAMP, self.at - 8, f"{field} up to {_LAST_TIME}")
        return value

    def flags(self, most: int, field: str) -> int:
        """A byte of flags from 0 to `most`."""
        value = self.unsigned(1, field)
        if value > most:
            allowed = "0" if most == 0 else f"from 0 to {most}"
            raise DamagedMessageError(Reason.BAD_FLAGS, self.at - 1, f"{field} {allowed}, not {value}")
        return value

    def text(self, field: str) -> str:
        """A zero-terminated UTF-8 text."""
        start, end = self.at, self.message.find(b"\0", self.at)
        if end < 0:
            what = f"{field} (text from byte {start} on, with a zero byte at its end)"
            raise DamagedMessageError(Reason.TRUNCATED, len(self.message), what)
        self.at = end + 1
        try:
            return self.message[start:end].decode()
        except UnicodeDecodeError:
            raise DamagedMessageError(Reason.BAD_STRING, start, f"{field} in UTF-8") from None

    def finish(self) -> None:
        """Checks that the message ends here."""
        left = len(self.message) - self.at
        if left:
            raise DamagedMessageError(Reason.TRAILING_BYTES, self.at, f"the message's end, not {left:,} more")
