"""Stage 1, scan: reads kind, relation and position from message headers: a few bytes per message, without copies.

Its only state between messages is whether a stream block is open. Between Stream Start and Stream Stop, the messages R
Y I U D T M have an xid before their body. Every boundary message except Stream Start closes the block.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uintptr_t

from pgoutput_fast._core.protocol.kinds cimport (
    MSG_BEGIN,
    MSG_BEGIN_PREPARE,
    MSG_COMMIT,
    MSG_COMMIT_PREPARED,
    MSG_DELETE,
    MSG_INSERT,
    MSG_MESSAGE,
    MSG_ORIGIN,
    MSG_PREPARE,
    MSG_RELATION,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_ABORT,
    MSG_STREAM_COMMIT,
    MSG_STREAM_PREPARE,
    MSG_STREAM_START,
    MSG_STREAM_STOP,
    MSG_TRUNCATE,
    MSG_TYPE,
    MSG_UPDATE,
)
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.protocol.wire cimport load32, prefetch

import pyarrow as pa

# Prefetch distance, in messages. Headers are too far apart for the processor to prefetch them by itself.
cdef int64_t AHEAD = 64

cdef uint8_t CLASSES[256]


cdef void _fill_classes() noexcept:
    cdef int tag
    for tag in range(256):
        CLASSES[tag] = 0
    CLASSES[MSG_INSERT] = CLASSES[MSG_UPDATE] = CLASSES[MSG_DELETE] = CHANGE | PREFIXED
    CLASSES[MSG_RELATION] = CLASSES[MSG_TYPE] = CLASSES[MSG_TRUNCATE] = CLASSES[MSG_MESSAGE] = PREFIXED
    CLASSES[MSG_BEGIN] = CLASSES[MSG_COMMIT] = BOUNDARY
    CLASSES[MSG_STREAM_START] = CLASSES[MSG_STREAM_STOP] = BOUNDARY
    CLASSES[MSG_STREAM_COMMIT] = CLASSES[MSG_STREAM_ABORT] = BOUNDARY
    CLASSES[MSG_BEGIN_PREPARE] = CLASSES[MSG_PREPARE] = CLASSES[MSG_STREAM_PREPARE] = BOUNDARY
    CLASSES[MSG_COMMIT_PREPARED] = CLASSES[MSG_ROLLBACK_PREPARED] = BOUNDARY
    CLASSES[MSG_ORIGIN] = UNPREFIXED


_fill_classes()


cdef uint8_t message_class(uint8_t tag) noexcept nogil:
    return CLASSES[tag]


cdef bint is_hex_text(const uint8_t* p, int64_t size) noexcept nogil:
    """Whether the bytes look like SQL's text output of bytea: \\x..., or only pairs of hex digits."""
    cdef int64_t i
    if size >= 2 and p[0] == c'\\' and p[1] == c'x':
        return True
    if size < 2 or size & 1:
        return False
    for i in range(min(size, 64)):
        if not (c'0' <= p[i] <= c'9' or c'a' <= p[i] <= c'f' or c'A' <= p[i] <= c'F'):
            return False
    return True


cdef class Payloads:
    def __cinit__(self, array):
        cdef bint large = pa.types.is_large_binary(array.type)
        if not large and not pa.types.is_binary(array.type):
            raise TypeError(f"payloads must be a binary or large_binary Arrow array, not {array.type}")
        # Arrow's own cheap checks: afterwards the first and the last offset lie within the data.
        array.validate()
        self.owner = array
        self.count = len(array)
        self.offsets32 = NULL
        self.offsets64 = NULL
        self.data = NULL
        self.data_size = 0
        _, offsets, data = array.buffers()
        if self.count == 0 or offsets is None:
            self.count = 0
            return
        cdef uintptr_t address = offsets.address
        if large:
            self.offsets64 = (<const int64_t*> address) + <int64_t> array.offset
        else:
            self.offsets32 = (<const int32_t*> address) + <int64_t> array.offset
        if data is not None:
            address = data.address
            self.data = <const uint8_t*> address
            self.data_size = data.size


cdef class Window:
    def __cinit__(self):
        self.count = 0
        self.first = 0

    cdef void reserve(self, int64_t count) except *:
        """Makes the columns large enough for `count` messages. Their previous values are lost."""
        # `_length` is resized last: if memory runs out before, the next call resizes all columns again.
        if <int64_t> self._length.size() < count:
            self._kind.resize(count)
            self._flags.resize(count)
            self._relation.resize(count)
            self._subxid.resize(count)
            self._start.resize(count)
            self._length.resize(count)
        self.kind = self._kind.data()
        self.flags = self._flags.data()
        self.relation = self._relation.data()
        self.subxid = self._subxid.data()
        self.start = self._start.data()
        self.length = self._length.data()


