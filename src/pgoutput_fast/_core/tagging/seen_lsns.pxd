from libc.stdint cimport int64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector


cdef extern from "tagging/seen_lsns.hpp" namespace "pgo" nogil:
    const int64_t MOST_LSNS "pgo::SeenLsns::MOST"

    cdef cppclass SeenLsns:
        SeenLsns()
        SeenLsns(int64_t floor)
        cbool add(int64_t lsn) except +
        int64_t floor()
        int64_t last()
        vector[int64_t] lsns() except +
