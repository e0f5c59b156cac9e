"""The metadata columns: the position of a row's change in the stream, and its change type."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pgoutput_fast._core.columns.native cimport (
    BYTES,
    FIXED,
    ArrowArray,
    Column,
    Mark,
    append_bits,
    append_nulls,
    give_column,
    give_nulls,
    has_only_nulls,
    set_known_validity,
)
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport KEY_ONLY, Block
from pgoutput_fast._core.tagging.stream_state cimport NONE64, MessageScope
from pgoutput_fast._core.tagging.window_tags cimport Tags

from pgoutput_fast.schema.metadata_columns import CHANGE_TYPES

# Each name padded to sixteen bytes, and its length.
cdef bytes _PADDED_NAMES = b"".join(name.encode().ljust(16, b"\0") for name in CHANGE_TYPES)
cdef const char* CHANGE_NAMES = _PADDED_NAMES
cdef int32_t[5] CHANGE_LENGTHS = [len(name) for name in CHANGE_TYPES]


cdef inline int64_t _value_of_run(const MessageScope* run, int64_t k) noexcept nogil:
    """Returns the value of the column at position k in all rows of a run; NONE64 for null."""
    if k == TXN:
        return run.txn
    if k == XID:
        return run.xid
    if k == SUBXID:
        return run.subxid
    if k == COMMIT_LSN:
        return run.commit_lsn
    return run.commit_timestamp


cdef int64_t _find_runs(Tags tags, const uint32_t* messages, int64_t n, Scratch scratch, uint32_t* nulls,
                        uint32_t* values) except -1 nogil:
    """Splits the block into runs of rows of one transaction or stream block, which have the same values.

    Returns the number of runs. Adds to `nulls` and `values` the bits of the columns that have nulls or values.
    """
    cdef int64_t end = 0, k
    cdef int64_t count = 0
    cdef uint32_t run_number
    if <int64_t> scratch.runs.size() < n:
        scratch.run_ends.resize(<size_t> n)
        scratch.runs.resize(<size_t> n)
    while end < n:
        run_number = tags.scope_of[messages[end]]
        end += 1
        while end < n and tags.scope_of[messages[end]] == run_number:
            end += 1
        scratch.run_ends[count] = end
        scratch.runs[count] = &tags.scopes[run_number]
        count += 1
        for k in range(TXN, NUMBERS_END):
            if _value_of_run(&tags.scopes[run_number], k) == NONE64:
                nulls[0] |= 1 << k
            else:
                values[0] |= 1 << k
    return count


cdef inline void _write_seqs(Tags tags, const uint32_t* messages, int64_t n, int64_t* out) noexcept nogil:
    cdef int64_t i
    if tags.seqs != NULL:
        for i in range(n):
            out[i] = tags.seqs[messages[i]]
    else:
        for i in range(n):
            out[i] = tags.base_seq + messages[i]


cdef inline void _write_lsns(Tags tags, const uint32_t* messages, int64_t n, int64_t* out) noexcept nogil:
    cdef int64_t i
    cdef uint32_t message
    if tags.lsns != NULL:
        for i in range(n):
            message = messages[i]
            out[i] = tags.lsns[message] if tags.lsns[message] != 0 else NONE64
    else:
        for i in range(n):
            out[i] = NONE64


cdef inline void _write_runs(Scratch scratch, int64_t count, int64_t k, int64_t* out) noexcept nogil:
    cdef int64_t i = 0, part, value
    for part in range(count):
        value = _value_of_run(scratch.runs[part], k)
        while i < scratch.run_ends[part]:
            out[i] = value
            i += 1


@cython.final
cdef class MetadataColumns:
    def __cinit__(self):
        cdef int k
        for k in range(SEQ, NUMBERS_END):
            self.numbers[k] = new Column()
            self.numbers[k].layout = FIXED
            self.numbers[k].width = 8

    def __dealloc__(self):
        cdef int k
        for k in range(SEQ, NUMBERS_END):
            del self.numbers[k]

    cdef int expect(self, size_t rows) except -1 nogil:
        """Reserves space for `rows` more rows."""
        cdef int k
        for k in range(SEQ, NUMBERS_END):
            if not has_only_nulls(self.numbers[k][0]):
                self.numbers[k].expect(rows)
        self.changes.reserve(rows)
        return 0

    cdef int append_rows(self, Tags tags, Block* block, Scratch scratch) except -1 nogil:
        """Appends the values of the block's rows."""
        cdef int64_t n = block.rows
        cdef uint32_t nulls = 1 << LSN, values = 1 << SEQ  # one bit per column that has nulls, or values
        cdef const uint32_t* messages = block.row_message
        cdef int64_t run_count = _find_runs(tags, messages, n, scratch, &nulls, &values)
        cdef int64_t* out
        cdef int64_t k
        if tags.lsns != NULL:
            values |= 1 << LSN
        for k in range(SEQ, NUMBERS_END):
            if not values >> k & 1 and has_only_nulls(self.numbers[k][0]):
                append_nulls(self.numbers[k][0], <size_t> n)
                continue
            out = <int64_t*> self.numbers[k].data.append_uninitialized(<size_t> n * 8)
            if k == SEQ:
                _write_seqs(tags, messages, n, out)
            elif k == LSN:
                _write_lsns(tags, messages, n, out)
            else:
                _write_runs(scratch, run_count, k, out)
            set_known_validity(self.numbers[k][0], <size_t> n, nulls >> k & 1, values >> k & 1, NONE64)
        self.changes.append(block.row_change, <size_t> n)
        return 0

    cdef int give_columns(self, ArrowArray* columns, int64_t rows) except -1:
        """Moves the columns to their positions among the batch's `columns`. `clear` must follow."""
        cdef int k
        self._give_change_types(&columns[CHANGE_TYPE], rows)
        for k in range(SEQ, NUMBERS_END):
            if <int64_t> self.numbers[k].nulls == rows:
                give_nulls(self.numbers[k][0], <size_t> rows, &columns[k])
                self.numbers[k].rewind(Mark())
            else:
                give_column(self.numbers[k][0], &columns[k])
        self._give_key_only(&columns[KEY_ONLY_COLUMN], rows)
        return 0

    cdef int _give_change_types(self, ArrowArray* out, int64_t rows) except -1:
        cdef Column column
        cdef int64_t i
        cdef int64_t total = 0
        cdef const uint8_t* change = self.changes.data()
        cdef int32_t* offsets
        cdef uint8_t* data
        cdef uint8_t others = 0
        cdef int32_t at = 0
        cdef int code = change[0] & 7
        column.layout = BYTES
        for i in range(rows):
            others |= (change[i] & 7) ^ code
        if others:
            for i in range(rows):
                total += CHANGE_LENGTHS[change[i] & 7]
        else:
            total = rows * CHANGE_LENGTHS[code]
        offsets = column.reserve_offsets(<size_t> rows)
        data = column.data.append_uninitialized(<size_t> total)
        with nogil:
            if others == 0:
                # Usually all names are equal: every copy doubles the bytes written.
                at = CHANGE_LENGTHS[code]
                memcpy(data, CHANGE_NAMES + 16 * code, <size_t> at)
                i = at
                while i < total:
                    memcpy(data + i, data, <size_t> min(i, total - i))
                    i *= 2
                for i in range(rows):
                    offsets[i + 1] = <int32_t> (i + 1) * at
            else:
                for i in range(rows):
                    code = change[i] & 7
                    # Copies sixteen bytes at once: no name is longer, and bytes after the end of the buffer may be
                    # written.
                    memcpy(data + at, CHANGE_NAMES + 16 * code, 16)
                    at += CHANGE_LENGTHS[code]
                    offsets[i + 1] = at
        column.rows = <size_t> rows
        give_column(column, out)
        return 0

    cdef int _give_key_only(self, ArrowArray* out, int64_t rows) except -1:
        cdef Column column
        cdef int64_t i
        cdef uint8_t* change = self.changes.data()
        with nogil:
            for i in range(rows):
                change[i] = (change[i] & KEY_ONLY) >> 3
            append_bits(column.data, 0, change, <size_t> rows)
        column.rows = <size_t> rows
        give_column(column, out)
        return 0

    cdef void clear(self) noexcept nogil:
        """Clears the change types, after all columns were moved out."""
        self.changes.set_size(0)
