from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport Issues, Mark
from pgoutput_fast._core.protocol.wire cimport Cell
from pgoutput_fast._core.tagging.stream_state cimport Records, MessageScope


cdef enum Progress:
    ROWS_DONE = 0
    ROWS_FULL = 1     # the batch is full
    ROWS_FAILED = 2   # see RowError
    ROWS_AGAIN = 3    # messages were rejected: repeat the block without them


cdef struct RowError:
    uint32_t message
    uint8_t reason
    int64_t byte_offset
    int32_t column
    int32_t sent


cdef class Scratch:
    """A thread's memory for one block of cells of any relation, and the rejects of that block."""
    cdef vector[Cell] cells
    cdef vector[uint64_t] shared_header
    cdef vector[uint32_t] row_message
    cdef vector[uint8_t] row_change
    cdef vector[Mark] marks
    cdef Issues issues
    cdef vector[uint32_t] issue_ends     # per column: end of its issues
    cdef vector[int32_t] refused         # per row: the issue for which it is refused, or -1
    cdef vector[int32_t] refused_column  # per row: that issue's column
    cdef vector[int64_t] run_ends        # ends of runs of rows with the same scope
    cdef vector[const MessageScope*] runs         # the scopes of these runs
    cdef RowError row_error
    cdef Records records                 # only rejects
