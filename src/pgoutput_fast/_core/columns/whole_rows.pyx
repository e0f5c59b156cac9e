"""Hashes of whole rows, and comparison of rows."""
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libcpp.utility cimport move

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.columns.chunk cimport Chunk, chunk_of, is_flat, size_of_offset, width_in_bits

cdef extern from "columns/whole_rows.hpp" namespace "pgo" nogil:
    cppclass Layout:
        pass
    cppclass RowColumn:
        RowColumn()
        RowColumn(Layout layout, int64_t width)
        void add(const Chunk& chunk) except +
    cppclass WholeRows:
        void add(RowColumn column) except +
        void hash(uint64_t* hashes)
        void mark_unequal(const int64_t* ones, const int64_t* others, int64_t count, uint8_t* marks) except +

cdef extern from "columns/whole_rows.hpp" namespace "pgo::Layout" nogil:
    const Layout bits
    const Layout fixed
    const Layout float32
    const Layout float64
    const Layout offsets32
    const Layout offsets64


def is_comparable(kind):
    """Whether `unequal` accepts columns of an Arrow type."""
    return bool(is_flat(kind))


def row_hashes(columns):
    """Hashes rows: equal rows have equal hashes, most others different ones. Equality is that of `unequal`.

    For strings, binaries and lists, only the length counts, except for strings and binaries in the first column that
    counts, which are hashed as a whole. Structs and columns of nulls do not count.

    Args:
        columns: at least one chunked array, all of the same length.

    Returns:
        A uint64 for every row.

    Raises:
        ValueError: if the lengths differ.
    """
    cdef WholeRows rows
    cdef uint64_t[::1] hashes
    cdef int64_t count = len(columns[0])
    for column in columns:
        if len(column) != count:
            raise ValueError("the columns must have the same length")
        if column.null_count < count and _has_hashes(column.type):
            _add(rows, column)
    found = np.zeros(count, np.uint64)
    if count:
        hashes = found
        with nogil:
            rows.hash(&hashes[0])
    return found


def unequal(columns, ones, others):
    """Returns a bool for every pair: whether any values of the rows ones[i] and others[i] differ.

    A null equals a null, and a NaN equals any NaN. 0.0 and -0.0 differ.

    Args:
        columns: chunked arrays of comparable types.
        ones, others: row numbers, int64 memory of the same length. Ascending `ones` are fastest.

    Raises:
        IndexError: if a row number is outside of a column.
        OverflowError: for a column of 2**32 rows or more.
        TypeError: for a type that is not comparable.
        ValueError: if the lengths differ.
    """
    cdef const int64_t[::1] one = ones
    cdef const int64_t[::1] other = others
    cdef int64_t count = one.shape[0], i, least = 0, most = -1, rows
    cdef WholeRows pairs
    cdef uint8_t[::1] marks
    if other.shape[0] != count:
        raise ValueError("ones and others must have the same length")
    found = np.zeros(count, np.bool_)
    if not count:
        return found
    for i in range(count):
        least = min(least, one[i], other[i])
        most = max(most, one[i], other[i])
    for column in columns:
        rows = len(column)
        if least < 0 or most >= rows:
            raise IndexError(f"a column of {rows:,} rows does not have all these rows")
        if not is_comparable(column.type):
            raise TypeError(f"values of {column.type} are not comparable")
        if rows >= 1 << 32:
            raise OverflowError(f"{rows:,} rows are too many to compare")
        _add(pairs, column)
    marks = found.view(np.uint8)
    with nogil:
        pairs.mark_unequal(&one[0], &other[0], count, &marks[0])
    return found


cdef int _add(WholeRows& pairs, column) except -1:
    cdef int size = size_of_offset(column.type)
    cdef int64_t width = width_in_bits(column.type)
    cdef RowColumn values
    if size:
        values = RowColumn(offsets64 if size == 8 else offsets32, 0)
    elif width == 1:
        values = RowColumn(bits, 0)
    elif pa.types.is_float64(column.type):
        values = RowColumn(float64, 8)
    elif pa.types.is_float32(column.type):
        values = RowColumn(float32, 4)
    else:
        values = RowColumn(fixed, width // 8)
    for array in column.chunks:
        if len(array):
            values.add(chunk_of(array))
    pairs.add(move(values))
    return 0


cdef bint _has_hashes(kind):
    return is_comparable(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
