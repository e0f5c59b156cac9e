"""Handling of malformed messages, malformed values, and values without an Arrow form."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t

from pgoutput_fast._core.columns.native cimport Issue, is_malformed
from pgoutput_fast._core.protocol.kinds cimport COLUMN_BINARY, COLUMN_TEXT
from pgoutput_fast._core.protocol.wire cimport Cell
from pgoutput_fast._core.rows.plan cimport RowsPlan
from pgoutput_fast._core.rows.scratch cimport ROWS_AGAIN, ROWS_DONE, ROWS_FAILED, RowError, Scratch
from pgoutput_fast._core.rows.slice cimport BINARY_CELLS, Block
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport RejectRecord
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef inline int64_t _byte_offset(Window w, uint32_t message, const Block* block, const Cell* cell) noexcept nogil:
    """Returns the offset of a cell's value in its message or, for a COPY, in the stream."""
    return block.origin + cell.offset if block.cell_formats != NULL else cell.offset - <int64_t> w.start[message]


@cython.final
cdef class RowRejects:
    def __cinit__(self, RowsPlan plan, options):
        self.slot = 0
        self.count = <int32_t> len(plan.column_names)
        self.type_oids.assign(plan.type_oids.begin(), plan.type_oids.end())
        self.quarantine = options.on_error == "quarantine"
        self.refuse_unrepresentable = options.unrepresentable == "raise"

    cdef int reject_message(self, Tags tags, Window w, Scratch scratch) except -1 nogil:
        """Rejects the message of the scratch's row_error: it produces no rows."""
        cdef RowError* e = &scratch.row_error
        tags.taken[e.message] = 0
        tags.reject_into(scratch.records, w, e.message, e.reason, e.byte_offset, self.slot, e.column, self.count,
                         e.sent)
        return 0

    cdef int check_issues(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil:
        """Returns ROWS_DONE if the block can become rows.

        Otherwise it returns ROWS_FAILED if an error must be raised, or ROWS_AGAIN if all messages with malformed values
        have been rejected.
        """
        if self._refuse(tags, w, block, scratch, True):
            return ROWS_AGAIN if self.quarantine else ROWS_FAILED
        # Every issue counts here, even a dropped lower bound: with this option nothing may be lost without an error.
        if self.refuse_unrepresentable and self._refuse(tags, w, block, scratch, False):
            return ROWS_FAILED
        return ROWS_DONE

    cdef bint _find_refused(self, Block* block, Scratch scratch, bint malformed) except -1 nogil:
        """Determines the issue for which a row is refused, for every row. Returns whether there is any."""
        cdef int32_t c
        cdef size_t k, first = 0
        cdef bint found = False
        cdef Issue* issue
        scratch.refused.clear()
        scratch.refused.resize(<size_t> block.rows, -1)
        scratch.refused_column.resize(<size_t> block.rows)
        for c in range(self.count):
            for k in range(first, scratch.issue_ends[c]):
                issue = &scratch.issues[k]
                if scratch.refused[issue.row] >= 0:
                    continue
                if not malformed or is_malformed(issue.reason):
                    scratch.refused[issue.row] = <int32_t> k
                    scratch.refused_column[issue.row] = c
                    found = True
            first = scratch.issue_ends[c]
        return found

    cdef bint _refuse(self, Tags tags, Window w, Block* block, Scratch scratch, bint malformed) except -1 nogil:
        """Returns whether the block has refused values: malformed ones or, without `malformed`, any with an issue.

        The first one in the stream becomes the scratch's row_error. Under quarantine, every message with a malformed
        value is rejected instead, for its first malformed value.
        """
        cdef int32_t c
        cdef int64_t row
        cdef uint32_t message
        if not self._find_refused(block, scratch, malformed):
            return False
        for row in range(block.rows):
            message = block.row_message[row]
            if scratch.refused[row] < 0 or not tags.taken[message]:
                continue
            c = scratch.refused_column[row]
            scratch.row_error.message = message
            scratch.row_error.reason = scratch.issues[scratch.refused[row]].reason
            scratch.row_error.column = c
            scratch.row_error.sent = -1
            scratch.row_error.byte_offset = _byte_offset(w, message, block, block.cells + c * block.stride + row)
            if not (self.quarantine and malformed):
                return True
            self.reject_message(tags, w, scratch)
        return True

    cdef int add_values(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil:
        """Adds the block's values with an issue to the rejects."""
        cdef int32_t c
        cdef size_t k, first = 0
        cdef Issue* issue
        cdef RejectRecord r
        cdef const Cell* cell
        cdef uint32_t message
        for c in range(self.count):
            for k in range(first, scratch.issue_ends[c]):
                issue = &scratch.issues[k]
                cell = block.cells + c * block.stride + issue.row
                message = block.row_message[issue.row]
                r.seq = tags.seq_of(message)
                r.lsn = tags.lsn_of(message)
                r.byte_offset = _byte_offset(w, message, block, cell)
                r.type_oid = self.type_oids[c]
                r.slot = self.slot
                r.column = c
                r.change_type = block.row_change[issue.row] & 7
                if block.cell_formats != NULL:
                    r.format = COLUMN_BINARY if block.cell_formats[c] == BINARY_CELLS else COLUMN_TEXT
                else:
                    r.format = w.base[cell.offset - 5]
                r.reason = issue.reason
                r.raw = scratch.records.keep(w.base + cell.offset, <size_t> cell.length)
                scratch.records.rejects.push_back(r)
            first = scratch.issue_ends[c]
        return 0
