from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.protocol.wire cimport Cell, prefetch

# The change type of a row, in the order of CHANGE_TYPES. KEY_ONLY is added if the tuple's tag is K.
cdef enum:
    INSERT = 0
    UPDATE_PREIMAGE = 1
    UPDATE_POSTIMAGE = 2
    DELETE = 3
    TRUNCATE = 4
    KEY_ONLY = 8
    SEVERAL = 128    # no change type: the change may have several tuples

# Bits of Block.formats: the formats of a block's cells.
cdef enum:
    TEXT_CELLS = 1
    BINARY_CELLS = 2


# Prefetch distance, in messages. Only the first FETCHED_BYTES of a message are prefetched.
cdef enum:
    AHEAD = 8
    FETCHED_BYTES = 1024


cdef extern from "rows/four_tuples.hpp" namespace "pgo" nogil:
    const int64_t HEADER_READ_AFTER
    bint slice_four_tuples(const uint8_t** starts, const uint8_t** ends, const uint8_t* base, int32_t columns,
                           int64_t stride, Cell* cell, uint8_t* formats, uint64_t* shared_header, bint learn) noexcept


cdef inline const uint8_t* prefetch_message(Window w, uint32_t message, const uint8_t* fetched) noexcept nogil:
    """Prefetches the message's cache lines in order, from `fetched` on. Returns the start of the next cache line."""
    cdef const uint8_t* at = w.base + w.start[message]
    cdef const uint8_t* end = at + min(w.length[message], <uint32_t> FETCHED_BYTES)
    if at > fetched:
        fetched = <const uint8_t*> (<uintptr_t> at & ~(<uintptr_t> 63))
    while fetched < end:
        prefetch(fetched)
        fetched += 64
    return fetched


cdef struct Block:
    Cell* cells              # of column c: cells[c * stride .. c * stride + rows)
    int64_t stride
    uint32_t* row_message    # per row: ordinal of its message in the window
    uint8_t* row_change      # per row: its change type
    int64_t rows
    int64_t bytes            # of the messages
    uint8_t formats
    # For a COPY, whose cells have no format: the format of every column, and the offset of the window's base in the
    # stream. For messages `cell_formats` is NULL.
    const uint8_t* cell_formats
    int64_t origin
    uint64_t* shared_header          # per column: the header shared by its cells
    bint unchanged           # some cell was not sent, and no old tuple has its value
    # The position and reason of a malformed tuple.
    uint8_t reason
    uint32_t message
    int64_t byte_offset
    int32_t column
    int32_t sent


cdef int64_t slice_block(Window w, const uint32_t* messages, int64_t count, int64_t k, int32_t columns,
                         const uint8_t* taken, int64_t most_bytes, Block* block) noexcept nogil
cdef bint slice_four_changes(Window w, const uint32_t* messages, int32_t columns, Block* block) noexcept nogil
cdef bint slice_message(Window w, uint32_t message, int32_t columns, Block* block) noexcept nogil
