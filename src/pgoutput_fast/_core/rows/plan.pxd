from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.vector cimport vector


cdef class RowsPlan:
    """What all RelationRows of one relation version and one set of options have in common."""
    cdef object schema
    cdef object built_schema             # the schema that the buffers have
    cdef list column_types
    cdef list column_names
    cdef vector[int64_t] type_oids
    cdef vector[uint8_t] wanted          # per column: whether it is converted and becomes part of the batch
    cdef int32_t given                   # how many of these columns there are
    cdef int64_t leaves                  # how many columns these become, with the fields of composites at all depths
    cdef bint nested                     # whether any column has a child or fields
    cdef int64_t block_bytes             # a block ends with the message that reaches this size


cdef RowsPlan plan_of(relation, options, types)
