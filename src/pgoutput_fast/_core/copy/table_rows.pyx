"""Decodes a snapshot: `COPY ... TO STDOUT (FORMAT binary)` -> record batches like those of a relation's inserts.

Only the slicing differs from that of messages: rows follow each other, in pieces that are cut anywhere.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memmove, memset
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport Buffer, Column
from pgoutput_fast._core.copy.binary_format cimport (
    BEHIND_TRAILER,
    COPY_FLAGS_AT,
    COPY_TRAILER_BYTES,
    IN_ROWS,
    CopyHeader,
    take_copy_header,
)
from pgoutput_fast._core.protocol.limits cimport BLOCK_CELLS, BLOCK_ROWS, GROWTH, LONGEST_NUMERIC, MAX_OFFSET
from pgoutput_fast._core.protocol.reasons cimport BAD_COPY_HEADER, COPY_TRAILING_BYTES, COPY_TRUNCATED, OK, Reason
from pgoutput_fast._core.tagging.records cimport take_records
from pgoutput_fast._core.rows.rows cimport ROWS_DONE, ROWS_FAILED, ROWS_FULL, RelationRows, RowError, Scratch
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.rows.slice cimport BINARY_CELLS, INSERT, TEXT_CELLS, Block
from pgoutput_fast._core.tagging.stream_state cimport NONE64, Run
from pgoutput_fast._core.tagging.tag cimport Tagger
from pgoutput_fast._core.protocol.wire cimport Cell

from pgoutput_fast._core.rows.rows import make_rows
from pgoutput_fast.errors import DecodeError, reason_text
from pgoutput_fast.schema.column_types import column_type_of


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


# So many bytes are gathered before they are decoded. They are several blocks, and still in the cache.
cdef int64_t WINDOW_BYTES = 1 << 18
cdef int64_t LONGEST_WINDOW = 1 << 28
# How many bytes before a value may be read.
cdef int64_t READ_BEFORE = 64

cdef int64_t LONGEST_EXTENSION = 1 << 20


@cython.final
cdef class CopyRows:
    """Decodes rows of one relation from a COPY in binary format. `write` takes the stream in pieces.

    Args:
        relation: the Relation whose columns the COPY has.
        options, types: as for decoding. Only `options.columns` are converted.
        commit_lsn: the value of `_commit_lsn` in all rows, an int.
        text_columns: names of columns that the COPY's query casts to text. Their cells are text.
        on_batch: gets each record batch as soon as it is full. Without it, batches wait for `take_batches`.
        window_bytes: how many bytes are gathered before they are decoded; 0 for the usual number.

    Raises:
        ValueError: if a column has the name of a metadata column.
    """
    cdef RelationRows rows
    cdef Tagger tagger
    cdef Window window
    cdef Scratch scratch
    cdef object options
    cdef object types
    cdef Buffer undecoded               # what was written and is not decoded yet, behind READ_BEFORE zero bytes
    cdef vector[int64_t] fixed_length         # per column: the length that all its cells had in the block before
    cdef vector[int64_t] no_seqs
    cdef CopyHeader header
    cdef vector[uint8_t] cell_formats   # per column
    cdef int64_t window_bytes, least_window  # how many bytes are gathered: now, and when no long row is incomplete
    cdef readonly int64_t decoded_bytes  # how many bytes of the stream are decoded
    cdef readonly int64_t row_count     # how many rows are decoded, rejected ones included
    cdef object on_batch
    cdef object pending_rejects                   # RecordTables that makes the rejects; kept if that fails
    cdef bint failed

    def __init__(self, relation, options, types, int64_t commit_lsn, text_columns=(), *, on_batch=None,
                 int64_t window_bytes=0):
        cdef Run run
        text = frozenset(text_columns)
        self.options = options
        self.types = types
        self.rows = make_rows(relation, options, types)
        self.rows.slot = 0
        self.tagger = Tagger(options.on_error == "quarantine")
        self.tagger.slot_of(relation)
        self.window = Window()
        self.window.reserve(BLOCK_ROWS)
        self.scratch = Scratch()
        self.on_batch = on_batch
        self.window_bytes = self.least_window = window_bytes if window_bytes > 0 else WINDOW_BYTES
        for column in relation.columns:
            self.cell_formats.push_back(TEXT_CELLS if column.name in text else BINARY_CELLS)
        # A row takes the place of a message. All rows have the same run, and `seq` -1: they come before every change.
        self.no_seqs.resize(BLOCK_ROWS, -1)
        self.tagger.seqs = self.no_seqs.data()
        self.tagger.lsns = NULL
        run.txn = run.xid = run.subxid = run.commit_timestamp = NONE64
        run.commit_lsn = commit_lsn
        run.in_stream = False
        self.tagger.runs.push_back(run)
        self.tagger.run_of.resize(BLOCK_ROWS, 0)
        self.tagger.taken.resize(BLOCK_ROWS, 1)
        self.scratch.row_message.resize(BLOCK_ROWS)
        self.scratch.row_change.resize(BLOCK_ROWS, INSERT)
        self.fixed_length.resize(self.rows.count + 1, VARYING)
        self._start_undecoded()
        self.decoded_bytes = self.row_count = 0
        self.failed = False

    @property
    def relation(self):
        return self.rows.relation

    @property
    def schema(self):
        """The schema of the batches: it is the schema of the relation's changes."""
        return self.rows.schema

    cdef int _start_undecoded(self) except -1:
        memset(self.undecoded.append_uninitialized(READ_BEFORE), 0, READ_BEFORE)
        return 0

    def write(self, piece):
        """Takes the next bytes of the stream, cut anywhere. Returns how many.

        Raises:
            DecodeError: if the stream is not a COPY of this relation, and with `on_error="raise"` if a value is
                invalid. The rest of the stream cannot be decoded then.
            MemoryError: if memory runs out. The rest of the stream cannot be decoded then, either.
        """
        cdef Py_buffer view
        cdef const uint8_t* p
        cdef int64_t size
        PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
        try:
            size = view.len
            p = <const uint8_t*> view.buf
            if self.failed:
                raise ValueError("the COPY could not be decoded: nothing more of it is taken")
            if <int64_t> self.undecoded.size() == READ_BEFORE and size >= self.window_bytes:
                # Decodes the piece without a copy of it. Keeps only an incomplete row.
                self._take(p, size)
            else:
                self.undecoded.append(p, <size_t> size)
                if <int64_t> self.undecoded.size() - READ_BEFORE >= self.window_bytes:
                    self._take_kept()
        finally:
            PyBuffer_Release(&view)
        return size

    def finish(self):
        """Decodes the rest, after the end of the stream.

        Raises:
            DecodeError: if the stream ended before its trailer, or as in `write`.
        """
        cdef int64_t size
        if self.failed:
            raise ValueError("the COPY could not be decoded: nothing more of it is taken")
        self._take_kept()
        if self.header.stage != BEHIND_TRAILER:
            size = <int64_t> self.undecoded.size() - READ_BEFORE
            self._raise(COPY_TRUNCATED, self.decoded_bytes + size, -1, -1, self.row_count)

    def take_batches(self):
        """Closes the open record batch and returns all finished batches. It does not keep them."""
        return self.rows.take_batches()

    def take_rejects(self):
        """Returns a record batch with REJECTS_SCHEMA: values without an Arrow form and, under quarantine, whole rows.

        `seq` is -1. `byte_offset` counts from the beginning of the stream.
        """
        if self.pending_rejects is None:
            self.pending_rejects = take_records(self.scratch.records, self.tagger.versions, self.options, self.types)
        rejects = self.pending_rejects.rejects
        self.pending_rejects = None  # only here, because an error in the line before must not lose them
        return rejects

    # ---- stages ------------------------------------------------------------------------------------------------------

    cdef int _take_kept(self) except -1:
        """Decodes what is kept, and moves what is left to the front."""
        cdef int64_t size = <int64_t> self.undecoded.size() - READ_BEFORE
        cdef int64_t used = self._decode(self.undecoded.data() + READ_BEFORE, size, self.undecoded.data())
        memmove(self.undecoded.data() + READ_BEFORE, self.undecoded.data() + READ_BEFORE + used, <size_t> (size - used))
        self.undecoded.set_size(<size_t> (READ_BEFORE + size - used))
        # What is left is the beginning of a row. If it is long, more bytes are gathered, so that the row is not read
        # again for every piece of it.
        self.window_bytes = max(self.least_window, min(2 * (size - used), LONGEST_WINDOW))
        return 0

    cdef int _take(self, const uint8_t* p, int64_t size) except -1:
        cdef int64_t used = self._decode(p, size, p)
        self.failed = True
        self.undecoded.append(p + used, <size_t> (size - used))
        self.failed = False
        return 0

    cdef int64_t _decode(self, const uint8_t* p, int64_t size, const uint8_t* least) except -1:
        """Decodes the complete rows of the bytes at p, which continue the stream. Returns how many bytes it took.

        The bytes from `least` to p may be read, too.
        """
        cdef int64_t used = 0
        cdef int64_t n = 1
        cdef int progress
        # This stays if anything raises, `on_batch` included: it is not known then how much was decoded.
        self.failed = True
        while self.header.stage < IN_ROWS and n:
            n = take_copy_header(&self.header, p + used, size - used, LONGEST_EXTENSION)
            if n < 0:
                # Flags and extension are the options of a COPY. An error in either has the offset of the flags.
                self._raise(BAD_COPY_HEADER, min(self.header.bad_at, COPY_FLAGS_AT), -1, -1, 0)
            used += n
            self.decoded_bytes += n
        while self.header.stage == IN_ROWS:
            with nogil:
                progress = self._rows(p, size, least, &used)
            if progress == ROWS_DONE:
                break
            if progress == ROWS_FAILED:
                self._raise_row_error()
            self.rows.finish_batch()
            if self.on_batch is not None:
                self.on_batch(self.rows.batches.pop())
        if self.header.stage == BEHIND_TRAILER and used < size:
            self._raise(COPY_TRAILING_BYTES, self.decoded_bytes, -1, -1, self.row_count)
        self.failed = False
        return used

    cdef int _rows(self, const uint8_t* p, int64_t size, const uint8_t* least, int64_t* used) except -1 nogil:
        """Decodes complete rows from p + used[0] on.

        Returns ROWS_DONE if there are no more, else what RelationRows.fill returns in the same case.
        """
        cdef Block block
        cdef CopyCells cells
        cdef CopyPlace place
        cdef CopyStop stop
        cdef const uint8_t* at
        cdef int64_t rows_left, stride, worst, k
        cdef int32_t c
        cdef int progress
        cdef int32_t columns = self.rows.count
        while True:
            rows_left = self.rows.batch_rows - self.rows.rows
            if rows_left < 1 or (self.rows.rows and self.rows.bytes() >= self.rows.batch_bytes):
                return ROWS_FULL
            stride = min(BLOCK_ROWS, rows_left, 2 + BLOCK_CELLS // (self.rows.leaves + 1))
            if <int64_t> self.scratch.cells.size() < stride * columns + 1:
                self.scratch.cells.resize(stride * columns + 1)
            at = p + used[0]
            # Offsets of cells have 32 bits. That is enough: a block ends with the row that reaches `block_bytes`.
            self.window.base = at - min(READ_BEFORE, at - least)
            self.window.end = p + size
            block.origin = self.decoded_bytes - (at - self.window.base)
            cells.cells = self.scratch.cells.data()
            cells.stride = stride
            cells.start = self.window.start
            cells.length = self.window.length
            cells.row_message = self.scratch.row_message.data()
            for k in range(stride):
                self.tagger.taken[k] = 1
            while True:
                stop = slice_copied(at, self.window.end, self.window.base, columns, stride, self.rows.block_bytes,
                                    self.tagger.taken.data(), self.fixed_length.data(), &cells, &place)
                if stop == COPY_BAD:
                    self.scratch.row_error.message = <uint32_t> place.row
                    self.scratch.row_error.reason = place.reason
                    self.scratch.row_error.column = place.column
                    self.scratch.row_error.sent = place.sent
                    self.scratch.row_error.byte_offset = block.origin + (place.at - self.window.base)
                    return ROWS_FAILED
                worst = max(GROWTH * (cells.bytes + cells.rows), cells.rows * LONGEST_NUMERIC)
                if self.rows.rows and self.rows._largest() + worst > MAX_OFFSET:
                    return ROWS_FULL
                if cells.rows == 0:
                    break
                block.cells = cells.cells
                block.stride = stride
                block.row_message = cells.row_message
                block.row_change = self.scratch.row_change.data()
                block.rows = cells.rows
                block.bytes = cells.bytes
                block.formats = BINARY_CELLS
                block.cell_formats = self.cell_formats.data()
                block.unchanged = False
                block.reason = OK
                progress = self.rows.convert_block(self.tagger, self.window, &block, self.scratch)
                if progress == ROWS_DONE:
                    break
                if progress == ROWS_FAILED:
                    return ROWS_FAILED
                # Malformed rows of the block are rejected now. The block is done again without them.
            for c in range(columns):
                self.fixed_length[c] = fixed_length_of(self.rows.columns[c][0]) if self.rows.wanted[c] else VARYING
            if self.rows.rows == cells.rows and self.rows.batch_rows - self.rows.rows > BLOCK_ROWS and cells.rows:
                # The first block of a batch shows how long the values are.
                self.rows.expect(min(self.rows.batch_rows, 8 * max(self.row_count, BLOCK_ROWS)))
            used[0] += place.at - at
            self.decoded_bytes += place.at - at
            self.row_count += cells.met
            if stop == COPY_MORE:
                return ROWS_DONE
            if stop == COPY_END:
                used[0] += COPY_TRAILER_BYTES
                self.decoded_bytes += COPY_TRAILER_BYTES
                self.header.stage = BEHIND_TRAILER
                return ROWS_DONE

    # ---- errors ------------------------------------------------------------------------------------------------------

    cdef int _raise_row_error(self) except -1:
        cdef RowError* e = &self.scratch.row_error
        return self._raise(e.reason, e.byte_offset, e.column, e.sent, self.row_count + e.message)

    cdef int _raise(self, int reason, int64_t byte_offset, int32_t column, int32_t sent, int64_t row) except -1:
        relation = self.rows.relation
        named = relation.columns[column] if column >= 0 else None
        self.failed = True
        raise DecodeError(
            reason_text(
                reason,
                column_type_of(named, self.options, self.types) if named is not None else None,
                sent,
                self.rows.count,
            ),
            byte_offset=byte_offset,
            relation=relation.qualified_name,
            column=named.name if named is not None else None,
            row=row,
        )
