"""Makes columns from the decisions of schema/column_types.py, and runs stage 4, convert, on its own."""
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.assemble cimport array_of, exported_column
from pgoutput_fast._core.columns.native cimport (
    IN_ARRAY,
    IN_COMPOSITE,
    IN_MULTIRANGE,
    IN_RANGE,
    NO_NUMERICS,
    NUMERIC_ITSELF,
    Column,
    Convert,
    Issues,
    Layout,
    Source,
)
from pgoutput_fast._core.protocol.wire cimport CELL_NULL, Cell


cdef extern from "types/registry.hpp" namespace "pgo" nogil:
    cdef struct Kernel:
        const char* name
        Layout layout
        uint32_t width
        Convert text
        Convert binary

    const Kernel* find_kernel(const char* name)
    void _convert_column "pgo::convert_column"(Column& column, Convert convert, Source source, const Cell* cells,
                                               size_t n, Issues& issues) except +


cdef extern from "simd/dispatch.hpp" namespace "pgo":
    ctypedef enum _VectorLevel "pgo::VectorLevel":
        pass
    _VectorLevel _vector_level "pgo::vector_level"
    const char* _VECTOR_LEVELS "pgo::VECTOR_LEVELS"[4]
    _VectorLevel _use_vectors "pgo::use_vectors"(_VectorLevel level) noexcept


cdef extern from "columns/blocks.hpp" namespace "pgo" nogil:
    void _hold "pgo::BlockPool::hold"(unsigned int milliseconds) except +


cdef Column* make_column(object column_type) except NULL:
    """Makes a column for a schema.column_types.ColumnType. The caller must delete it."""
    cdef bytes name = column_type.kernel.encode()
    cdef const Kernel* kernel = find_kernel(name)
    if kernel == NULL:
        raise KeyError(f"no converter named {column_type.kernel}")
    cdef Column* column = new Column()
    cdef Column* part
    column.layout = kernel.layout
    column.width = kernel.width
    column.text = kernel.text
    column.binary = kernel.binary
    if name == b"numeric_string":
        column.numerics = NUMERIC_ITSELF
    try:
        column.precision = column_type.precision
        column.scale = column_type.scale
        column.element_oid = column_type.element_oid
        if column_type.child is not None:
            column.child.reset(make_column(column_type.child))
            if column_type.child.fields:
                column.leaves = column_type.child.leaves()
            if column.child.get().numerics != NO_NUMERICS:
                column.numerics = IN_MULTIRANGE if name == b"multirange" else IN_ARRAY
        for field in column_type.fields:
            oid = field.oid
            part = make_column(field.type)
            column.add_field(part, oid)
            if part.numerics != NO_NUMERICS:
                column.numerics = IN_RANGE if name == b"range" else IN_COMPOSITE
    except BaseException:
        del column
        raise
    return column


cdef int convert_column(Column& column, Convert convert, Source source, const Cell* cells, size_t n,
                        Issues& issues) except -1 nogil:
    """Appends n cells of one format to the column and sets the validity of their rows.

    The rows of the issues are relative to the first of these cells.
    """
    _convert_column(column, convert, source, cells, n, issues)
    return 0


cdef void _convert(Column* column, values, bint binary, size_t padding, Issues& issues) except *:
    # Converters may read some bytes before and after a value, so both ends get extra bytes.
    cdef bytes joined = b"\0" * 64 + b"".join(v for v in values if v is not None) + b"\0" * padding
    cdef vector[Cell] cells
    cdef Cell cell
    cdef uint32_t at = 64
    cdef Source source
    for value in values:
        cell.offset = at
        cell.length = CELL_NULL if value is None else <int32_t> len(value)
        if value is not None:
            at += <uint32_t> len(value)
        cells.push_back(cell)
    source.base = <const uint8_t*> <const char*> joined
    source.end = source.base + len(joined)
    convert_column(column[0], column.binary if binary else column.text, source, cells.data(), cells.size(), issues)


def use_vectors(str level=None):
    """Sets the highest level of vector loops that the converters may use, and returns the level in use.

    Levels are "portable", "neon", "avx2" and "avx512". The level in use is the highest one that the processor supports,
    up to `level`. Without an argument, nothing changes. An unknown level raises KeyError. For tests.
    """
    if level is None:
        return _VECTOR_LEVELS[<int> _vector_level].decode()
    for k in range(4):
        if level.encode() == _VECTOR_LEVELS[k]:
            return _VECTOR_LEVELS[<int> _use_vectors(<_VectorLevel> <int> k)].decode()
    raise KeyError(level)


def hold_memory(unsigned int milliseconds):
    """Locks this module's block pool for some time. A normal call locks it for nanoseconds. For tests."""
    with nogil:
        _hold(milliseconds)


def convert(column_type, values, bint binary, bint exported=False, size_t padding=64):
    """Converts cells of one column. Returns the Arrow array and a list of issues.

    An issue is (row, reason code, whether only an element is affected). `values` are the bytes of the cells, None for
    null. With `exported`, the array is an object that has only `__arrow_c_array__`. `padding` is the number of bytes
    after the last cell, at least 64. For tests and benchmarks of this stage.
    """
    cdef Column* column = make_column(column_type)
    cdef Issues issues
    try:
        _convert(column, values, binary, max(padding, <size_t> 64), issues)
        if exported:
            array = exported_column(column, column_type.arrow)
        else:
            array = array_of(column, column_type.arrow)
    finally:
        del column
    return array, [(issues[i].row, <int> issues[i].reason, bool(issues[i].inside)) for i in range(<int> issues.size())]


def refused_quickly(column_type, values, bint binary):
    """Whether a vector loop left cells to the portable converter; False without a vector loop. For tests."""
    cdef Column* column = make_column(column_type)
    cdef Issues issues
    try:
        _convert(column, values, binary, 64, issues)
        return column.chunks_to_skip != 0
    finally:
        del column
