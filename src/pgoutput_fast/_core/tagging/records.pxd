from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport Column
from pgoutput_fast._core.tagging.stream_state cimport Records, RejectRecord, Slice


cdef class TableBuilder:
    """Builds an Arrow table row by row. For the tables beside the changes, whose rows are few or narrow."""
    cdef object schema
    cdef vector[Column*] columns
    cdef int put_int(self, int k, int64_t value) except -1 nogil
    cdef int put_bytes(self, int k, const uint8_t* p, int64_t length) except -1 nogil
    cdef int put_text(self, int k, object text) except -1
    cdef int put_bool(self, int k, int value) except -1 nogil
    cdef int put_ints(self, int k, const int64_t* values, int64_t count) except -1 nogil
    cdef object finish(self)


cdef class RecordTables:
    cdef Records records
    cdef list versions
    cdef Py_ssize_t version_count        # number of versions after the call
    cdef object options
    cdef readonly object types           # the types as described by a live server
    cdef dict made
    cdef const uint8_t* at(self, Slice s) noexcept nogil
    cdef int put_slice(self, TableBuilder t, int k, Slice s) except -1 nogil
    cdef object _transactions(self)
    cdef object _outcomes(self)
    cdef object _truncates(self)
    cdef object _messages(self)
    cdef object _rejects(self)
    cdef tuple _describe(self, RejectRecord* r)


cdef RecordTables take_records(Records& records, list versions, object options, object types)
