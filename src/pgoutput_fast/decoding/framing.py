"""Walsender frames: the CopyData messages of a replication connection, which contain the pgoutput messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from pgoutput_fast._core.protocol.frames import unframe_arrays
from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.decoding.inputs import as_binary_arrays
from pgoutput_fast.schema.tables import KEEPALIVES_SCHEMA

__all__ = ["Unframed", "unframe"]

_TIME = pa.timestamp("us", tz="UTC")


class Unframed(NamedTuple):
    """The contents of frames. `decoder.decode(unframed.payloads, unframed.lsn)` decodes them.

    Attributes:
        payloads: the messages of the `w` frames in order; a binary array, or a large binary array beyond 2 GiB.
        lsn: int64 per payload: the frame's start LSN; 0 if the server sends none.
        keepalives: a row per `k` frame, with KEEPALIVES_SCHEMA: `after` (int64, number of `payloads` before the
            frame), `wal_end` (int64, the server's position), `sent_at` (timestamp), `reply_requested` (bool: if true,
            reply at once, or the server closes the connection).
        wal_end: int64 per payload: the frame's end position. Servers from 10 to 19 repeat the start LSN there.
        sent_at: timestamp (microseconds, UTC) per payload: when the server sent the frame.

    >>> from struct import pack
    >>> unframed = unframe([b"w" + pack(">QQQ", 100, 100, 0) + b"C", b"k" + pack(">QQB", 200, 0, 1)])
    >>> unframed.payloads.to_pylist(), unframed.lsn.to_pylist()
    ([b'C'], [100])
    >>> unframed.keepalives.select(["after", "wal_end", "reply_requested"]).to_pylist()
    [{'after': 1, 'wal_end': 200, 'reply_requested': True}]
    """

    payloads: pa.Array
    lsn: pa.Int64Array
    keepalives: pa.RecordBatch
    wal_end: pa.Int64Array
    sent_at: pa.TimestampArray


def unframe(frames: Any) -> Unframed:
    """Extracts the messages and their positions from a walsender's frames.

    A frame is the content of a CopyData message without its header (`d` and a length), as libpq's `PQgetCopyData`
    returns it. psycopg2's replication cursor already removes the frame, so decode its `payload` directly.

    Args:
        frames: as payloads for `Decoder.decode`: a binary or large binary Arrow array, a chunked array of them, or an
            iterable of bytes.

    Raises:
        DecodeError: for a frame of another kind, or one that is too short or too long; `seq` is the ordinal of the
            frame in `frames`.
        TypeError: for frames that are not bytes.

    >>> import struct
    >>> data = b"w" + struct.pack(">QQq", 0x16B3748, 0x16B3780, 0) + b"B" + struct.pack(">QqI", 0x16B3778, 0, 741)
    >>> keepalive = b"k" + struct.pack(">Qqb", 0x16B3780, 0, 1)
    >>> unframed = unframe([data, keepalive])
    >>> unframed.lsn.to_pylist(), unframed.keepalives.select(["after", "wal_end", "reply_requested"]).to_pylist()
    ([23803720], [{'after': 1, 'wal_end': 23803776, 'reply_requested': True}])
    >>> from pgoutput_fast import decode
    >>> decode(unframed.payloads, unframed.lsn).transactions.select(["kind", "xid"]).to_pylist()
    [{'kind': 'begin', 'xid': 741}]
    """
    arrays = as_binary_arrays(frames, "frames")
    try:
        payloads, columns, kept, reply = unframe_arrays(arrays)
    except Malformed as problem:
        reason, seq = reason_text(problem.reason), problem.frame
        raise DecodeError(reason, seq=seq, byte_offset=problem.offset) from None
    lsn, wal_end, sent_at = columns
    after, kept_end, kept_at = kept
    keepalives = pa.RecordBatch.from_arrays(
        [after, kept_end, kept_at.view(_TIME), reply.cast(pa.bool_())], schema=KEEPALIVES_SCHEMA
    )
    return Unframed(payloads, lsn, keepalives, wal_end, sent_at.view(_TIME))
