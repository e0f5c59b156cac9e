from libc.stdint cimport int64_t

from pgoutput_fast._core.columns.native cimport ArrowArray, Buffer, Column
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport Block
from pgoutput_fast._core.tagging.window_tags cimport Tags


# The positions of the metadata columns in a batch. schema/metadata_columns.py has the same order, and describes what
# else a new column needs.
cdef enum:
    CHANGE_TYPE = 0
    SEQ = 1
    LSN = 2
    TXN = 3
    XID = 4
    SUBXID = 5
    COMMIT_LSN = 6
    COMMIT_TIMESTAMP = 7
    KEY_ONLY_COLUMN = 8
    UNCHANGED = 9
    UNREPRESENTABLE = 10
    METADATA_COUNT = 11
    NUMBERS_END = COMMIT_TIMESTAMP + 1   # the columns from SEQ on and before this are int64 in memory

# Approximate bytes of the metadata columns per row: seven int64, and the text of the change type with its offset.
cdef enum:
    METADATA_ROW_BYTES = 80


cdef class MetadataColumns:
    """The metadata columns of a batch, except the two that name columns (see NamedColumns)."""
    cdef Column* numbers[NUMBERS_END]    # by position, from SEQ on; the first ones are unused
    cdef Buffer changes                  # per row: its change type, see rows/slice.pxd

    cdef int expect(self, size_t rows) except -1 nogil
    cdef int append_rows(self, Tags tags, Block* block, Scratch scratch) except -1 nogil
    cdef int give_columns(self, ArrowArray* columns, int64_t rows) except -1
    cdef int _give_change_types(self, ArrowArray* out, int64_t rows) except -1
    cdef int _give_key_only(self, ArrowArray* out, int64_t rows) except -1
    cdef void clear(self) noexcept nogil
