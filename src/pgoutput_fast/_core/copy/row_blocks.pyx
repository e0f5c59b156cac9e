"""Decodes blocks of a snapshot's rows. Only slicing differs from that of messages: rows follow each other directly."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pgoutput_fast._core.copy.binary_format cimport COPY_TRAILER_BYTES
from pgoutput_fast._core.protocol.limits cimport BLOCK_CELLS, BLOCK_ROWS
from pgoutput_fast._core.protocol.reasons cimport OK
from pgoutput_fast._core.rows.scratch cimport ROWS_DONE, ROWS_FAILED, ROWS_FULL, RowError, Scratch
from pgoutput_fast._core.rows.slice cimport BINARY_CELLS, INSERT, TEXT_CELLS, Block
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport NONE64, MessageScope
from pgoutput_fast._core.tagging.window_tags cimport Tags

from pgoutput_fast._core.rows.rows import make_rows


@cython.final
cdef class RowBlocks:
    def __cinit__(self, relation, options, types, int64_t commit_lsn, text_columns):
        cdef MessageScope scope
        self.rows = make_rows(relation, options, types)
        self.tags = Tags()
        self.window = Window()
        self.window.reserve(BLOCK_ROWS)
        self.scratch = Scratch()
        for column in relation.columns:
            self.cell_formats.push_back(TEXT_CELLS if column.name in text_columns else BINARY_CELLS)
        # Rows stand in for messages. All rows have the same scope, and `seq` -1: they precede every change.
        self.no_seqs.resize(BLOCK_ROWS, -1)
        self.tags.seqs = self.no_seqs.data()
        self.tags.lsns = NULL
        scope.txn = scope.xid = scope.subxid = scope.commit_timestamp = NONE64
        scope.commit_lsn = commit_lsn
        scope.in_stream = False
        self.tags.scopes.push_back(scope)
        self.tags.scope_of.resize(BLOCK_ROWS, 0)
        self.tags.taken.resize(BLOCK_ROWS, 1)
        self.scratch.row_message.resize(BLOCK_ROWS)
        self.scratch.row_change.resize(BLOCK_ROWS, INSERT)
        self.fixed_lengths.resize(self.rows.count + 1, VARYING)
        self.decoded_bytes = self.row_count = 0
        self.met_trailer = False

    cdef int decode_rows(self, const uint8_t* p, int64_t size, const uint8_t* least, int64_t* used) except -1 nogil:
        """Decodes complete rows from p + used[0] on. The bytes from `least` to p may be read, too.

        Returns ROWS_DONE if no complete row is left, otherwise the result that RelationRows.fill has in the same case.
        """
        cdef Block block
        cdef CopyCells cells
        cdef CopyPlace place
        cdef CopyStop stop
        cdef const uint8_t* at
        cdef int64_t rows_left
        cdef int progress
        while True:
            rows_left = self.rows.batch_rows - self.rows.rows
            if rows_left < 1 or (self.rows.rows and self.rows.bytes() >= self.rows.batch_bytes):
                return ROWS_FULL
            at = p + used[0]
            self._start_block(at, p + size, least, rows_left, &cells, &block)
            progress = self._do_block(at, &cells, &block, &place, &stop)
            if progress != ROWS_DONE:
                return progress
            self._learn_lengths(cells.rows)
            used[0] += place.at - at
            self.decoded_bytes += place.at - at
            self.row_count += cells.met
            if stop == COPY_MORE:
                return ROWS_DONE
            if stop == COPY_END:
                used[0] += COPY_TRAILER_BYTES
                self.decoded_bytes += COPY_TRAILER_BYTES
                self.met_trailer = True
                return ROWS_DONE

    cdef int _start_block(self, const uint8_t* at, const uint8_t* end, const uint8_t* least, int64_t most_rows,
                          CopyCells* cells, Block* block) except -1 nogil:
        """Sets the block's source bytes, its maximum number of rows, and the memory of its cells."""
        cdef int64_t stride = min(BLOCK_ROWS, most_rows, 2 + BLOCK_CELLS // (self.rows.leaves + 1))
        cdef int64_t k
        if <int64_t> self.scratch.cells.size() < stride * self.rows.count + 1:
            self.scratch.cells.resize(stride * self.rows.count + 1)
        # 32 bits are enough for cell offsets, because a block ends with the row that reaches `block_bytes`.
        self.window.base = at - min(<int64_t> READ_BEFORE, at - least)
        self.window.end = end
        cells.cells = block.cells = self.scratch.cells.data()
        cells.stride = block.stride = stride
        cells.start = self.window.start
        cells.length = self.window.length
        cells.row_message = block.row_message = self.scratch.row_message.data()
        block.row_change = self.scratch.row_change.data()
        block.origin = self.decoded_bytes - (at - self.window.base)
        block.cell_formats = self.cell_formats.data()
        block.formats = BINARY_CELLS
        block.unchanged = False
        block.reason = OK
        for k in range(stride):
            self.tags.taken[k] = 1
        return 0

    cdef int _do_block(self, const uint8_t* at, CopyCells* cells, Block* block, CopyPlace* place,
                       CopyStop* stop) except -1 nogil:
        """Slices the rows from `at` on and appends them to the columns. Returns the result of `decode_rows`."""
        cdef RowError* e = &self.scratch.row_error
        cdef int progress
        while True:
            stop[0] = slice_copied(at, self.window.end, self.window.base, self.rows.count, cells.stride,
                                   self.rows.block_bytes, self.tags.taken.data(), self.fixed_lengths.data(), cells,
                                   place)
            if stop[0] == COPY_BAD:
                e.message = <uint32_t> place.row
                e.reason = place.reason
                e.column = place.column
                e.sent = place.sent
                e.byte_offset = block.origin + (place.at - self.window.base)
                return ROWS_FAILED
            if not self.rows.can_take(cells.bytes, cells.rows):
                return ROWS_FULL
            if cells.rows == 0:
                return ROWS_DONE
            block.rows = cells.rows
            block.bytes = cells.bytes
            progress = self.rows.convert_block(self.tags, self.window, block, self.scratch)
            if progress == ROWS_DONE or progress == ROWS_FAILED:
                return progress
            # Malformed rows are now marked as rejected. Repeat the block without them.

    cdef int _learn_lengths(self, int64_t rows) except -1 nogil:
        """Estimates the lengths of the next blocks' values from a block with this number of rows."""
        cdef int32_t c
        for c in range(self.rows.count):
            self.fixed_lengths[c] = fixed_length_of(self.rows.columns[c][0]) if self.rows.is_selected[c] else VARYING
        if self.rows.rows == rows and self.rows.batch_rows - self.rows.rows > BLOCK_ROWS and rows:
            # The first block of a batch.
            self.rows.expect(min(self.rows.batch_rows, 8 * max(self.row_count, BLOCK_ROWS)))
        return 0
