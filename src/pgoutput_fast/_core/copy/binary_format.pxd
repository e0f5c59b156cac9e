from libc.stdint cimport int64_t, uint8_t, uint16_t


cdef extern from "copy/binary_format.hpp" namespace "pgo" nogil:
    const int64_t COPY_FLAGS_AT
    const int64_t COPY_HEADER_BYTES
    const uint16_t COPY_TRAILER
    const int64_t COPY_TRAILER_BYTES

    ctypedef enum CopyStage "pgo::CopyStage":
        IN_HEADER "pgo::IN_HEADER"
        IN_EXTENSION "pgo::IN_EXTENSION"
        IN_ROWS "pgo::IN_ROWS"
        AFTER_TRAILER "pgo::AFTER_TRAILER"

    cdef struct CopyHeader:
        CopyStage stage
        int64_t skip
        int64_t bad_at

    int64_t take_copy_header(CopyHeader* header, const uint8_t* p, int64_t size, int64_t longest_extension) noexcept
