"""Tags the messages that begin or end a session, a transaction, a stream block or a prepared transaction."""
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.boundary cimport COMMIT_LSN_AT, PREPARE_XID_AT, STREAM_XID_AT, parse_boundary
from pgoutput_fast._core.protocol.fields cimport Fields, same_bytes, start_fields
from pgoutput_fast._core.protocol.kinds cimport (
    MSG_BEGIN,
    MSG_BEGIN_PREPARE,
    MSG_COMMIT,
    MSG_COMMIT_PREPARED,
    MSG_PREPARE,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_ABORT,
    MSG_STREAM_COMMIT,
    MSG_STREAM_PREPARE,
    MSG_STREAM_START,
    MSG_STREAM_STOP,
)
from pgoutput_fast._core.protocol.reasons cimport (
    EXPECTED_BEGIN,
    EXPECTED_BEGIN_PREPARE,
    EXPECTED_COMMIT,
    EXPECTED_PREPARE,
    EXPECTED_STREAM_START,
    EXPECTED_STREAM_STOP,
    OK,
    OTHER_COMMIT,
    OTHER_PREPARE,
    STREAM_UNKNOWN,
)
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    OUTSIDE,
    PLAIN,
    PREPARING,
    STREAMING,
    BoundaryRecord,
    OutcomeRecord,
    StreamState,
    Transaction,
)
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker

# ---- void transactions ---------------------------------------------------------------------------------------------


cdef int _void_transaction(StreamTracker tracker, const Transaction& t, int64_t at_seq,
                           bint doubtful) except -1 nogil:
    """Records that a transaction is void: the server sends it again, or it no longer exists.

    The outcome of a doubtful transaction is unknown: it may have ended in another way.
    """
    cdef OutcomeRecord o
    if t.txn == NONE64:
        return 0
    if doubtful:
        tracker.records.unknown_outcomes.push_back(t.txn)
        return 0
    o.txn = t.txn
    o.at_seq = at_seq
    o.committed = False
    tracker.records.outcomes.push_back(o)


cdef int begin_session(StreamTracker tracker, int64_t seq) except -1 nogil:
    """Begins a new decoding session: open streams and the open transaction are void, prepared transactions stay."""
    cdef vector[Transaction] voided = tracker.state.unfinished()
    cdef size_t k
    for k in range(voided.size()):
        _void_transaction(tracker, voided[k], seq, voided[k].doubtful)
    tracker.state.streamed.clear()
    tracker.state.lost = False
    tracker.state.bad_type = False
    tracker.state.session_starts = False
    tracker.close_transaction()
    tracker.forget_lookups()


cdef int _void_stream(StreamTracker tracker, uint32_t xid, int64_t seq) except -1 nogil:
    """Voids the stream of an xid: the xid begins again, or its transaction ended in another way."""
    cdef const Transaction* t = tracker.state.streamed.find(xid)
    if t != NULL:
        _void_transaction(tracker, t[0], seq, tracker.state.is_doubtful(t[0]))
        tracker.state.streamed.erase(xid)


cdef int _void_prepared(StreamTracker tracker, uint32_t xid, int64_t seq) except -1 nogil:
    """Voids the prepared transaction of an xid: another transaction with this xid begins or is complete."""
    cdef const Transaction* t = tracker.state.prepared().find(xid)
    if t == NULL:
        return 0
    if tracker.state.perhaps_ended(t[0]):
        tracker.records.unknown_outcomes.push_back(t.txn)
    else:
        _void_transaction(tracker, t[0], seq, t.doubtful)
    tracker.state.end_prepared(xid)


cdef int _void_same_gid(StreamTracker tracker, const string& gid) except -1 nogil:
    """Ends older prepared transactions with this gid whose end may have been missed.

    A gid belongs to one prepared transaction at a time. So these transactions have ended, with unknown outcomes.
    """
    cdef vector[uint32_t] namesakes = tracker.state.doubted_with_gid(gid)
    cdef size_t k
    for k in range(namesakes.size()):
        tracker.records.unknown_outcomes.push_back(tracker.state.prepared().find(namesakes[k]).txn)
        tracker.state.end_prepared(namesakes[k])


# ---- the order of messages -----------------------------------------------------------------------------------------


