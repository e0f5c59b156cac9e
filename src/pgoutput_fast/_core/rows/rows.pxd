from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport ArrowArray, Buffer, Column, Issues, Mark, Source
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.rows.slice cimport Block
from pgoutput_fast._core.tagging.stream_state cimport Records, Run
from pgoutput_fast._core.tagging.window_tags cimport Tags
from pgoutput_fast._core.protocol.wire cimport Cell


cdef extern from *:
    """
    // A cell named in `_unchanged` or `_unrepresentable`.
    struct NamedCell {
        uint32_t row;
        int32_t column;
    };
    """
    cdef struct NamedCell:
        uint32_t row
        int32_t column


cdef enum:
    META_COLUMNS = 11


cdef enum Progress:
    ROWS_DONE = 0
    ROWS_FULL = 1     # the batch has reached its largest size
    ROWS_FAILED = 2   # see RowError
    ROWS_AGAIN = 3    # messages were rejected: the block must be done again without them


cdef struct RowError:
    uint32_t message
    uint8_t reason
    int64_t byte_offset
    int32_t column
    int32_t sent


cdef class Scratch:
    """A thread's memory for one block of cells, of any relation; and the rejects that it found."""
    cdef vector[Cell] cells
    cdef vector[uint64_t] shared_header
    cdef vector[uint32_t] row_message
    cdef vector[uint8_t] row_change
    cdef vector[Mark] marks
    cdef Issues issues
    cdef vector[uint32_t] issue_ends     # per column: where its issues end
    cdef vector[int32_t] refused         # per row: the issue for which it is refused, or -1
    cdef vector[int32_t] refused_column  # per row: that issue's column
    cdef vector[int64_t] run_ends     # consecutive rows with the same run: where they end
    cdef vector[const Run*] runs  # and their run
    cdef RowError row_error
    cdef Records records                 # only rejects


cdef class RelationRows:
    """Rows of one relation version: its columns, and the batch that is being filled."""
    cdef readonly object relation
    cdef readonly object schema
    cdef object built_schema
    cdef int32_t slot
    cdef int32_t count                   # of the relation's columns
    cdef int64_t leaves                  # how many columns these become, with the fields of composites at all depths
    cdef bint nested                     # whether any column has a child or fields
    cdef int64_t block_bytes             # a block ends with the message that reaches this size
    cdef vector[Column*] columns
    cdef vector[int64_t] type_oids
    cdef vector[uint8_t] wanted          # per column: whether it is converted and becomes part of the batch
    cdef int32_t given                   # how many of these columns there are
    cdef list column_names
    cdef Column* meta[7]
    cdef Buffer changes
    cdef vector[NamedCell] unchanged
    cdef vector[NamedCell] unrepresentable
    cdef vector[int64_t] name_bytes      # per column: the bytes of its name in `_unchanged` or `_unrepresentable`
    cdef int64_t named_bytes             # the bytes of all names in these two
    cdef int64_t rows
    cdef bint inconsistent                       # memory ran out during a change: the columns may differ in length
    cdef list batches
    cdef int64_t batch_rows
    cdef int64_t batch_bytes
    cdef bint refuse_unrepresentable
    cdef bint quarantine

    cdef int fill(self, Tags tags, Window w, const uint32_t* messages, int64_t count, int64_t expected, int64_t* at,
                  Scratch scratch) except -1 nogil
    cdef int convert_block(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil
    cdef bint _refuse(self, Tags tags, Window w, Block* block, Scratch scratch, bint malformed) except -1 nogil
    cdef int append_meta(self, Tags tags, Block* block, Scratch scratch) except -1 nogil
    cdef int64_t bytes(self) noexcept nogil
    cdef int64_t _largest(self) noexcept nogil
    cdef int expect(self, int64_t more) except -1 nogil
    cdef int _reject_message(self, Tags tags, Window w, Scratch scratch) except -1 nogil
    cdef int _convert_mixed(self, int32_t c, Source source, const Cell* cells, size_t n,
                            Scratch scratch) except -1 nogil
    cdef int _note_issues(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil
    cdef int _note_unchanged(self, Block* block) except -1 nogil
    cdef void free_scratch(self) noexcept nogil
    cdef void _rewind(self, Scratch scratch) noexcept nogil
    cdef int finish_batch(self) except -1
    cdef int _give(self, ArrowArray* array) except -1
    cdef int _give_change_types(self, ArrowArray* out) except -1
    cdef int _give_key_only(self, ArrowArray* out) except -1
    cdef int _give_names(self, vector[NamedCell]& named, ArrowArray* out) except -1
