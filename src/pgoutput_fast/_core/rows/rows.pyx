"""Stages 3 to 5 for one relation version: blocks of its messages -> cells -> column buffers -> record batches."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from libcpp.algorithm cimport fill_n, sort

from pgoutput_fast._core.columns.assemble cimport batch_of, drop_array, new_array
from pgoutput_fast._core.columns.column cimport convert_column, make_column
from pgoutput_fast._core.columns.native cimport (
    BYTES,
    FIXED,
    LIST,
    ArrayOwner,
    ArrowArray,
    Column,
    Issue,
    Source,
    append_bits,
    append_nulls,
    give_column,
    give_nulls,
    has_only_nulls,
    is_malformed,
    is_unrepresentable,
    set_known_validity,
    start_array,
)
from pgoutput_fast._core.protocol.kinds cimport COLUMN_BINARY, COLUMN_TEXT
from pgoutput_fast._core.protocol.limits cimport (
    BLOCK_BYTES,
    BLOCK_CELLS,
    BLOCK_ROWS,
    GROWTH,
    LONGEST_NUMERIC,
    MAX_OFFSET,
)
from pgoutput_fast._core.protocol.reasons cimport OK
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.rows.slice cimport BINARY_CELLS, KEY_ONLY, TEXT_CELLS, Block, slice_block
from pgoutput_fast._core.tagging.stream_state cimport NONE64, RejectRecord, Run
from pgoutput_fast._core.tagging.window_tags cimport Tags
from pgoutput_fast._core.protocol.wire cimport CELL_UNCHANGED, Cell

import functools

import pyarrow as pa

from pgoutput_fast.schema.tables import relation_schema
from pgoutput_fast.schema.column_types import column_type_of

# Blocks with arrays of composites are at most this many times smaller than other blocks.
cdef int64_t WIDEST = 32

# Values of `_change_type`, in the order of rows/slice.pxd's codes.
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")

# The same names, each padded to sixteen bytes.
cdef bytes _PADDED_NAMES = b"".join(name.encode().ljust(16, b"\0") for name in CHANGE_TYPES)
cdef const char* CHANGE_NAMES = _PADDED_NAMES
cdef int32_t[5] CHANGE_LENGTHS = [6, 15, 16, 6, 8]

# Metadata columns that are int64 in memory, in the order of the batch's columns. `_change_type` comes before them;
# `_key_only`, `_unchanged` and `_unrepresentable` come after them.
cdef enum:
    SEQ = 0
    LSN = 1
    TXN = 2
    XID = 3
    SUBXID = 4
    COMMIT_LSN = 5
    COMMIT_TIMESTAMP = 6


cdef inline int64_t _place(Window w, uint32_t message, const Block* block, const Cell* cell) noexcept nogil:
    """Returns the offset of a cell's value in its message, or for a COPY in the whole stream."""
    return block.origin + cell.offset if block.cell_formats != NULL else cell.offset - <int64_t> w.start[message]


cdef inline int64_t _of_run(const Run* run, int64_t k) noexcept nogil:
    """Returns the value of metadata column k in all rows of a run; NONE64 for null."""
    if k == TXN:
        return run.txn
    if k == XID:
        return run.xid
    if k == SUBXID:
        return run.subxid
    if k == COMMIT_LSN:
        return run.commit_lsn
    return run.commit_timestamp


cdef bint _before(const NamedCell& a, const NamedCell& b) noexcept nogil:
    return a.row < b.row or (a.row == b.row and a.column < b.column)


@cython.final
cdef class Scratch:
    pass


@cython.final
cdef class _Plan:
    """What all RelationRows of one relation version and one set of options have in common."""
    cdef object schema
    cdef object built_schema             # the schema that the buffers have
    cdef list column_types
    cdef list column_names
    cdef vector[int64_t] type_oids
    cdef vector[uint8_t] wanted
    cdef int32_t given
    cdef int64_t leaves
    cdef bint nested
    cdef int64_t block_bytes

    def __cinit__(self, relation, options, types):
        cdef uint8_t wanted
        self.column_types = [column_type_of(column, options, types) for column in relation.columns]
        self.schema = self.built_schema = relation_schema(relation, self.column_types, options)
        if options.strings == "string_view":
            # These columns are built as strings, and cast when the batch is finished.
            self.built_schema = pa.schema(
                [pa.field(f.name, pa.string()) if pa.types.is_string_view(f.type) else f for f in self.schema]
            )
        self.column_names = [column.name.encode() for column in relation.columns]
        chosen = options.columns_of(relation)
        self.given = 0
        for column in relation.columns:
            self.type_oids.push_back(column.type_oid)
            wanted = chosen is None or column.name in chosen
            self.wanted.push_back(wanted)
            self.given += wanted
        self.leaves = sum([column_type.leaves() for column_type in self.column_types])
        self.nested = any([each.child is not None or each.fields for each in self.column_types])
        widest = max([each.child.leaves() for each in self.column_types if each.child is not None], default=1)
        self.block_bytes = BLOCK_BYTES // <int64_t> min(widest, WIDEST)