cdef uint8_t _expected(StreamTracker tracker, uint8_t outside) noexcept nogil:
    """Returns the reason that names the missing message, which ends the open transaction or stream block.

    If nothing is open, returns `outside`.
    """
    if tracker.state.context == PLAIN:
        return EXPECTED_COMMIT
    if tracker.state.context == PREPARING:
        return EXPECTED_PREPARE
    return EXPECTED_STREAM_STOP if tracker.state.context == STREAMING else outside


cdef uint8_t _out_of_order(StreamTracker tracker, const BoundaryRecord& b, const uint8_t* gid, int64_t gid_length,
                           int64_t* offset) noexcept nogil:
    """Returns OK, or why the boundary message is out of order; `offset` is that of the unexpected byte."""
    cdef StreamState* state = &tracker.state
    offset[0] = 0
    if b.kind == MSG_STREAM_STOP:
        if state.context != STREAMING and not state.lost:
            return _expected(tracker, EXPECTED_STREAM_START)
    elif b.kind == MSG_COMMIT:
        if state.context == PLAIN:
            offset[0] = COMMIT_LSN_AT
            return <uint8_t> OK if b.lsn == state.current.commit_lsn else <uint8_t> OTHER_COMMIT
        if not state.lost:
            return _expected(tracker, EXPECTED_BEGIN)
    elif b.kind == MSG_PREPARE:
        if state.context == PREPARING:
            if b.xid != state.current.xid or not same_bytes(state.current.gid, gid, gid_length):
                offset[0] = PREPARE_XID_AT
                return OTHER_PREPARE
        elif not state.lost:
            return _expected(tracker, EXPECTED_BEGIN_PREPARE)
    elif state.context != OUTSIDE:
        return _expected(tracker, OK)
    elif (b.kind == MSG_STREAM_COMMIT or b.kind == MSG_STREAM_PREPARE
            or (b.kind == MSG_STREAM_START and b.first_segment == 0)):
        if state.streamed.count(<uint32_t> b.xid) == 0:
            offset[0] = PREPARE_XID_AT if b.kind == MSG_STREAM_PREPARE else STREAM_XID_AT
            return STREAM_UNKNOWN
    return OK


# ---- boundaries ----------------------------------------------------------------------------------------------------


cdef int tag_boundary(StreamTracker tracker, Window w, int64_t i) except -1 nogil:
    """Tags a boundary message. Returns whether it is invalid and an error must be raised."""
    cdef Fields f
    cdef BoundaryRecord b
    cdef uint8_t reason
    cdef int64_t offset = 0
    cdef const uint8_t* gid = NULL
    cdef int64_t gid_length = -1
    cdef uint8_t kind = w.kind[i]
    start_fields(&f, w.base + w.start[i], w.length[i], 1)
    b.seq = tracker.tags.seq_of(i)
    parse_boundary(&f, kind, &b, &gid, &gid_length)
    if f.reason != OK:
        return tracker.fail(w, i, f.reason, f.reason_offset)
    reason = _out_of_order(tracker, b, gid, gid_length, &offset)
    if reason != OK:
        return tracker.fail(w, i, reason, offset)
    tracker.state.lost = False
    if kind == MSG_BEGIN or kind == MSG_BEGIN_PREPARE:
        _begin_transaction(tracker, &b, gid, gid_length)
    elif kind == MSG_STREAM_START:
        _begin_block(tracker, &b)
    elif kind == MSG_STREAM_STOP:
        _end_block(tracker, &b)
    elif kind == MSG_COMMIT or kind == MSG_PREPARE:
        _end_transaction(tracker, &b)
    else:
        _end_between_transactions(tracker, &b, gid, gid_length)
    if gid != NULL:
        b.gid = tracker.records.keep(gid, <size_t> gid_length)
    tracker.records.boundaries.push_back(b)
    return False


