"""Converts messages from the encoding of their database to UTF-8."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import pyarrow as pa

from pgoutput_fast.catalog.encodings import to_utf8
from pgoutput_fast.messages.fields import COLUMN_BYTES, FIELDS, PREFIXED
from pgoutput_fast.protocol import kinds

__all__ = ["CopyRecoder", "Recoder", "text_options"]

_XID_BYTES = 4
_IDENTITY_BYTES = 1
_COLUMN_FLAG_BYTES = 1
_TUPLES = (kinds.TUPLE_NEW, kinds.TUPLE_KEY, kinds.TUPLE_OLD)
_VALUES = (kinds.COLUMN_TEXT, kinds.COLUMN_BINARY)


def text_options(options: Mapping[str, str]) -> dict[str, str]:
    """The plugin's options for messages for a `Recoder`: values in text format, never in binary."""
    return {name: value for name, value in options.items() if name != "binary"}


class Recoder:
    """Converts the messages of one session to UTF-8, in order.

    A value with a byte without a UTF-8 form becomes invalid UTF-8, so that the decoder rejects only this value. In a
    name, such a byte becomes an escape like \\x81. The content of logical messages is unchanged, because servers do not
    convert it.

    Args:
        codec: codec for the database's encoding, from `CODECS`.
    """

    def __init__(self, codec: str) -> None:
        self._codec = codec
        self._is_in_block = False

    def recode(self, payloads: pa.Array) -> pa.Array:
        """The messages in UTF-8, as an array of the same type."""
        return pa.array(map(self._message, payloads.to_pylist()), payloads.type)

    def _message(self, message: bytes) -> bytes:
        kind = message[0] if message else 0
        if kind == kinds.MSG_STREAM_START:
            self._is_in_block = True
        elif kind == kinds.MSG_STREAM_STOP:
            self._is_in_block = False
        if kind not in FIELDS or message.isascii():
            return message
        try:
            return _Message(message, self._codec).recoded(has_xid=self._is_in_block and kind in PREFIXED)
        except (IndexError, struct.error, ValueError):
            return message  # malformed: the decoder reports it


# The signature and the flags of a COPY in binary format. The size of an extension follows.
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_COPY_HEADER_BYTES = len(_COPY_SIGNATURE) + 4
_NULL = 0xFFFFFFFF


class CopyRecoder:
    """Converts the rows of one COPY in binary format to UTF-8, in order. All columns must be texts.

    Args:
        codec: as for `Recoder`.
    """

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def recode(self, rows: pa.Array) -> bytes:
        """The bytes of whole rows, from messages of a server."""
        return b"".join(part for row in rows.to_pylist() for part in self._row(row))

    def _row(self, row: bytes) -> Iterator[bytes]:
        at = 0
        if row.startswith(_COPY_SIGNATURE):
            (extension,) = struct.unpack_from(">I", row, _COPY_HEADER_BYTES)
            at = _COPY_HEADER_BYTES + 4 + extension
            yield row[:at]
        if len(row) - at <= 2:
            yield row[at:]  # the end of the COPY, or nothing
            return
        (count,) = struct.unpack_from(">H", row, at)
        yield row[at : at + 2]
        at += 2
        for _ in range(count):
            (size,) = struct.unpack_from(">I", row, at)
            at += 4
            if size == _NULL:
                yield row[at - 4 : at]
                continue
            value = to_utf8(row[at : at + size], self._codec)
            at += size
            yield len(value).to_bytes(4)
            yield value


class _Message:
    """Copies one message field by field."""

    def __init__(self, message: bytes, codec: str) -> None:
        self._message = message
        self._codec = codec
        self._at = 0
        self._parts: list[bytes] = []

    def recoded(self, *, has_xid: bool) -> bytes:
        kind = self._message[0]
        self._copy(1 + (_XID_BYTES if has_xid else 0))
        for _, form in FIELDS[kind]:
            if form.size:
                self._copy(form.size)
            else:
                self._text()
        if kind == kinds.MSG_RELATION:
            self._columns()
        elif kind in kinds.ROW_CHANGES:
            while self._at < len(self._message):
                self._tuple()
        self._copy(len(self._message) - self._at)
        return b"".join(self._parts)

    def _copy(self, size: int) -> None:
        self._parts.append(self._message[self._at : self._at + size])
        self._at += size

    def _text(self) -> None:
        """Converts a text that ends with a zero byte."""
        end = self._message.index(b"\0", self._at)
        text = self._message[self._at : end]
        # A decoder rejects values that are not UTF-8. For a name, a prefix or a gid, it has no rejects.
        self._parts.append(text.decode(self._codec, "backslashreplace").encode())
        self._at = end
        self._copy(1)

    def _columns(self) -> None:
        self._copy(_IDENTITY_BYTES)
        (count,) = struct.unpack_from(">H", self._message, self._at)
        self._copy(2)
        for _ in range(count):
            self._copy(_COLUMN_FLAG_BYTES)
            self._text()
            self._copy(COLUMN_BYTES)

    def _tuple(self) -> None:
        if self._message[self._at] not in _TUPLES:
            raise ValueError("no tuple begins here")
        self._copy(1)
        (count,) = struct.unpack_from(">H", self._message, self._at)
        self._copy(2)
        for _ in range(count):
            has_value = self._message[self._at] in _VALUES
            self._copy(1)
            if has_value:
                (size,) = struct.unpack_from(">I", self._message, self._at)
                self._at += 4
                if len(self._message) - self._at < size:
                    raise ValueError("the message ends within a value")
                value = to_utf8(self._message[self._at : self._at + size], self._codec)
                self._at += size
                self._parts += (len(value).to_bytes(4), value)
