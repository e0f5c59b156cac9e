"""Unpacks walsender frames into messages and positions.

The first pass checks and counts the frames. The second pass copies their payloads.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy

from pgoutput_fast._core.protocol.fields cimport (
    Fields,
    finish,
    read_byte,
    read_lsn,
    read_timestamp,
    start_fields,
    wrong,
)
from pgoutput_fast._core.protocol.limits cimport MAX_OFFSET
from pgoutput_fast._core.protocol.reasons cimport (
    BAD_FLAGS,
    COPY_DATA_HEADER,
    EMPTY_PAYLOAD,
    OK,
    TEXT_PAYLOAD,
    UNKNOWN_FRAME,
)
from pgoutput_fast._core.tagging.scan cimport Payloads, damaged_offsets, is_hex_text, offset_at
from pgoutput_fast._core.protocol.wire cimport load32

import pyarrow as pa

from pgoutput_fast._core.protocol.relations import Malformed

cdef int64_t DATA_HEADER = 25


cdef struct Frame:
    bint data            # True: 'w', a payload follows the header. False: 'k', a keepalive.
    int64_t start_lsn
    int64_t wal_end
    int64_t sent_at
    uint8_t reply


cdef uint8_t read_frame(const uint8_t* p, int64_t size, Frame* frame, int64_t* at) noexcept nogil:
    """Reads one frame's header. Returns OK or the reason why it is invalid; `at` is the offset of the error."""
    cdef Fields f
    at[0] = 0
    if size == 0:
        return EMPTY_PAYLOAD
    if p[0] != c'w' and p[0] != c'k':
        if is_hex_text(p, size):
            return TEXT_PAYLOAD
        if p[0] == c'd' and size > 5 and load32(p + 1) == size - 1 and (p[5] == c'w' or p[5] == c'k'):
            return COPY_DATA_HEADER
        return UNKNOWN_FRAME
    frame.data = p[0] == c'w'
    start_fields(&f, p, size, 1)
    frame.start_lsn = read_lsn(&f) if frame.data else 0
    frame.wal_end = read_lsn(&f)
    frame.sent_at = read_timestamp(&f)
    if not frame.data:
        frame.reply = read_byte(&f)
        if frame.reply > 1:
            wrong(&f, BAD_FLAGS, f.at - 1)
        finish(&f)
    at[0] = f.reason_offset
    return f.reason


cdef class _Counts:
    cdef int64_t data, keepalives, payload_bytes


cdef int count_frames(Payloads frames, int64_t before, _Counts counts) except -1:
    """Adds the numbers of frames and payload bytes to `counts`.

    `before` is the number of frames in earlier arrays. The attribute `frame` of Malformed is the frame's ordinal.
    """
    cdef int64_t i, size, at = 0, data = 0, keepalives = 0, total = 0
    cdef uint8_t reason = OK
    cdef Frame frame
    cdef int64_t begin = 0, end = 0
    cdef bint damaged = False
    with nogil:
        for i in range(frames.count):
            begin = offset_at(frames, i)
            end = offset_at(frames, i + 1)
            size = end - begin
            if size < 0 or begin < 0 or end > frames.data_size:
                damaged = True
                break
            reason = read_frame(frames.data + begin, size, &frame, &at)
            if reason != OK:
                break
            if frame.data:
                data += 1
                total += size - DATA_HEADER
            else:
                keepalives += 1
    if damaged:
        raise damaged_offsets(i)
    if reason != OK:
        problem = Malformed(reason, at)
        problem.frame = before + i
        raise problem
    counts.data += data
    counts.keepalives += keepalives
    counts.payload_bytes += total
    return 0


cdef int64_t* _int64_buffer(list buffers, int64_t count) except? NULL:
    buffer = pa.allocate_buffer(8 * count)
    buffers.append(buffer)
    cdef uintptr_t address = buffer.address
    return <int64_t*> address


cdef uint8_t* _bytes_buffer(list buffers, int64_t count) except? NULL:
    buffer = pa.allocate_buffer(count)
    buffers.append(buffer)
    cdef uintptr_t address = buffer.address
    return <uint8_t*> address


