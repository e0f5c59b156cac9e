from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.tag cimport Tagger

cdef tuple tagged_columns(Tagger tagger, Window w, bint changes_only)
cdef int load_tagged(Tagger tagger, Window w, object batch) except -1
