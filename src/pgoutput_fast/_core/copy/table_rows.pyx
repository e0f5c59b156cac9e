"""Decodes a snapshot: `COPY ... TO STDOUT (FORMAT binary)` -> record batches like those of a relation's inserts.

The stream may be split anywhere.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memmove, memset

from pgoutput_fast._core.columns.native cimport Buffer
from pgoutput_fast._core.copy.binary_format cimport (
    AFTER_TRAILER,
    COPY_FLAGS_AT,
    IN_ROWS,
    CopyHeader,
    take_copy_header,
)
from pgoutput_fast._core.copy.row_blocks cimport READ_BEFORE, RowBlocks
from pgoutput_fast._core.protocol.reasons cimport BAD_COPY_HEADER, COPY_TRAILING_BYTES, COPY_TRUNCATED
from pgoutput_fast._core.rows.scratch cimport ROWS_DONE, ROWS_FAILED, RowError
from pgoutput_fast._core.tagging.records cimport take_records
from pgoutput_fast._core.tagging.stream_state cimport Records

from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.schema.column_types import column_type_of

# Number of bytes to collect before decoding. They make several blocks, and still fit in the cache.
cdef int64_t WINDOW_BYTES = 1 << 18
cdef int64_t LONGEST_WINDOW = 1 << 28

cdef int64_t LONGEST_EXTENSION = 1 << 20


@cython.final
cdef class CopyRows:
    """Decodes rows of one relation from a COPY in binary format. `write` takes the stream in pieces.

    Args:
        relation: the Relation whose columns the COPY has.
        options, types: as for decoding. Only `options.columns` are converted.
        commit_lsn: the value of `_commit_lsn` in all rows, an int.
        text_columns: names of columns that the COPY's query casts to text. Their cells are text.
        on_batch: called with every record batch as soon as it is full. Without it, `take_batches` returns the batches.
        window_bytes: number of bytes to collect before decoding; 0 for the default.

    Raises:
        ValueError: if a column has the name of a metadata column.
    """
    cdef RowBlocks blocks
    cdef object options
    cdef object types
    cdef Buffer undecoded               # bytes not decoded yet, after READ_BEFORE zero bytes
    cdef CopyHeader header
    cdef int64_t window_bytes, least_window  # number of bytes to collect: now, and without a long incomplete row
    cdef object on_batch
    cdef object pending_rejects         # RecordTables that makes the rejects; kept if that fails
    cdef bint failed

    def __init__(self, relation, options, types, int64_t commit_lsn, text_columns=(), *, on_batch=None,
                 int64_t window_bytes=0):
        self.options = options
        self.types = types
        self.blocks = RowBlocks(relation, options, types, commit_lsn, frozenset(text_columns))
        self.on_batch = on_batch
        self.window_bytes = self.least_window = window_bytes if window_bytes > 0 else WINDOW_BYTES
        self._start_undecoded()
        self.failed = False

    @property
    def relation(self):
        return self.blocks.rows.relation

    @property
    def schema(self):
        """The schema of the batches, which is the schema of the relation's changes."""
        return self.blocks.rows.schema

    @property
    def decoded_bytes(self):
        """The number of stream bytes that are decoded."""
        return self.blocks.decoded_bytes

    @property
    def row_count(self):
        """The number of decoded rows, including rejected ones."""
        return self.blocks.row_count

    cdef int _start_undecoded(self) except -1:
        memset(self.undecoded.append_uninitialized(READ_BEFORE), 0, READ_BEFORE)
        return 0

    def write(self, piece):
        """Decodes the next bytes of the stream, which may be split anywhere. Returns their number.

        Raises:
            DecodeError: if the stream is not a COPY of this relation or, with `on_error="raise"`, if a value is
                invalid. The rest of the stream cannot be decoded after this.
            MemoryError: if memory runs out. The rest of the stream cannot be decoded after this.
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
                # Decodes the bytes without a copy. Keeps only an incomplete row.
                self._take(p, size)
            else:
                self._keep(p, size)
                if <int64_t> self.undecoded.size() - READ_BEFORE >= self.window_bytes:
                    self._take_undecoded()
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
        self._take_undecoded()
        if self.header.stage != AFTER_TRAILER:
            size = <int64_t> self.undecoded.size() - READ_BEFORE
            self._raise(COPY_TRUNCATED, self.blocks.decoded_bytes + size, -1, -1, self.blocks.row_count)

    def take_batches(self):
        """Closes the open record batch, and returns and forgets all finished batches."""
        return self.blocks.rows.take_batches()

    def take_rejects(self):
        """Returns a record batch with REJECTS_SCHEMA: values without an Arrow form and, under quarantine, whole rows.

        `seq` is -1. `byte_offset` is relative to the start of the stream.
        """
        cdef Records* records
        if self.pending_rejects is None:
            records = &self.blocks.scratch.records
            self.pending_rejects = take_records(records[0], [self.blocks.rows.relation], self.options, self.types)
        rejects = self.pending_rejects.rejects
        self.pending_rejects = None  # last, because an error in the previous line must not lose them
        return rejects

    # ---- stages ------------------------------------------------------------------------------------------------------

    cdef int _take_undecoded(self) except -1:
        """Decodes the collected bytes, and moves the rest to the front."""
        cdef int64_t size = <int64_t> self.undecoded.size() - READ_BEFORE
        cdef int64_t used = self._decode(self.undecoded.data() + READ_BEFORE, size, self.undecoded.data())
        memmove(self.undecoded.data() + READ_BEFORE, self.undecoded.data() + READ_BEFORE + used, <size_t> (size - used))
        self.undecoded.set_size(<size_t> (READ_BEFORE + size - used))
        # The rest is the beginning of a row. If it is long, more bytes are collected before the next attempt, so that
        # the row is not read again for every piece.
        self.window_bytes = max(self.least_window, min(2 * (size - used), LONGEST_WINDOW))
        return 0

    cdef int _take(self, const uint8_t* p, int64_t size) except -1:
        cdef int64_t used = self._decode(p, size, p)
        return self._keep(p + used, size - used)

    cdef int _keep(self, const uint8_t* p, int64_t size) except -1:
        """Keeps bytes to decode later. If there is no memory for them, decoding of the stream ends."""
        self.failed = True
        self.undecoded.append(p, <size_t> size)
        self.failed = False
        return 0

    cdef int64_t _decode(self, const uint8_t* p, int64_t size, const uint8_t* least) except -1:
        """Decodes the complete rows of the bytes at p, which continue the stream. Returns the number of bytes consumed.

        The bytes from `least` to p may be read, too.
        """
        cdef int64_t used = 0
        cdef int64_t n = 1
        cdef int progress
        # Stays set after any exception, also from `on_batch`: the decoded position is then unknown.
        self.failed = True
        while self.header.stage < IN_ROWS and n:
            n = take_copy_header(&self.header, p + used, size - used, LONGEST_EXTENSION)
            if n < 0:
                # Flags and extension are the options of a COPY. An error in either is reported at the offset of the
                # flags.
                self._raise(BAD_COPY_HEADER, min(self.header.bad_at, COPY_FLAGS_AT), -1, -1, 0)
            used += n
            self.blocks.decoded_bytes += n
        while self.header.stage == IN_ROWS:
            with nogil:
                progress = self.blocks.decode_rows(p, size, least, &used)
            if progress == ROWS_DONE:
                if self.blocks.met_trailer:
                    self.header.stage = AFTER_TRAILER
                break
            if progress == ROWS_FAILED:
                self._raise_row_error()
            self.blocks.rows.finish_batch()
            if self.on_batch is not None:
                self.on_batch(self.blocks.rows.batches.pop())
        if self.header.stage == AFTER_TRAILER and used < size:
            self._raise(COPY_TRAILING_BYTES, self.blocks.decoded_bytes, -1, -1, self.blocks.row_count)
        self.failed = False
        return used

    # ---- errors ------------------------------------------------------------------------------------------------------

    cdef int _raise_row_error(self) except -1:
        cdef RowError* e = &self.blocks.scratch.row_error
        return self._raise(e.reason, e.byte_offset, e.column, e.sent, self.blocks.row_count + e.message)

    cdef int _raise(self, int reason, int64_t byte_offset, int32_t column, int32_t sent, int64_t row) except -1:
        relation = self.relation
        named = relation.columns[column] if column >= 0 else None
        self.failed = True
        raise DecodeError(
            reason_text(
                reason,
                column_type_of(named, self.options, self.types) if named is not None else None,
                sent,
                self.blocks.rows.count,
            ),
            byte_offset=byte_offset,
            relation=relation.qualified_name,
            column=named.name if named is not None else None,
            row=row,
        )
