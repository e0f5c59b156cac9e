"""Tracks the state of a stream: the current version of every oid, and the uncertainty after an invalid message.

`transactions.pyx` and `tag.pyx` handle valid messages. This module handles invalid ones.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pgoutput_fast._core.protocol.boundary cimport PREPARE_XID_AT, ROLLBACK_PREPARED_XID_AT
from pgoutput_fast._core.protocol.kinds cimport (
    MSG_COMMIT,
    MSG_COMMIT_PREPARED,
    MSG_PREPARE,
    MSG_RELATION,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_STOP,
)
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.protocol.reasons cimport (
    BAD_CELL_COUNT,
    NO_RELATION,
    OTHER_COMMIT,
    OTHER_PREPARE,
    OUTSIDE_TRANSACTION,
    RELATION_LOST,
    STATE_LOST,
    TRUNCATED,
    TYPE_CHANGED,
)
from pgoutput_fast._core.protocol.wire cimport load16, load32
from pgoutput_fast._core.tagging.scan cimport BOUNDARY, CHANGE, IN_STREAM, Window, message_class
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    OUTSIDE,
    PLAIN,
    PREPARING,
    SLOT_LOST,
    SLOT_UNKNOWN,
    STREAMING,
    RelationDescription,
    ScopedRelation,
    Transaction,
)


cdef bint _is_unreadable(uint8_t reason) noexcept nogil:
    """Whether a message with this reason is unreadable. With other reasons it is readable, but out of context."""
    return not (reason == NO_RELATION or reason == RELATION_LOST or reason == OUTSIDE_TRANSACTION
                or reason == TYPE_CHANGED)


@cython.final
cdef class StreamTracker:
    def __cinit__(self, bint quarantine=False):
        self.quarantine = quarantine
        self.versions = RelationVersions()
        self.tags = Tags()
        self.scope_is_new = True
        self.forget_lookups()

    # ---- relation versions -----------------------------------------------------------------------------------------

    cdef void forget_lookups(self) noexcept nogil:
        cdef int k
        for k in range(64):
            self.cached_slot[k] = NOT_CACHED

    cdef int32_t look_up_anew(self, uint32_t oid) noexcept nogil:
        cdef int k = oid & 63
        cdef const RelationDescription* known = NULL
        cdef const Transaction* stream = NULL
        cdef int32_t slot = SLOT_UNKNOWN
        if self.state.context == STREAMING:
            stream = self.state.streamed.find(self.state.current.xid)
            known = stream.relation(oid)
        if known == NULL and stream != NULL and self.state.misses_relations(stream[0]):
            # The stream lost a Relation message that may have been about this relation, so descriptions from outside of
            # the stream are not valid in it.
            slot = SLOT_LOST
        else:
            if known == NULL:
                known = self.state.relation(oid)
            if known != NULL:
                slot = self.state.slot_of(known[0])
        self.cached_oid[k] = oid
        self.cached_slot[k] = slot
        return slot

    cdef int learn(self, uint32_t oid, uint32_t subxid, RelationDescription known) except -1 nogil:
        """Stores the description by a Relation message: only for the open stream block's transaction, or for all."""
        cdef ScopedRelation scoped
        if self.state.context == STREAMING:
            scoped.oid = oid
            scoped.subxid = subxid
            scoped.known = known
            self.state.streamed.edit(self.state.current.xid).learn(scoped)
        else:
            self.state.describe(oid, known)
        self.forget_lookups()

    cdef int lose_relation(self, uint32_t oid, uint32_t subxid, int64_t seq) except -1 nogil:
        cdef RelationDescription known
        known.slot = SLOT_LOST
        known.seq = seq
        self.learn(oid, subxid, known)

    cdef void close_transaction(self) noexcept nogil:
        """Closes the open transaction or stream block."""
        if self.state.context != PLAIN and self.state.context != PREPARING:
            self.forget_lookups()  # a stream's Relation messages are now void, or valid everywhere
        self.state.context = OUTSIDE
        self.state.current.begin(NONE64, 0)
        self.set_scope(NONE64, NONE64, NONE64, NONE64, NONE64, False)

    # ---- invalid messages ------------------------------------------------------------------------------------------

    cdef bint fail(self, Window w, int64_t i, uint8_t reason, int64_t offset) except -1 nogil:
        """Handles an invalid message. Returns whether the caller must raise an error.

        Under quarantine it rejects the message, changes the state accordingly, and returns False.
        """
        return self.fail_in(w, i, reason, offset, SLOT_UNKNOWN, -1)

    cdef bint fail_of(self, Window w, int64_t i, uint32_t oid, int32_t slot, int64_t offset) except -1 nogil:
        """Handles a change of a relation that is not described here.

        The error names the relation if its oid has had only one name so far.
        """
        return self.fail_in(w, i, NO_RELATION if slot == SLOT_UNKNOWN else RELATION_LOST, offset,
                            self.versions.slot_with_name(oid), -1)

    cdef bint fail_in(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot,
                      int32_t column) except -1 nogil:
        """Like `fail`, for a message whose relation version or column is known."""
        cdef int32_t described = -1, sent = -1
        self.invalid.message = i
        self.invalid.reason = reason
        self.invalid.offset = offset
        self.invalid.slot = slot
        self.invalid.column = column
        if not self.quarantine:
            return True
        if reason == BAD_CELL_COUNT:
            described = self.versions.widths[slot]
            sent = load16(w.base + w.start[i] + offset)
        self.tags.taken[i] = 0
        self.tags.reject_into(self.records, w, i, reason, offset, slot, column, described, sent)
        if reason != STATE_LOST:
            self._mark_uncertain(w, i, reason)
        return False

    cdef int _mark_uncertain(self, Window w, int64_t i, uint8_t reason) except -1 nogil:
        """Marks as uncertain the parts of the state that the rejected message would have set."""
        cdef uint8_t kind = w.kind[i]
        cdef uint8_t cls = message_class(kind)
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef int64_t seq = self.tags.seq_of(i)
        if kind == MSG_COMMIT_PREPARED or kind == MSG_ROLLBACK_PREPARED:
            self._lose_prepared(w, i)
        if self._may_have_ended_others(kind, reason):
            self.state.doubt(seq)
        if cls & BOUNDARY or cls == 0:
            # Up to the next boundary message, the transaction of a message is unknown, and Relation messages are
            # missed.
            if self.state.context == PLAIN or self.state.context == PREPARING:
                self.records.unknown_outcomes.push_back(self.state.current.txn)
            self.state.lost = True
            self.close_transaction()
            self.state.lose_messages(seq)
            self.forget_lookups()
        elif kind == MSG_RELATION:
            if w.length[i] >= <uint32_t> (header + 4) and w.length[i] <= <uint32_t> MAX_PAYLOAD:
                self.lose_relation(load32(w.base + w.start[i] + header), w.subxid[i], seq)
            else:
                self._lose_relations(w, i, seq)
            # An apparent Relation message without its end may be a Type message.
            self.state.bad_type = reason == TRUNCATED
        elif not cls & CHANGE and _is_unreadable(reason):
            # Its first byte may be wrong: it may be a Type message, or a Relation message of any relation.
            self.state.bad_type = True
            self._lose_relations(w, i, seq)
        return 0

    cdef int _lose_relations(self, Window w, int64_t i, int64_t seq) except -1 nogil:
        """Loses all relations: the rejected message may have described any of them."""
        self.state.lose_relations(seq)
        if self.state.context == STREAMING:
            self.state.streamed.edit(self.state.current.xid).miss_relation(w.subxid[i])
        self.forget_lookups()
        return 0

    cdef bint _may_have_ended_others(self, uint8_t kind, uint8_t reason) noexcept nogil:
        """Whether some transaction other than the open one may have ended unnoticed.

        A server sends a stream's aborts and commits only between transactions and stream blocks. So an invalid message
        inside of one ended no other transaction. But if a boundary message comes too early, messages before it are
        missing, and they may have ended such a transaction.
        """
        cdef uint8_t cls = message_class(kind)
        if reason == OUTSIDE_TRANSACTION:
            return True
        if self.state.context == OUTSIDE:
            # Regardless of its first byte, which may be wrong, too.
            return _is_unreadable(reason)
        if reason == OTHER_COMMIT or reason == OTHER_PREPARE:
            return True
        return cls & BOUNDARY and kind != (MSG_COMMIT if self.state.context == PLAIN else
                                           MSG_PREPARE if self.state.context == PREPARING else MSG_STREAM_STOP)

    cdef int _lose_prepared(self, Window w, int64_t i) except -1 nogil:
        """Handles an invalid Commit Prepared or Rollback Prepared: the outcome of its transaction is unknown."""
        cdef uint32_t at = PREPARE_XID_AT if w.kind[i] == MSG_COMMIT_PREPARED else ROLLBACK_PREPARED_XID_AT
        cdef uint32_t xid
        cdef const Transaction* t
        if w.length[i] < at + 4:
            return 0
        xid = load32(w.base + w.start[i] + at)
        t = self.state.prepared().find(xid)
        if t != NULL:
            self.records.unknown_outcomes.push_back(t.txn)
            self.state.end_prepared(xid)
