from libc.stdint cimport int64_t

from pgoutput_fast._core.columns.native cimport ArrowArray, Buffer, Column
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport Block
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef class MetadataColumns:
    """The metadata columns of a batch, without the two that name columns (see NamedColumns)."""
    cdef Column* columns[7]              # those that are int64 in memory
    cdef Buffer changes                  # per row: its change type, see rows/slice.pxd

    cdef int expect(self, size_t rows) except -1 nogil
    cdef int append_rows(self, Tags tags, Block* block, Scratch scratch) except -1 nogil
    cdef int give_columns(self, ArrowArray* change_types, ArrowArray* numbers, ArrowArray* key_only,
                          int64_t rows) except -1
    cdef int _give_change_types(self, ArrowArray* out, int64_t rows) except -1
    cdef int _give_key_only(self, ArrowArray* out, int64_t rows) except -1
    cdef void clear(self) noexcept nogil
