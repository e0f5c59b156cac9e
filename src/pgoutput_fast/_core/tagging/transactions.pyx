"""Follows a stream's state: which transaction is open, when a session begins, and what is doubtful after a bad message.

This is the tagger's base class. It reads boundary messages. Of other messages it only knows what follows if one of them
is invalid.
"""
from cython.operator cimport dereference
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map

from pgoutput_fast._core.protocol.boundary cimport parse_boundary
from pgoutput_fast._core.protocol.fields cimport Fields, same_bytes, start_fields
from pgoutput_fast._core.protocol.kinds cimport (
    MSG_BEGIN,
    MSG_BEGIN_PREPARE,
    MSG_COMMIT,
    MSG_COMMIT_PREPARED,
    MSG_PREPARE,
    MSG_RELATION,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_ABORT,
    MSG_STREAM_COMMIT,
    MSG_STREAM_PREPARE,
    MSG_STREAM_START,
    MSG_STREAM_STOP,
    MSG_TRUNCATE,
    MSG_TYPE,
)
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.protocol.reasons cimport (
    EXPECTED_BEGIN,
    EXPECTED_BEGIN_PREPARE,
    EXPECTED_COMMIT,
    EXPECTED_PREPARE,
    EXPECTED_STREAM_START,
    EXPECTED_STREAM_STOP,
    NO_RELATION,
    OK,
    OTHER_COMMIT,
    OTHER_PREPARE,
    OUTSIDE_TRANSACTION,
    RELATION_LOST,
    STATE_LOST,
    STREAM_UNKNOWN,
)
from pgoutput_fast._core.tagging.scan cimport BOUNDARY, CHANGE, IN_STREAM, Window, message_class
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    OUTSIDE,
    PLAIN,
    PREPARING,
    SLOT_LOST,
    SLOT_UNKNOWN,
    STREAMING,
    BoundaryRecord,
    OutcomeRecord,
    RelationDescription,
    ScopedRelation,
    Transaction,
)
from pgoutput_fast._core.protocol.wire cimport load32


