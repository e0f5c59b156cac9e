"""Copies selected rows of a table."""
from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.columns.chunk cimport (
    Chunk, address_of, chunk_of, is_flat, size_of_offset, width_in_bits
)

cdef extern from "columns/select_rows.hpp" namespace "pgo" nogil:
    int64_t pick_bits(const uint8_t* bits, int64_t offset, const int32_t* rows, int64_t n, uint8_t* to)
    void pick_fixed(const Chunk& chunk, int64_t width, const int32_t* rows, int64_t n, uint8_t* to)
    cppclass PickedBytes[Offset]:
        PickedBytes(const Chunk& chunk, int64_t bytes)
        int64_t size(const int32_t* rows, int64_t n)
        void copy(const int32_t* rows, int64_t n, Offset* offsets, uint8_t* to)

# Bytes that `PickedBytes::copy` may write after the values.
cdef enum:
    SLACK = 32


def select_rows(columns, choices):
    """Selects rows of columns, like Arrow's filter, in about 0.7 of its time unless the type is nested.

    Args:
        columns: chunked arrays of the same length. Their data must be valid: offsets are not checked.
        choices: for every result, the numbers of its rows: int64 memory, strictly ascending. Several results in one
            call take less time, because memory is read once.

    Returns:
        For every choice, the list of columns with only its rows. A chunk that keeps all rows is not copied.

    Raises:
        IndexError: if a row number is not below the length of the columns.
        OverflowError: for a chunk of 2**31 rows or more.
        ValueError: if row numbers do not ascend from 0, or the lengths of columns differ.
    """
    cdef int64_t count = len(columns[0]) if columns else 0
    for rows in choices:
        _check(rows, count)
    found = [[] for _ in choices]
    # Columns of a table nearly always have the same chunk sizes.
    of_chunks = {}
    for column in columns:
        if len(column) != count:
            raise ValueError("the columns must have the same length")
        sizes = tuple([len(chunk) for chunk in column.chunks])
        if sizes not in of_chunks:
            of_chunks[sizes] = list(zip(*[_rows_of_chunks(sizes, np.asarray(rows)) for rows in choices]))
        chosen = [[] for _ in choices]
        for chunk, rows_of_chunk in zip(column.chunks, of_chunks[sizes]):
            for chunks, rows in zip(chosen, rows_of_chunk):
                if len(rows):
                    chunks.append(_picked(chunk, rows))
        for picked, chunks in zip(found, chosen):
            picked.append(pa.chunked_array(chunks, column.type))
    return found


cdef int _check(const int64_t[::1] rows, int64_t count) except -1:
    cdef int64_t last = -1, i
    for i in range(rows.shape[0]):
        if rows[i] <= last:
            raise ValueError("rows must ascend from 0")
        last = rows[i]
    if last >= count:
        raise IndexError(f"columns of {count:,} rows do not have row {last:,}")
    return 0


def _rows_of_chunks(sizes, rows):
    """Returns for every chunk which of its rows are selected, relative to its first row."""
    if max(sizes, default=0) >= 1 << 31:
        raise OverflowError(f"a chunk of {max(sizes):,} rows is too large")
    firsts = np.cumsum((0, *sizes))
    begins = np.searchsorted(rows, firsts)
    return [
        (rows[begins[k]:begins[k + 1]] - firsts[k]).astype(np.int32) for k in range(len(sizes))
    ]


cdef _picked(array, rows):
    cdef const int32_t[::1] chosen = rows
    cdef int64_t n = chosen.shape[0]
    if n == len(array):
        return array
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _picked(array.storage, rows))
    if not is_flat(kind):
        return array.take(pa.array(rows))
    cdef Chunk chunk = chunk_of(array)
    cdef int size = size_of_offset(kind)
    cdef int64_t nulls = 0
    validity = None
    if chunk.validity != NULL:
        validity = pa.allocate_buffer((n + 7) // 8)
        nulls = n - pick_bits(chunk.validity, chunk.offset, &chosen[0], n, <uint8_t*> address_of(validity))
    if size == 4:
        buffers = _bytes[int32_t](chunk, array.buffers()[2], &chosen[0], n, 0)
    elif size == 8:
        buffers = _bytes[int64_t](chunk, array.buffers()[2], &chosen[0], n, 0)
    else:
        buffers = [_fixed(chunk, width_in_bits(kind), &chosen[0], n)]
    return pa.Array.from_buffers(kind, n, [validity if nulls else None, *buffers], nulls)


cdef _fixed(Chunk chunk, int64_t bits, const int32_t* rows, int64_t n):
    values = pa.allocate_buffer((n * bits + 7) // 8)
    cdef uint8_t* to = <uint8_t*> address_of(values)
    with nogil:
        if bits == 1:
            pick_bits(chunk.values, chunk.offset, rows, n, to)
        else:
            pick_fixed(chunk, bits // 8, rows, n, to)
    return values


ctypedef fused Offset:
    int32_t
    int64_t


cdef list _bytes(Chunk chunk, data, const int32_t* rows, int64_t n, Offset _):
    cdef int64_t size, room = 0 if data is None else data.size
    cdef PickedBytes[Offset]* picked = new PickedBytes[Offset](chunk, room)
    cdef uint8_t* to
    cdef Offset* ends
    try:
        with nogil:
            size = picked.size(rows, n)
        offsets = pa.allocate_buffer((n + 1) * sizeof(Offset))
        values = pa.allocate_buffer(size + SLACK, resizable=True)
        ends, to = <Offset*> address_of(offsets), <uint8_t*> address_of(values)
        with nogil:
            picked.copy(rows, n, ends, to)
        values.resize(size, shrink_to_fit=False)
    finally:
        del picked
    return [offsets, values]
