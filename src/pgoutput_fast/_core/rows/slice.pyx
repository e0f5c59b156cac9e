"""Stage 3, slice: makes a table of cells from tuples of one relation version. A cell is a value's offset and length.

The cells of a column are adjacent, so that a converter reads them sequentially. Slicing does not read values.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pgoutput_fast._core.protocol.kinds cimport (
    COLUMN_BINARY,
    COLUMN_NULL,
    COLUMN_TEXT,
    COLUMN_UNCHANGED,
    MSG_DELETE,
    MSG_INSERT,
    MSG_TRUNCATE,
    MSG_UPDATE,
    TUPLE_KEY,
    TUPLE_NEW,
    TUPLE_OLD,
)
from pgoutput_fast._core.protocol.reasons cimport (
    BAD_CELL_COUNT,
    BAD_CELL_KIND,
    BAD_CELL_LENGTH,
    BAD_TUPLE_TAG,
    OK,
    TRAILING_BYTES,
    TRUNCATED,
)
from pgoutput_fast._core.tagging.scan cimport IN_STREAM, Window
from pgoutput_fast._core.protocol.wire cimport CELL_NULL, CELL_UNCHANGED, Cell, load16, load32


cdef inline const uint8_t* _fail(Block* block, uint8_t reason, const uint8_t* at, const uint8_t* message,
                                 int32_t column) noexcept nogil:
    block.reason = reason
    block.byte_offset = at - message
    block.column = column
    return NULL


cdef inline const uint8_t* _tuple(const uint8_t* p, const uint8_t* end, const uint8_t* base, const uint8_t* message,
                                  int32_t columns, int64_t row, Block* block, bint* unchanged) noexcept nogil:
    """Slices the tuple at p into row `row`. Returns the tuple's end, or NULL with a reason set if it is malformed."""
    cdef int32_t c
    cdef int64_t length
    cdef uint8_t kind
    cdef uint8_t formats = 0
    cdef Cell* cell = block.cells + row
    if end - p < 2:
        return _fail(block, TRUNCATED, end, message, -1)
    block.sent = load16(p)
    if block.sent != columns:
        return _fail(block, BAD_CELL_COUNT, p, message, -1)
    p += 2
    for c in range(columns):
        if p == end:
            return _fail(block, TRUNCATED, p, message, c)
        kind = p[0]
        if kind == COLUMN_TEXT or kind == COLUMN_BINARY:
            if end - p < 5:
                return _fail(block, TRUNCATED, end, message, c)
            length = <int32_t> load32(p + 1)
            p += 5
            if length < 0 or length > end - p:
                return _fail(block, BAD_CELL_LENGTH if length < 0 else TRUNCATED, p - 4 if length < 0 else end,
                             message, c)
            cell.offset = <uint32_t> (p - base)
            cell.length = <int32_t> length
            # 't' is 0x74 and 'b' is 0x62: only 'b' has bit 1, which is BINARY_CELLS; only 't' has bit 2.
            formats |= (kind & 2) | ((kind >> 2) & 1)
            p += length
        else:
            cell.offset = <uint32_t> (p - base)
            if kind == COLUMN_NULL:
                cell.length = CELL_NULL
            elif kind == COLUMN_UNCHANGED:
                cell.length = CELL_UNCHANGED
                unchanged[0] = True
            else:
                return _fail(block, BAD_CELL_KIND, p, message, c)
            p += 1
        cell += block.stride
    block.formats |= formats
    return p


cdef inline uint8_t _only_tuple(uint8_t kind, uint8_t tag) noexcept nogil:
    """Returns the change type of a change whose only tuple has this tag, or SEVERAL if it may have more tuples."""
    if tag == TUPLE_NEW:
        return INSERT if kind == MSG_INSERT else UPDATE_POSTIMAGE if kind == MSG_UPDATE else SEVERAL
    if kind == MSG_DELETE:
        return DELETE | KEY_ONLY if tag == TUPLE_KEY else DELETE if tag == TUPLE_OLD else SEVERAL
    return SEVERAL


cdef bint slice_four_changes(Window w, const uint32_t* messages, int32_t columns, Block* block) noexcept nogil:
    """Appends the rows of four messages at once, if all are changes with one tuple and nothing unusual.

    Otherwise returns False and leaves the block unchanged. slice_message must then slice them one by one.
    """
    cdef const uint8_t* at[4]
    cdef const uint8_t* end[4]
    cdef int64_t row = block.rows
    cdef int64_t bytes = 0
    cdef uint8_t formats = 0
    cdef uint8_t change[4]
    cdef uint32_t message
    cdef int k
    for k in range(4):
        message = messages[k]
        at[k] = w.base + w.start[message]
        end[k] = at[k] + w.length[message]
        bytes += w.length[message]
        at[k] += 9 if w.flags[message] & IN_STREAM else 5
        if end[k] - at[k] < 3 or w.end - end[k] < HEADER_READ_AFTER or load16(at[k] + 1) != columns:
            return False
        change[k] = _only_tuple(w.kind[message], at[k][0])
        if change[k] == SEVERAL:
            return False
        at[k] += 3
    if not slice_four_tuples(at, end, w.base, columns, block.stride, block.cells + row, &formats, block.shared_header,
                             row == 0):
        return False
    for k in range(4):
        block.row_message[row + k] = messages[k]
        block.row_change[row + k] = change[k]
    block.formats |= formats
    block.bytes += bytes
    block.rows = row + 4
    return True


