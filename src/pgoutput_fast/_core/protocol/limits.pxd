from libc.stdint cimport int64_t


cdef extern from "protocol/limits.hpp" namespace "pgo" nogil:
    const int64_t MAX_PAYLOAD
    const int64_t MAX_OFFSET
    const int64_t USUAL_WINDOW_MESSAGES
    const int64_t MESSAGE_WINDOW_BYTES
    const int64_t BLOCK_ROWS
    const int64_t BLOCK_BYTES
    const int64_t BLOCK_CELLS
    const int64_t LONGEST_NUMERIC
    const int64_t GROWTH
