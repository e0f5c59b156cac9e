"""Single pgoutput messages: the functions `encode_*` are stateless, so they can also write invalid sequences.

LSNs are ints, Decimals or text, as for `pgoutput_fast.parse_lsn`; timestamps are ints of microseconds since 2000-01-01
UTC or timezone-aware datetimes. An argument that its field cannot hold raises a `ValueError` with its name. Cell
contents are not interpreted: `pgoutput_fast.encode.values` encodes values of common types.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, Literal, TypeAlias

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.encode.values import to_microseconds
from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.lsn import Lsn, parse_lsn

__all__ = [
    "UNCHANGED",
    "Binary",
    "Cell",
    "ColumnSpec",
    "RelationSpec",
    "Timestamp",
    "encode_begin",
    "encode_begin_prepare",
    "encode_commit",
    "encode_commit_prepared",
    "encode_delete",
    "encode_insert",
    "encode_message",
    "encode_origin",
    "encode_prepare",
    "encode_relation",
    "encode_rollback_prepared",
    "encode_stream_abort",
    "encode_stream_commit",
    "encode_stream_prepare",
    "encode_stream_start",
    "encode_stream_stop",
    "encode_truncate",
    "encode_tuple",
    "encode_type",
    "encode_update",
]


_TAG = {kind: kind.to_bytes() for kind in kinds.MESSAGE_KINDS}
_NEW, _KEY, _OLD = (kind.to_bytes() for kind in (kinds.TUPLE_NEW, kinds.TUPLE_KEY, kinds.TUPLE_OLD))
_NULL, _NOT_SENT, _TEXT, _BINARY = (
    kind.to_bytes()
    for kind in (kinds.COLUMN_NULL, kinds.COLUMN_UNCHANGED, kinds.COLUMN_TEXT, kinds.COLUMN_BINARY)
)


class _Unchanged(Enum):
    UNCHANGED = "u"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""The cell of an unchanged TOASTed value in an update: sent as `u`, without a value."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A cell in binary format: `data` is the result of the type's send function."""

    data: bytes


Cell: TypeAlias = str | bytes | Binary | Literal[_Unchanged.UNCHANGED] | None
"""Null, a value in text format (str as UTF-8, bytes as they are) or in binary format, or `UNCHANGED`."""

Timestamp: TypeAlias = int | datetime
"""Microseconds since 2000-01-01 UTC, or a timezone-aware datetime."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A published column; `key`: whether it is part of the replica identity."""

    name: str
    type_oid: int
    typmod: int = -1
    key: bool = False


@dataclass(frozen=True, slots=True)
class RelationSpec:
    """The contents of a Relation message; two unequal specs of one oid are two versions of the relation.

    `replica_identity` is pg_class.relreplident: "d" default, "n" nothing, "f" full, "i" index.
    """

    oid: int
    namespace: str
    name: str
    columns: tuple[ColumnSpec, ...]
    replica_identity: str = "d"

    def __post_init__(self) -> None:
        expect_list("columns", self.columns, "ColumnSpec")


def encode_begin(final_lsn: Lsn, commit_timestamp: Timestamp, xid: int) -> bytes:
    """`B`: begin of a transaction that is not streamed."""
    return b"".join(
        (
            _TAG[kinds.MSG_BEGIN],
            _lsn("final_lsn", final_lsn),
            _timestamp("commit_timestamp", commit_timestamp),
            _uint32("xid", xid),
        )
    )


def encode_commit(commit_lsn: Lsn, end_lsn: Lsn, commit_timestamp: Timestamp) -> bytes:
    """`C`: commit of the transaction that the last `B` began."""
    return _TAG[kinds.MSG_COMMIT] + _commit_fields(commit_lsn, end_lsn, commit_timestamp)


def encode_origin(origin_lsn: Lsn, name: str) -> bytes:
    """`O`: the origin at which the transaction was first committed."""
    return _TAG[kinds.MSG_ORIGIN] + _lsn("origin_lsn", origin_lsn) + _string("name", name)


