from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.slice cimport Block
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef class RowRejects:
    """Handles messages and values with an issue: raises an error, rejects the message, or records the value."""
    cdef int32_t slot                    # of the relation version
    cdef int32_t count                   # number of the relation's columns
    cdef vector[int64_t] type_oids
    cdef bint quarantine
    cdef bint refuse_unrepresentable

    cdef int reject_message(self, Tags tags, Window w, Scratch scratch) except -1 nogil
    cdef int check_issues(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil
    cdef bint _find_refused(self, Block* block, Scratch scratch, bint malformed) except -1 nogil
    cdef bint _refuse(self, Tags tags, Window w, Block* block, Scratch scratch, bint malformed) except -1 nogil
    cdef int add_values(self, Tags tags, Window w, Block* block, Scratch scratch) except -1 nogil