cdef int _begin_transaction(StreamTracker tracker, BoundaryRecord* b, const uint8_t* gid,
                            int64_t gid_length) except -1 nogil:
    """Handles Begin and Begin Prepare."""
    cdef Transaction* t = &tracker.state.current
    _void_stream(tracker, <uint32_t> b.xid, b.seq)
    _void_prepared(tracker, <uint32_t> b.xid, b.seq)
    b.txn = b.seq
    t.begin(b.txn, <uint32_t> b.xid)
    if b.kind == MSG_BEGIN:
        t.commit_lsn = b.lsn
        t.commit_timestamp = b.timestamp
        tracker.state.context = PLAIN
    else:
        t.gid.assign(<const char*> gid, <size_t> gid_length)
        _void_same_gid(tracker, t.gid)
        t.prepare_end_lsn = b.end_lsn
        t.prepare_timestamp = b.timestamp
        tracker.state.context = PREPARING
    tracker.set_scope(b.txn, b.xid, NONE64, t.commit_lsn, t.commit_timestamp, False)
    tracker.open_scope()


cdef int _begin_block(StreamTracker tracker, BoundaryRecord* b) except -1 nogil:
    """Handles Stream Start."""
    cdef uint32_t xid = <uint32_t> b.xid
    if b.first_segment == 1:
        # The transaction prepared under the xid stays. If its Prepare was confirmed, a new session may stream the
        # transaction again and then send only its Commit Prepared or Rollback Prepared.
        _void_stream(tracker, xid, b.seq)
        tracker.state.streamed.edit(xid).begin(b.seq, xid)
    b.txn = tracker.state.streamed.find(xid).txn
    tracker.state.context = STREAMING
    tracker.state.current.xid = xid
    tracker.forget_lookups()
    tracker.set_scope(b.txn, b.xid, NONE64, NONE64, NONE64, True)
    tracker.open_scope()


cdef int _end_block(StreamTracker tracker, BoundaryRecord* b) except -1 nogil:
    """Handles Stream Stop."""
    if tracker.state.context == STREAMING:
        b.xid = tracker.state.current.xid
        b.txn = tracker.state.streamed.find(tracker.state.current.xid).txn
        if tracker.scope.subxid != NONE64:
            tracker.set_scope(b.txn, b.xid, NONE64, NONE64, NONE64, True)
    tracker.open_scope()
    tracker.close_transaction()


cdef int _end_transaction(StreamTracker tracker, BoundaryRecord* b) except -1 nogil:
    """Handles Commit and Prepare."""
    cdef OutcomeRecord o
    cdef Transaction* t = &tracker.state.current
    if tracker.state.context != OUTSIDE:
        b.xid = t.xid
        b.txn = t.txn
        _add_origin(tracker, b, t[0])
        if b.kind == MSG_PREPARE:
            t.prepare_end_lsn = b.end_lsn
            t.prepare_timestamp = b.timestamp
            tracker.state.prepare(t[0])
        else:
            o.txn = b.txn
            o.at_seq = b.seq
            o.committed = True
            o.commit_lsn = b.lsn
            o.commit_timestamp = b.timestamp
            tracker.records.outcomes.push_back(o)
            _note_commit(tracker, b[0])
    tracker.open_scope()
    tracker.close_transaction()


cdef inline void _note_commit(StreamTracker tracker, const BoundaryRecord& b) noexcept nogil:
    tracker.state.commit_lsn = b.lsn
    tracker.state.commit_end_lsn = b.end_lsn


cdef int _add_origin(StreamTracker tracker, BoundaryRecord* b, Transaction& t) except -1 nogil:
    """Adds the transaction's Origin message to the record of its end."""
    if t.has_origin:
        b.origin = tracker.records.keep(<const uint8_t*> t.origin.data(), t.origin.size())
        b.origin_lsn = t.origin_lsn


# ---- ends that come between transactions ---------------------------------------------------------------------------


cdef inline bint _ends_part(const BoundaryRecord& b) noexcept nogil:
    """Whether the message aborts only a subtransaction of a stream."""
    return b.kind == MSG_STREAM_ABORT and b.subxid != b.xid