def encode_relation(relation: RelationSpec, *, xid: int | None = None) -> bytes:
    """`R`: a version of a relation.

    Like servers, flags every column as key for replica identity full, and writes pg_catalog as an empty namespace.
    """
    if relation.replica_identity not in ("d", "n", "f", "i"):
        raise ValueError('replica_identity must be "d", "n", "f" or "i"')
    full = relation.replica_identity == "f"
    parts = [
        _TAG[kinds.MSG_RELATION],
        _xid_prefix(xid),
        _uint32("oid", relation.oid),
        _namespace(relation.namespace),
        _string("name", relation.name),
        relation.replica_identity.encode(),
        _int16("columns", len(relation.columns)),
    ]
    for column in relation.columns:
        parts += (
            b"\1" if full or column.key else b"\0",
            _string("column name", column.name),
            _uint32("type_oid", column.type_oid),
            _int32("typmod", column.typmod),
        )
    return b"".join(parts)


def encode_type(oid: int, namespace: str, name: str, *, xid: int | None = None) -> bytes:
    """`Y`: the name of a type; pg_catalog is written as an empty namespace."""
    return b"".join(
        (
            _TAG[kinds.MSG_TYPE],
            _xid_prefix(xid),
            _uint32("oid", oid),
            _namespace(namespace),
            _string("name", name),
        )
    )


def encode_insert(relation_oid: int, new: Sequence[Cell], *, xid: int | None = None) -> bytes:
    """`I`: a new row."""
    expect_list("new", new, "cells")
    return b"".join(
        (
            _TAG[kinds.MSG_INSERT],
            _xid_prefix(xid),
            _uint32("relation_oid", relation_oid),
            _NEW,
            encode_tuple(new),
        )
    )


def encode_update(
    relation_oid: int,
    new: Sequence[Cell],
    *,
    old: Sequence[Cell] | None = None,
    key: Sequence[Cell] | None = None,
    xid: int | None = None,
) -> bytes:
    """`U`, with the whole old row (`O`), its identity (`K`) or neither before the new row (`N`)."""
    expect_list("new", new, "cells")
    expect_list("old", old, "cells")
    expect_list("key", key, "cells")
    before = b"" if old is None and key is None else _old_tuple(old, key)
    return b"".join(
        (
            _TAG[kinds.MSG_UPDATE],
            _xid_prefix(xid),
            _uint32("relation_oid", relation_oid),
            before,
            _NEW,
            encode_tuple(new),
        )
    )


def encode_delete(
    relation_oid: int,
    *,
    old: Sequence[Cell] | None = None,
    key: Sequence[Cell] | None = None,
    xid: int | None = None,
) -> bytes:
    """`D`, with the whole old row (`O`) or its identity (`K`)."""
    expect_list("old", old, "cells")
    expect_list("key", key, "cells")
    return b"".join(
        (
            _TAG[kinds.MSG_DELETE],
            _xid_prefix(xid),
            _uint32("relation_oid", relation_oid),
            _old_tuple(old, key),
        )
    )


def encode_truncate(
    relation_oids: Sequence[int],
    *,
    cascade: bool = False,
    restart_identity: bool = False,
    xid: int | None = None,
) -> bytes:
    """`T`: truncate of relations; servers send at least one."""
    expect_list("relation_oids", relation_oids, "oids")
    return b"".join(
        (
            _TAG[kinds.MSG_TRUNCATE],
            _xid_prefix(xid),
            _int32("relation_oids", len(relation_oids)),
            bytes((cascade * 1 + restart_identity * 2,)),
            *(_uint32("relation_oids", oid) for oid in relation_oids),
        )
    )


def encode_message(
    lsn: Lsn, prefix: str, content: bytes, *, transactional: bool = True, xid: int | None = None
) -> bytes:
    """`M`: a logical message."""
    return b"".join(
        (
            _TAG[kinds.MSG_MESSAGE],
            _xid_prefix(xid),
            b"\1" if transactional else b"\0",
            _lsn("lsn", lsn),
            _string("prefix", prefix),
            _length("content", content),
            content,
        )
    )