cdef class _Unframed:
    """Memory for the columns of unpacked frames, and its fill level."""
    cdef list buffers                    # own the memory below, in the order of `unframe_arrays`' columns
    cdef int64_t* lsn
    cdef int64_t* wal_end
    cdef int64_t* sent_at
    cdef int64_t* after
    cdef int64_t* kept_end
    cdef int64_t* kept_at
    cdef uint8_t* reply
    cdef uint8_t* data
    cdef int64_t* offsets64              # NULL if the payloads fit into 32-bit offsets
    cdef int32_t* offsets32
    cdef int64_t payloads, keepalives, written

    def __cinit__(self, _Counts counts):
        cdef bint wide = counts.payload_bytes > MAX_OFFSET
        self.buffers = []
        self.lsn = _int64_buffer(self.buffers, counts.data)
        self.wal_end = _int64_buffer(self.buffers, counts.data)
        self.sent_at = _int64_buffer(self.buffers, counts.data)
        self.after = _int64_buffer(self.buffers, counts.keepalives)
        self.kept_end = _int64_buffer(self.buffers, counts.keepalives)
        self.kept_at = _int64_buffer(self.buffers, counts.keepalives)
        self.reply = _bytes_buffer(self.buffers, counts.keepalives)
        self.data = _bytes_buffer(self.buffers, counts.payload_bytes)
        cdef uint8_t* offsets = _bytes_buffer(self.buffers, (counts.data + 1) * (8 if wide else 4))
        if wide:
            self.offsets64 = <int64_t*> offsets
        else:
            self.offsets32 = <int32_t*> offsets
        self.end_payload()

    cdef inline void end_payload(self) noexcept nogil:
        """Writes the offset after the last payload."""
        if self.offsets64 != NULL:
            self.offsets64[self.payloads] = self.written
        else:
            self.offsets32[self.payloads] = <int32_t> self.written

    cdef void copy_frames(self, Payloads frames) noexcept nogil:
        """Copies frames that `count_frames` has checked."""
        cdef Frame frame
        cdef int64_t i, begin, end, size, n, k, at = 0
        for i in range(frames.count):
            begin = offset_at(frames, i)
            end = offset_at(frames, i + 1)
            read_frame(frames.data + begin, end - begin, &frame, &at)
            if frame.data:
                n = self.payloads
                self.lsn[n] = frame.start_lsn
                self.wal_end[n] = frame.wal_end
                self.sent_at[n] = frame.sent_at
                size = end - begin - DATA_HEADER
                memcpy(self.data + self.written, frames.data + begin + DATA_HEADER, <size_t> size)
                self.written += size
                self.payloads += 1
                self.end_payload()
            else:
                k = self.keepalives
                self.after[k] = self.payloads
                self.kept_end[k] = frame.wal_end
                self.kept_at[k] = frame.sent_at
                self.reply[k] = frame.reply
                self.keepalives += 1


def unframe_arrays(arrays):
    """Unpacks binary or large binary arrays of frames.

    Returns (payloads, [lsn, wal_end, sent_at], [after, wal_end, sent_at], reply). The first list describes payloads,
    the second list and `reply` describe keepalives. `after` is the number of payloads before a keepalive. `reply` is
    uint8, the others are int64.

    Raises:
        Malformed: if a frame is invalid. Its attribute `frame` is the frame's ordinal.
    """
    cdef list sources = [Payloads(array) for array in arrays]
    cdef _Counts counts = _Counts()
    cdef Payloads frames
    cdef int64_t before = 0
    for frames in sources:
        count_frames(frames, before, counts)
        before += frames.count
    cdef _Unframed found = _Unframed(counts)
    for frames in sources:
        with nogil:
            found.copy_frames(frames)
    cdef int64_t n = found.payloads, k = found.keepalives
    buffers = found.buffers
    kind = pa.large_binary() if found.offsets64 != NULL else pa.binary()
    payloads = pa.Array.from_buffers(kind, n, [None, buffers[8], buffers[7]])
    columns = [pa.Array.from_buffers(pa.int64(), n if at < 3 else k, [None, buffers[at]]) for at in range(6)]
    return payloads, columns[:3], columns[3:], pa.Array.from_buffers(pa.uint8(), k, [None, buffers[6]])
