"""A stream that needs every part of a state: interleaved streams, subtransactions and prepared transactions."""

from __future__ import annotations

from pgoutput_fast import encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.transactions import reorder_buffer as reorder_buffer
from support.streams import Stream

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
WIDER = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23), ColumnSpec("more", 23)))
U = RelationSpec(16385, "public", "u", (ColumnSpec("id", 23),))
STOP = encode.encode_stream_stop()


def start(xid: int, first: bool = False) -> bytes:
    return encode.encode_stream_start(xid, first)


def relation(spec: RelationSpec, xid: int | None = None) -> bytes:
    return encode.encode_relation(spec, xid=xid)


def insert(*row: int, xid: int | None = None, oid: int = 16384) -> bytes:
    return encode.encode_insert(oid, [str(k) for k in row], xid=xid)


def plain(lsn: int, *body: bytes) -> list[bytes]:
    return [encode.encode_begin(lsn, 0, 7), *body, encode.encode_commit(lsn, lsn + 8, 0)]


def everything() -> Stream:
    """Two streams that interleave with plain transactions; DDL in one of them and in a subtransaction that is rolled
    back; a transaction prepared before a new session and committed after it, one that is streamed and prepared."""
    payloads = [
        *plain(100, relation(T), relation(U), insert(1), insert(2, oid=16385)),
        start(20, True), relation(T, 20), insert(10, xid=20), insert(11, xid=21), STOP,
        start(30, True), relation(WIDER, 30), insert(12, 12, xid=30),
        encode.encode_message(40, "p", b"kept", xid=30), STOP,
        *plain(200, insert(3), encode.encode_truncate([16384, 16385])),
        encode.encode_message(41, "p", b"at once", transactional=False),
        start(20), relation(WIDER, 22), insert(13, 13, xid=22), relation(T, 23), insert(14, xid=23), STOP,
        encode.encode_stream_abort(20, 21), encode.encode_stream_abort(20, 22),
        start(30), insert(15, 15, xid=31), STOP,
        encode.encode_begin_prepare(250, 258, 0, 40, "g"), insert(16), encode.encode_prepare(250, 258, 0, 40, "g"),
        encode.encode_stream_commit(30, 300, 308, 5),
        *plain(310, insert(17, 17)),
        start(20), relation(U, 21), insert(18, oid=16385, xid=21), STOP,
        start(50, True), relation(U, 50), insert(19, oid=16385, xid=50), STOP,
        encode.encode_stream_prepare(320, 328, 0, 50, "h"),
        encode.encode_stream_commit(20, 330, 338, 6),
        start(60, True), relation(T, 60), insert(90, xid=60), STOP,
    ]  # fmt: skip
    session = len(payloads)
    payloads += [
        start(60, True), relation(T, 60), insert(90, xid=60), insert(91, xid=60), STOP,
        encode.encode_commit_prepared(400, 408, 0, 40, "g"),
        encode.encode_commit_prepared(410, 418, 0, 50, "h"),
        encode.encode_stream_commit(60, 420, 428, 7),
        *plain(430, insert(20)),
    ]  # fmt: skip
    return Stream(payloads, [1000 + k for k in range(len(payloads))], {session})
