from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport Column
from pgoutput_fast._core.protocol.reasons cimport Reason
from pgoutput_fast._core.protocol.wire cimport Cell
from pgoutput_fast._core.rows.rows cimport RelationRows
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport Block
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef extern from "copy/tuples.hpp" namespace "pgo" nogil:
    const int64_t VARYING
    int64_t fixed_length_of(const Column& column) noexcept

    ctypedef enum CopyStop "pgo::CopyStop":
        COPY_FULL "pgo::COPY_FULL"
        COPY_MORE "pgo::COPY_MORE"
        COPY_END "pgo::COPY_END"
        COPY_BAD "pgo::COPY_BAD"

    cdef cppclass CopyPlace:
        const uint8_t* at
        Reason reason
        int32_t column
        int32_t sent
        int64_t row

    cdef cppclass CopyCells:
        Cell* cells
        int64_t stride
        uint32_t* start
        uint32_t* length
        uint32_t* row_message
        int64_t met
        int64_t rows
        int64_t bytes

    CopyStop slice_copied(const uint8_t* p, const uint8_t* end, const uint8_t* base, int32_t columns, int64_t most_rows,
                          int64_t most_bytes, const uint8_t* taken, const int64_t* fixed_length, CopyCells* out,
                          CopyPlace* place) noexcept


# Number of bytes before a value that may be read.
cdef enum:
    READ_BEFORE = 64


cdef class RowBlocks:
    """Makes rows of a relation from the tuples of a COPY, block by block."""
    cdef RelationRows rows
    cdef Tags tags                      # the same for all blocks, except `taken`
    cdef Window window
    cdef Scratch scratch
    cdef vector[int64_t] fixed_lengths  # per column: the length of all its cells in the previous block
    cdef vector[int64_t] no_seqs
    cdef vector[uint8_t] cell_formats   # per column
    cdef int64_t decoded_bytes          # number of stream bytes that are decoded
    cdef int64_t row_count              # number of decoded rows, including rejected ones
    cdef bint met_trailer

    cdef int decode_rows(self, const uint8_t* p, int64_t size, const uint8_t* least, int64_t* used) except -1 nogil
    cdef int _start_block(self, const uint8_t* at, const uint8_t* end, const uint8_t* least, int64_t most_rows,
                          CopyCells* cells, Block* block) except -1 nogil
    cdef int _do_block(self, const uint8_t* at, CopyCells* cells, Block* block, CopyPlace* place,
                       CopyStop* stop) except -1 nogil
    cdef int _learn_lengths(self, int64_t rows) except -1 nogil