cdef inline int64_t _offset(const int32_t* offsets32, const int64_t* offsets64, int64_t i) noexcept nogil:
    return offsets32[i] if offsets32 != NULL else offsets64[i]


cdef int64_t _scan(const uint8_t* data, int64_t data_size, const int32_t* offsets32, const int64_t* offsets64,
                   int64_t count, int64_t most_bytes, bint* in_stream, Window w) noexcept nogil:
    """Scans messages until the window has `most_bytes`.

    Returns the number of messages, or -1 - i if the offsets of message i descend or are outside of the data.
    """
    cdef int64_t begin = _offset(offsets32, offsets64, 0)
    cdef int64_t window_begin = begin
    cdef int64_t end, i, length
    cdef uint8_t kind, cls, flags
    cdef uint8_t streaming = IN_STREAM if in_stream[0] else 0
    cdef const uint8_t* p
    cdef int header
    w.base = data + window_begin
    w.end = data + data_size
    for i in range(count):
        end = _offset(offsets32, offsets64, i + 1)
        length = end - begin
        if length < 0 or begin < 0 or end > data_size:
            return -1 - i
        if i > 0 and end - window_begin > most_bytes:
            in_stream[0] = streaming != 0
            return i
        if i + AHEAD < count:
            prefetch(data + _offset(offsets32, offsets64, i + AHEAD))
        p = data + begin
        w.start[i] = <uint32_t> (begin - window_begin)
        w.relation[i] = 0
        w.subxid[i] = 0
        begin = end
        if length == 0 or length > MAX_PAYLOAD:
            w.kind[i] = 0 if length == 0 else p[0]
            w.length[i] = 0 if length == 0 else <uint32_t> MAX_PAYLOAD + 1
            w.flags[i] = MALFORMED | streaming
            continue
        w.length[i] = <uint32_t> length
        kind = p[0]
        cls = CLASSES[kind]
        flags = streaming
        if cls & PREFIXED:
            header = 5 if streaming else 1
            if cls & CHANGE:
                if length < header + 5:
                    flags |= MALFORMED
                else:
                    w.relation[i] = load32(p + header)
                    if kind == MSG_UPDATE:
                        flags |= old_tuple(p[header + 4])
            if streaming:
                if length >= 5:
                    w.subxid[i] = load32(p + 1)
                else:
                    flags |= MALFORMED
        elif cls & BOUNDARY:
            streaming = IN_STREAM if kind == MSG_STREAM_START else 0
        w.kind[i] = kind
        w.flags[i] = flags
    in_stream[0] = streaming != 0
    return count


cdef int64_t scan_window(Payloads payloads, int64_t first, int64_t most_messages, int64_t most_bytes, bint* in_stream,
                         Window window) except -1:
    """Fills `window` with messages from `first` on. Returns their number, at least one unless there are none.

    `in_stream` says whether a stream block is open before the first message, and afterwards whether one is open after
    the last message.
    """
    cdef int64_t count = min(payloads.count - first, most_messages)
    window.reserve(count)
    window.first = first
    window.count = 0
    if count <= 0:
        return 0
    cdef const int32_t* offsets32 = payloads.offsets32 + first if payloads.offsets32 != NULL else NULL
    cdef const int64_t* offsets64 = payloads.offsets64 + first if payloads.offsets64 != NULL else NULL
    cdef int64_t taken
    with nogil:
        taken = _scan(payloads.data, payloads.data_size, offsets32, offsets64, count, most_bytes, in_stream, window)
    if taken < 0:
        raise damaged_offsets(first - 1 - taken)
    window.count = taken
    return taken


cdef object damaged_offsets(int64_t i):
    """Returns the error for damaged offsets of value i of an Arrow array; i is -1 if the value is unknown."""
    place = f"payload {i}: " if i >= 0 else ""
    return ValueError(f"{place}the Arrow array's offsets are damaged: they run backwards or out of its data")


def scan(array, bint in_stream=False):
    """Returns the headers of all messages of one Arrow binary array. For tests of this stage.

    The result is a dict with `kind`, `in_stream`, `malformed`, `relation` and `subxid`, one value per message.
    `relation` and `subxid` are 0 if a message has none.
    """
    cdef Payloads payloads = Payloads(array)
    cdef Window w = Window()
    scan_window(payloads, 0, payloads.count, (<int64_t> 1) << 31, &in_stream, w)
    cdef int64_t i
    return {
        "kind": bytes([w.kind[i] for i in range(w.count)]),
        "in_stream": [bool(w.flags[i] & IN_STREAM) for i in range(w.count)],
        "malformed": [bool(w.flags[i] & MALFORMED) for i in range(w.count)],
        "relation": [w.relation[i] for i in range(w.count)],
        "subxid": [w.subxid[i] for i in range(w.count)],
    }
