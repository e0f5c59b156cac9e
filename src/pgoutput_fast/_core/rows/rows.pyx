"""Stages 3 to 5 for one relation version: blocks of its messages -> cells -> column buffers -> record batches."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pgoutput_fast._core.columns.assemble cimport batch_of, drop_array, new_array
from pgoutput_fast._core.columns.column cimport convert_column, make_column
from pgoutput_fast._core.columns.native cimport ArrayOwner, ArrowArray, Column, Issues, Source, give_column, start_array
from pgoutput_fast._core.protocol.kinds cimport COLUMN_BINARY
from pgoutput_fast._core.protocol.limits cimport BLOCK_CELLS, BLOCK_ROWS, GROWTH, LONGEST_NUMERIC, MAX_OFFSET
from pgoutput_fast._core.protocol.reasons cimport OK
from pgoutput_fast._core.protocol.wire cimport Cell
from pgoutput_fast._core.rows.metadata cimport METADATA_COUNT, METADATA_ROW_BYTES, MetadataColumns
from pgoutput_fast._core.rows.named_columns cimport NamedColumns
from pgoutput_fast._core.rows.plan cimport RowsPlan, plan_of
from pgoutput_fast._core.rows.rejects cimport RowRejects
from pgoutput_fast._core.rows.scratch cimport ROWS_DONE, ROWS_FAILED, ROWS_FULL, Scratch
from pgoutput_fast._core.rows.slice cimport BINARY_CELLS, TEXT_CELLS, Block, slice_block
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef int _convert_mixed(Column* column, Source source, const Cell* cells, size_t n, Issues& issues) except -1 nogil:
    """Converts a column with cells of both formats: one run of cells of the same format at a time.

    A cell's format is the byte before its length.
    """
    cdef size_t i = 0, start = 0, before, k
    cdef uint8_t format = 0, here
    while start < n:
        format = 0
        i = start
        while i < n:
            if cells[i].length >= 0:
                here = source.base[cells[i].offset - 5]
                if format == 0:
                    format = here
                elif format != here:
                    break
            i += 1
        before = issues.size()
        convert_column(column[0], column.binary if format == COLUMN_BINARY else column.text, source, cells + start,
                       i - start, issues)
        for k in range(before, issues.size()):
            issues[k].row += <uint32_t> start
        start = i
    return 0


@cython.final
cdef class RelationRows:
    def __cinit__(self, relation, RowsPlan plan, options):
        self.relation = relation
        self.schema = plan.schema
        self.built_schema = plan.built_schema
        self.batches = []
        self.count = <int32_t> len(plan.column_names)
        self.rows = 0
        self.batch_rows = options.batch_rows
        self.batch_bytes = options.batch_bytes
        self.selected_count = plan.selected_count
        self.is_selected.assign(plan.is_selected.begin(), plan.is_selected.end())
        self.columns.reserve(<size_t> self.count)
        for column_type in plan.column_types:
            self.columns.push_back(make_column(column_type))
        self.leaves = plan.leaves
        self.nested = plan.nested
        self.block_bytes = plan.block_bytes
        self.metadata = MetadataColumns()
        self.named = NamedColumns(plan.column_names)
        self.rejects = RowRejects(plan, options)

    def __dealloc__(self):
        cdef size_t k
        for k in range(self.columns.size()):
            del self.columns[k]

    cdef int64_t bytes(self) noexcept nogil:
        cdef size_t k
        cdef size_t total = <size_t> self.rows * METADATA_ROW_BYTES
        for k in range(self.columns.size()):
            total += self.columns[k].bytes()
        return <int64_t> total + self.named.bytes

    cdef bint can_take(self, int64_t bytes, int64_t rows) noexcept nogil:
        """Whether a block of this size is certain to fit into the batch. An empty batch accepts any block."""
        cdef int64_t most = max(GROWTH * (bytes + rows), rows * LONGEST_NUMERIC)
        cdef size_t k
        cdef size_t largest = 0
        if self.rows == 0:
            return True
        for k in range(self.columns.size()):
            largest = max(largest, self.columns[k].largest_data())
        return <int64_t> largest + most <= MAX_OFFSET

    # ---- blocks --------------------------------------------------------------------------------------------------

    cdef int fill(self, Tags tags, Window w, const uint32_t* messages, int64_t count, int64_t expected, int64_t* at,
                  Scratch scratch) except -1 nogil:
        """Decodes messages from at[0] on, until all are done, the batch is full, or an error must be raised.

        The caller passes no more messages than the batch has rows left. `expected` is the estimated number of further
        rows of the batch.
        """
        cdef Block block
        cdef int64_t k
        cdef int progress
        block.cell_formats = NULL
        self.expect(expected)
        while at[0] < count:
            if self.rows and self.bytes() >= self.batch_bytes:
                return ROWS_FULL
            self._start_block(&block, count - at[0], scratch)
            while True:
                k = self._slice(tags, w, messages, count, at[0], &block, scratch)
                if k < 0:
                    return ROWS_FAILED
                if not self.can_take(block.bytes, block.rows):
                    return ROWS_FULL
                progress = self.convert_block(tags, w, &block, scratch)
                if progress == ROWS_DONE:
                    break
                if progress == ROWS_FAILED:
                    return ROWS_FAILED
                # Malformed messages are now marked as rejected. Repeat the block without them.
            at[0] = k
            if self.rows == block.rows:
                # The first block of a batch gives the lengths of values.
                self.expect(expected - self.rows)
        return ROWS_DONE

    cdef int _start_block(self, Block* block, int64_t messages, Scratch scratch) except -1 nogil:
        """Sets the block's maximum number of rows, and the memory of its cells."""
        cdef int32_t columns = self.count
        block.stride = min(BLOCK_ROWS, 2 * messages, 2 + BLOCK_CELLS // (self.leaves + 1))
        if <int64_t> scratch.row_change.size() < block.stride:
            scratch.row_message.resize(BLOCK_ROWS)
            scratch.row_change.resize(BLOCK_ROWS)
        if <int64_t> scratch.cells.size() < block.stride * columns + 1:
            scratch.cells.resize(block.stride * columns + 1)
        if <int64_t> scratch.shared_header.size() < columns + 1:
            scratch.shared_header.resize(columns + 1)
        block.cells = scratch.cells.data()
        block.row_message = scratch.row_message.data()
        block.row_change = scratch.row_change.data()
        block.shared_header = scratch.shared_header.data()
        return 0

    cdef int64_t _slice(self, Tags tags, Window w, const uint32_t* messages, int64_t count, int64_t k, Block* block,
                        Scratch scratch) except -2 nogil:
        """Slices messages from the k-th on into the empty block. Returns the index of the next message.

        Under quarantine it rejects malformed messages. Otherwise it returns -1 at the first one, with the reason in the
        scratch's row_error.
        """
        block.rows = 0
        block.bytes = 0
        block.formats = 0
        block.unchanged = False
        while True:
            k = slice_block(w, messages, count, k, self.count, tags.taken.data(), self.block_bytes, block)
            if block.reason == OK:
                return k
            scratch.row_error.message = block.message
            scratch.row_error.reason = block.reason
            scratch.row_error.byte_offset = block.byte_offset
            scratch.row_error.column = block.column
            scratch.row_error.sent = block.sent
            if not self.rejects.quarantine:
                return -1
            self.rejects.reject_message(tags, w, scratch)
            k += 1

    cdef int expect(self, int64_t more) except -1 nogil:
        """Reserves space for `more` rows, but not for more rows and bytes than still fit into the batch."""
        cdef int64_t rows = min(more, self.batch_rows - self.rows)
        cdef int64_t room = self.batch_bytes - self.bytes() + self.block_bytes
        cdef double row_bytes = METADATA_ROW_BYTES
        cdef size_t k
        if rows < BLOCK_ROWS:
            return 0
        for k in range(self.columns.size()):
            if self.is_selected[k]:
                self.columns[k].learn_lengths()
                row_bytes += self.columns[k].row_bytes()
        # A single value may fill a batch. Later rows may then be much shorter.
        if rows * row_bytes > room:
            rows = <int64_t> (max(room, 0) / row_bytes)
        if rows < BLOCK_ROWS:
            return 0
        for k in range(self.columns.size()):
            if self.is_selected[k]:
                self.columns[k].expect(<size_t> rows)
        return self.metadata.expect(<size_t> rows)

    cdef int convert_block(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil:
        """Appends the block's rows to the columns and returns ROWS_DONE.

        If a value is refused, the columns are restored. The result is then ROWS_FAILED if an error must be raised, or
        ROWS_AGAIN if all messages with malformed values have been rejected.
        """
        cdef int progress
        self.inconsistent = True
        self._convert_columns(w, block, scratch)
        if scratch.issues.size():
            progress = self.rejects.check_issues(tags, w, block, scratch)
            if progress != ROWS_DONE:
                self._rewind(scratch)
                return progress
            self.rejects.add_values(tags, w, block, scratch)
            self.named.add_unrepresentable(scratch, self.rows)
        if block.unchanged:
            self.named.add_unchanged(block, self.is_selected.data(), self.rows)
        self.metadata.append_rows(tags, block, scratch)
        self.rows += block.rows
        self.inconsistent = False
        return ROWS_DONE

    cdef int _convert_columns(self, Window w, Block* block, Scratch scratch) except -1 nogil:
        """Appends the block's values to the columns. The scratch receives the issues, and marks for `_rewind`."""
        cdef int32_t c
        cdef const Cell* cells
        cdef Source source
        cdef uint8_t formats
        cdef size_t n = <size_t> block.rows
        source.base = w.base
        source.end = w.end
        scratch.issues.clear()
        scratch.issue_ends.clear()
        scratch.marks.clear()
        for c in range(self.count):
            scratch.marks.push_back(self.columns[c].mark())
        for c in range(self.count):
            cells = block.cells + c * block.stride
            formats = block.cell_formats[c] if block.cell_formats != NULL else block.formats
            if not self.is_selected[c]:
                pass
            elif formats != (TEXT_CELLS | BINARY_CELLS):
                convert_column(self.columns[c][0],
                               self.columns[c].binary if formats == BINARY_CELLS else self.columns[c].text,
                               source, cells, n, scratch.issues)
            else:
                _convert_mixed(self.columns[c], source, cells, n, scratch.issues)
            scratch.issue_ends.push_back(<uint32_t> scratch.issues.size())
        return 0

    cdef void _rewind(self, Scratch scratch) noexcept nogil:
        """Restores the columns as they were before the current block."""
        cdef int32_t c
        for c in range(self.count):
            self.columns[c].rewind(scratch.marks[c])
        self.inconsistent = False

    cdef void free_scratch(self) noexcept nogil:
        """Frees large working memory before the columns become idle. They keep their buffers."""
        cdef size_t c
        if not self.nested:
            return
        for c in range(self.columns.size()):
            self.columns[c].free_scratch()

    # ---- batches -------------------------------------------------------------------------------------------------

    cdef int finish_batch(self) except -1:
        """Closes the open batch and appends it to `batches`, unless it has no rows."""
        cdef ArrowArray* array
        if self.inconsistent:
            raise MemoryError("memory ran out while these rows were made: they are lost")
        if self.rows == 0:
            return 0
        array = new_array()
        self.inconsistent = True
        try:
            self._give_columns(array)
        except BaseException:
            drop_array(array)
            raise
        batch = batch_of(array, self.built_schema)
        self.batches.append(batch if self.built_schema is self.schema else batch.cast(self.schema))
        self.metadata.clear()
        self.named.clear()
        self.rows = 0
        self.inconsistent = False
        return 0

    cdef int _give_columns(self, ArrowArray* array) except -1:
        """Moves all columns into a struct array, in the order of the schema."""
        cdef size_t c, at = METADATA_COUNT
        cdef ArrayOwner* owner = start_array(array, self.rows, 0, 1, METADATA_COUNT + <size_t> self.selected_count)
        self.metadata.give_columns(&owner.children[0], self.rows)
        self.named.give_columns(&owner.children[0], self.rows)
        for c in range(self.columns.size()):
            if self.is_selected[c]:
                give_column(self.columns[c][0], &owner.children[at])
                at += 1
        return 0

    def take_batches(self):
        """Closes the open batch, and returns and forgets all finished batches."""
        self.finish_batch()
        batches = self.batches
        self.batches = []
        return batches


def make_rows(relation, options, types):
    """Makes a RelationRows for a relation version. `types` are those of its catalog.

    Raises:
        ValueError: if a column has the name of a metadata column.
    """
    return RelationRows(relation, plan_of(relation, options, types), options)
