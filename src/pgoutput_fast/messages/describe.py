"""describe(): one message as text for people, a damaged one up to the wrong byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from pgoutput_fast._core.protocol.headers import headers
from pgoutput_fast.base.errors import reason_text
from pgoutput_fast.catalog.formatting import format_name, format_type
from pgoutput_fast.catalog.relations import Catalog, Column, Relation
from pgoutput_fast.messages.fields import (
    ABORT_FIELDS,
    FIELDS,
    PREFIXED,
    DamagedMessageError,
    FieldReader,
    Form,
    is_streamed_message,
)
from pgoutput_fast.messages.formatting import (
    format_binary,
    format_size,
    format_text,
    format_time,
)
from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.protocol.reasons import OK, Reason

__all__ = ["Described", "describe", "described"]

# Limits of shown columns of a table (the server's maximum) and relations of a Truncate.
_SHOWN_COLUMNS, _SHOWN_RELATIONS = 1600, 100

_IDENTITIES = {
    "d": "default: the primary key",
    "n": "nothing",
    "f": "full: all columns",
    "i": "the columns of an index",
}
_TUPLES = {
    kinds.TUPLE_NEW: "new tuple (N)",
    kinds.TUPLE_KEY: "key tuple (K)",
    kinds.TUPLE_OLD: "old tuple (O)",
}
_CELLS = {
    kinds.COLUMN_NULL: "null",
    kinds.COLUMN_UNCHANGED: "unchanged TOAST value, not sent",
    kinds.COLUMN_TEXT: "text",
    kinds.COLUMN_BINARY: "binary",
}


class Described(NamedTuple):
    """One message as text for people.

    Attributes:
        text: as from `describe`.
        damaged_at: offset of the wrong byte, or None.
    """

    text: str
    damaged_at: int | None


def describe(
    message: bytes | bytearray | memoryview,
    *,
    in_stream: bool | None = None,
    catalog: Catalog | Relation | None = None,
) -> str:
    r"""One message as text for people: its kind, its fields, and the columns of its tuples.

    Long values are truncated. Characters that are not printable are escaped, so the text is safe for a terminal. Its
    format may change in any version: do not parse it.

    Args:
        message: one message as the plugin wrote it. Any bytes are allowed. The text of a damaged message has the part
            before the damage, and a line about the wrong byte and the expected field.
        in_stream: whether the message is from a stream block, where some kinds begin with an xid. The message alone
            does not always tell. By default the text uses the form that fits the message's length; if both fit, the
            plain one, with a note.
        catalog: relation versions, such as `decoder.catalog`, or the relation itself: for the names of tables and
            columns. The last version of a table counts.

    Raises:
        TypeError: if the message is not bytes.

    >>> from pgoutput_fast.encode import encode_begin, encode_insert
    >>> print(describe(encode_begin("0/1B0D988", 825505200000000, 725)))
    Begin, 21 bytes
      final_lsn: 0/1B0D988 (28367240)
      commit_timestamp: 2026-02-27T11:00:00Z
      xid: 725
    >>> insert = encode_insert(16401, ["1", None, "first\n"])
    >>> print(describe(insert[:-3], in_stream=False))
    Insert, 23 bytes
      relation_oid: 16401
      new tuple (N), 3 columns
        1: text, 1 byte: '1'
        2: null
        3: text, 6 bytes
      damaged at byte 23: the message ends too early; expected: the value of column 3 (6 bytes from byte 20 on)
    """
    return described(message, in_stream=in_stream, catalog=catalog).text


def described(
    message: bytes | bytearray | memoryview,
    *,
    in_stream: bool | None = None,
    catalog: Catalog | Relation | None = None,
) -> Described:
    """As `describe`, with the offset of the damage, if any.

    >>> described(b"B", in_stream=False).damaged_at
    1
    """
    data = _bytes(message)
    if catalog is not None and not isinstance(catalog, Catalog | Relation):
        raise TypeError(f"catalog must be a Catalog or a Relation, not {type(catalog).__name__}")
    relations = (
        [catalog] if isinstance(catalog, Relation) else catalog.relations if catalog is not None else []
    )
    tables = {relation.oid: relation for relation in relations}
    kind = data[0] if data else None
    if kind not in PREFIXED:
        return _Description(data, False, tables).result
    if in_stream is None:
        return _of_unknown_form(data, tables)
    return _Description(data, in_stream, tables).result


def _bytes(message: bytes | bytearray | memoryview) -> bytes:
    if isinstance(message, bytes):
        return message
    if isinstance(message, bytearray | memoryview):
        return bytes(message)
    hint = (
        ": of hex digits pass bytes.fromhex(text.removeprefix('\\\\x'))" if isinstance(message, str) else ""
    )
    raise TypeError(f"message must be bytes, not {type(message).__name__}{hint}")


def _of_unknown_form(data: bytes, tables: dict[int, Relation]) -> Described:
    """The text of a message that may be a plain one or one from a stream block."""
    found = headers(pa.array([data], pa.large_binary()))
    reason = found["reason"][0].as_py()
    if reason == OK:
        return _Description(data, bool(found["in_stream"][0].as_py()), tables).result
    plain, streamed = (_Description(data, form, tables) for form in (False, True))
    if plain.damaged_at is None and streamed.damaged_at is None:
        if data[0] == kinds.MSG_MESSAGE and not is_streamed_message(data, 0):
            return plain.result
        note = "  note: the bytes also fit a message from a stream block: in_stream=True describes that"
        return Described(f"{plain.text}\n{note}", None)
    if plain.damaged_at is None or streamed.damaged_at is None:
        return plain.result if plain.damaged_at is None else streamed.result
    # The form that is valid for more bytes is more likely.
    likely, other = (plain, streamed) if plain.damaged_at >= streamed.damaged_at else (streamed, plain)
    form = "a message from a stream block" if other is streamed else "a plain message"
    note = f"  note: as {form} it would be damaged at byte {other.damaged_at}"
    return Described(f"{likely.text}\n{note}", likely.damaged_at)


class _Description:
    """Reads a message and writes a line per field.

    Attributes:
        text: the lines.
        damaged_at: offset of the wrong byte, or None.
    """

    def __init__(self, data: bytes, in_stream: bool, tables: dict[int, Relation]) -> None:
        self._reader = FieldReader(data, 1)
        self._tables = tables
        self._lines: list[str] = []
        self.damaged_at: int | None = None
        try:
            self._read(data, in_stream)
        except DamagedMessageError as problem:
            self.damaged_at = problem.at
            what = reason_text(problem.reason)
            self._lines.append(f"  damaged at byte {problem.at}: {what}; expected: {problem.expected}")
        self.text = "\n".join(self._lines)

    @property
    def result(self) -> Described:
        """The lines and the damage."""
        return Described(self.text, self.damaged_at)

    def _read(self, data: bytes, in_stream: bool) -> None:
        size = format_size(len(data))
        if not data:
            self._lines.append("no message, 0 bytes")
            raise DamagedMessageError(Reason.EMPTY_PAYLOAD, 0, "a message's tag byte")
        kind = data[0]
        if kind not in FIELDS:
            self._lines.append(f"unknown message, {size}: {format_binary(data)}")
            raise DamagedMessageError(_not_a_message(data), 0, f"a message's tag byte, not 0x{kind:02x}")
        streamed = in_stream and kind in PREFIXED
        self._lines.append(f"{kinds.MESSAGE_KINDS[kind]}{' in a stream block' if streamed else ''}, {size}")
        if streamed:
            self._field("xid", Form.XID)
        oid = 0
        for name, form in FIELDS[kind]:
            value = self._field(name, form)
            oid = value if form is Form.OID else oid
        rest = _REST.get(kind)
        if rest is not None:
            rest(self, kind, oid)
        self._reader.finish()

    def _line(self, text: str, depth: int = 1) -> None:
        self._lines.append(f"{'  ' * depth}{text}")

    def _field(self, name: str, form: Form) -> int:
        """Reads a field and writes its line. Returns the value of an oid, else 0."""
        reader = self._reader
        if form is Form.LSN:
            lsn = reader.lsn(name)
            self._line(f"{name}: {format_lsn(lsn)} ({lsn})")
        elif form is Form.TIME:
            time = reader.time(name)
            text = format_time(time)
            beyond = "" if text.endswith("Z") else f" ({time} microseconds since 2000)"
            self._line(f"{name}: {text}{beyond}")
        elif form is Form.NO_FLAGS:
            reader.flags(0, name)
            self._line(f"{name}: none")
        elif form is Form.YES_OR_NO:
            self._line(f"{name}: {'yes' if reader.flags(1, name) else 'no'}")
        elif form is Form.NAME:
            text = reader.text(name)
            empty = " (pg_catalog)" if name == "namespace" and not text else ""
            self._line(f"{name}: {format_name(text)}{empty}")
        elif form is Form.TEXT:
            self._line(f"{name}: {format_text(reader.text(name).encode())}")
        else:
            value = reader.unsigned(form.size, name)
            self._line(f"{name}: {value}{self._table_name(value) if form is Form.OID else ''}")
            return value if form is Form.OID else 0
        return 0

    def _table_name(self, oid: int) -> str:
        table = self._tables.get(oid)
        return "" if table is None else f" ({format_name(table.namespace)}.{format_name(table.name)})"

    # ---- after the fields --------------------------------------------------------------------------------------------

    def _abort(self, kind: int, oid: int) -> None:
        if self._reader.at < len(self._reader.message):
            for name, form in ABORT_FIELDS:
                self._field(name, form)

    def _content(self, kind: int, oid: int) -> None:
        reader = self._reader
        size = reader.signed(4, "the length of the content")
        if size < 0:
            raise DamagedMessageError(
                Reason.BAD_COUNT, reader.at - 4, f"the length of the content, not {size}"
            )
        self._line(f"content: {format_size(size)}")
        start = reader.take(size, "the content")
        self._lines[-1] += f": {format_text(reader.message[start : reader.at])}" if size else ""

    def _truncated(self, kind: int, oid: int) -> None:
        reader = self._reader
        count = reader.signed(4, "the number of relations")
        if count <= 0:
            raise DamagedMessageError(
                Reason.BAD_COUNT, reader.at - 4, f"the number of relations, not {count}"
            )
        self._line(f"relations: {count:,}")
        flags = reader.flags(3, "flags")
        names = [name for bit, name in ((1, "cascade"), (2, "restart identity")) if flags & bit]
        self._line(f"flags: {', '.join(names) or 'none'}")
        for k in range(min(count, _SHOWN_RELATIONS)):
            oid = reader.unsigned(4, f"the oid of relation {k + 1} of {count:,}")
            self._line(f"relation_oid: {oid}{self._table_name(oid)}")
        if count > _SHOWN_RELATIONS:
            self._line(f"and {count - _SHOWN_RELATIONS:,} more")
            reader.take(4 * (count - _SHOWN_RELATIONS), "the oids of the other relations")

    def _columns(self, kind: int, oid: int) -> None:
        reader = self._reader
        identity = chr(reader.unsigned(1, "replica_identity"))
        if identity not in _IDENTITIES:
            expected = f"replica_identity d, n, f or i, not 0x{ord(identity):02x}"
            raise DamagedMessageError(Reason.BAD_IDENTITY, reader.at - 1, expected)
        self._line(f"replica_identity: {identity} ({_IDENTITIES[identity]})")
        count = reader.signed(2, "the number of columns")
        if count < 0:
            raise DamagedMessageError(Reason.BAD_COUNT, reader.at - 2, f"the number of columns, not {count}")
        self._line(f"columns: {count:,}")
        seen: set[str] = set()
        for number in range(1, count + 1):
            self._column(number, seen)
        self._and_more(count)

    def _column(self, number: int, seen: set[str]) -> None:
        """Reads a column of a Relation message. `seen` has the names of the preceding columns."""
        reader = self._reader
        key = ", key" if reader.flags(1, f"the flags of column {number}") else ""
        start = reader.at
        name = reader.text(f"the name of column {number}")
        if name in seen:
            raise DamagedMessageError(Reason.DUPLICATE_COLUMN, start, f"another name of column {number}")
        seen.add(name)
        oid = reader.unsigned(4, f"the type oid of column {number}")
        typmod = reader.signed(4, f"the type modifier of column {number}")
        if number <= _SHOWN_COLUMNS:
            self._line(f"{number} {format_name(name)}: {format_type(oid, typmod)}{key}", 2)

    def _tuples(self, kind: int, oid: int) -> None:
        if kind != kinds.MSG_INSERT:
            first = (kinds.TUPLE_KEY, kinds.TUPLE_OLD)
            before = self._tuple(oid, first if kind == kinds.MSG_DELETE else (*first, kinds.TUPLE_NEW))
            if kind == kinds.MSG_DELETE or before == kinds.TUPLE_NEW:
                return
        self._tuple(oid, (kinds.TUPLE_NEW,))

    def _tuple(self, oid: int, allowed: tuple[int, ...]) -> int:
        """Reads a tuple. Returns its tag."""
        reader = self._reader
        letters = " or ".join(map(chr, allowed))
        tag = reader.unsigned(1, f"the tag of a tuple, {letters}")
        if tag not in allowed:
            expected = f"the tag of a tuple, {letters}, not 0x{tag:02x}"
            raise DamagedMessageError(Reason.BAD_TUPLE_TAG, reader.at - 1, expected)
        count = reader.unsigned(2, "the number of columns")
        self._line(f"{_TUPLES[tag]}, {count:,} {'column' if count == 1 else 'columns'}")
        table = self._tables.get(oid)
        columns: tuple[Column, ...] = () if table is None else table.columns
        if table is not None and len(columns) != count:
            self._lines[-1] += (
                f"; the catalog's version of the table has {len(columns):,}, so no names are shown"
            )
            columns = ()
        for number in range(1, count + 1):
            self._cell(number, columns[number - 1] if columns else None, tag)
        self._and_more(count)
        return tag

    def _cell(self, number: int, column: Column | None, tag: int) -> None:
        reader = self._reader
        kind = reader.unsigned(1, f"the kind of column {number}")
        if kind not in _CELLS:
            expected = f"the kind of column {number}, n, u, t or b, not 0x{kind:02x}"
            raise DamagedMessageError(Reason.BAD_CELL_KIND, reader.at - 1, expected)
        label = (
            str(number) if column is None else f"{number} {format_name(column.name)} {column.type_in_words}"
        )
        line = f"{label}: {_CELLS[kind]}"
        if kind == kinds.COLUMN_NULL and tag == kinds.TUPLE_KEY and (column is None or not column.key):
            # A key tuple has nulls for all other columns.
            line = f"{label}: {'null or not sent' if column is None else 'not sent'}"
        value = b""
        has_value = kind in (kinds.COLUMN_TEXT, kinds.COLUMN_BINARY)
        try:
            if has_value:
                size = reader.signed(4, f"the length of column {number}")
                if size < 0:
                    expected = f"the length of column {number}, not {size}"
                    raise DamagedMessageError(Reason.BAD_CELL_LENGTH, reader.at - 4, expected)
                line += f", {format_size(size)}"
                start = reader.take(size, f"the value of column {number}")
                value = reader.message[start : reader.at]
                line += f": {format_text(value) if kind == kinds.COLUMN_TEXT else format_binary(value)}"
        finally:
            if number <= _SHOWN_COLUMNS:
                self._line(line, 2)

    def _and_more(self, count: int) -> None:
        if count > _SHOWN_COLUMNS:
            self._line(f"and {count - _SHOWN_COLUMNS:,} more", 2)


_REST: dict[int, Callable[[_Description, int, int], None]] = {
    kinds.MSG_STREAM_ABORT: _Description._abort,
    kinds.MSG_MESSAGE: _Description._content,
    kinds.MSG_TRUNCATE: _Description._truncated,
    kinds.MSG_RELATION: _Description._columns,
    kinds.MSG_INSERT: _Description._tuples,
    kinds.MSG_UPDATE: _Description._tuples,
    kinds.MSG_DELETE: _Description._tuples,
}


def _not_a_message(data: bytes) -> Reason:
    """The reason for an unknown tag: a message in text form, a framed message, or other data."""
    if data.startswith(b"\\x") or (len(data) > 1 and len(data) % 2 == 0 and not data[:64].strip(_HEX_DIGITS)):
        return Reason.TEXT_PAYLOAD
    if (data[0] == ord("w") and len(data) > 25) or (data[0] == ord("k") and len(data) == 18):
        return Reason.FRAMED_PAYLOAD
    return Reason.UNKNOWN_TAG


_HEX_DIGITS = b"0123456789abcdefABCDEF"
