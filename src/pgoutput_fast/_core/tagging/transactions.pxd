"""The tagger's base class: the state of a stream, and the transaction of the current messages."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport (
    BoundaryRecord,
    MessageScope,
    Records,
    RelationDescription,
    StreamState,
    Transaction,
)
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef class Transactions(Tags):
    cdef StreamState state
    cdef Records records
    cdef bint quarantine

    cdef MessageScope scope             # of the current messages
    cdef bint scope_is_new

    # By oid: the slot of one of its versions if all of them have the same name, else SLOT_UNKNOWN.
    cdef unordered_map[uint32_t, int32_t] named

    # The message at which tagging stopped, the reason, and the relation and column if they are known.
    cdef int64_t at
    cdef uint8_t reason
    cdef int64_t reason_offset
    cdef int32_t reason_slot
    cdef int32_t reason_column

    # Cached results of `lookup`, by the oid's low bits.
    cdef uint32_t cached_oid[64]
    cdef int32_t cached_slot[64]

    cdef inline int32_t lookup(self, uint32_t oid) noexcept nogil:
        """Returns the slot of the version that `oid` stands for at this place, or SLOT_UNKNOWN or SLOT_LOST."""
        cdef int k = oid & 63
        if self.cached_oid[k] == oid and self.cached_slot[k] != -9:
            return self.cached_slot[k]
        return self.look_up_anew(oid)

    cdef inline int open_scope(self) except -1 nogil:
        if self.scope_is_new:
            self.scopes.push_back(self.scope)
            self.scope_is_new = False
        return 0

    cdef inline void set_scope(self, int64_t txn, int64_t xid, int64_t subxid, int64_t commit_lsn,
                               int64_t commit_timestamp, bint in_stream) noexcept nogil:
        self.scope.txn = txn
        self.scope.xid = xid
        self.scope.subxid = subxid
        self.scope.commit_lsn = commit_lsn
        self.scope.commit_timestamp = commit_timestamp
        self.scope.in_stream = in_stream
        self.scope_is_new = True

    cdef int32_t look_up_anew(self, uint32_t oid) noexcept nogil
    cdef void forget_lookups(self) noexcept nogil
    cdef int reject(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot, int32_t column,
                    int32_t described, int32_t sent) except -1 nogil
    cdef bint fail(self, Window w, int64_t i, uint8_t reason, int64_t offset) except -1 nogil
    cdef bint fail_in(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot,
                      int32_t column) except -1 nogil
    cdef bint fail_of(self, Window w, int64_t i, uint32_t oid, int32_t slot, int64_t offset) except -1 nogil
    cdef int learn(self, uint32_t oid, uint32_t subxid, RelationDescription known) except -1 nogil
    cdef int lose_relation(self, uint32_t oid, uint32_t subxid, int64_t seq) except -1 nogil
    cdef bint _may_have_ended_others(self, uint8_t kind, uint8_t reason) noexcept nogil
    cdef int _lose_prepared(self, Window w, int64_t i) except -1 nogil
    cdef int begin_session(self, int64_t seq) except -1 nogil
    cdef int boundary(self, Window w, int64_t i) except -1 nogil
    cdef int _between_transactions(self, BoundaryRecord* b, const uint8_t* gid, int64_t gid_length) except -1 nogil
    cdef uint8_t _out_of_order(self, const BoundaryRecord& b, const uint8_t* gid, int64_t gid_length,
                               int64_t* offset) noexcept nogil
    cdef uint8_t _expected(self, uint8_t outside) noexcept nogil
    cdef int _void_transaction(self, const Transaction& t, int64_t at_seq, bint doubtful) except -1 nogil
    cdef int _void_stream(self, uint32_t xid, int64_t seq) except -1 nogil
    cdef int _void_prepared(self, uint32_t xid, int64_t seq) except -1 nogil
    cdef int _void_same_gid(self, const string& gid) except -1 nogil
    cdef void _close(self) noexcept nogil
    cdef int _end_origin(self, BoundaryRecord* b, Transaction& t) except -1 nogil
