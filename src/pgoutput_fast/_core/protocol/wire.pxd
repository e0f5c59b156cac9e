from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "protocol/wire.hpp" namespace "pgo" nogil:
    uint16_t load16(const uint8_t* p) noexcept
    uint32_t load32(const uint8_t* p) noexcept
    uint64_t load64(const uint8_t* p) noexcept

    cdef struct Cell:
        uint32_t offset
        int32_t length

    const int32_t CELL_NULL
    const int32_t CELL_UNCHANGED


cdef extern from "tagging/truncate.hpp" namespace "pgo" nogil:
    const int64_t TRUNCATE_OF_ONE
    int64_t write_truncate_of(const uint8_t* message, bint in_stream, uint32_t oid, uint8_t* to) noexcept


cdef extern from *:
    # Prefetches a cache line.
    void prefetch "__builtin_prefetch"(const void* p) noexcept nogil
