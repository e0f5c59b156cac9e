from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker

# Positions of TAGGED_SCHEMA's columns.
cdef enum:
    SEQ = 0
    LSN = 1
    KIND = 2
    RELATION = 3
    VERSION = 4
    TXN = 5
    XID = 6
    SUBXID = 7
    IN_STREAM_COLUMN = 8
    COMMIT_LSN = 9
    COMMIT_TIMESTAMP = 10
    PAYLOAD = 11


cdef tuple tagged_columns(StreamTracker tracker, Window w, bint changes_only)
cdef int load_tagged(StreamTracker tracker, Window w, object batch) except -1
