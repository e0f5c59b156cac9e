from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pgoutput_fast._core.tagging.relation_versions cimport RelationVersions
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport MessageScope, Records, RelationDescription, StreamState
from pgoutput_fast._core.tagging.window_tags cimport Tags


# In `cached_slot`: nothing is cached.
cdef enum:
    NOT_CACHED = -9


cdef struct InvalidMessage:
    int64_t message         # its ordinal in the window
    uint8_t reason
    int64_t offset          # offset of the invalid byte
    int32_t slot            # slot of its relation version, SLOT_UNKNOWN if unknown
    int32_t column          # -1 if unknown


cdef class StreamTracker:
    """The state of a stream at the current message, and the uncertainty after an invalid message."""
    cdef StreamState state
    cdef Records records                # of the current call
    cdef RelationVersions versions
    cdef Tags tags                      # of the current window
    cdef bint quarantine
    cdef InvalidMessage invalid         # the last one

    cdef MessageScope scope             # of the current messages
    cdef bint scope_is_new

    # Cached results of `lookup`, by the oid's low bits.
    cdef uint32_t cached_oid[64]
    cdef int32_t cached_slot[64]

    cdef inline int32_t lookup(self, uint32_t oid) noexcept nogil:
        """Returns the slot of the version that `oid` has at this message, or SLOT_UNKNOWN or SLOT_LOST."""
        cdef int k = oid & 63
        if self.cached_oid[k] == oid and self.cached_slot[k] != NOT_CACHED:
            return self.cached_slot[k]
        return self.look_up_anew(oid)

    cdef inline int open_scope(self) except -1 nogil:
        """Adds the scope of the current messages to the window's tags, unless it was already added."""
        if self.scope_is_new:
            self.tags.scopes.push_back(self.scope)
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
    cdef int learn(self, uint32_t oid, uint32_t subxid, RelationDescription known) except -1 nogil
    cdef int lose_relation(self, uint32_t oid, uint32_t subxid, int64_t seq) except -1 nogil
    cdef void close_transaction(self) noexcept nogil
    cdef bint fail(self, Window w, int64_t i, uint8_t reason, int64_t offset) except -1 nogil
    cdef bint fail_in(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot,
                      int32_t column) except -1 nogil
    cdef bint fail_of(self, Window w, int64_t i, uint32_t oid, int32_t slot, int64_t offset) except -1 nogil
    cdef int _mark_uncertain(self, Window w, int64_t i, uint8_t reason) except -1 nogil
    cdef bint _may_have_ended_others(self, uint8_t kind, uint8_t reason) noexcept nogil
    cdef int _lose_relations(self, Window w, int64_t i, int64_t seq) except -1 nogil
    cdef int _lose_prepared(self, Window w, int64_t i) except -1 nogil