@cython.final
cdef class RelationRows:
    def __cinit__(self, relation, _Plan plan, options):
        cdef int k
        self.relation = relation
        self.schema = plan.schema
        self.built_schema = plan.built_schema
        self.batches = []
        self.column_names = plan.column_names
        self.count = <int32_t> len(plan.column_names)
        for name in plan.column_names:
            self.name_bytes.push_back(len(name) + 12)
        self.named_bytes = 0
        self.rows = 0
        self.batch_rows = options.batch_rows
        self.batch_bytes = options.batch_bytes
        self.refuse_unrepresentable = options.unrepresentable == "raise"
        self.quarantine = options.on_error == "quarantine"
        self.given = plan.given
        self.type_oids.assign(plan.type_oids.begin(), plan.type_oids.end())
        self.wanted.assign(plan.wanted.begin(), plan.wanted.end())
        self.columns.reserve(<size_t> self.count)
        for column_type in plan.column_types:
            self.columns.push_back(make_column(column_type))
        self.leaves = plan.leaves
        self.nested = plan.nested
        self.block_bytes = plan.block_bytes
        for k in range(7):
            self.meta[k] = new Column()
            self.meta[k].layout = FIXED
            self.meta[k].width = 8

    def __dealloc__(self):
        cdef size_t k
        for k in range(self.columns.size()):
            del self.columns[k]
        for k in range(7):
            del self.meta[k]

    cdef int64_t bytes(self) noexcept nogil:
        cdef size_t k
        cdef size_t total = <size_t> self.rows * 80
        for k in range(self.columns.size()):
            total += self.columns[k].bytes()
        return <int64_t> total + self.named_bytes

    cdef int64_t _largest(self) noexcept nogil:
        cdef size_t k
        cdef size_t largest = 0
        for k in range(self.columns.size()):
            largest = max(largest, self.columns[k].largest_data())
        return <int64_t> largest

    # ---- blocks --------------------------------------------------------------------------------------------------

    cdef int fill(self, Tags tags, Window w, const uint32_t* messages, int64_t count, int64_t expected, int64_t* at,
                  Scratch scratch) except -1 nogil:
        """Decodes messages from at[0] on, until all are done, the batch is full, or an error must be raised.

        The caller passes no more messages than the batch's number of rows allows. `expected` is how many more rows the
        batch will probably get.
        """
        cdef Block block
        cdef int64_t k, first, worst
        cdef int progress
        cdef int32_t columns = self.count
        block.cell_formats = NULL
        self.expect(expected)
        while at[0] < count:
            if self.rows and self.bytes() >= self.batch_bytes:
                return ROWS_FULL
            block.stride = min(BLOCK_ROWS, 2 * (count - at[0]), 2 + BLOCK_CELLS // (self.leaves + 1))
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
            first = at[0]
            while True:
                block.rows = 0
                block.bytes = 0
                block.formats = 0
                block.unchanged = False
                k = first
                while True:
                    k = slice_block(w, messages, count, k, columns, tags.taken.data(), self.block_bytes, &block)
                    if block.reason == OK:
                        break
                    scratch.row_error.message = block.message
                    scratch.row_error.reason = block.reason
                    scratch.row_error.byte_offset = block.byte_offset
                    scratch.row_error.column = block.column
                    scratch.row_error.sent = block.sent
                    if not self.quarantine:
                        return ROWS_FAILED
                    self._reject_message(tags, w, scratch)
                    k += 1
                worst = max(GROWTH * (block.bytes + block.rows), block.rows * LONGEST_NUMERIC)
                if self.rows and self._largest() + worst > MAX_OFFSET:
                    return ROWS_FULL
                progress = self.convert_block(tags, w, &block, scratch)
                if progress == ROWS_DONE:
                    break
                if progress == ROWS_FAILED:
                    return ROWS_FAILED
                # Malformed messages of the block are rejected now. The block is done again without them.
            at[0] = k
            if self.rows == block.rows:
                # The first block of a batch shows how long the values are.
                self.expect(expected - self.rows)
        return ROWS_DONE

    cdef int expect(self, int64_t more) except -1 nogil:
        """Sizes the buffers for `more` rows, but for no more than the batch can still take."""
        cdef int64_t rows = min(more, self.batch_rows - self.rows)
        cdef size_t k
        if rows < BLOCK_ROWS:
            return 0
        for k in range(self.columns.size()):
            if self.wanted[k]:
                self.columns[k].learn_lengths()
                self.columns[k].expect(<size_t> rows)
        for k in range(7):
            if not has_only_nulls(self.meta[k][0]):
                self.meta[k].expect(<size_t> rows)
        self.changes.reserve(<size_t> rows)
        return 0

    cdef int _reject_message(self, Tags tags, Window w, Scratch scratch) except -1 nogil:
        cdef RowError* t = &scratch.row_error
        tags.taken[t.message] = 0
        tags.reject_into(scratch.records, w, t.message, t.reason, t.byte_offset, self.slot, t.column, self.count,
                         t.sent)

    cdef int convert_block(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil:
        """Appends the block's rows to the columns and returns ROWS_DONE.

        If a value is refused, the columns stay as they were. The result is then ROWS_FAILED if an error must be raised,
        or ROWS_AGAIN if all messages with malformed values have been rejected.
        """
        cdef int32_t c
        cdef const Cell* cells
        cdef Source source
        cdef uint8_t formats
        cdef size_t n = <size_t> block.rows
        self.inconsistent = True
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
            if not self.wanted[c]:
                pass
            elif formats != (TEXT_CELLS | BINARY_CELLS):
                convert_column(self.columns[c][0],
                               self.columns[c].binary if formats == BINARY_CELLS else self.columns[c].text,
                               source, cells, n, scratch.issues)
            else:
                self._convert_mixed(c, source, cells, n, scratch)
            scratch.issue_ends.push_back(<uint32_t> scratch.issues.size())
        if scratch.issues.size():
            if self._refuse(tags, w, block, scratch, True):
                self._rewind(scratch)
                return ROWS_AGAIN if self.quarantine else ROWS_FAILED
            if self.refuse_unrepresentable and self._refuse(tags, w, block, scratch, False):
                self._rewind(scratch)
                return ROWS_FAILED
            self._note_issues(tags, w, block, scratch)
        if block.unchanged:
            self._note_unchanged(block)
        self.append_meta(tags, block, scratch)
        self.rows += block.rows
        self.inconsistent = False
        return ROWS_DONE

    cdef void _rewind(self, Scratch scratch) noexcept nogil:
        """Restores the columns as they were before the current block."""
        cdef int32_t c
        for c in range(self.count):
            self.columns[c].rewind(scratch.marks[c])
        self.inconsistent = False

    cdef bint _refuse(self, Tags tags, Window w, Block* block, Scratch scratch, bint malformed) except -1 nogil:
        """Returns whether the block has refused values: malformed ones, or without `malformed` any with an issue.

        The first one in the stream becomes the scratch's row_error. But under quarantine, every message with a
        malformed value is rejected, with its first malformed value as the reason.
        """
        cdef int32_t c
        cdef int64_t row
        cdef size_t k, first = 0
        cdef uint32_t message
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
        if not found:
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
            scratch.row_error.byte_offset = _place(w, message, block, block.cells + c * block.stride + row)
            if not (self.quarantine and malformed):
                return True
            self._reject_message(tags, w, scratch)
        return True

    cdef int _convert_mixed(self, int32_t c, Source source, const Cell* cells, size_t n,
                            Scratch scratch) except -1 nogil:
        """Converts a column with cells of both formats: consecutive cells of one format at a time.

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
            before = scratch.issues.size()
            convert_column(self.columns[c][0],
                           self.columns[c].binary if format == COLUMN_BINARY else self.columns[c].text,
                           source, cells + start, i - start, scratch.issues)
            for k in range(before, scratch.issues.size()):
                scratch.issues[k].row += <uint32_t> start
            start = i
        return 0

    cdef int _note_issues(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil:
        """Adds values with an issue to the rejects. If a value has no Arrow form, its row also names the column."""
        cdef int32_t c
        cdef size_t k, first = 0
        cdef Issue* issue
        cdef NamedCell named
        cdef RejectRecord r
        cdef const Cell* cell
        cdef uint32_t message
        for c in range(self.count):
            for k in range(first, scratch.issue_ends[c]):
                issue = &scratch.issues[k]
                if is_unrepresentable(issue.reason):
                    named.row = <uint32_t> self.rows + issue.row
                    named.column = c
                    self.unrepresentable.push_back(named)
                    self.named_bytes += self.name_bytes[c]
                cell = block.cells + c * block.stride + issue.row
                message = block.row_message[issue.row]
                r.seq = tags.seq_of(message)
                r.lsn = tags.lsn_of(message)
                r.byte_offset = _place(w, message, block, cell)
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

    cdef int _note_unchanged(self, Block* block) except -1 nogil:
        cdef int32_t c
        cdef int64_t i
        cdef NamedCell named
        for c in range(self.count):
            if not self.wanted[c]:
                continue
            for i in range(block.rows):
                if block.cells[c * block.stride + i].length == CELL_UNCHANGED:
                    named.row = <uint32_t> (self.rows + i)
                    named.column = c
                    self.unchanged.push_back(named)
                    self.named_bytes += self.name_bytes[c]
        return 0

    cdef int append_meta(self, Tags tags, Block* block, Scratch scratch) except -1 nogil:
        cdef int64_t n = block.rows
        cdef int64_t* out
        cdef int64_t i, k, s, end
        cdef int64_t run_count = 0
        cdef int64_t value
        cdef uint32_t message, run_number
        cdef uint32_t nulls = 0, values = 1 << SEQ  # one bit per column that has nulls, or values
        cdef const uint32_t* messages = block.row_message
        # Consecutive rows of one transaction (or of one stream block) have the same values.
        if <int64_t> scratch.runs.size() < n:
            scratch.run_ends.resize(<size_t> n)
            scratch.runs.resize(<size_t> n)
        end = 0
        while end < n:
            run_number = tags.run_of[messages[end]]
            end += 1
            while end < n and tags.run_of[messages[end]] == run_number:
                end += 1
            scratch.run_ends[run_count] = end
            scratch.runs[run_count] = &tags.runs[run_number]
            run_count += 1
            for k in range(TXN, 7):
                if _of_run(&tags.runs[run_number], k) == NONE64:
                    nulls |= 1 << k
                else:
                    values |= 1 << k
        nulls |= 1 << LSN
        if tags.lsns != NULL:
            values |= 1 << LSN
        for k in range(7):
            if not values >> k & 1 and has_only_nulls(self.meta[k][0]):
                append_nulls(self.meta[k][0], <size_t> n)
                continue
            out = <int64_t*> self.meta[k].data.append_uninitialized(<size_t> n * 8)
            if k == SEQ:
                if tags.seqs != NULL:
                    for i in range(n):
                        out[i] = tags.seqs[messages[i]]
                else:
                    for i in range(n):
                        out[i] = tags.base_seq + messages[i]
            elif k == LSN:
                if tags.lsns != NULL:
                    for i in range(n):
                        message = messages[i]
                        out[i] = tags.lsns[message] if tags.lsns[message] != 0 else NONE64
                else:
                    fill_n(out, n, NONE64)
            else:
                i = 0
                for s in range(run_count):
                    value = _of_run(scratch.runs[s], k)
                    while i < scratch.run_ends[s]:
                        out[i] = value
                        i += 1
            set_known_validity(self.meta[k][0], <size_t> n, nulls >> k & 1, values >> k & 1, NONE64)
        self.changes.append(block.row_change, <size_t> n)
        return 0

    cdef void free_scratch(self) noexcept nogil:
        """Frees large working memory, because nobody fills it for a while. It keeps its buffers."""
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
        self.inconsistent = True
        array = new_array()
        try:
            self._give(array)
        except BaseException:
            drop_array(array)
            raise
        batch = batch_of(array, self.built_schema)
        self.batches.append(batch if self.built_schema is self.schema else batch.cast(self.schema))
        self.changes.set_size(0)
        self.unchanged.clear()
        self.unrepresentable.clear()
        self.named_bytes = 0
        self.rows = 0
        self.inconsistent = False
        return 0

    cdef int _give(self, ArrowArray* array) except -1:
        cdef int k
        cdef size_t c, at = META_COLUMNS
        cdef ArrayOwner* owner = start_array(array, self.rows, 0, 1, META_COLUMNS + <size_t> self.given)
        self._give_change_types(&owner.children[0])
        for k in range(7):
            if <int64_t> self.meta[k].nulls == self.rows:
                give_nulls(self.meta[k][0], <size_t> self.rows, &owner.children[1 + k])
                self.meta[k].rewind(Mark())
            else:
                give_column(self.meta[k][0], &owner.children[1 + k])
        self._give_key_only(&owner.children[8])
        self._give_names(self.unchanged, &owner.children[9])
        self._give_names(self.unrepresentable, &owner.children[10])
        for c in range(self.columns.size()):
            if self.wanted[c]:
                give_column(self.columns[c][0], &owner.children[at])
                at += 1
        return 0

    cdef int _give_change_types(self, ArrowArray* out) except -1:
        cdef Column column
        cdef int64_t i
        cdef int64_t total = 0
        cdef int64_t count = self.rows
        cdef const uint8_t* change = self.changes.data()
        cdef int32_t* offsets
        cdef uint8_t* data
        cdef uint8_t others = 0
        cdef int32_t at = 0
        cdef int code = change[0] & 7
        column.layout = BYTES
        for i in range(count):
            others |= (change[i] & 7) ^ code
        if others:
            for i in range(count):
                total += CHANGE_LENGTHS[change[i] & 7]
        else:
            total = count * CHANGE_LENGTHS[code]
        offsets = column.reserve_offsets(<size_t> count)
        data = column.data.append_uninitialized(<size_t> total)
        with nogil:
            if others == 0:
                # All names are the same, as nearly always: each copy doubles the bytes that are written.
                at = CHANGE_LENGTHS[code]
                memcpy(data, CHANGE_NAMES + 16 * code, <size_t> at)
                i = at
                while i < total:
                    memcpy(data + i, data, <size_t> min(i, total - i))
                    i *= 2
                for i in range(count):
                    offsets[i + 1] = <int32_t> (i + 1) * at
            else:
                for i in range(count):
                    code = change[i] & 7
                    # Copies sixteen bytes at once: no name is longer, and bytes behind the buffer's end may be written.
                    memcpy(data + at, CHANGE_NAMES + 16 * code, 16)
                    at += CHANGE_LENGTHS[code]
                    offsets[i + 1] = at
        column.rows = <size_t> count
        give_column(column, out)
        return 0

    cdef int _give_key_only(self, ArrowArray* out) except -1:
        cdef Column column
        cdef int64_t i
        cdef uint8_t* change = self.changes.data()
        with nogil:
            for i in range(self.rows):
                change[i] = (change[i] & KEY_ONLY) >> 3
            append_bits(column.data, 0, change, <size_t> self.rows)
        column.rows = <size_t> self.rows
        give_column(column, out)
        return 0

    cdef int _give_names(self, vector[NamedCell]& named, ArrowArray* out) except -1:
        """Makes a list<string> column: the column names of the named cells of each row; null for a row without any."""
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
            give_nulls(column, <size_t> self.rows, out)
            return 0
        sort(named.begin(), named.end(), _before)
        offsets = column.reserve_offsets(<size_t> self.rows)
        there.resize(<size_t> self.rows, 0)
        child.reserve_offsets(0)
        for row in range(self.rows):
            while k < named.size() and named[k].row == row:
                if k == 0 or named[k - 1].row != row or named[k - 1].column != named[k].column:
                    name = self.column_names[named[k].column]
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
        column.append_validity(there.data(), <size_t> self.rows)
        give_column(column, out)
        return 0

    def take_batches(self):
        """Closes the open batch and returns all finished batches. It does not keep them."""
        self.finish_batch()
        batches = self.batches
        self.batches = []
        return batches


_plan = functools.lru_cache(maxsize=1024)(_Plan)


def make_rows(relation, options, types):
    """Makes a RelationRows for a relation version. `types` are those of its catalog.

    Raises:
        ValueError: if a column has the name of a metadata column.
    """
    return RelationRows(relation, _plan(relation, options, types), options)
