from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.kinds cimport TUPLE_KEY, TUPLE_OLD

# Bits of Window.flags: properties of a message that later stages need.
cdef enum:
    IN_STREAM = 1      # inside a stream block: the message has an xid prefix if its kind can have one
    MALFORMED = 2      # empty, too short for its header, or longer than any message can be
    OLD_TUPLE = 4      # of an update: an old tuple comes before the new one

# Classes of tags: bits of the table that `message_class` reads.
cdef enum:
    CHANGE = 1         # I U D: a relation's oid, then tuples
    PREFIXED = 2       # R Y T M (and changes): an xid prefix inside a stream block
    BOUNDARY = 4       # begins or ends a transaction or a stream block
    UNPREFIXED = 8     # Origin: never has an xid prefix

cdef uint8_t message_class(uint8_t tag) noexcept nogil


cdef inline uint8_t old_tuple(uint8_t tag) noexcept nogil:
    """Returns the flag of an update whose first tuple has this tag."""
    return OLD_TUPLE if tag == TUPLE_KEY or tag == TUPLE_OLD else 0


cdef bint is_hex_text(const uint8_t* p, int64_t size) noexcept nogil


cdef class Payloads:
    """The bytes of one Arrow array: raw pointers, and the object that owns them."""
    cdef object owner
    cdef const uint8_t* data
    cdef int64_t data_size
    cdef const int32_t* offsets32
    cdef const int64_t* offsets64
    cdef readonly int64_t count


cdef inline int64_t offset_at(Payloads payloads, int64_t i) noexcept nogil:
    """Where payload `i` begins in `data`; the offsets may be those of a large array."""
    return payloads.offsets32[i] if payloads.offsets32 != NULL else payloads.offsets64[i]


# Where a search for plain transactions stands: in one, between transactions, or elsewhere, which includes not knowing.
cdef enum SearchPosition:
    ELSEWHERE
    BETWEEN
    INSIDE


cdef class Window:
    """Headers of a limited number of consecutive messages. Every column has one value per message."""
    cdef const uint8_t* base       # `start` is relative to this
    cdef const uint8_t* end        # nothing at or after it may be read
    cdef int64_t first             # ordinal of the first message among the payloads
    cdef int64_t count
    cdef uint8_t* kind
    cdef uint8_t* flags
    cdef uint32_t* relation        # for a change
    cdef uint32_t* subxid          # the xid prefix, if any
    cdef uint32_t* start
    cdef uint32_t* length
    cdef vector[uint8_t] _kind, _flags
    cdef vector[uint32_t] _relation, _subxid, _start, _length
    cdef void reserve(self, int64_t count) except *


cdef int64_t scan_window(Payloads payloads, int64_t first, int64_t most_messages, int64_t most_bytes, bint* in_stream,
                         Window window) except -1

cdef object damaged_offsets(int64_t i)
