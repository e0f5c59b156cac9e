from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker

cdef tuple tagged_columns(StreamTracker tracker, Window w, bint changes_only)
cdef int load_tagged(StreamTracker tracker, Window w, object batch) except -1
