from libc.stdint cimport int64_t, uint8_t

from pgoutput_fast._core.protocol.fields cimport Fields
from pgoutput_fast._core.tagging.stream_state cimport BoundaryRecord, MessageRecord

cdef void parse_boundary(Fields* f, uint8_t kind, BoundaryRecord* b, const uint8_t** gid,
                         int64_t* gid_length) noexcept nogil
cdef void parse_message(Fields* f, MessageRecord* m, const uint8_t** prefix, int64_t* prefix_length,
                        const uint8_t** content, int64_t* content_length) noexcept nogil
