"""Compares values of a column with those of other rows."""
from libc.stdint cimport int64_t, uint8_t, uintptr_t

import pyarrow as pa

cdef extern from "columns/row_pairs.hpp" namespace "pgo" nogil:
    cppclass Chunk:
        const uint8_t* validity
        const uint8_t* offsets
        const uint8_t* values
        int64_t offset
        int64_t first
    cppclass Layout:
        pass
    cppclass PairColumn:
        PairColumn(Layout layout, int64_t width) except +
        void add(const Chunk& chunk, int64_t rows) except +
        int64_t rows()
        void mark_unequal(const int64_t* ones, const int64_t* others, int64_t count, uint8_t* marks)

cdef extern from "columns/row_pairs.hpp" namespace "pgo::Layout" nogil:
    const Layout bits
    const Layout fixed
    const Layout floating
    const Layout offsets32
    const Layout offsets64


def is_comparable(kind):
    """Whether `mark_unequal` takes columns of an Arrow type."""
    if kind.num_fields or pa.types.is_dictionary(kind):
        return False
    return _has_offsets(kind) or _width_in_bits(kind) > 0


def mark_unequal(column, ones, others, marks):
    """Sets marks[i] where the values in the rows ones[i] and others[i] differ. Marks that are set stay.

    A null equals a null, and a NaN each other NaN. 0.0 and -0.0 differ.

    Args:
        column: a chunked array of a type that `is_comparable`.
        ones, others: rows of the column, int64 memory of the same length.
        marks: uint8 memory of this length.

    Raises:
        IndexError: for a row that the column does not have.
        ValueError: if the lengths differ.
    """
    cdef const int64_t[::1] one = ones
    cdef const int64_t[::1] other = others
    cdef uint8_t[::1] found = marks
    cdef int64_t count = one.shape[0], i, rows
    cdef bint wrong = False
    cdef PairColumn* pairs
    if other.shape[0] != count or found.shape[0] != count:
        raise ValueError("ones, others and marks must have the same length")
    if not count:
        return
    pairs = _pairs(column)
    try:
        rows = pairs.rows()
        with nogil:
            for i in range(count):
                wrong |= one[i] < 0 or one[i] >= rows or other[i] < 0 or other[i] >= rows
            if not wrong:
                pairs.mark_unequal(&one[0], &other[0], count, &found[0])
    finally:
        del pairs
    if wrong:
        raise IndexError(f"a column of {rows:,} rows does not have all these rows")


cdef PairColumn* _pairs(column) except NULL:
    cdef bint varying = _has_offsets(column.type)
    cdef int64_t width = 0 if varying else _width_in_bits(column.type)
    cdef Chunk chunk
    cdef int64_t first = 0
    cdef PairColumn* pairs
    if varying:
        pairs = new PairColumn(offsets64 if pa.types.is_large_string(column.type)
                               or pa.types.is_large_binary(column.type) else offsets32, 0)
    elif width == 1:
        pairs = new PairColumn(bits, 0)
    else:
        pairs = new PairColumn(floating if width >= 32 and pa.types.is_floating(column.type) else fixed, width // 8)
    try:
        for array in column.chunks:
            if not len(array):
                continue
            buffers = array.buffers()
            chunk.validity = _address(buffers[0]) if array.null_count else NULL
            chunk.offsets = _address(buffers[1]) if varying else NULL
            chunk.values = _address(buffers[2 if varying else 1])
            chunk.offset = array.offset
            chunk.first = first
            pairs.add(chunk, len(array))
            first += len(array)
    except BaseException:
        del pairs
        raise
    return pairs


cdef const uint8_t* _address(buffer) except? NULL:
    cdef uintptr_t address = 0 if buffer is None else buffer.address
    return <const uint8_t*> address


cdef bint _has_offsets(kind):
    return (pa.types.is_string(kind) or pa.types.is_binary(kind)
            or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


cdef int64_t _width_in_bits(kind):
    """The size of a value; 0 for types without a fixed size."""
    try:
        return kind.bit_width
    except ValueError:
        return 0
