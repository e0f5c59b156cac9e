"""Timing functions for the benchmarks: they run the decoding stages and measure the time of each.

All times are CPU seconds of the calling thread. The package itself does not import this module.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.column cimport convert_column, make_column
from pgoutput_fast._core.columns.native cimport Column, Convert, Issues, Mark, Source
from pgoutput_fast._core.protocol.limits cimport BLOCK_BYTES, BLOCK_ROWS, MESSAGE_WINDOW_BYTES, USUAL_WINDOW_MESSAGES
from pgoutput_fast._core.protocol.reasons cimport OK
from pgoutput_fast._core.rows.rows cimport RelationRows
from pgoutput_fast._core.rows.scratch cimport ROWS_DONE, Scratch
from pgoutput_fast._core.tagging.scan cimport Payloads, Window, scan_window
from pgoutput_fast._core.rows.slice cimport Block, slice_block
from pgoutput_fast._core.tagging.relation_versions cimport RelationVersions
from pgoutput_fast._core.tagging.tag cimport Tagger
from pgoutput_fast._core.tagging.window_tags cimport Tags
from pgoutput_fast._core.protocol.wire cimport CELL_NULL, Cell

from pgoutput_fast._core.rows.rows import make_rows
from pgoutput_fast.base.errors import reason_text
from pgoutput_fast.catalog.user_types import NO_TYPES


cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* out)
    int CLOCK_THREAD_CPUTIME_ID


cdef inline double _now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)
    return <double> t.tv_sec + 1e-9 * <double> t.tv_nsec


def time_headers(array):
    """Scans and tags the messages of one Arrow array. Returns (seconds of scan, seconds of tag, changes found)."""
    cdef Payloads payloads = Payloads(array)
    cdef Tagger tagger = Tagger(False)
    cdef Window w = Window()
    cdef int64_t at = 0, taken, changes = 0
    cdef bint in_stream = False
    cdef double start, middle, scan = 0, tag = 0
    while at < payloads.count:
        start = _now()
        taken = scan_window(payloads, at, USUAL_WINDOW_MESSAGES, MESSAGE_WINDOW_BYTES, &in_stream, w)
        middle = _now()
        tagger.tag_window(w, at, NULL, NULL)
        tag += _now() - middle
        scan += middle - start
        changes += tagger.tracker.tags.items
        at += taken
    return scan, tag, changes


def time_stages(array, options):
    """Decodes the messages of one Arrow array, which must all be well-formed.

    Returns ({stage: seconds}, [(relation, batch)]). The stages are scan, tag, slice, convert (with the metadata
    columns) and assemble. Sorting a window's messages by relation counts as tag.
    """
    cdef Payloads payloads = Payloads(array)
    cdef Tagger tagger = Tagger(False)
    cdef Tags tags = tagger.tracker.tags
    cdef RelationVersions versions = tagger.tracker.versions
    cdef Window w = Window()
    cdef Scratch scratch = Scratch()
    cdef RelationRows rows
    cdef int64_t at = 0, taken, i, done
    cdef int32_t slot
    cdef bint in_stream = False
    cdef double t0, t1, scan = 0, tag = 0, assemble = 0
    cdef double spent[2]
    cdef vector[vector[uint32_t]] messages
    cdef list all_rows = []
    spent[0] = spent[1] = 0
    while at < payloads.count:
        t0 = _now()
        taken = scan_window(payloads, at, USUAL_WINDOW_MESSAGES, MESSAGE_WINDOW_BYTES, &in_stream, w)
        t1 = _now()
        scan += t1 - t0
        tagger.tag_window(w, at, NULL, NULL)
        messages.resize(len(versions.relations))
        for slot in range(<int32_t> messages.size()):
            messages[slot].clear()
        for i in range(tags.items):
            messages[tags.item_slot[i]].push_back(tags.item_message[i])
        tag += _now() - t1
        for slot in range(<int32_t> messages.size()):
            if slot == len(all_rows):
                rows = make_rows(versions.relations[slot], options, NO_TYPES)
                rows.rejects.slot = slot
                all_rows.append(rows)
            rows = all_rows[slot]
            done = 0
            while True:
                with nogil:
                    _fill(rows, tags, w, messages[slot], &done, scratch, spent)
                if done == <int64_t> messages[slot].size():
                    break
                t0 = _now()
                rows.finish_batch()
                assemble += _now() - t0
        at += taken
    changes = []
    t0 = _now()
    for rows in all_rows:
        for batch in rows.take_batches():
            changes.append((rows.relation, batch))
    assemble += _now() - t0
    return {"scan": scan, "tag": tag, "slice": spent[0], "convert": spent[1], "assemble": assemble}, changes


cdef int _fill(RelationRows rows, Tags tags, Window w, vector[uint32_t]& messages, int64_t* done, Scratch scratch,
               double* spent) except -1 nogil:
    """Like RelationRows.fill, with a clock. Raises ValueError for anything malformed."""
    cdef Block block
    cdef double t0, t1
    cdef int64_t rows_left
    cdef int64_t count = <int64_t> messages.size()
    t0 = _now()
    rows.expect(count - done[0])
    spent[1] += _now() - t0
    scratch.row_message.resize(BLOCK_ROWS)
    scratch.row_change.resize(BLOCK_ROWS)
    while done[0] < count:
        rows_left = rows.batch_rows - rows.rows
        if rows_left < 2 or rows.bytes() >= rows.batch_bytes:
            return 0
        t0 = _now()
        block.stride = min(BLOCK_ROWS, rows_left, 2 * (count - done[0]))
        if <int64_t> scratch.cells.size() < block.stride * rows.count + 1:
            scratch.cells.resize(block.stride * rows.count + 1)
        if <int64_t> scratch.shared_header.size() < rows.count + 1:
            scratch.shared_header.resize(rows.count + 1)
        block.cells = scratch.cells.data()
        block.row_message = scratch.row_message.data()
        block.row_change = scratch.row_change.data()
        block.shared_header = scratch.shared_header.data()
        block.rows = 0
        block.bytes = 0
        block.formats = 0
        block.cell_formats = NULL
        block.unchanged = False
        done[0] = slice_block(w, messages.data(), count, done[0], rows.count, tags.taken.data(), BLOCK_BYTES, &block)
        if block.reason != OK:
            with gil:
                raise ValueError(f"message {block.message} of a window is malformed: {reason_text(block.reason)}")
        t1 = _now()
        spent[0] += t1 - t0
        if rows.convert_block(tags, w, &block, scratch) != ROWS_DONE:
            with gil:
                raise ValueError(f"message {scratch.row_error.message} of a window holds a malformed value")
        if rows.rows == block.rows:
            rows.expect(count - done[0])
        spent[1] += _now() - t1
    return 0


def time_convert(column_type, values, bint binary, int passes):
    """Converts the cells of one column `passes` times. Returns the seconds of each pass.

    `values` is a `pa.binary` array. As in messages, a header precedes every cell. Cells are converted in blocks. After
    the first pass, the buffers need no new memory.

    Raises:
        ValueError: if a cell has an issue.
    """
    cdef Column* column = make_column(column_type)
    cdef Convert convert = column.binary if binary else column.text
    cdef bytearray joined = bytearray(16)
    cdef vector[Cell] cells
    cdef Cell cell
    cdef Issues issues
    cdef Source source
    cdef Mark nothing
    cdef double start
    cdef size_t i, n
    for value in values.to_pylist():
        joined += b"\0" * 5
        cell.offset = <uint32_t> len(joined)
        cell.length = CELL_NULL if value is None else <int32_t> len(value)
        joined += value or b""
        cells.push_back(cell)
    source.base = <const uint8_t*> <const char*> joined
    source.end = source.base + len(joined)
    seconds = []
    try:
        for _ in range(passes):
            with nogil:
                start = _now()
                i = 0
                while i < cells.size():
                    n = min(cells.size() - i, <size_t> BLOCK_ROWS)
                    column.rewind(nothing)
                    convert_column(column[0], convert, source, cells.data() + i, n, issues)
                    i += n
                start = _now() - start
            seconds.append(start)
        if issues.size():
            raise ValueError(f"a cell cannot be converted: {reason_text(issues[0].reason)}")
    finally:
        del column
    return seconds
