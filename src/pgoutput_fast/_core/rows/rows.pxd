from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport ArrowArray, Column, Source
from pgoutput_fast._core.protocol.wire cimport Cell
from pgoutput_fast._core.rows.metadata cimport MetadataColumns
from pgoutput_fast._core.rows.named_columns cimport NamedColumns
from pgoutput_fast._core.rows.rejects cimport RowRejects
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport Block
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef class RelationRows:
    """Rows of one relation version: its columns, and the open batch."""
    cdef readonly object relation
    cdef readonly object schema
    cdef object built_schema             # the schema of the buffers
    cdef int32_t count                   # number of the relation's columns
    cdef int64_t leaves                  # number of columns after composites are flattened, at all depths
    cdef bint nested                     # whether any column has a child or fields
    cdef int64_t block_bytes             # a block ends with the message that reaches this size
    cdef vector[Column*] columns
    cdef vector[uint8_t] is_selected     # per column: whether it is converted and becomes part of the batch
    cdef int32_t selected_count          # number of these columns
    cdef MetadataColumns metadata
    cdef NamedColumns named
    cdef RowRejects rejects
    cdef int64_t rows
    cdef bint inconsistent               # memory ran out during a change: columns may differ in length
    cdef list batches
    cdef int64_t batch_rows
    cdef int64_t batch_bytes

    cdef int fill(self, Tags tags, Window w, const uint32_t* messages, int64_t count, int64_t expected, int64_t* at,
                  Scratch scratch) except -1 nogil
    cdef int _start_block(self, Block* block, int64_t messages, Scratch scratch) except -1 nogil
    cdef int64_t _slice(self, Tags tags, Window w, const uint32_t* messages, int64_t count, int64_t k, Block* block,
                        Scratch scratch) except -2 nogil
    cdef int convert_block(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil
    cdef int _convert_columns(self, Window w, Block* block, Scratch scratch) except -1 nogil
    cdef void _rewind(self, Scratch scratch) noexcept nogil
    cdef int64_t bytes(self) noexcept nogil
    cdef bint can_take(self, int64_t bytes, int64_t rows) noexcept nogil
    cdef int expect(self, int64_t more) except -1 nogil
    cdef void free_scratch(self) noexcept nogil
    cdef int finish_batch(self) except -1
    cdef int _give_columns(self, ArrowArray* array) except -1
