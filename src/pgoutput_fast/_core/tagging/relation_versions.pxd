from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector


cdef class RelationVersions:
    """The relation versions that a stream has described so far. A version has a slot: its index in these lists."""
    cdef readonly list relations         # Relation of every slot
    cdef dict slots                      # version id -> its slot
    cdef vector[int64_t] ids             # version id of every slot
    cdef vector[uint32_t] oids           # per slot
    cdef vector[int32_t] widths          # number of columns of every slot
    cdef vector[string] bodies           # wire body of every slot, to recognize a repeated Relation message
    cdef vector[uint8_t] has_user_types  # per slot: whether Type messages may affect its columns
    # By oid: the slot of one of its versions if all of them have the same name, else SLOT_UNKNOWN.
    cdef unordered_map[uint32_t, int32_t] named

    cdef int32_t slot_of_id(self, version) except -2
    cdef int32_t slot_with_name(self, uint32_t oid) noexcept nogil
    cdef bint is_repeated(self, int32_t slot, const uint8_t* body, int64_t size) noexcept nogil
    cdef int _add_name(self, relation, int32_t slot) except -1
    cdef int _forget_names(self, Py_ssize_t count) except -1
    cdef int forget_after(self, Py_ssize_t count) except -1
