"""Reads LSNs and payloads from a binary COPY with the columns lsn and data. Chunks may be split anywhere."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

from pgoutput_fast._core.copy.binary_format cimport (
    AFTER_TRAILER,
    COPY_HEADER_BYTES,
    COPY_TRAILER,
    COPY_TRAILER_BYTES,
    IN_EXTENSION,
    IN_HEADER,
    IN_ROWS,
    CopyHeader,
    take_copy_header,
)
from pgoutput_fast._core.protocol.limits cimport MAX_OFFSET, MAX_PAYLOAD
from pgoutput_fast._core.protocol.reasons cimport (
    BAD_COPY_HEADER,
    BAD_COPY_ROW,
    BAD_POSITION,
    COPY_TRAILING_BYTES,
    COPY_TRUNCATED,
    OK,
    PAYLOAD_TOO_LONG,
)
from pgoutput_fast._core.protocol.wire cimport load16, load32, load64

import pyarrow as pa

from pgoutput_fast._core.protocol.relations import Malformed

# The maximum length of the extension that the header can state.
cdef int64_t LONGEST_EXTENSION = MAX_OFFSET
cdef int64_t ROW = 18              # bytes before the payload: number of fields, a length, the LSN, a length


cdef struct CopyScan:
    CopyHeader header
    int64_t at             # end of the last complete part
    int64_t needed         # number of bytes from there on that are needed to read more
    int64_t first_row      # offset of the first complete row; -1 if there is none
    int64_t rows
    int64_t payload_bytes
    uint8_t reason
    int64_t reason_offset


cdef void read_copy(const uint8_t* p, int64_t size, CopyScan* scan) noexcept nogil:
    """Reads all complete parts: the header, rows, and the trailer. Checks and counts the rows."""
    cdef int64_t left, n
    scan.at = scan.needed = scan.rows = scan.payload_bytes = 0
    scan.first_row = -1
    scan.reason = OK
    while True:
        left = size - scan.at
        if scan.header.stage < IN_ROWS:
            n = take_copy_header(&scan.header, p + scan.at, left, LONGEST_EXTENSION)
            if n < 0:
                stop(scan, BAD_COPY_HEADER, scan.header.bad_at)
                return
            scan.at += n
            if scan.header.stage == IN_HEADER:
                scan.needed = COPY_HEADER_BYTES
                return
            if scan.header.stage == IN_EXTENSION and scan.at == size:
                return
        elif scan.header.stage == IN_ROWS:
            if left < COPY_TRAILER_BYTES:
                scan.needed = COPY_TRAILER_BYTES
                return
            if load16(p + scan.at) == COPY_TRAILER:
                scan.at += COPY_TRAILER_BYTES
                scan.header.stage = AFTER_TRAILER
                continue
            if load16(p + scan.at) != 2:
                stop(scan, BAD_COPY_ROW, scan.at)
                return
            if left >= 6 and load32(p + scan.at + 2) != 8:
                stop(scan, BAD_COPY_ROW, scan.at + 2)
                return
            if left >= 14 and load64(p + scan.at + 6) >> 63:
                stop(scan, BAD_POSITION, scan.at + 6)
                return
            if left < ROW:
                scan.needed = ROW
                return
            n = <int32_t> load32(p + scan.at + 14)
            if n < 0 or n > MAX_PAYLOAD:
                stop(scan, BAD_COPY_ROW if n < 0 else PAYLOAD_TOO_LONG, scan.at + 14)
                return
            if left < ROW + n:
                scan.needed = ROW + n
                return
            if scan.first_row < 0:
                scan.first_row = scan.at
            scan.at += ROW + n
            scan.rows += 1
            scan.payload_bytes += n
        else:
            if left:
                stop(scan, COPY_TRAILING_BYTES, scan.at)
            return


cdef void stop(CopyScan* scan, uint8_t reason, int64_t offset) noexcept nogil:
    scan.reason = reason
    scan.reason_offset = offset


cdef void copy_rows(const uint8_t* p, int64_t rows, int64_t* lsn, uint8_t* data, int32_t* offsets32,
                    int64_t* offsets64) noexcept nogil:
    """Copies rows that `read_copy` has checked."""
    cdef int64_t i, n, written = 0
    for i in range(rows):
        lsn[i] = <int64_t> load64(p + 6)
        n = load32(p + 14)
        memcpy(data + written, p + ROW, <size_t> n)
        written += n
        if offsets64 != NULL:
            offsets64[i + 1] = written
        else:
            offsets32[i + 1] = <int32_t> written
        p += ROW + n


cdef class CopiedRows:
    """Reads a COPY's data as it arrives. Keeps at most one incomplete row."""

    cdef vector[uint8_t] _incomplete_row
    cdef CopyScan _scan
    cdef int64_t _needed, _before, _rows
    cdef bint _failed
    cdef bint _out_of_memory                      # memory ran out in the middle of a chunk

    def __cinit__(self):
        self._needed = self._before = self._rows = 0
        self._failed = False

    @property
    def rows(self):
        """The number of rows returned so far."""
        return self._rows

    def feed(self, chunk):
        """Reads a chunk, a pyarrow buffer. Returns (payloads, LSNs as int64) of the rows that it completes.

        Raises:
            Malformed: if the data is invalid. `offset` is relative to the whole stream, `frame` is the row's ordinal.
            ValueError: if an earlier call raised Malformed.
            MemoryError: if memory runs out, and in every later call.
        """
        if self._failed:
            raise ValueError("the COPY was malformed before this")
        if self._out_of_memory:
            raise MemoryError("memory ran out in an earlier chunk of the COPY: begin it anew")
        cdef uintptr_t address = chunk.address
        cdef const uint8_t* p = <const uint8_t*> address
        cdef int64_t size = chunk.size
        self._out_of_memory = True  # until the end of this call
        cdef bint waiting = not self._incomplete_row.empty()
        if waiting:
            self._incomplete_row.insert(self._incomplete_row.end(), p, p + size)
            p = self._incomplete_row.data()
            size = <int64_t> self._incomplete_row.size()
            if size < self._needed:
                out = _nothing()
                self._out_of_memory = False
                return out
        with nogil:
            read_copy(p, size, &self._scan)
        if self._scan.reason != OK:
            self._fail(self._scan.reason, self._before + self._scan.reason_offset, self._scan.rows)
        cdef int64_t rows = self._scan.rows
        out = _nothing() if rows == 0 else _rows_of(p + self._scan.first_row, rows, self._scan.payload_bytes)
        cdef int64_t at = self._scan.at
        if waiting:
            self._incomplete_row.erase(self._incomplete_row.begin(), self._incomplete_row.begin() + at)
        else:
            self._incomplete_row.assign(p + at, p + size)
        self._needed = self._scan.needed
        self._before += at
        self._rows += rows
        self._out_of_memory = False
        return out

    def finish(self):
        """Checks that the COPY is complete. After an earlier error it checks nothing.

        Raises:
            Malformed: if the COPY is incomplete.
        """
        if self._failed:
            return
        # The incomplete row may already be invalid: that error comes first.
        self._needed = 0
        self.feed(pa.py_buffer(b""))
        if self._scan.header.stage != AFTER_TRAILER:
            self._fail(COPY_TRUNCATED, self._before + <int64_t> self._incomplete_row.size(), 0)

    cdef int _fail(self, uint8_t reason, int64_t offset, int64_t rows) except -1:
        self._failed = True
        problem = Malformed(reason, offset)
        problem.frame = self._rows + rows
        raise problem


cdef object _nothing():
    return pa.array([], pa.binary()), pa.array([], pa.int64())


cdef object _rows_of(const uint8_t* p, int64_t rows, int64_t payload_bytes):
    cdef bint wide = payload_bytes > MAX_OFFSET
    lsns, data = pa.allocate_buffer(8 * rows), pa.allocate_buffer(payload_bytes)
    offsets = pa.allocate_buffer((rows + 1) * (8 if wide else 4))
    cdef uintptr_t lsn_at = lsns.address, data_at = data.address, offsets_at = offsets.address
    cdef int64_t* offsets64 = <int64_t*> offsets_at if wide else NULL
    cdef int32_t* offsets32 = <int32_t*> offsets_at if not wide else NULL
    if wide:
        offsets64[0] = 0
    else:
        offsets32[0] = 0
    with nogil:
        copy_rows(p, rows, <int64_t*> lsn_at, <uint8_t*> data_at, offsets32, offsets64)
    payloads = pa.Array.from_buffers(pa.large_binary() if wide else pa.binary(), rows, [None, offsets, data])
    return payloads, pa.Array.from_buffers(pa.int64(), rows, [None, lsns])
