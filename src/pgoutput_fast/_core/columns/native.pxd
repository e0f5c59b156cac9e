from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.reasons cimport Reason
from pgoutput_fast._core.protocol.wire cimport Cell


cdef extern from "columns/column.hpp" namespace "pgo" nogil:
    cdef cppclass Buffer:
        Buffer() except +
        uint8_t* data()
        size_t size()
        void set_size(size_t n)
        uint8_t* reserve(size_t extra) except +
        uint8_t* append_uninitialized(size_t n) except +
        void append(const void* p, size_t n) except +

    void append_bits(Buffer& buffer, size_t bits, const uint8_t* bytes, size_t n) except +

    ctypedef enum Layout "pgo::Layout":
        BITS "pgo::Layout::BITS"
        FIXED "pgo::Layout::FIXED"
        BYTES "pgo::Layout::BYTES"
        LIST "pgo::Layout::LIST"
        STRUCT "pgo::Layout::STRUCT"

    ctypedef enum Numerics "pgo::Numerics":
        NO_NUMERICS "pgo::Numerics::NONE"
        NUMERIC_ITSELF "pgo::Numerics::ITSELF"
        IN_ARRAY "pgo::Numerics::IN_ARRAY"
        IN_MULTIRANGE "pgo::Numerics::IN_MULTIRANGE"
        IN_RANGE "pgo::Numerics::IN_RANGE"
        IN_COMPOSITE "pgo::Numerics::IN_COMPOSITE"

    cdef cppclass Source:
        const uint8_t* base
        const uint8_t* end

    cdef cppclass Issue:
        uint32_t row
        Reason reason
        cbool inside

    ctypedef vector[Issue] Issues

    cdef cppclass Mark:
        Mark() except +

    cdef cppclass Column

    ctypedef void (*Convert)(Column& column, Source source, const Cell* cells, size_t n, Issues& issues)

    cdef cppclass Column:
        Column() except +
        # in ColumnPlan
        Layout layout "plan.layout"
        uint32_t width "plan.width"
        Convert text "plan.text"
        Convert binary "plan.binary"
        int precision "plan.precision"
        int scale "plan.scale"
        uint32_t element_oid "plan.element_oid"
        Numerics numerics "plan.numerics"
        size_t leaves "plan.leaves"
        # in ColumnBuffers
        size_t rows "buffers.rows"
        size_t nulls "buffers.nulls"
        Buffer data "buffers.data"
        int32_t* reserve_offsets "buffers.reserve_offsets"(size_t n) except +
        void append_validity "buffers.append_validity"(const uint8_t* present_rows, size_t n) except +
        # in ColumnStatistics
        uint32_t chunks_to_skip "statistics.chunks_to_skip"
        unique_ptr[Column] child
        void add_field(Column* field, uint32_t oid) except +
        Mark mark()
        void rewind(const Mark& mark)
        void expect(size_t n) except +
        void learn_lengths()
        double row_bytes()
        size_t bytes()
        size_t largest_data()
        void free_scratch()

    void set_validity(Column& column, int64_t* values, size_t n, int64_t null) except +
    void set_known_validity(Column& column, size_t n, bint any_null, bint any_value, int64_t null) except +
    bint has_only_nulls(const Column& column)
    void append_nulls(Column& column, size_t n)
    bint is_malformed(Reason reason)
    bint is_unrepresentable(Reason reason)


cdef extern from "columns/arrow_array.hpp" namespace "pgo" nogil:
    cdef struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t n_children
        ArrowArray** children
        void (*release)(ArrowArray*)

    cdef cppclass ArrayOwner:
        vector[ArrowArray] children

    ArrayOwner* start_array(ArrowArray* out, int64_t length, int64_t nulls, int64_t buffers, size_t children) except +
    void give_column(Column& column, ArrowArray* out) except +
    void give_nulls(const Column& column, size_t n, ArrowArray* out) except +


cdef extern from "columns/packed_batch.hpp" namespace "pgo" nogil:
    void pack_array(ArrowArray* array) noexcept
