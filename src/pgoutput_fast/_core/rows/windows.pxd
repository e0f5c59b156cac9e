from libc.stdint cimport int64_t

from pgoutput_fast._core.rows.task cimport WindowWork
from pgoutput_fast._core.tagging.scan cimport Payloads, Window
from pgoutput_fast._core.tagging.tag cimport Tagger


cdef class WindowTagger:
    """The messages of one call. It scans and tags them window by window."""
    cdef Tagger tagger
    cdef list arrays
    cdef object lsn, seq                 # Arrow arrays; the pointers below point to their values
    cdef const int64_t* lsns
    cdef const int64_t* seqs
    # Rows tagged earlier, to decode first: pairs of WaitingRows, a batch with TAGGED_SCHEMA or a tagged WindowWork, and
    # the (LSN, timestamp) of the commit of all its rows, or None if they have it already.
    cdef list tagged_first
    cdef int64_t next_tagged             # index of the next of them
    cdef int64_t next_array              # index of the next array
    cdef int64_t at                      # number of tagged messages of the current array
    cdef int64_t done                    # number of tagged messages of all arrays
    cdef Payloads payloads               # of the current array
    cdef Window window                   # the last tagged window

    cdef bint tag_next(self, WindowWork work, int64_t most_messages) except -1
    cdef bint load_or_tag(self, WindowWork work, int64_t most_messages) except -1
    cdef int64_t left(self) except -1
    cdef int64_t tagged_rows(self) except -1
    cdef list tag_waiting(self, WindowWork work, int64_t most_messages)
    cdef list wait(self, WindowWork work)
    cdef list rest(self, WindowWork work, int64_t first)
    cdef tuple _tagged(self, WindowWork work, bint changes_only)
    cdef object _part(self, WindowWork work)
    cdef object tag_all(self, WindowWork work, int64_t most_messages, bint changes_only)
    cdef object error_of_tag(self, options, types)
    cdef object _lsn_of(self, int64_t message)
    cdef object _kind_of(self, int64_t message)
