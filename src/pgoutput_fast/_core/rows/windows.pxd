from libc.stdint cimport int64_t

from pgoutput_fast._core.rows.task cimport Frame
from pgoutput_fast._core.tagging.scan cimport Payloads, Window
from pgoutput_fast._core.tagging.tag cimport Tagger


cdef class WindowTagger:
    """The messages of one call. It scans and tags them window by window."""
    cdef Tagger tagger
    cdef list arrays
    cdef object lsn, seq                 # Arrow arrays; the pointers below point to their values
    cdef const int64_t* lsns
    cdef const int64_t* seqs
    cdef object before                   # tagged rows that come first; None once they are loaded
    cdef int64_t array, at, done         # the array after the current one; tagged messages in this array, and in all
    cdef Payloads payloads               # of the current array
    cdef Window window                   # the window that was tagged last

    cdef bint tag_next(self, Frame frame, int64_t most_messages) except -1
    cdef bint load_or_tag(self, Frame frame, int64_t most_messages) except -1
    cdef int64_t left(self) noexcept
    cdef object tag_all(self, Frame frame, int64_t most_messages, bint changes_only)
    cdef object error_of_tag(self, options, types)
    cdef object _lsn_of(self, int64_t message)
    cdef object _kind_of(self, int64_t message)
