"""Parses the fields of boundary messages and logical decoding messages. Does not check their order in the stream."""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from pgoutput_fast._core.protocol.fields cimport (
    Fields,
    finish,
    need,
    read_byte,
    read_lsn,
    read_no_flags,
    read_text,
    read_timestamp,
    read_u32,
    wrong,
)
from pgoutput_fast._core.protocol.kinds cimport (
    MSG_BEGIN,
    MSG_BEGIN_PREPARE,
    MSG_COMMIT,
    MSG_COMMIT_PREPARED,
    MSG_PREPARE,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_ABORT,
    MSG_STREAM_COMMIT,
    MSG_STREAM_PREPARE,
    MSG_STREAM_START,
)
from pgoutput_fast._core.protocol.reasons cimport BAD_COUNT, BAD_FLAGS, OK
from pgoutput_fast._core.tagging.stream_state cimport NONE64, BoundaryRecord, MessageRecord


cdef inline void _read_end(Fields* f, BoundaryRecord* b) noexcept nogil:
    """Reads the fields of a message at the end of a transaction: its LSN, the end LSN, and the time."""
    b.lsn = read_lsn(f)
    b.end_lsn = read_lsn(f)
    b.timestamp = read_timestamp(f)


cdef inline void _read_stream_abort(Fields* f, BoundaryRecord* b) noexcept nogil:
    b.xid = read_u32(f)
    b.subxid = read_u32(f)
    if f.at < f.size:
        # The server sends these fields only with streaming=parallel. Only the message's length shows it, not the
        # protocol version.
        b.lsn = read_lsn(f)
        b.timestamp = read_timestamp(f)
        if b.lsn == 0:
            b.lsn = NONE64


cdef inline void _read_first_segment(Fields* f, BoundaryRecord* b) noexcept nogil:
    cdef uint8_t first = read_byte(f)
    if first > 1:
        wrong(f, BAD_FLAGS, f.at - 1)
    b.first_segment = <int8_t> first


cdef void parse_boundary(Fields* f, uint8_t kind, BoundaryRecord* b, const uint8_t** gid,
                         int64_t* gid_length) noexcept nogil:
    """Fills `b` with the message's fields. Points `gid` to the name of the prepared transaction, if any.

    `f` must be positioned after the tag. Afterwards `f.reason` says whether the message is valid.
    """
    b.kind = kind
    if kind == MSG_BEGIN:
        b.lsn = read_lsn(f)
        b.timestamp = read_timestamp(f)
        b.xid = read_u32(f)
    elif kind == MSG_COMMIT:
        read_no_flags(f)
        _read_end(f, b)
    elif kind == MSG_STREAM_START:
        b.xid = read_u32(f)
        _read_first_segment(f, b)
    elif kind == MSG_STREAM_COMMIT:
        b.xid = read_u32(f)
        read_no_flags(f)
        _read_end(f, b)
    elif kind == MSG_STREAM_ABORT:
        _read_stream_abort(f, b)
    elif kind == MSG_BEGIN_PREPARE:
        _read_end(f, b)
        b.xid = read_u32(f)
        read_text(f, gid, gid_length)
        b.prepare_timestamp = b.timestamp
    elif kind == MSG_PREPARE or kind == MSG_STREAM_PREPARE or kind == MSG_COMMIT_PREPARED:
        read_no_flags(f)
        _read_end(f, b)
        b.xid = read_u32(f)
        read_text(f, gid, gid_length)
        if kind != MSG_COMMIT_PREPARED:
            b.prepare_timestamp = b.timestamp
    elif kind == MSG_ROLLBACK_PREPARED:
        read_no_flags(f)
        b.lsn = read_lsn(f)
        b.end_lsn = read_lsn(f)
        b.prepare_timestamp = read_timestamp(f)
        b.timestamp = read_timestamp(f)
        b.xid = read_u32(f)
        read_text(f, gid, gid_length)
    finish(f)


cdef void parse_message(Fields* f, MessageRecord* m, const uint8_t** prefix, int64_t* prefix_length,
                        const uint8_t** content, int64_t* content_length) noexcept nogil:
    """Reads a logical decoding message. `f` must be positioned after the tag, and after the xid if there is one."""
    cdef uint8_t flags = read_byte(f)
    if flags > 1:
        wrong(f, BAD_FLAGS, f.at - 1)
    m.transactional = flags == 1
    m.lsn = read_lsn(f)
    read_text(f, prefix, prefix_length)
    content_length[0] = <int32_t> read_u32(f)
    if f.reason == OK and content_length[0] < 0:
        wrong(f, BAD_COUNT, f.at - 4)
    content[0] = f.p + f.at
    if f.reason == OK and need(f, content_length[0]):
        finish(f)
