"""Messages built by hand, field by field, for tests that state the expected result."""

from __future__ import annotations

import struct
from typing import Any

TIME = 5_000_000  # microseconds since 2000
TIME_1970 = 946_684_805_000_000
INT4, TEXT, NUMERIC, TIMESTAMPTZ = 23, 25, 1700, 1184


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def cell(value: bytes | tuple[str, bytes] | None) -> bytes:
    """bytes: a text cell; ("b", bytes): a binary one; None: null; Ellipsis: not sent."""
    if value is None:
        return b"n"
    if value is ...:
        return b"u"
    kind, raw = value if isinstance(value, tuple) else ("t", value)
    return kind.encode() + u32(len(raw)) + raw


def tup(*cells: Any) -> bytes:
    return struct.pack(">h", len(cells)) + b"".join(map(cell, cells))


def begin(lsn: int = 100, xid: int = 7) -> bytes:
    return b"B" + struct.pack(">qqI", lsn, TIME, xid)


def commit(lsn: int = 100, flags: int = 0) -> bytes:
    return b"C" + struct.pack(">bqqq", flags, lsn, lsn + 8, TIME)


def begin_prepare(xid: int = 7, gid: bytes = b"g") -> bytes:
    return b"b" + struct.pack(">qqqI", 500, 508, TIME, xid) + gid + b"\0"


def prepare(xid: int = 7, gid: bytes = b"g", tag: bytes = b"P") -> bytes:
    return tag + struct.pack(">bqqqI", 0, 500, 508, TIME, xid) + gid + b"\0"


def commit_prepared(xid: int = 7, gid: bytes = b"g") -> bytes:
    return b"K" + struct.pack(">bqqqI", 0, 600, 608, TIME + 1, xid) + gid + b"\0"


def rollback_prepared(xid: int = 7, gid: bytes = b"g") -> bytes:
    return b"r" + struct.pack(">bqqqqI", 0, 508, 708, TIME, TIME + 2, xid) + gid + b"\0"


def start(xid: int = 9, first: int = 1) -> bytes:
    return b"S" + u32(xid) + bytes([first])


STOP = b"E"


def stream_commit(xid: int = 9, lsn: int = 400) -> bytes:
    return b"c" + u32(xid) + struct.pack(">bqqq", 0, lsn, lsn + 8, TIME)


def abort(xid: int = 9, subxid: int | None = None) -> bytes:
    return b"A" + u32(xid) + u32(xid if subxid is None else subxid)


def relation(
    *columns: tuple[bytes, int, int], oid: int = 1, name: bytes = b"t", xid: int | None = None
) -> bytes:
    described = b"".join(b"\0" + column + b"\0" + struct.pack(">Ii", *kind) for column, *kind in columns)
    body = u32(oid) + b"public\0" + name + b"\0d" + struct.pack(">h", len(columns)) + described
    return b"R" + (b"" if xid is None else u32(xid)) + body


def user_type(oid: int, namespace: bytes, name: bytes, xid: int | None = None) -> bytes:
    return b"Y" + (b"" if xid is None else u32(xid)) + u32(oid) + namespace + b"\0" + name + b"\0"


def insert(*cells: Any, oid: int = 1, xid: int | None = None) -> bytes:
    return b"I" + (b"" if xid is None else u32(xid)) + u32(oid) + b"N" + tup(*cells)


def message(transactional: int, xid: int | None = None, lsn: int = 190) -> bytes:
    head = b"M" + (b"" if xid is None else u32(xid))
    return head + struct.pack(">bq", transactional, lsn) + b"p\0" + u32(3) + b"abc"


def origin(name: bytes = b"o") -> bytes:
    return b"O" + struct.pack(">q", 77) + name + b"\0"


ID = (b"id", INT4, -1)
R = relation(ID)
R_STREAM = relation(ID, xid=9)
