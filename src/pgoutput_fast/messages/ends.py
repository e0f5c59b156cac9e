"""Finds the end of a message in a sequence of bytes.

A message has no length of its own. This reads only the fields that determine its end: counts, lengths, and the letters
of tuples and cells. The decoder checks the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from pgoutput_fast.messages.fields import (
    ABORT_FIELDS,
    COLUMN_BYTES,
    FIELDS,
    PREFIXED,
    DamagedMessageError,
    Form,
)
from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.limits import MESSAGE_BYTES
from pgoutput_fast.protocol.reasons import Reason

__all__ = ["CutOffError", "end_of_message"]

_count16 = struct.Struct(">H").unpack_from
_count32 = struct.Struct(">I").unpack_from

_ABORT_BYTES = sum(form.size for _, form in ABORT_FIELDS)
_IDENTITIES = b"dnfi"
_WITH_VALUE = (kinds.COLUMN_TEXT, kinds.COLUMN_BINARY)
_WITHOUT_VALUE = (kinds.COLUMN_NULL, kinds.COLUMN_UNCHANGED)


class CutOffError(Exception):
    """The data end within the message."""


def end_of_message(data: bytes, at: int, in_stream: bool, terminator: int) -> int:
    """The offset after the message that begins at `at`.

    Args:
        data: bytes with the message and at least one byte after it.
        at: offset of the message.
        in_stream: whether it is from a stream block.
        terminator: the byte after every message, which decides between the two lengths of a Stream Abort.

    Raises:
        CutOffError: if the message does not end within `data`.
        DamagedError: if this is not a message. `at` of the error is an offset in `data`.
    """
    try:
        kind = data[at]
        fields = FIELDS.get(kind)
        if fields is None:
            raise DamagedMessageError(Reason.UNKNOWN_TAG, at, "a message's tag byte")
        start = at
        at += 5 if in_stream and kind in PREFIXED else 1
        if kind in _CHANGES:
            at = _CHANGES[kind](data, at + 4)
        else:
            for name, form in fields:
                at = _text_end(data, at) if form in (Form.NAME, Form.TEXT) else _past(data, at, name, form)
            rest = _REST.get(kind)
            if rest is not None:
                at = rest(data, at, terminator)
    except (IndexError, struct.error):
        raise CutOffError from None
    if at - start > MESSAGE_BYTES:
        raise DamagedMessageError(Reason.PAYLOAD_TOO_LONG, start, "the length of a message")
    if at >= len(data):
        raise CutOffError
    return at


def _past(data: bytes, at: int, name: str, form: Form) -> int:
    """The offset after a field of fixed size. Flags are checked, to detect early that this is not a message."""
    most = {Form.NO_FLAGS: 0, Form.YES_OR_NO: 1}.get(form)
    if most is not None and data[at] > most:
        raise DamagedMessageError(Reason.BAD_FLAGS, at, name)
    return at + form.size


def _text_end(data: bytes, at: int) -> int:
    end = data.find(b"\0", at)
    if end < 0:
        if len(data) - at > MESSAGE_BYTES:
            raise DamagedMessageError(Reason.PAYLOAD_TOO_LONG, at, "the zero byte at the end of a text")
        raise CutOffError
    return end + 1


def _tuple_end(data: bytes, at: int) -> int:
    """The offset after a tuple whose letter precedes `at`."""
    (count,) = _count16(data, at)
    at += 2
    for _ in range(count):
        kind = data[at]
        if kind in _WITH_VALUE:
            (length,) = _count32(data, at + 1)
            if length > MESSAGE_BYTES:
                raise DamagedMessageError(Reason.BAD_CELL_LENGTH, at + 1, "the length of a value")
            at += 5 + length
        elif kind in _WITHOUT_VALUE:
            at += 1
        else:
            raise DamagedMessageError(Reason.BAD_CELL_KIND, at, "the kind of a column, n, u, t or b")
    return at


def _expect_tuple(data: bytes, at: int, allowed: tuple[int, ...]) -> int:
    """The letter of the tuple at `at`."""
    if data[at] not in allowed:
        raise DamagedMessageError(
            Reason.BAD_TUPLE_TAG, at, f"the tag of a tuple, {' or '.join(map(chr, allowed))}"
        )
    return data[at]


def _insert_end(data: bytes, at: int) -> int:
    _expect_tuple(data, at, (kinds.TUPLE_NEW,))
    return _tuple_end(data, at + 1)


def _update_end(data: bytes, at: int) -> int:
    if _expect_tuple(data, at, (kinds.TUPLE_KEY, kinds.TUPLE_OLD, kinds.TUPLE_NEW)) != kinds.TUPLE_NEW:
        at = _tuple_end(data, at + 1)
    return _insert_end(data, at)


def _delete_end(data: bytes, at: int) -> int:
    _expect_tuple(data, at, (kinds.TUPLE_KEY, kinds.TUPLE_OLD))
    return _tuple_end(data, at + 1)


def _relation_end(data: bytes, at: int, terminator: int) -> int:
    if data[at] not in _IDENTITIES:
        raise DamagedMessageError(Reason.BAD_IDENTITY, at, "replica_identity d, n, f or i")
    (count,) = _count16(data, at + 1)
    at += 3
    for _ in range(count):
        if data[at] > 1:
            raise DamagedMessageError(Reason.BAD_FLAGS, at, "the flags of a column")
        at = _text_end(data, at + 1) + COLUMN_BYTES
    return at


def _truncate_end(data: bytes, at: int, terminator: int) -> int:
    (count,) = _count32(data, at)
    if not 0 < count <= MESSAGE_BYTES // 4:
        raise DamagedMessageError(Reason.BAD_COUNT, at, "the number of relations")
    if data[at + 4] > 3:
        raise DamagedMessageError(Reason.BAD_FLAGS, at + 4, "the flags of a Truncate")
    return at + 5 + 4 * int(count)


def _content_end(data: bytes, at: int, terminator: int) -> int:
    (length,) = _count32(data, at)
    if length > MESSAGE_BYTES:
        raise DamagedMessageError(Reason.BAD_COUNT, at, "the length of the content")
    return at + 4 + int(length)


def _abort_end(data: bytes, at: int, terminator: int) -> int:
    # No LSN begins with a newline byte before the WAL has 720 PB.
    return at if data[at] == terminator else at + _ABORT_BYTES


# A fast path for the most frequent kinds, which takes half the time.
_CHANGES: dict[int, Callable[[bytes, int], int]] = {
    kinds.MSG_INSERT: _insert_end,
    kinds.MSG_UPDATE: _update_end,
    kinds.MSG_DELETE: _delete_end,
}
_REST: dict[int, Callable[[bytes, int, int], int]] = {
    kinds.MSG_RELATION: _relation_end,
    kinds.MSG_TRUNCATE: _truncate_end,
    kinds.MSG_MESSAGE: _content_end,
    kinds.MSG_STREAM_ABORT: _abort_end,
}
