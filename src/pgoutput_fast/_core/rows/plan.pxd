from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.vector cimport vector


cdef class RowsPlan:
    """The common part of all RelationRows of one relation version and one set of options."""
    cdef object schema
    cdef object built_schema             # the schema of the buffers
    cdef list column_types
    cdef list column_names
    cdef vector[int64_t] type_oids
    cdef vector[uint8_t] is_selected     # per column: whether it is converted and becomes part of the batch
    cdef int32_t selected_count          # number of these columns
    cdef int64_t leaves                  # number of columns after composites are flattened, at all depths
    cdef bint nested                     # whether any column has a child or fields
    cdef int64_t block_bytes             # a block ends with the message that reaches this size


cdef RowsPlan plan_of(relation, options, types)
