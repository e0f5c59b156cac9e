from libc.stdint cimport int64_t, uint8_t

from pgoutput_fast._core.protocol.fields cimport Fields
from pgoutput_fast._core.tagging.stream_state cimport BoundaryRecord, MessageRecord

# Offsets of fields in boundary messages, relative to the kind byte.
cdef enum:
    STREAM_XID_AT = 1                    # of Stream Start and Stream Commit
    COMMIT_LSN_AT = 2                    # of Commit
    PREPARE_XID_AT = 26                  # of Prepare, Stream Prepare and Commit Prepared
    ROLLBACK_PREPARED_XID_AT = 34


cdef void parse_boundary(Fields* f, uint8_t kind, BoundaryRecord* b, const uint8_t** gid,
                         int64_t* gid_length) noexcept nogil
cdef void parse_message(Fields* f, MessageRecord* m, const uint8_t** prefix, int64_t* prefix_length,
                        const uint8_t** content, int64_t* content_length) noexcept nogil