cdef inline void _append_truncate(uint32_t message, int32_t columns, Block* block) noexcept nogil:
    """Appends the row of a truncate. All its cells are null."""
    cdef int64_t row = block.rows
    cdef int32_t c
    for c in range(columns):
        block.cells[c * block.stride + row].length = CELL_NULL
        block.cells[c * block.stride + row].offset = 0
    block.row_message[row] = message
    block.row_change[row] = TRUNCATE
    block.rows = row + 1


cdef inline bint _take_from_old(int32_t columns, int64_t row, Block* block) noexcept nogil:
    """Copies values that did not change and were not sent from the old tuple's row, the previous one, if it has them.

    Returns whether any cell stays unsent.
    """
    cdef bint unsent = False
    cdef int32_t c
    cdef Cell* cell
    for c in range(columns):
        cell = block.cells + c * block.stride + row
        if cell.length == CELL_UNCHANGED:
            if (cell - 1).length >= 0:
                cell[0] = (cell - 1)[0]
            else:
                unsent = True
    return unsent


cdef bint slice_message(Window w, uint32_t message, int32_t columns, Block* block) noexcept nogil:
    """Appends the rows of a change, or the row of a truncate. Returns False with a reason set if it is malformed."""
    cdef const uint8_t* start = w.base + w.start[message]
    cdef const uint8_t* end = start + w.length[message]
    cdef const uint8_t* p = start + (9 if w.flags[message] & IN_STREAM else 5)
    cdef uint8_t kind = w.kind[message]
    cdef int64_t row = block.rows
    cdef uint8_t old = 0
    cdef bint unsent_old = False, unsent_new = False
    block.message = message
    if kind == MSG_TRUNCATE:
        _append_truncate(message, columns, block)
        return True
    if kind != MSG_INSERT and (p[0] == TUPLE_KEY or p[0] == TUPLE_OLD):
        old = p[0]
        p = _tuple(p + 1, end, w.base, start, columns, row, block, &unsent_old)
        if p == NULL:
            return False
        block.row_message[row] = message
        block.row_change[row] = ((DELETE if kind == MSG_DELETE else UPDATE_PREIMAGE)
                                 | (KEY_ONLY if old == TUPLE_KEY else 0))
        row += 1
        if kind == MSG_UPDATE and p == end:
            _fail(block, TRUNCATED, p, start, -1)
            return False
    if kind != MSG_DELETE:
        if p[0] != TUPLE_NEW:
            _fail(block, BAD_TUPLE_TAG, p, start, -1)
            return False
        p = _tuple(p + 1, end, w.base, start, columns, row, block, &unsent_new)
        if p == NULL:
            return False
        block.row_message[row] = message
        block.row_change[row] = INSERT if kind == MSG_INSERT else UPDATE_POSTIMAGE
        if unsent_new and old:
            unsent_new = _take_from_old(columns, row, block)
        row += 1
    elif not old:
        _fail(block, BAD_TUPLE_TAG, p, start, -1)
        return False
    if p != end:
        _fail(block, TRAILING_BYTES, p, start, -1)
        return False
    block.unchanged |= unsent_old or unsent_new
    block.bytes += end - start
    block.rows = row
    return True


cdef int64_t slice_block(Window w, const uint32_t* messages, int64_t count, int64_t k, int32_t columns,
                         const uint8_t* taken, int64_t most_bytes, Block* block) noexcept nogil:
    """Slices messages k, k + 1, ... until the block is full or all are done. Returns the index of the next message.

    It skips messages that are not `taken`. It stops at a malformed message and sets the block's reason.
    """
    cdef int64_t j
    cdef int64_t one_by_one = 0  # number of messages to slice before trying four at once again
    cdef const uint8_t* fetched = w.base
    block.reason = OK
    while k < count and block.rows + 2 <= block.stride and block.bytes < most_bytes:
        if one_by_one == 0 and k + 4 <= count and block.rows + 4 <= block.stride:
            for j in range(k + 4, min(k + 4 + AHEAD, count)):
                fetched = prefetch_message(w, messages[j], fetched)
            if (taken[messages[k]] and taken[messages[k + 1]] and taken[messages[k + 2]] and taken[messages[k + 3]]
                    and slice_four_changes(w, messages + k, columns, block)):
                k += 4
                continue
            one_by_one = 16
        else:
            one_by_one -= one_by_one > 0
            if k + AHEAD < count:
                fetched = prefetch_message(w, messages[k + AHEAD], fetched)
        if taken[messages[k]] and not slice_message(w, messages[k], columns, block):
            return k
        k += 1
    return k
