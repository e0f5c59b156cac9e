from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport MessageScope, StreamState
from pgoutput_fast._core.tagging.transactions cimport Transactions


cdef enum Stop:
    FINISHED = 0       # the window is done
    NEW_RELATION = 1  # a Relation message that must be parsed, see `relation`
    NEW_TYPE = 2      # a Type message
    FAILED = 3         # an invalid message for which an error is raised


cdef class Tagger(Transactions):
    cdef StreamState* saved
    cdef MessageScope saved_scope
    cdef readonly list versions          # Relation of each slot
    cdef dict slots                      # version id -> its slot
    cdef vector[int64_t] version_ids     # of each slot
    cdef vector[uint32_t] oids           # of each slot
    cdef vector[string] bodies           # wire body of each slot, to recognise a Relation message that is sent again
    cdef vector[uint8_t] has_user_types  # per slot: whether Type messages may say more of its columns
    cdef int64_t saved_versions

    # Of the current window. Only tagged payloads need these two.
    cdef vector[int32_t] described       # per message: slot of the version that a Relation message described
    cdef vector[int64_t] marks           # ordinals in the window of messages that begin a session

    cdef int _name(self, relation, int32_t slot) except -1
    cdef int _forget_names(self) except -1
    cdef int32_t slot_of_version(self, version) except -2
    cdef void _set_scope_of_subtransaction(self, Window w, int64_t i) noexcept nogil
    cdef int64_t step(self, Window w, int64_t i) except -1 nogil
    cdef int truncate(self, Window w, int64_t i) except -1 nogil
    cdef int message(self, Window w, int64_t i) except -1 nogil
    cdef int origin(self, Window w, int64_t i) except -1 nogil
    cdef int relation(self, Window w, int64_t i) except -1 nogil
    cdef void register_relation(self, Window w, int64_t i) except *
    cdef void register_type(self, Window w, int64_t i) except *
    cdef int64_t tag_window(self, Window w, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1
