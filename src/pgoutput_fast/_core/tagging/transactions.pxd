from libc.stdint cimport int64_t

from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker


cdef int begin_session(StreamTracker tracker, int64_t seq) except -1 nogil
cdef int tag_boundary(StreamTracker tracker, Window w, int64_t i) except -1 nogil