cdef int _end_between_transactions(StreamTracker tracker, BoundaryRecord* b, const uint8_t* gid,
                                   int64_t gid_length) except -1 nogil:
    """Handles a message between transactions: it ends a stream, a part of a stream, or a prepared transaction."""
    cdef StreamState* state = &tracker.state
    cdef uint32_t xid = <uint32_t> b.xid
    cdef bint commits = b.kind == MSG_STREAM_COMMIT or b.kind == MSG_COMMIT_PREPARED
    cdef Transaction* t = _ended_transaction(tracker, b[0], gid, gid_length)
    if t != NULL:
        b.txn = t.txn
        if b.kind == MSG_COMMIT_PREPARED:
            b.prepare_timestamp = t.prepare_timestamp
        elif b.kind != MSG_ROLLBACK_PREPARED and not _ends_part(b[0]):
            _add_origin(tracker, b, t[0])
    tracker.set_scope(b.txn, b.xid, NONE64, b.lsn if commits else NONE64, b.timestamp if commits else NONE64, False)
    if commits:
        _note_commit(tracker, b[0])
    # If t is NULL, this is not a Stream Commit or Stream Prepare: `_out_of_order` has already refused those.
    if t != NULL:
        if b.kind == MSG_STREAM_PREPARE:
            _prepare_stream(tracker, b[0], t, gid, gid_length)
        else:
            _decide_outcome(tracker, b[0], t)
    if b.kind == MSG_COMMIT_PREPARED or b.kind == MSG_ROLLBACK_PREPARED:
        if t != NULL:
            state.end_prepared(xid)
        elif state.streamed.count(xid):
            # The Prepare was never seen: the stream may be a part of the prepared transaction.
            state.streamed.edit(xid).doubtful = True
        _void_stream(tracker, xid, b.seq)
    elif t != NULL and not _ends_part(b[0]):
        state.streamed.erase(xid)
    tracker.open_scope()
    tracker.close_transaction()


cdef Transaction* _ended_transaction(StreamTracker tracker, const BoundaryRecord& b, const uint8_t* gid,
                                     int64_t gid_length) except? NULL nogil:
    """Returns the transaction that the message is about; NULL if it is unknown."""
    cdef uint32_t xid = <uint32_t> b.xid
    cdef const Transaction* prepared
    cdef Transaction* t
    if b.kind == MSG_COMMIT_PREPARED or b.kind == MSG_ROLLBACK_PREPARED:
        prepared = tracker.state.prepared().find(xid)
        # A gid can be reused. A Rollback Prepared also has the end LSN of its Prepare, which is compared.
        if prepared != NULL and same_bytes(prepared.gid, gid, gid_length) and (
            b.kind == MSG_COMMIT_PREPARED or prepared.prepare_end_lsn == b.lsn
        ):
            return <Transaction*> prepared
    elif tracker.state.streamed.count(xid):
        t = tracker.state.streamed.edit(xid)
        t.doubtful = tracker.state.is_doubtful(t[0])
        return t
    return NULL


cdef int _prepare_stream(StreamTracker tracker, const BoundaryRecord& b, Transaction* t, const uint8_t* gid,
                         int64_t gid_length) except -1 nogil:
    """Turns a streamed transaction into a prepared one.

    From now on, its descriptions are valid for all transactions: PostgreSQL 19 does not always send them again. If they
    are rolled back, the server sends the replaced ones again.
    """
    tracker.state.promote(t[0])
    _void_prepared(tracker, <uint32_t> b.xid, b.seq)
    t.gid.assign(<const char*> gid, <size_t> gid_length)
    _void_same_gid(tracker, t.gid)
    t.prepare_end_lsn = b.end_lsn
    t.prepare_timestamp = b.timestamp
    tracker.state.prepare(t[0])


cdef int _decide_outcome(StreamTracker tracker, const BoundaryRecord& b, Transaction* t) except -1 nogil:
    """Records the outcome of a transaction, or of one of its subtransactions."""
    cdef OutcomeRecord o
    o.txn = t.txn
    o.at_seq = b.seq
    if _ends_part(b):
        o.subxid = b.subxid
        tracker.scope.subxid = b.subxid
        t.forget(<uint32_t> b.subxid)
    elif b.kind == MSG_STREAM_COMMIT or b.kind == MSG_COMMIT_PREPARED:
        tracker.state.promote(t[0])
        if b.kind == MSG_STREAM_COMMIT:
            _void_prepared(tracker, <uint32_t> b.xid, b.seq)
        if t.doubtful:
            tracker.records.unknown_outcomes.push_back(t.txn)
            return 0
        o.committed = True
        o.commit_lsn = b.lsn
        o.commit_timestamp = b.timestamp
    tracker.records.outcomes.push_back(o)
