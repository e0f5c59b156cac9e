"""The fields of a message as JSON values, for programs."""

from __future__ import annotations

from typing import Any

from pgoutput_fast.base.errors import reason_text
from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.messages.fields import (
    ABORT_FIELDS,
    FIELDS,
    PREFIXED,
    DamagedMessageError,
    FieldReader,
    Form,
)
from pgoutput_fast.messages.formatting import format_time
from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["fields_of"]

_TUPLES = {kinds.TUPLE_NEW: "new", kinds.TUPLE_KEY: "key", kinds.TUPLE_OLD: "old"}


def fields_of(message: bytes, in_stream: bool | None, relation: Relation | None) -> dict[str, Any]:
    r"""The fields of a message, of a damaged one those before the damage.

    Args:
        message: the bytes.
        in_stream: whether it is from a stream block.
        relation: the relation of a change, for the names of its columns.

    >>> from pgoutput_fast.encode import encode_insert
    >>> fields_of(encode_insert(16401, ["1", None]), False, None)
    {'relation_oid': 16401, 'new': {'1': '1', '2': None}}
    >>> fields_of(b"B\0", False, None)
    {'damaged_at': 2, 'problem': 'the message ends too early'}
    """
    found: dict[str, Any] = {}
    reader = FieldReader(message, 1)
    kind = message[0] if message else -1
    try:
        if kind not in FIELDS:
            return {"damaged_at": 0, "problem": "unknown message"}
        if in_stream and kind in PREFIXED:
            reader.unsigned(4, "xid")
        for name, form in FIELDS[kind]:
            found[name] = _value(reader, name, form)
        if kind == kinds.MSG_RELATION:
            found |= _columns(reader)
        elif kind == kinds.MSG_TRUNCATE:
            found |= _truncated(reader)
        elif kind == kinds.MSG_MESSAGE:
            size = reader.signed(4, "the length of the content")
            start = reader.take(max(size, 0), "the content")
            found["content"] = _cell(message[start : reader.at])
        elif kind == kinds.MSG_STREAM_ABORT and reader.at < len(message):
            found |= {name: _value(reader, name, form) for name, form in ABORT_FIELDS}
        elif kind in kinds.ROW_CHANGES:
            while reader.at < len(message):
                _tuple(reader, relation, found)
        reader.finish()
    except DamagedMessageError as problem:
        found |= {"damaged_at": problem.at, "problem": reason_text(problem.reason)}
    return found


def _value(reader: FieldReader, name: str, form: Form) -> Any:
    if form is Form.LSN:
        return format_lsn(reader.lsn(name))
    if form is Form.TIME:
        return format_time(reader.time(name))
    if form in (Form.NAME, Form.TEXT):
        return reader.text(name)
    if form is Form.YES_OR_NO:
        return bool(reader.flags(1, name))
    return reader.unsigned(form.size, name)


def _columns(reader: FieldReader) -> dict[str, Any]:
    identity = chr(reader.unsigned(1, "replica_identity"))
    columns = []
    for _ in range(reader.signed(2, "the number of columns")):
        key = bool(reader.flags(1, "the flags of a column"))
        name = reader.text("the name of a column")
        oid, typmod = reader.unsigned(4, "the type oid"), reader.signed(4, "the type modifier")
        columns.append({"name": name, "type_oid": oid, "typmod": typmod, "key": key})
    return {"replica_identity": identity, "columns": columns}


def _truncated(reader: FieldReader) -> dict[str, Any]:
    count, flags = reader.signed(4, "the number of relations"), reader.flags(3, "flags")
    oids = [reader.unsigned(4, "the oid of a relation") for _ in range(count)]
    return {"relation_oids": oids, "cascade": bool(flags & 1), "restart_identity": bool(flags & 2)}


def _tuple(reader: FieldReader, relation: Relation | None, found: dict[str, Any]) -> None:
    """Adds the cells of a tuple as {column: value}. Unchanged TOAST values are listed separately."""
    tag = reader.unsigned(1, "the tag of a tuple")
    cells: dict[str, Any] = {}
    found[_TUPLES.get(tag, "new")] = cells
    unchanged: list[str] = []
    for number in range(reader.signed(2, "the number of columns")):
        named = relation is not None and number < len(relation.columns)
        name = relation.columns[number].name if relation is not None and named else str(number + 1)
        kind = reader.unsigned(1, f"the kind of column {number + 1}")
        if kind == kinds.COLUMN_UNCHANGED:
            unchanged.append(name)
        elif kind == kinds.COLUMN_NULL:
            cells[name] = None
        else:
            size = reader.unsigned(4, f"the length of column {number + 1}")
            start = reader.take(size, f"the value of column {number + 1}")
            data = reader.message[start : reader.at]
            cells[name] = _cell(data) if kind == kinds.COLUMN_TEXT else "\\x" + data.hex()
    if unchanged:
        found["unchanged"] = unchanged


def _cell(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\\x" + data.hex()
