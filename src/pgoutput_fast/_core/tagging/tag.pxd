from libc.stdint cimport int64_t

from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport MessageScope, StreamState
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker


cdef class Tagger:
    """Tags the windows of a stream.

    A call runs `begin_call`, then `tag_window` for each window, then `end_call` or `undo`.
    """
    cdef StreamTracker tracker
    # The state saved by `begin_call`. `saved` is NULL outside of calls.
    cdef StreamState* saved
    cdef MessageScope saved_scope
    cdef Py_ssize_t saved_versions

    # Python code must not be called when memory has run out, so these are C functions.
    cdef int begin_call(self) except -1
    cdef int end_call(self) except -1
    cdef int undo(self) except -1
    cdef int tag_window(self, Window w, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1
