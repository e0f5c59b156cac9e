from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport ArrowArray
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport Block


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


cdef class NamedColumns:
    """The metadata columns `_unchanged` and `_unrepresentable`: they name columns of the same row."""
    cdef list names                      # of the relation's columns
    cdef vector[int64_t] name_bytes      # per column: bytes of its name here
    cdef vector[NamedCell] unchanged
    cdef vector[NamedCell] unrepresentable
    cdef int64_t bytes                   # of all names in both columns

    cdef int add_unchanged(self, Block* block, const uint8_t* is_selected, int64_t rows) except -1 nogil
    cdef int add_unrepresentable(self, Scratch scratch, int64_t rows) except -1 nogil
    cdef int give_columns(self, ArrowArray* columns, int64_t rows) except -1
    cdef int _give_names(self, vector[NamedCell]& named, ArrowArray* out, int64_t rows) except -1
    cdef void clear(self) noexcept nogil
