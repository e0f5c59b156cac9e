"""The metadata columns that name columns: values that were not sent, and values without an Arrow form."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.algorithm cimport sort
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport (
    BYTES,
    LIST,
    ArrowArray,
    Column,
    give_column,
    give_nulls,
    is_unrepresentable,
)
from pgoutput_fast._core.protocol.limits cimport MAX_OFFSET
from pgoutput_fast._core.protocol.wire cimport CELL_UNCHANGED
from pgoutput_fast._core.rows.metadata cimport UNCHANGED, UNREPRESENTABLE
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport Block


cdef bint _comes_before(const NamedCell& a, const NamedCell& b) noexcept nogil:
    return a.row < b.row or (a.row == b.row and a.column < b.column)


@cython.final
cdef class NamedColumns:
    def __cinit__(self, list names):
        self.names = names
        self.bytes = 0
        for name in names:
            self.name_bytes.push_back(len(name) + 12)

    cdef int add_unchanged(self, Block* block, const uint8_t* is_selected, int64_t rows) except -1 nogil:
        """Adds the block's cells that were not sent. `rows` is the number of rows before the block."""
        cdef int32_t c
        cdef int64_t i
        cdef NamedCell named
        for c in range(<int32_t> self.name_bytes.size()):
            if not is_selected[c]:
                continue
            for i in range(block.rows):
                if block.cells[c * block.stride + i].length == CELL_UNCHANGED:
                    named.row = <uint32_t> (rows + i)
                    named.column = c
                    self.unchanged.push_back(named)
                    self.bytes += self.name_bytes[c]
        return 0

    cdef int add_unrepresentable(self, Scratch scratch, int64_t rows) except -1 nogil:
        """Adds the block's cells that have no Arrow form. `rows` is the number of rows before the block."""
        cdef int32_t c
        cdef size_t k, first = 0
        cdef NamedCell named
        for c in range(<int32_t> self.name_bytes.size()):
            for k in range(first, scratch.issue_ends[c]):
                if is_unrepresentable(scratch.issues[k].reason):
                    named.row = <uint32_t> rows + scratch.issues[k].row
                    named.column = c
                    self.unrepresentable.push_back(named)
                    self.bytes += self.name_bytes[c]
            first = scratch.issue_ends[c]
        return 0

    cdef int give_columns(self, ArrowArray* columns, int64_t rows) except -1:
        """Makes both columns, at their positions among the batch's `columns`. `clear` must follow."""
        self._give_names(self.unchanged, &columns[UNCHANGED], rows)
        self._give_names(self.unrepresentable, &columns[UNREPRESENTABLE], rows)
        return 0

    cdef int _give_names(self, vector[NamedCell]& named, ArrowArray* out, int64_t rows) except -1:
        """Makes a list<string> column: for every row, the names of its listed columns; null if there are none."""
        cdef Column column
        cdef Column* child = new Column()
        cdef int32_t* offsets
        cdef size_t k = 0
        cdef int64_t row
        cdef bytes name
        cdef vector[uint8_t] there
        column.layout = LIST
        column.child.reset(child)
        child.layout = BYTES
        if named.size() == 0:
            give_nulls(column, <size_t> rows, out)
            return 0
        sort(named.begin(), named.end(), _comes_before)
        offsets = column.reserve_offsets(<size_t> rows)
        there.resize(<size_t> rows, 0)
        child.reserve_offsets(0)
        for row in range(rows):
            while k < named.size() and named[k].row == row:
                if k == 0 or named[k - 1].row != row or named[k - 1].column != named[k].column:
                    name = self.names[named[k].column]
                    child.data.append(<const char*> name, len(name))
                    child.reserve_offsets(1)[1] = <int32_t> child.data.size()
                    child.rows += 1
                    if <int64_t> child.data.size() > MAX_OFFSET:
                        raise ValueError(
                            "a batch's lists of column names take more than 2 GiB: decode with smaller batch_rows"
                        )
                there[row] = 1
                k += 1
            offsets[row + 1] = <int32_t> child.rows
        column.append_validity(there.data(), <size_t> rows)
        give_column(column, out)
        return 0

    cdef void clear(self) noexcept nogil:
        self.unchanged.clear()
        self.unrepresentable.clear()
        self.bytes = 0
