"""Reads the headers of single messages, without the messages around them: kind, relation, xid.

Inside a stream block, a message has an xid before its body. Normally the preceding messages tell whether it is inside a
stream block. For a single message, this is known only if its whole body fits exactly one of the two layouts. A message
that fits both is reported as ambiguous.

A plain Relation or Type message nearly always fits both layouts: in the streamed layout, the first four bytes of its
schema name would be the oid. So if these four bytes can be text, the message counts as plain. An oid below 0x20202020
(539 million) cannot be text.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memchr

from pgoutput_fast._core.protocol.kinds cimport (
    COLUMN_BINARY,
    COLUMN_NULL,
    COLUMN_TEXT,
    COLUMN_UNCHANGED,
    MSG_BEGIN,
    MSG_BEGIN_PREPARE,
    MSG_COMMIT_PREPARED,
    MSG_DELETE,
    MSG_MESSAGE,
    MSG_PREPARE,
    MSG_RELATION,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_ABORT,
    MSG_STREAM_COMMIT,
    MSG_STREAM_PREPARE,
    MSG_STREAM_START,
    MSG_TRUNCATE,
    MSG_TYPE,
    MSG_UPDATE,
    TUPLE_KEY,
    TUPLE_NEW,
    TUPLE_OLD,
)
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.protocol.reasons cimport (
    EMPTY_PAYLOAD,
    LAYOUT_AMBIGUOUS,
    LAYOUT_UNKNOWN,
    OK,
    PAYLOAD_TOO_LONG,
    TRUNCATED,
    UNKNOWN_TAG,
)
from pgoutput_fast._core.tagging.scan cimport CHANGE, PREFIXED, Payloads, damaged_offsets, message_class, offset_at
from pgoutput_fast._core.protocol.wire cimport load16, load32

import pyarrow as pa


# By tag: the offset of the transaction's xid in a boundary message; 0 if the message has no xid.
cdef uint8_t XID_AT[256]


cdef void _fill_xid_places() noexcept:
    cdef int tag
    for tag in range(256):
        XID_AT[tag] = 0
    XID_AT[MSG_STREAM_START] = XID_AT[MSG_STREAM_COMMIT] = XID_AT[MSG_STREAM_ABORT] = 1
    XID_AT[MSG_PREPARE] = XID_AT[MSG_COMMIT_PREPARED] = XID_AT[MSG_STREAM_PREPARE] = 26
    XID_AT[MSG_BEGIN] = 17
    XID_AT[MSG_BEGIN_PREPARE] = 25
    XID_AT[MSG_ROLLBACK_PREPARED] = 34


_fill_xid_places()


cdef int64_t _past_text(const uint8_t* p, int64_t size, int64_t at) noexcept nogil:
    """Returns the offset after the zero-terminated string at `at`; -1 if the string has no end."""
    if at < 0 or at >= size:
        return -1
    cdef const uint8_t* end = <const uint8_t*> memchr(p + at, 0, <size_t> (size - at))
    return end - p + 1 if end != NULL else -1


cdef int64_t _past_tuple(const uint8_t* p, int64_t size, int64_t at) noexcept nogil:
    """Returns the offset after the tuple at `at` (after its N, K or O); -1 if the tuple is invalid."""
    cdef int64_t count, length
    cdef uint8_t kind
    if size - at < 2:
        return -1
    count = load16(p + at)
    at += 2
    while count > 0:
        count -= 1
        if at >= size:
            return -1
        kind = p[at]
        at += 1
        if kind == COLUMN_NULL or kind == COLUMN_UNCHANGED:
            continue
        if (kind != COLUMN_TEXT and kind != COLUMN_BINARY) or size - at < 4:
            return -1
        length = <int32_t> load32(p + at)
        at += 4
        if length < 0 or length > size - at:
            return -1
        at += length
    return at


cdef bint _fits(const uint8_t* p, int64_t size, int64_t at) noexcept nogil:
    """Whether a body that begins at `at` ends exactly at the end of the message."""
    cdef uint8_t kind = p[0]
    cdef int64_t count
    if kind == MSG_MESSAGE:
        if size - at < 9 or p[at] > 1:
            return False
        at = _past_text(p, size, at + 9)
        return at >= 0 and size - at >= 4 and <int64_t> <int32_t> load32(p + at) == size - at - 4
    if size - at < 4:
        return False
    if kind == MSG_TRUNCATE:
        count = <int32_t> load32(p + at)
        return count > 0 and size - at == 5 + 4 * count and p[at + 4] < 4
    at += 4
    if kind == MSG_TYPE:
        return _past_text(p, size, _past_text(p, size, at)) == size
    if kind == MSG_RELATION:
        at = _past_text(p, size, _past_text(p, size, at))
        if at < 0 or size - at < 3 or not (p[at] == c'd' or p[at] == c'n' or p[at] == c'f' or p[at] == c'i'):
            return False
        count = load16(p + at + 1)
        at += 3
        while count > 0 and at >= 0 and at < size:
            count -= 1
            at = _past_text(p, size, at + 1)
            at = at + 8 if at >= 0 else -1
        return count == 0 and at == size
    if at >= size:
        return False
    if (kind == MSG_UPDATE or kind == MSG_DELETE) and (p[at] == TUPLE_KEY or p[at] == TUPLE_OLD):
        at = _past_tuple(p, size, at + 1)
        if kind == MSG_DELETE or at < 0:
            return at == size
    elif kind == MSG_DELETE:
        return False
    return at < size and p[at] == TUPLE_NEW and _past_tuple(p, size, at + 1) == size


cdef bint _is_name(const uint8_t* p) noexcept nogil:
    """Whether four bytes can be text without control characters."""
    return p[0] >= 0x20 and p[1] >= 0x20 and p[2] >= 0x20 and p[3] >= 0x20


cdef struct Header:
    uint8_t reason
    bint in_stream
    int64_t relation     # of I U D R, else -1
    int64_t xid          # -1 if the message has none
    int64_t reason_offset


cdef void _read(const uint8_t* p, int64_t size, int known_in_stream, Header* h) noexcept nogil:
    """Reads one header. `known_in_stream` is 1 for a message inside a stream block, 0 outside, -1 if unknown."""
    cdef uint8_t cls
    cdef bint plain, streamed
    cdef int64_t at
    h.reason = OK
    h.in_stream = False
    h.relation = -1
    h.xid = -1
    h.reason_offset = 0
    if size == 0 or size > MAX_PAYLOAD:
        h.reason = EMPTY_PAYLOAD if size == 0 else PAYLOAD_TOO_LONG
        return
    cls = message_class(p[0])
    if cls == 0:
        h.reason = UNKNOWN_TAG
        return
    if not cls & PREFIXED:
        at = XID_AT[p[0]]
        if at and size < at + 4:
            h.reason = TRUNCATED
            h.reason_offset = size
        elif at:
            h.xid = load32(p + at)
        return
    if known_in_stream >= 0:
        h.in_stream = known_in_stream != 0
    else:
        plain = _fits(p, size, 1)
        streamed = size > 5 and _fits(p, size, 5)
        if plain and streamed and (p[0] == MSG_RELATION or p[0] == MSG_TYPE) and _is_name(p + 5):
            # These bytes are the beginning of a schema name, not an oid.
            streamed = False
        if plain == streamed:
            h.reason = LAYOUT_AMBIGUOUS if plain else LAYOUT_UNKNOWN
            return
        h.in_stream = streamed
    at = 5 if h.in_stream else 1
    if size < at + (4 if cls & CHANGE or p[0] == MSG_RELATION else 0):
        h.reason = TRUNCATED
        h.reason_offset = size
        return
    if h.in_stream:
        h.xid = load32(p + 1)
    if cls & CHANGE or p[0] == MSG_RELATION:
        h.relation = load32(p + at)


def headers(array, in_stream=None):
    """Reads the headers of all messages of one Arrow binary array, independently of each other.

    Args:
        array: binary or large binary. The bytes of a null are read like those of any other value.
        in_stream: int8 Arrow array, one value per message: 1 if the message is inside a stream block, 0 if not, -1 if
            unknown. None: unknown for all messages. If known, only the header is read, not the body.

    Returns:
        A dict of Arrow arrays, one value per message: `kind` (uint8, the tag), `in_stream` (int8, 0 or 1), `relation`
            and `xid` (int64, -1 if a message has none), `reason` (uint8, 0 if the header is valid), `byte_offset`
            (int64, the position of the error).

    Raises:
        ValueError: if the array's offsets are damaged.
    """
    cdef Payloads payloads = Payloads(array)
    cdef int64_t n = len(array)
    cdef list buffers = [pa.allocate_buffer(n * width) for width in (1, 1, 8, 8, 1, 8)]
    cdef uintptr_t address[6]
    cdef int k
    for k in range(6):
        address[k] = buffers[k].address
    cdef uint8_t* kind = <uint8_t*> address[0]
    cdef uint8_t* stream = <uint8_t*> address[1]
    cdef int64_t* relation = <int64_t*> address[2]
    cdef int64_t* xid = <int64_t*> address[3]
    cdef uint8_t* reason = <uint8_t*> address[4]
    cdef int64_t* byte_offset = <int64_t*> address[5]
    cdef const signed char* known_in_stream = NULL
    cdef uintptr_t place
    if in_stream is not None:
        if len(in_stream) != n or not in_stream.type.equals(pa.int8()) or in_stream.null_count:
            raise ValueError("in_stream must be an int8 array without nulls, a value per payload")
        if n:
            place = in_stream.buffers()[1].address
            known_in_stream = (<const signed char*> place) + <int64_t> in_stream.offset
    cdef int64_t i, begin, end
    cdef bint damaged = payloads.count < n
    cdef Header h
    if not damaged:
        with nogil:
            for i in range(n):
                begin = offset_at(payloads, i)
                end = offset_at(payloads, i + 1)
                if begin < 0 or end < begin or end > payloads.data_size:
                    damaged = True
                    break
                _read(payloads.data + begin, end - begin, known_in_stream[i] if known_in_stream != NULL else -1, &h)
                kind[i] = payloads.data[begin] if end > begin else 0
                stream[i] = h.in_stream
                relation[i] = h.relation
                xid[i] = h.xid
                reason[i] = h.reason
                byte_offset[i] = h.reason_offset
    if damaged:
        raise damaged_offsets(-1)
    types = (pa.uint8(), pa.int8(), pa.int64(), pa.int64(), pa.uint8(), pa.int64())
    names = ("kind", "in_stream", "relation", "xid", "reason", "byte_offset")
    columns = zip(names, types, buffers, strict=True)
    return {name: pa.Array.from_buffers(kind_, n, [None, buffer]) for name, kind_, buffer in columns}