def encode_stream_start(xid: int, first_segment: bool) -> bytes:
    """`S`: begin of a stream block of the top-level transaction `xid`."""
    return _TAG[kinds.MSG_STREAM_START] + _uint32("xid", xid) + (b"\1" if first_segment else b"\0")


def encode_stream_stop() -> bytes:
    """`E`: end of a stream block."""
    return _TAG[kinds.MSG_STREAM_STOP]


def encode_stream_commit(xid: int, commit_lsn: Lsn, end_lsn: Lsn, commit_timestamp: Timestamp) -> bytes:
    """`c`: commit of a streamed transaction."""
    return (
        _TAG[kinds.MSG_STREAM_COMMIT]
        + _uint32("xid", xid)
        + _commit_fields(commit_lsn, end_lsn, commit_timestamp)
    )


def encode_stream_abort(
    xid: int, subxid: int, abort_lsn: Lsn | None = None, abort_timestamp: Timestamp | None = None
) -> bytes:
    """`A`, with position and time (streaming=parallel) or without both."""
    payload = _TAG[kinds.MSG_STREAM_ABORT] + _uint32("xid", xid) + _uint32("subxid", subxid)
    if abort_lsn is None and abort_timestamp is None:
        return payload
    if abort_lsn is None or abort_timestamp is None:
        raise ValueError("abort_lsn and abort_timestamp must be given together")
    return payload + _lsn("abort_lsn", abort_lsn) + _timestamp("abort_timestamp", abort_timestamp)


def encode_begin_prepare(
    prepare_lsn: Lsn, end_lsn: Lsn, prepare_timestamp: Timestamp, xid: int, gid: str
) -> bytes:
    """`b`: begin of a transaction that is sent at PREPARE TRANSACTION."""
    return _TAG[kinds.MSG_BEGIN_PREPARE] + _prepare_fields(prepare_lsn, end_lsn, prepare_timestamp, xid, gid)


def encode_prepare(prepare_lsn: Lsn, end_lsn: Lsn, prepare_timestamp: Timestamp, xid: int, gid: str) -> bytes:
    """`P`: end of the transaction that the last `b` began."""
    return (
        _TAG[kinds.MSG_PREPARE] + b"\0" + _prepare_fields(prepare_lsn, end_lsn, prepare_timestamp, xid, gid)
    )


def encode_stream_prepare(
    prepare_lsn: Lsn, end_lsn: Lsn, prepare_timestamp: Timestamp, xid: int, gid: str
) -> bytes:
    """`p`: PREPARE TRANSACTION of a streamed transaction."""
    return (
        _TAG[kinds.MSG_STREAM_PREPARE]
        + b"\0"
        + _prepare_fields(prepare_lsn, end_lsn, prepare_timestamp, xid, gid)
    )


def encode_commit_prepared(
    commit_lsn: Lsn, end_lsn: Lsn, commit_timestamp: Timestamp, xid: int, gid: str
) -> bytes:
    """`K`: COMMIT PREPARED."""
    return b"".join(
        (
            _TAG[kinds.MSG_COMMIT_PREPARED],
            _commit_fields(commit_lsn, end_lsn, commit_timestamp),
            _uint32("xid", xid),
            _string("gid", gid),
        )
    )


def encode_rollback_prepared(
    prepare_end_lsn: Lsn,
    rollback_end_lsn: Lsn,
    prepare_timestamp: Timestamp,
    rollback_timestamp: Timestamp,
    xid: int,
    gid: str,
) -> bytes:
    """`r`: ROLLBACK PREPARED."""
    return b"".join(
        (
            _TAG[kinds.MSG_ROLLBACK_PREPARED] + b"\0",
            _lsn("prepare_end_lsn", prepare_end_lsn),
            _lsn("rollback_end_lsn", rollback_end_lsn),
            _timestamp("prepare_timestamp", prepare_timestamp),
            _timestamp("rollback_timestamp", rollback_timestamp),
            _uint32("xid", xid),
            _string("gid", gid),
        )
    )