cdef class Transactions:
    def __cinit__(self, bint quarantine=False):
        self.quarantine = quarantine
        self.scope_is_new = True
        self.forget_lookups()

    # ---- look-ups --------------------------------------------------------------------------------------------------

    cdef void forget_lookups(self) noexcept nogil:
        cdef int k
        for k in range(64):
            self.cached_slot[k] = -9

    cdef int32_t look_up_anew(self, uint32_t oid) noexcept nogil:
        cdef int k = oid & 63
        cdef const RelationDescription* known = NULL
        cdef const Transaction* stream = NULL
        cdef int32_t slot = SLOT_UNKNOWN
        if self.state.context == STREAMING:
            stream = self.state.streamed.find(self.state.current.xid)
            known = stream.relation(oid)
        if known == NULL and stream != NULL and self.state.misses_relations(stream[0]):
            # The stream lost a Relation message that may have been about this relation. So what was said outside of
            # the stream does not count in it.
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
        """Stores what a Relation message said: for the open stream block's transaction only, or for everything."""
        cdef ScopedRelation scoped
        if self.state.context == STREAMING:
            scoped.oid = oid
            scoped.subxid = subxid
            scoped.known = known
            self.state.streamed.edit(self.state.current.xid).learn(scoped)
        else:
            self.state.describe(oid, known)
        self.forget_lookups()

    # ---- what can go wrong -----------------------------------------------------------------------------------------

    cdef int reject(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot, int32_t column,
                    int32_t described, int32_t sent) except -1 nogil:
        self.reject_into(self.records, w, i, reason, offset, slot, column, described, sent)

    cdef int lose_relation(self, uint32_t oid, uint32_t subxid, int64_t seq) except -1 nogil:
        cdef RelationDescription known
        known.slot = SLOT_LOST
        known.seq = seq
        self.learn(oid, subxid, known)

    cdef bint fail_of(self, Window w, int64_t i, uint32_t oid, int32_t slot, int64_t offset) except -1 nogil:
        """Handles a change of a relation that is not described here.

        The error names the relation if its oid has had only one name so far.
        """
        cdef unordered_map[uint32_t, int32_t].iterator named = self.named.find(oid)
        return self.fail_in(w, i, NO_RELATION if slot == SLOT_UNKNOWN else RELATION_LOST, offset,
                            SLOT_UNKNOWN if named == self.named.end() else dereference(named).second, -1)

    cdef bint fail(self, Window w, int64_t i, uint8_t reason, int64_t offset) except -1 nogil:
        """Handles an invalid message. Returns whether the caller must raise an error.

        Under quarantine it rejects the message, changes the state accordingly, and returns False.
        """
        return self.fail_in(w, i, reason, offset, SLOT_UNKNOWN, -1)

    cdef bint fail_in(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot,
                      int32_t column) except -1 nogil:
        """Does what `fail` does, for a message of which the relation version or the column is known."""
        self.reason = reason
        self.reason_offset = offset
        self.reason_slot = slot
        self.reason_column = column
        self.at = i
        if not self.quarantine:
            return True
        cdef uint8_t kind = w.kind[i]
        cdef uint8_t cls = message_class(kind)
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef const uint8_t* p = w.base + w.start[i]
        self.taken[i] = 0
        self.reject(w, i, reason, offset, slot, column, -1, -1)
        if reason == STATE_LOST:
            return False
        if kind == MSG_COMMIT_PREPARED or kind == MSG_ROLLBACK_PREPARED:
            self._lose_prepared(w, i)
        if self._may_have_ended_others(kind, reason):
            self.state.doubt(self.seq_of(i))
        if cls & BOUNDARY or cls == 0:
            # Up to the next boundary message, nobody knows the transaction of a message, and Relation messages are
            # missed.
            if self.state.context == PLAIN or self.state.context == PREPARING:
                self.records.unknown_outcomes.push_back(self.state.current.txn)
            self.state.lost = True
            self._close()
            self.state.lose_messages(self.seq_of(i))
            self.forget_lookups()
        elif kind == MSG_RELATION:
            if w.length[i] >= <uint32_t> (header + 4) and w.length[i] <= <uint32_t> MAX_PAYLOAD:
                self.lose_relation(load32(p + header), w.subxid[i], self.seq_of(i))
            else:
                self.state.lose_relations(self.seq_of(i))
                if self.state.context == STREAMING:
                    self.state.streamed.edit(self.state.current.xid).miss_relation(w.subxid[i])
                self.forget_lookups()
            self.state.bad_type = False
        elif kind == MSG_TYPE:
            self.state.bad_type = True
        return False

    cdef bint _may_have_ended_others(self, uint8_t kind, uint8_t reason) noexcept nogil:
        """Whether an invalid message, or messages missing before it, may have ended others than the open transaction.

        A server sends a stream's aborts and commits only between transactions and stream blocks. So an invalid message
        inside of one ended no other transaction. But if a boundary message comes too early, messages before it are
        missing, and these may have.
        """
        cdef uint8_t cls = message_class(kind)
        if reason == OUTSIDE_TRANSACTION:
            return True
        if self.state.context == OUTSIDE:
            return cls & (BOUNDARY | CHANGE) or cls == 0 or kind == MSG_TRUNCATE
        if reason == OTHER_COMMIT or reason == OTHER_PREPARE:
            return True
        return cls & BOUNDARY and kind != (MSG_COMMIT if self.state.context == PLAIN else
                                           MSG_PREPARE if self.state.context == PREPARING else MSG_STREAM_STOP)

    cdef int _lose_prepared(self, Window w, int64_t i) except -1 nogil:
        """Handles an invalid Commit Prepared or Rollback Prepared: the outcome of its transaction is not known."""
        cdef uint32_t at = 26 if w.kind[i] == MSG_COMMIT_PREPARED else 34
        cdef uint32_t xid
        cdef const Transaction* t
        if w.length[i] < at + 4:
            return 0
        xid = load32(w.base + w.start[i] + at)
        t = self.state.prepared().find(xid)
        if t != NULL:
            self.records.unknown_outcomes.push_back(t.txn)
            self.state.end_prepared(xid)

    # ---- sessions --------------------------------------------------------------------------------------------------

    cdef int _void_transaction(self, const Transaction& t, int64_t at_seq, bint doubtful) except -1 nogil:
        """Records that a transaction is void: the server sends it again, or it does not exist any more.

        The outcome of a doubtful transaction is not known: it may have ended in another way.
        """
        cdef OutcomeRecord o
        if t.txn == NONE64:
            return 0
        if doubtful:
            self.records.unknown_outcomes.push_back(t.txn)
            return 0
        o.txn = t.txn
        o.at_seq = at_seq
        o.committed = False
        self.records.outcomes.push_back(o)

    cdef int begin_session(self, int64_t seq) except -1 nogil:
        """Begins a new decoding session: open streams and the open transaction are void, prepared transactions stay."""
        cdef vector[Transaction] voided = self.state.unfinished()
        cdef size_t k
        for k in range(voided.size()):
            self._void_transaction(voided[k], seq, voided[k].doubtful)
        self.state.streamed.clear()
        self.state.lost = False
        self.state.bad_type = False
        self.state.session_starts = False
        self._close()
        self.forget_lookups()

    cdef int _void_stream(self, uint32_t xid, int64_t seq) except -1 nogil:
        """Voids what was streamed under an xid: the xid begins again, or its transaction ended in another way."""
        cdef const Transaction* t = self.state.streamed.find(xid)
        if t != NULL:
            self._void_transaction(t[0], seq, self.state.is_doubtful(t[0]))
            self.state.streamed.erase(xid)

    cdef int _void_prepared(self, uint32_t xid, int64_t seq) except -1 nogil:
        """Voids what was prepared under an xid: another transaction with this xid begins or is complete."""
        cdef const Transaction* t = self.state.prepared().find(xid)
        if t == NULL:
            return 0
        if self.state.perhaps_ended(t[0]):
            self.records.unknown_outcomes.push_back(t.txn)
        else:
            self._void_transaction(t[0], seq, t.doubtful)
        self.state.end_prepared(xid)

    cdef int _void_same_gid(self, const string& gid) except -1 nogil:
        """Ends older prepared transactions with this gid that may have ended.

        Two transactions cannot be prepared under one gid, so they have ended. Their outcomes are not known.
        """
        cdef vector[uint32_t] namesakes = self.state.doubted_with_gid(gid)
        cdef size_t k
        for k in range(namesakes.size()):
            self.records.unknown_outcomes.push_back(self.state.prepared().find(namesakes[k]).txn)
            self.state.end_prepared(namesakes[k])

    # ---- boundaries ------------------------------------------------------------------------------------------------

    cdef uint8_t _expected(self, uint8_t outside) noexcept nogil:
        """Returns the reason that says which message had to come first: it ends the open transaction or stream block.

        If nothing is open, returns `outside`.
        """
        if self.state.context == PLAIN:
            return EXPECTED_COMMIT
        if self.state.context == PREPARING:
            return EXPECTED_PREPARE
        return EXPECTED_STREAM_STOP if self.state.context == STREAMING else outside

    cdef uint8_t _out_of_order(self, const BoundaryRecord& b, const uint8_t* gid, int64_t gid_length,
                               int64_t* offset) noexcept nogil:
        """Returns OK, or why the boundary message may not come here; `offset` is the byte that shows it."""
        offset[0] = 0
        if b.kind == MSG_STREAM_STOP:
            if self.state.context != STREAMING and not self.state.lost:
                return self._expected(EXPECTED_STREAM_START)
        elif b.kind == MSG_COMMIT:
            if self.state.context == PLAIN:
                offset[0] = 2
                return <uint8_t> OK if b.lsn == self.state.current.commit_lsn else <uint8_t> OTHER_COMMIT
            if not self.state.lost:
                return self._expected(EXPECTED_BEGIN)
        elif b.kind == MSG_PREPARE:
            if self.state.context == PREPARING:
                if b.xid != self.state.current.xid or not same_bytes(self.state.current.gid, gid, gid_length):
                    offset[0] = 26
                    return OTHER_PREPARE
            elif not self.state.lost:
                return self._expected(EXPECTED_BEGIN_PREPARE)
        elif self.state.context != OUTSIDE:
            return self._expected(OK)
        elif (b.kind == MSG_STREAM_COMMIT or b.kind == MSG_STREAM_PREPARE
                or (b.kind == MSG_STREAM_START and b.first_segment == 0)):
            if self.state.streamed.count(<uint32_t> b.xid) == 0:
                offset[0] = 1 if b.kind != MSG_STREAM_PREPARE else 26
                return STREAM_UNKNOWN
        return OK

    cdef int boundary(self, Window w, int64_t i) except -1 nogil:
        cdef Fields f
        cdef BoundaryRecord b
        cdef OutcomeRecord o
        cdef Transaction* t
        cdef uint8_t reason
        cdef int64_t offset = 0
        cdef const uint8_t* gid = NULL
        cdef int64_t gid_length = -1
        cdef uint8_t kind = w.kind[i]
        start_fields(&f, w.base + w.start[i], w.length[i], 1)
        b.seq = self.seq_of(i)
        parse_boundary(&f, kind, &b, &gid, &gid_length)
        if f.reason != OK:
            return self.fail(w, i, f.reason, f.reason_offset)
        reason = self._out_of_order(b, gid, gid_length, &offset)
        if reason != OK:
            return self.fail(w, i, reason, offset)
        self.state.lost = False
        if kind == MSG_BEGIN or kind == MSG_BEGIN_PREPARE:
            self._void_stream(<uint32_t> b.xid, b.seq)
            self._void_prepared(<uint32_t> b.xid, b.seq)
            b.txn = b.seq
            t = &self.state.current
            t.begin(b.txn, <uint32_t> b.xid)
            if kind == MSG_BEGIN:
                t.commit_lsn = b.lsn
                t.commit_timestamp = b.timestamp
                self.state.context = PLAIN
            else:
                t.gid.assign(<const char*> gid, <size_t> gid_length)
                self._void_same_gid(t.gid)
                t.prepare_end_lsn = b.end_lsn
                t.prepare_timestamp = b.timestamp
                self.state.context = PREPARING
            self.set_scope(b.txn, b.xid, NONE64, t.commit_lsn, t.commit_timestamp, False)
            self.open_scope()
        elif kind == MSG_STREAM_START:
            if b.first_segment == 1:
                # What is prepared under the xid stays. If its Prepare was confirmed, a new session may stream the
                # transaction again and then send only its Commit Prepared or Rollback Prepared.
                self._void_stream(<uint32_t> b.xid, b.seq)
                self.state.streamed.edit(<uint32_t> b.xid).begin(b.seq, <uint32_t> b.xid)
            b.txn = self.state.streamed.find(<uint32_t> b.xid).txn
            self.state.context = STREAMING
            self.state.current.xid = <uint32_t> b.xid
            self.forget_lookups()
            self.set_scope(b.txn, b.xid, NONE64, NONE64, NONE64, True)
            self.open_scope()
        elif kind == MSG_STREAM_STOP:
            if self.state.context == STREAMING:
                b.xid = self.state.current.xid
                b.txn = self.state.streamed.find(self.state.current.xid).txn
                if self.scope.subxid != NONE64:
                    self.set_scope(b.txn, b.xid, NONE64, NONE64, NONE64, True)
            self.open_scope()
            self._close()
        elif kind == MSG_COMMIT or kind == MSG_PREPARE:
            t = &self.state.current
            if self.state.context != OUTSIDE:
                b.xid = t.xid
                b.txn = t.txn
                self._end_origin(&b, t[0])
                if kind == MSG_PREPARE:
                    t.prepare_end_lsn = b.end_lsn
                    t.prepare_timestamp = b.timestamp
                    self.state.prepare(t[0])
                else:
                    o.txn = b.txn
                    o.at_seq = b.seq
                    o.committed = True
                    o.commit_lsn = b.lsn
                    o.commit_timestamp = b.timestamp
                    self.records.outcomes.push_back(o)
            self.open_scope()
            self._close()
        else:
            self._between_transactions(&b, gid, gid_length)
        if gid != NULL:
            b.gid = self.records.keep(gid, <size_t> gid_length)
        self.records.boundaries.push_back(b)
        return OK

    cdef int _between_transactions(self, BoundaryRecord* b, const uint8_t* gid, int64_t gid_length) except -1 nogil:
        """Handles a message between transactions: it ends a stream, a part of a stream, or a prepared transaction."""
        cdef OutcomeRecord o
        cdef Transaction* t = NULL
        cdef bint commits = b.kind == MSG_STREAM_COMMIT or b.kind == MSG_COMMIT_PREPARED
        cdef uint32_t xid = <uint32_t> b.xid
        cdef const Transaction* prepared
        if b.kind == MSG_COMMIT_PREPARED or b.kind == MSG_ROLLBACK_PREPARED:
            prepared = self.state.prepared().find(xid)
            # A gid can be used again. A Rollback Prepared also has the end LSN of its Prepare, so that is compared.
            if prepared != NULL and same_bytes(prepared.gid, gid, gid_length) and (
                b.kind == MSG_COMMIT_PREPARED or prepared.prepare_end_lsn == b.lsn
            ):
                t = <Transaction*> prepared
        elif self.state.streamed.count(xid):
            t = self.state.streamed.edit(xid)
            t.doubtful = self.state.is_doubtful(t[0])
        if t != NULL:
            b.txn = t.txn
            o.txn = t.txn
            if b.kind == MSG_COMMIT_PREPARED:
                b.prepare_timestamp = t.prepare_timestamp
            elif b.kind != MSG_ROLLBACK_PREPARED and (b.kind != MSG_STREAM_ABORT or b.subxid == b.xid):
                self._end_origin(b, t[0])
        self.set_scope(b.txn, b.xid, NONE64, b.lsn if commits else NONE64, b.timestamp if commits else NONE64, False)
        o.at_seq = b.seq
        if t == NULL:
            pass  # the transaction was never seen; its Stream Commit or Stream Prepare would have failed before
        elif b.kind == MSG_STREAM_PREPARE:
            self._void_prepared(xid, b.seq)
            t.gid.assign(<const char*> gid, <size_t> gid_length)
            self._void_same_gid(t.gid)
            t.prepare_end_lsn = b.end_lsn
            t.prepare_timestamp = b.timestamp
            self.state.prepare(t[0])
        elif b.kind == MSG_STREAM_ABORT and b.subxid != b.xid:
            o.subxid = b.subxid
            self.scope.subxid = b.subxid
            t.forget(<uint32_t> b.subxid)
            self.records.outcomes.push_back(o)
        elif not commits:
            self.records.outcomes.push_back(o)
        else:
            self.state.promote(t[0])
            if b.kind == MSG_STREAM_COMMIT:
                self._void_prepared(xid, b.seq)
            if t.doubtful:
                self.records.unknown_outcomes.push_back(t.txn)
            else:
                o.committed = True
                o.commit_lsn = b.lsn
                o.commit_timestamp = b.timestamp
                self.records.outcomes.push_back(o)
        if b.kind == MSG_COMMIT_PREPARED or b.kind == MSG_ROLLBACK_PREPARED:
            if t != NULL:
                self.state.end_prepared(xid)
            elif self.state.streamed.count(xid):
                # The Prepare was never seen: what was streamed may be a part of the prepared transaction.
                self.state.streamed.edit(xid).doubtful = True
            self._void_stream(xid, b.seq)
        elif t != NULL and (b.kind != MSG_STREAM_ABORT or b.subxid == b.xid):
            self.state.streamed.erase(xid)
        self.open_scope()
        self._close()

    cdef void _close(self) noexcept nogil:
        """Closes the open transaction or stream block."""
        if self.state.context != PLAIN and self.state.context != PREPARING:
            self.forget_lookups()  # a stream's Relation messages do not count any more, or now count everywhere
        self.state.context = OUTSIDE
        self.state.current.begin(NONE64, 0)
        self.set_scope(NONE64, NONE64, NONE64, NONE64, NONE64, False)

    cdef int _end_origin(self, BoundaryRecord* b, Transaction& t) except -1 nogil:
        if t.has_origin:
            b.origin = self.records.keep(<const uint8_t*> t.origin.data(), t.origin.size())
            b.origin_lsn = t.origin_lsn
