from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.protocol.wire cimport Cell, prefetch

# What a row is; the order is that of CHANGE_TYPES. KEY_ONLY is added where the tuple was tagged K.
cdef enum:
    INSERT = 0
    UPDATE_PREIMAGE = 1
    UPDATE_POSTIMAGE = 2
    DELETE = 3
    TRUNCATE = 4
    KEY_ONLY = 8
    SEVERAL = 128    # of a change: more tuples than one

# Formats that a block's cells came in: bits of Block.formats.
cdef enum:
    TEXT_CELLS = 1
    BINARY_CELLS = 2


# While one message is sliced, the one this far ahead is fetched; its beginning only, where it is long.
cdef enum:
    AHEAD = 8
    FETCHED_BYTES = 1024


cdef extern from "rows/four_tuples.hpp" namespace "pgo" nogil:
    const int64_t HEADER_ROOM
    bint slice_four_tuples(const uint8_t** starts, const uint8_t** ends, const uint8_t* base, int32_t columns,
                           int64_t stride, Cell* cell, uint8_t* formats, uint64_t* alike, bint learn) noexcept


cdef inline const uint8_t* prefetch_message(Window w, uint32_t message, const uint8_t* fetched) noexcept nogil:
    """Fetches the message's cache lines in order, but for those before `fetched`; returns where the next one begins."""
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
    uint8_t* row_change      # per row: what it is
    int64_t rows
    int64_t bytes            # of the messages
    uint8_t formats
    # Of cells that do not say their formats, as messages do: the format of each column, else NULL; and where in the
    # stream the window's base lies.
    const uint8_t* cell_formats
    int64_t origin
    uint64_t* alike          # per column: room for the header that its cells share
    bint unchanged           # some cell was not sent and nothing answers it
    # Where a tuple went wrong.
    uint8_t reason
    uint32_t message
    int64_t byte_offset
    int32_t column
    int32_t sent


cdef int64_t slice_block(Window w, const uint32_t* messages, int64_t count, int64_t k, int32_t columns,
                         const uint8_t* taken, int64_t most_bytes, Block* block) noexcept nogil
cdef bint slice_four_changes(Window w, const uint32_t* messages, int32_t columns, Block* block) noexcept nogil
cdef bint slice_message(Window w, uint32_t message, int32_t columns, Block* block) noexcept nogil