def encode_tuple(cells: Sequence[Cell]) -> bytes:
    """A TupleData: the number of cells, and the cells with their format letters."""
    expect_list("cells", cells, "cells")
    parts = [_int16("cells", len(cells))]
    for cell in cells:
        if cell is None:
            parts.append(_NULL)
        elif isinstance(cell, str):
            text = _utf8("cell", cell)
            parts += (_TEXT, _length("cell", text), text)
        elif isinstance(cell, bytes):
            parts += (_TEXT, _length("cell", cell), cell)
        elif isinstance(cell, Binary):
            parts += (_BINARY, _length("cell", cell.data), cell.data)
        elif cell is UNCHANGED:
            parts.append(_NOT_SENT)
        else:
            raise ValueError("cell must be None, str, bytes, Binary or UNCHANGED")
    return b"".join(parts)


def _old_tuple(old: Sequence[Cell] | None, key: Sequence[Cell] | None) -> bytes:
    if old is not None and key is None:
        return _OLD + encode_tuple(old)
    if key is not None and old is None:
        return _KEY + encode_tuple(key)
    raise ValueError("exactly one of old and key must be given")


def _commit_fields(commit_lsn: Lsn, end_lsn: Lsn, commit_timestamp: Timestamp) -> bytes:
    # The first byte is the unused flags.
    return b"".join(
        (
            b"\0",
            _lsn("commit_lsn", commit_lsn),
            _lsn("end_lsn", end_lsn),
            _timestamp("commit_timestamp", commit_timestamp),
        )
    )


def _prepare_fields(
    prepare_lsn: Lsn, end_lsn: Lsn, prepare_timestamp: Timestamp, xid: int, gid: str
) -> bytes:
    return b"".join(
        (
            _lsn("prepare_lsn", prepare_lsn),
            _lsn("end_lsn", end_lsn),
            _timestamp("prepare_timestamp", prepare_timestamp),
            _uint32("xid", xid),
            _string("gid", gid),
        )
    )


def _pack(format: str, argument: str, value: int, lowest: int, highest: int) -> bytes:
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"{argument} must be an int from {lowest} to {highest}")
    return struct.pack(format, value)


def _int16(argument: str, value: int) -> bytes:
    """A count, which is never negative."""
    return _pack(">h", argument, value, 0, 2**15 - 1)


def _int32(argument: str, value: int) -> bytes:
    return _pack(">i", argument, value, -(2**31), 2**31 - 1)


def _uint32(argument: str, value: int) -> bytes:
    return _pack(">I", argument, value, 0, 2**32 - 1)


def _lsn(argument: str, value: Lsn) -> bytes:
    try:
        return _pack(">q", argument, parse_lsn(value), 0, 2**63 - 1)
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{argument} must be an LSN below 2**63: {problem}") from None


def _timestamp(argument: str, value: Timestamp) -> bytes:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{argument} must have a time zone")
        value = to_microseconds(value)
    return _pack(">q", argument, value, -(2**63), 2**63 - 1)


def _length(argument: str, data: bytes) -> bytes:
    if len(data) >= 2**31:
        raise ValueError(f"{argument} is longer than {2**31 - 1} bytes")
    return struct.pack(">i", len(data))


def _xid_prefix(xid: int | None) -> bytes:
    return b"" if xid is None else _uint32("xid", xid)


def _namespace(namespace: str) -> bytes:
    return b"\0" if namespace == "pg_catalog" else _string("namespace", namespace)


def _string(argument: str, value: str) -> bytes:
    if "\0" in value:
        raise ValueError(f"{argument} must not contain NUL")
    return _utf8(argument, value) + b"\0"


def _utf8(argument: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{argument} must not contain lone surrogates") from None
