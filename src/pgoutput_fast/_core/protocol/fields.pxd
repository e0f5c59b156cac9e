"""A reader of a message's fields. It never reads beyond the message, and it keeps only the first error."""
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp
from libcpp cimport bool as cbool
from libcpp.string cimport string

from pgoutput_fast._core.protocol.reasons cimport (
    BAD_FLAGS,
    BAD_POSITION,
    BAD_STRING,
    BAD_TIMESTAMP,
    OK,
    TRAILING_BYTES,
    TRUNCATED,
)
from pgoutput_fast._core.protocol.wire cimport load32, load64


cdef extern from "types/utf8.hpp" namespace "pgo" nogil:
    cbool is_utf8(const uint8_t* p, size_t n) noexcept


cdef extern from *:
    """
    // Microseconds between the Unix epoch and PostgreSQL's epoch, 2000-01-01. The second constant is the last
    // PostgreSQL timestamp that still fits int64 as a Unix timestamp.
    static const int64_t EPOCH_SHIFT = 946684800000000LL;
    static const int64_t LAST_TIMESTAMP = INT64_MAX - 946684800000000LL;
    """
    const int64_t EPOCH_SHIFT
    const int64_t LAST_TIMESTAMP


cdef struct Fields:
    const uint8_t* p
    int64_t size
    int64_t at
    uint8_t reason
    int64_t reason_offset


cdef inline void wrong(Fields* f, uint8_t reason, int64_t offset) noexcept nogil:
    if f.reason == OK:
        f.reason = reason
        f.reason_offset = offset


cdef inline bint need(Fields* f, int64_t n) noexcept nogil:
    if f.size - f.at < n:
        wrong(f, TRUNCATED, f.size)
        f.at = f.size
        return False
    f.at += n
    return True


cdef inline uint8_t read_byte(Fields* f) noexcept nogil:
    return f.p[f.at - 1] if need(f, 1) else 0


cdef inline uint32_t read_u32(Fields* f) noexcept nogil:
    return load32(f.p + f.at - 4) if need(f, 4) else 0


cdef inline int64_t read_lsn(Fields* f) noexcept nogil:
    """Reads an LSN. PostgreSQL's LSNs are unsigned. Here they are int64, so the highest bit must be 0."""
    if not need(f, 8):
        return 0
    cdef int64_t value = <int64_t> load64(f.p + f.at - 8)
    if value < 0:
        wrong(f, BAD_POSITION, f.at - 8)
    return value


cdef inline int64_t read_timestamp(Fields* f) noexcept nogil:
    """Reads a timestamp as microseconds since 1970."""
    if not need(f, 8):
        return 0
    cdef int64_t value = <int64_t> load64(f.p + f.at - 8)
    if value > LAST_TIMESTAMP:
        wrong(f, BAD_TIMESTAMP, f.at - 8)
        return 0
    return value + EPOCH_SHIFT


cdef inline void read_no_flags(Fields* f) noexcept nogil:
    if read_byte(f) != 0:
        wrong(f, BAD_FLAGS, f.at - 1)


cdef inline void read_text(Fields* f, const uint8_t** text, int64_t* length) noexcept nogil:
    cdef const uint8_t* start = f.p + f.at
    cdef const uint8_t* end = <const uint8_t*> memchr(start, 0, <size_t> (f.size - f.at)) if f.at < f.size else NULL
    text[0] = start
    length[0] = 0
    if end == NULL:
        wrong(f, TRUNCATED, f.size)
        f.at = f.size
        return
    length[0] = end - start
    if not is_utf8(start, <size_t> length[0]):
        wrong(f, BAD_STRING, f.at)
    f.at += length[0] + 1


cdef inline void finish(Fields* f) noexcept nogil:
    if f.at < f.size:
        wrong(f, TRAILING_BYTES, f.at)


cdef inline void start_fields(Fields* f, const uint8_t* p, int64_t size, int64_t at) noexcept nogil:
    f.p = p
    f.size = size
    f.at = at
    f.reason = OK
    f.reason_offset = 0


cdef inline bint same_bytes(const string& known, const uint8_t* p, int64_t n) noexcept nogil:
    return <int64_t> known.size() == n and (n == 0 or memcmp(known.data(), p, <size_t> n) == 0)
