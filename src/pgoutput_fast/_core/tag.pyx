"""Stage 2, tag: headers + StreamState -> what a decoder must know of each message.

Sequential, but only boundary, Relation and Type messages move the state; a change costs one look-up. The loop runs
without the GIL and stops only for what is rare: a Relation or Type that is new, or a message to raise an error about.
"""
cimport cython
from cython.operator cimport dereference, preincrement
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.map cimport map as cmap

from pgoutput_fast._core.boundary cimport parse_boundary, parse_message
from pgoutput_fast._core.fields cimport (
    Fields,
    finish,
    read_lsn,
    read_text,
    same_bytes,
    start_fields,
)
from pgoutput_fast._core.reasons cimport (
    BAD_COUNT,
    BAD_FLAGS,
    EMPTY_PAYLOAD,
    EXPECTED_BEGIN,
    EXPECTED_BEGIN_PREPARE,
    EXPECTED_COMMIT,
    EXPECTED_PREPARE,
    EXPECTED_STREAM_START,
    EXPECTED_STREAM_STOP,
    FRAMED_PAYLOAD,
    NO_RELATION,
    OK,
    OTHER_COMMIT,
    OTHER_PREPARE,
    OUTSIDE_TRANSACTION,
    PAYLOAD_TOO_LONG,
    RELATION_LOST,
    STATE_LOST,
    STREAM_UNKNOWN,
    TEXT_PAYLOAD,
    TRAILING_BYTES,
    TRUNCATED,
    UNKNOWN_TAG,
)
from pgoutput_fast._core.scan cimport BOUNDARY, CHANGE, IN_STREAM, MALFORMED, Window, is_hex_text, message_class
from pgoutput_fast._core.stream_state cimport (
    NONE64,
    OUTSIDE,
    PLAIN,
    PREPARING,
    SLOT_LOST,
    SLOT_UNKNOWN,
    STREAMING,
    BoundaryRecord,
    Context,
    Known,
    MessageRecord,
    OutcomeRecord,
    Records,
    RejectRecord,
    Run,
    ScopedRelation,
    ScopedType,
    StreamState,
    Transaction,
    TruncateRecord,
    TypeName,
)
from pgoutput_fast._core.wire cimport load32

from pgoutput_fast._core.describe import Malformed, parse_type
from pgoutput_fast.catalog import fields_of, relation_of
from pgoutput_fast.types import is_built_in


cdef uint8_t _not_a_message(const uint8_t* p, int64_t size) noexcept nogil:
    """What bytes with an unknown tag may be, so that the error can say what to do with them."""
    if is_hex_text(p, size):
        return TEXT_PAYLOAD
    if (p[0] == c'w' and size > 25) or (p[0] == c'k' and size == 18):
        return FRAMED_PAYLOAD
    return UNKNOWN_TAG


@cython.final
cdef class Tagger:
    """The state machine of a stream. A call: `begin_call`, `tag_window` for each window, `end_call` or `undo`."""

    def __cinit__(self, bint quarantine=False):
        self.quarantine = quarantine
        self.versions = []
        self.slots = {}
        self.saved = NULL
        self.run_is_new = True
        self.forget_lookups()

    def __dealloc__(self):
        del self.saved

    # ---- calls -------------------------------------------------------------------------------------------------

    def begin_call(self):
        """Remembers the state, so that `undo` can bring it back."""
        del self.saved
        self.saved = NULL
        self.saved = new StreamState(self.state)
        self.saved_run = self.run
        self.saved_versions = len(self.versions)
        self.records = Records()

    def end_call(self):
        del self.saved
        self.saved = NULL

    def undo(self):
        """The state is again what it was at `begin_call`."""
        if self.saved == NULL:
            return
        self.state = dereference(self.saved)
        self.run = self.saved_run
        for relation in self.versions[self.saved_versions:]:
            self.slots[relation.version].pop()
            if not self.slots[relation.version]:
                del self.slots[relation.version]
        del self.versions[self.saved_versions:]
        self.bodies.resize(self.saved_versions)
        self.explained.resize(self.saved_versions)
        self.records = Records()
        self.forget_lookups()
        self.end_call()

    def start_session(self):
        """A new decoding session begins with the next message."""
        self.state.session_starts = True

    @property
    def next_seq(self):
        return self.state.next_seq

    def slot_of(self, relation, body=None):
        """The slot of a Relation object, made if its version is new or its columns' types were named anew.

        `body` is its wire form, where that is at hand.
        """
        slots = self.slots.setdefault(relation.version, [])
        for slot in slots:
            if self.versions[slot] == relation:
                return slot
        slot = len(self.versions)
        slots.append(slot)
        self.versions.append(relation)
        self.bodies.push_back(relation.wire_body() if body is None else body)
        self.explained.push_back(any(not is_built_in(column.type_oid) for column in relation.columns))
        return slot

    cdef int32_t slot_of_version(self, version) except -2:
        """The latest slot of a version id, -1 if it is not known."""
        slots = self.slots.get(version)
        return slots[len(slots) - 1] if slots else -1

    # ---- look-ups and runs -------------------------------------------------------------------------------------

    cdef void forget_lookups(self) noexcept nogil:
        cdef int k
        for k in range(64):
            self.cached_slot[k] = -9

    cdef int32_t lookup(self, uint32_t oid) noexcept nogil:
        """The slot of the version that `oid` stands for here, or SLOT_UNKNOWN or SLOT_LOST."""
        cdef int k = oid & 63
        if self.cached_oid[k] == oid and self.cached_slot[k] != -9:
            return self.cached_slot[k]
        cdef const Known* known = NULL
        if self.state.context == STREAMING:
            known = self.state.streamed[self.state.current.xid].relation(oid)
        if known == NULL:
            known = self.state.relation(oid)
        cdef int32_t slot = SLOT_UNKNOWN if known == NULL else known.slot
        self.cached_oid[k] = oid
        self.cached_slot[k] = slot
        return slot

    cdef int64_t seq_of(self, int64_t i) noexcept nogil:
        return self.seqs[i] if self.seqs != NULL else self.base_seq + i

    cdef void open_run(self) noexcept nogil:
        if self.run_is_new:
            self.runs.push_back(self.run)
            self.run_is_new = False

    cdef void set_run(self, int64_t txn, int64_t xid, int64_t subxid, int64_t commit_lsn, int64_t commit_timestamp,
                      bint in_stream) noexcept nogil:
        self.run.txn = txn
        self.run.xid = xid
        self.run.subxid = subxid
        self.run.commit_lsn = commit_lsn
        self.run.commit_timestamp = commit_timestamp
        self.run.in_stream = in_stream
        self.run_is_new = True

    # ---- what can go wrong ---------------------------------------------------------------------------------------

    cdef void reject(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot, int32_t column,
                     int32_t described, int32_t sent) noexcept nogil:
        """A whole message goes to the rejects."""
        cdef RejectRecord r
        r.seq = self.seq_of(i)
        r.lsn = self.lsns[i] if self.lsns != NULL and self.lsns[i] != 0 else NONE64
        r.byte_offset = offset
        r.slot = slot
        r.column = column
        r.reason = reason
        r.described = described
        r.sent = sent
        r.raw = self.records.keep(w.base + w.start[i], w.length[i])
        self.records.rejects.push_back(r)

    cdef void lose_relations(self) noexcept nogil:
        """Nothing that any Relation said is trusted until it is said again."""
        self.state.lose_relations()
        self.forget_lookups()

    cdef void lose_relation(self, uint32_t oid, uint32_t subxid, int64_t seq) noexcept nogil:
        cdef Known known
        known.slot = SLOT_LOST
        known.seq = seq
        self._learn(oid, subxid, known)

    cdef void _learn(self, uint32_t oid, uint32_t subxid, Known known) noexcept nogil:
        """Files what a Relation said: in the stream block's transaction, or for all."""
        cdef ScopedRelation scoped
        if self.state.context == STREAMING:
            scoped.oid = oid
            scoped.subxid = subxid
            scoped.known = known
            self.state.streamed[self.state.current.xid].learn(scoped)
        else:
            self.state.describe(oid, known)
        self.forget_lookups()

    cdef bint fail(self, Window w, int64_t i, uint8_t reason, int64_t offset) noexcept nogil:
        """A message that cannot be taken. Under quarantine: rejects it, with what follows from it; False."""
        self.reason = reason
        self.reason_offset = offset
        self.at = i
        if not self.quarantine:
            return True
        cdef uint8_t kind = w.kind[i]
        cdef uint8_t cls = message_class(kind)
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef const uint8_t* p = w.base + w.start[i]
        self.taken[i] = 0
        self.reject(w, i, reason, offset, SLOT_UNKNOWN, -1, -1, -1)
        if reason == STATE_LOST:
            return False
        if self.may_have_ended_others(kind, reason):
            self.doubt_streams()
        if cls & BOUNDARY or cls == 0:
            # Which transaction comes next is not known, and whatever Relation lies in the stretch is missed.
            if self.state.context == PLAIN or self.state.context == PREPARING:
                self.records.forgotten.push_back(self.state.current.txn)
            self.state.lost = True
            self.state.context = OUTSIDE
            self.state.current = Transaction()
            self.set_run(NONE64, NONE64, NONE64, NONE64, NONE64, False)
            self.lose_relations()
        elif kind == c'R':
            if w.length[i] >= <uint32_t> (header + 4) and w.length[i] <= <uint32_t> 0x3fffffff:
                self.lose_relation(load32(p + header), w.subxid[i], self.seq_of(i))
            else:
                self.lose_relations()
            self.state.bad_type = False
        elif kind == c'Y':
            self.state.bad_type = True
        return False

    cdef bint may_have_ended_others(self, uint8_t kind, uint8_t reason) noexcept nogil:
        """Whether a message that is not taken may have been, or followed, one about another than the open transaction.

        A server sends aborts and commits of streams between transactions and blocks. So a message inside of one that
        cannot be read is none, unless it has come too early: then messages before it are missing.
        """
        cdef uint8_t cls = message_class(kind)
        if reason == OUTSIDE_TRANSACTION:
            return True
        if self.state.context == OUTSIDE:
            return cls & (BOUNDARY | CHANGE) or cls == 0 or kind == c'T'
        if reason == OTHER_COMMIT or reason == OTHER_PREPARE:
            return True
        return cls & BOUNDARY and kind != (c'C' if self.state.context == PLAIN else
                                           c'P' if self.state.context == PREPARING else c'E')

    cdef void doubt_streams(self) noexcept nogil:
        """Of no open stream is it known any more what became of it, or of its subtransactions."""
        cdef cmap[uint32_t, Transaction].iterator it = self.state.streamed.begin()
        while it != self.state.streamed.end():
            dereference(it).second.doubtful = True
            preincrement(it)

    # ---- transactions ----------------------------------------------------------------------------------------------

    cdef void void_transaction(self, const Transaction& t, int64_t at_seq) noexcept nogil:
        """A transaction that will not go on: the server sends it again, or it is no more.

        A doubtful one may have ended in another way.
        """
        cdef OutcomeRecord o
        if t.txn == NONE64:
            return
        if t.doubtful:
            self.records.forgotten.push_back(t.txn)
            return
        o.txn = t.txn
        o.at_seq = at_seq
        o.committed = False
        self.records.outcomes.push_back(o)

    cdef void begin_session(self, int64_t seq) noexcept nogil:
        """Decoding started anew: open streams and an unfinished transaction are void, prepared ones stay."""
        cdef cmap[int64_t, Transaction] voided
        cdef cmap[int64_t, Transaction].iterator each
        cdef cmap[uint32_t, Transaction].iterator it = self.state.streamed.begin()
        while it != self.state.streamed.end():
            voided[dereference(it).second.txn] = dereference(it).second
            preincrement(it)
        if self.state.context == PLAIN or self.state.context == PREPARING:
            voided[self.state.current.txn] = self.state.current
        each = voided.begin()
        while each != voided.end():
            self.void_transaction(dereference(each).second, seq)
            preincrement(each)
        self.state.streamed.clear()
        self.state.current = Transaction()
        self.state.context = OUTSIDE
        self.state.lost = False
        self.state.bad_type = False
        self.state.session_starts = False
        self._expect_repeated_messages()
        self.forget_lookups()
        self.set_run(NONE64, NONE64, NONE64, NONE64, NONE64, False)

    cdef void _expect_repeated_messages(self) noexcept nogil:
        """Non-transactional messages are sent again by a new session, each with the LSN that it had."""
        self.state.repeated_lsn = max(self.state.repeated_lsn, self.state.message_lsn)

    cdef void _void_older(self, uint32_t xid, int64_t seq) noexcept nogil:
        """An xid that begins again: what was open or prepared under it is void."""
        cdef size_t k
        cdef cmap[uint32_t, Transaction].iterator it = self.state.streamed.find(xid)
        if it != self.state.streamed.end():
            self.void_transaction(dereference(it).second, seq)
            self.state.streamed.erase(it)
            self._expect_repeated_messages()
        for k in range(self.state.prepared.size()):
            if self.state.prepared[k].xid == xid:
                self.void_transaction(self.state.prepared[k], seq)
                self.state.prepared.erase(self.state.prepared.begin() + k)
                break

    cdef uint8_t _expected(self, uint8_t outside) noexcept nogil:
        """What should have come before a boundary: what ends the open transaction or block, or `outside` of any."""
        if self.state.context == PLAIN:
            return EXPECTED_COMMIT
        if self.state.context == PREPARING:
            return EXPECTED_PREPARE
        return EXPECTED_STREAM_STOP if self.state.context == STREAMING else outside

    cdef int boundary(self, Window w, int64_t i) noexcept nogil:
        cdef Fields f
        cdef BoundaryRecord b
        cdef OutcomeRecord o
        cdef Transaction t
        cdef uint8_t kind = w.kind[i]
        cdef int64_t seq = self.seq_of(i)
        cdef const uint8_t* gid = NULL
        cdef int64_t gid_length = -1
        cdef uint32_t xid = 0, subxid = 0
        cdef uint8_t first = 0
        cdef bint known = False, doubtful = False
        cdef bint was_lost = self.state.lost
        cdef size_t k
        cdef int64_t prepared_at = -1
        cdef Context context = self.state.context
        cdef cmap[uint32_t, Transaction].iterator it
        start_fields(&f, w.base + w.start[i], w.length[i], 1)
        b.seq = seq
        parse_boundary(&f, kind, &b, &gid, &gid_length)
        if f.reason != OK:
            return self.fail(w, i, f.reason, f.reason_offset)
        xid = <uint32_t> b.xid
        subxid = <uint32_t> b.subxid
        first = b.first_segment == 1

        # Whether it may come here.
        if kind == c'E':
            if context != STREAMING and not was_lost:
                return self.fail(w, i, self._expected(EXPECTED_STREAM_START), 0)
        elif kind == c'C':
            if context == PLAIN:
                if b.lsn != self.state.current.commit_lsn:
                    return self.fail(w, i, OTHER_COMMIT, 2)
            elif not was_lost:
                return self.fail(w, i, self._expected(EXPECTED_BEGIN), 0)
        elif kind == c'P':
            if context == PREPARING:
                if xid != self.state.current.xid or not same_bytes(self.state.current.gid, gid, gid_length):
                    return self.fail(w, i, OTHER_PREPARE, 26)
            elif not was_lost:
                return self.fail(w, i, self._expected(EXPECTED_BEGIN_PREPARE), 0)
        elif context != OUTSIDE:
            return self.fail(w, i, self._expected(OK), 0)
        if kind == c'c' or kind == c'p' or (kind == c'S' and first == 0):
            if self.state.streamed.count(xid) == 0:
                return self.fail(w, i, STREAM_UNKNOWN, 1 if kind != c'p' else 26)

        # What follows from it.
        self.state.lost = False
        if kind == c'B' or kind == c'b':
            self._void_older(xid, seq)
            t.txn = seq
            t.xid = xid
            b.xid = xid
            b.txn = seq
            if kind == c'B':
                t.commit_lsn = b.lsn
                t.commit_timestamp = b.timestamp
                self.state.context = PLAIN
            else:
                t.gid.assign(<const char*> gid, <size_t> gid_length)
                t.prepare_end_lsn = b.end_lsn
                t.prepare_timestamp = b.timestamp
                self.state.context = PREPARING
            self.state.current = t
            self.set_run(seq, xid, NONE64, t.commit_lsn, t.commit_timestamp, False)
            self.open_run()
        elif kind == c'S':
            if first:
                self._void_older(xid, seq)
                t.txn = seq
                t.xid = xid
                self.state.streamed[xid] = t
            b.xid = xid
            b.txn = self.state.streamed[xid].txn
            self.state.context = STREAMING
            self.state.current.xid = xid
            self.forget_lookups()
            self.set_run(b.txn, xid, NONE64, NONE64, NONE64, True)
            self.open_run()
        elif kind == c'E':
            if context == STREAMING:
                b.xid = self.state.current.xid
                b.txn = self.state.streamed[self.state.current.xid].txn
                if self.run.subxid != NONE64:
                    self.set_run(b.txn, b.xid, NONE64, NONE64, NONE64, True)
            self.open_run()
            self._leave()
        elif kind == c'C' or kind == c'P':
            if context != OUTSIDE:
                b.xid = self.state.current.xid
                b.txn = self.state.current.txn
                self._end_origin(&b, self.state.current)
            elif kind == c'P':
                b.xid = xid
            self.open_run()
            if kind == c'P':
                if context != OUTSIDE:
                    self.state.current.prepare_end_lsn = b.end_lsn
                    self.state.current.prepare_timestamp = b.timestamp
                    self.state.prepared.push_back(self.state.current)
            elif context != OUTSIDE:
                o.txn = b.txn
                o.at_seq = seq
                o.committed = True
                o.commit_lsn = b.lsn
                o.commit_timestamp = b.timestamp
                self.records.outcomes.push_back(o)
            self._leave()
        else:
            # Messages that stand alone: the end of a stream, or of a prepared transaction.
            b.xid = xid
            if kind == c'c' or kind == c'p' or kind == c'A':
                it = self.state.streamed.find(xid)
                if it != self.state.streamed.end():
                    known = True
                    doubtful = dereference(it).second.doubtful
                    b.txn = dereference(it).second.txn
            else:
                for k in range(self.state.prepared.size()):
                    if self.state.prepared[k].xid == xid and same_bytes(self.state.prepared[k].gid, gid, gid_length):
                        if kind == c'r' and self.state.prepared[k].prepare_end_lsn != b.lsn:
                            continue
                        known = True
                        doubtful = self.state.prepared[k].doubtful
                        prepared_at = <int64_t> k
                        b.txn = self.state.prepared[k].txn
                        if kind == c'K':
                            b.prepare_timestamp = self.state.prepared[k].prepare_timestamp
            self.set_run(b.txn, xid, NONE64, b.lsn if kind == c'c' or kind == c'K' else NONE64,
                         b.timestamp if kind == c'c' or kind == c'K' else NONE64, False)
            o.txn = b.txn
            o.at_seq = seq
            if kind == c'A':
                b.subxid = subxid
                if known:
                    if xid == subxid:
                        self._end_origin(&b, dereference(it).second)
                        self.state.streamed.erase(it)
                    else:
                        o.subxid = subxid
                        self.run.subxid = subxid
                        dereference(it).second.forget(subxid)
                    self.records.outcomes.push_back(o)
            elif kind == c'c':
                self._end_origin(&b, dereference(it).second)
                self.state.promote(dereference(it).second)
                self.state.streamed.erase(it)
            elif kind == c'p':
                self._end_origin(&b, dereference(it).second)
                t = dereference(it).second
                t.gid.assign(<const char*> gid, <size_t> gid_length)
                t.prepare_end_lsn = b.end_lsn
                t.prepare_timestamp = b.timestamp
                self.state.streamed.erase(it)
                self.state.prepared.push_back(t)
            elif known:
                if kind == c'K':
                    self.state.promote(self.state.prepared[prepared_at])
                self.state.prepared.erase(self.state.prepared.begin() + prepared_at)
            if known and (kind == c'c' or kind == c'K'):
                o.committed = True
                o.commit_lsn = b.lsn
                o.commit_timestamp = b.timestamp
            if o.committed and doubtful:
                self.records.forgotten.push_back(o.txn)
            elif known and (kind == c'c' or kind == c'K' or kind == c'r'):
                self.records.outcomes.push_back(o)
            self.open_run()
            self._leave()
        if gid != NULL:
            b.gid = self.records.keep(gid, <size_t> gid_length)
        self.records.boundaries.push_back(b)
        return OK

    cdef void _leave(self) noexcept nogil:
        """After a boundary that closes: no transaction is open."""
        if self.state.context != PLAIN and self.state.context != PREPARING:
            self.forget_lookups()  # a stream's Relations no longer count, or count for all now
        self.state.context = OUTSIDE
        self.state.current = Transaction()
        self.set_run(NONE64, NONE64, NONE64, NONE64, NONE64, False)

    cdef void _end_origin(self, BoundaryRecord* b, Transaction& t) noexcept nogil:
        if t.has_origin:
            b.origin = self.records.keep(<const uint8_t*> t.origin.data(), t.origin.size())
            b.origin_lsn = t.origin_lsn

    # ---- the other messages ------------------------------------------------------------------------------------

    cdef void _run_of_subtransaction(self, Window w, int64_t i) noexcept nogil:
        """Inside a stream block: the run of this message's (sub)transaction."""
        if self.run.subxid != <int64_t> w.subxid[i]:
            self.set_run(self.run.txn, self.run.xid, w.subxid[i], NONE64, NONE64, True)

    cdef int truncate(self, Window w, int64_t i) noexcept nogil:
        cdef const uint8_t* p = w.base + w.start[i]
        cdef int64_t at = 5 if w.flags[i] & IN_STREAM else 1
        cdef int64_t size = w.length[i]
        cdef int64_t count, k
        cdef int32_t slot
        cdef TruncateRecord t
        if size < at + 5:
            return self.fail(w, i, TRUNCATED, size)
        count = <int32_t> load32(p + at)
        if count <= 0:
            return self.fail(w, i, BAD_COUNT, at)
        if p[at + 4] > 3:
            return self.fail(w, i, BAD_FLAGS, at + 4)
        t.cascade = (p[at + 4] & 1) != 0
        t.restart_identity = (p[at + 4] & 2) != 0
        at += 5
        if size - at != count * 4:
            return self.fail(w, i, TRUNCATED if size - at < count * 4 else TRAILING_BYTES,
                             size if size - at < count * 4 else at + count * 4)
        for k in range(count):
            slot = self.lookup(load32(p + at + 4 * k))
            if slot < 0:
                return self.fail(w, i, NO_RELATION if slot == SLOT_UNKNOWN else RELATION_LOST, at + 4 * k)
        t.seq = self.seq_of(i)
        t.txn = self.run.txn
        t.first = <int64_t> self.records.oids.size()
        t.count = count
        if <int64_t> self.item_message.size() < self.items + count + w.count:
            self.item_message.resize(self.items + count + w.count)
            self.item_slot.resize(self.items + count + w.count)
        for k in range(count):
            self.records.oids.push_back(load32(p + at + 4 * k))
            self.item_message[self.items] = <uint32_t> i
            self.item_slot[self.items] = self.lookup(load32(p + at + 4 * k))
            self.items += 1
        self.records.truncates.push_back(t)
        return OK

    cdef int message(self, Window w, int64_t i) noexcept nogil:
        cdef Fields f
        cdef MessageRecord m
        cdef const uint8_t* prefix = NULL
        cdef const uint8_t* content = NULL
        cdef int64_t prefix_length = 0, content_length = 0
        cdef Run around = self.run
        self.run_of[i] = <uint32_t> self.runs.size() - 1
        start_fields(&f, w.base + w.start[i], w.length[i], 5 if w.flags[i] & IN_STREAM else 1)
        parse_message(&f, &m, &prefix, &prefix_length, &content, &content_length)
        if f.reason != OK:
            return self.fail(w, i, f.reason, f.reason_offset)
        if m.transactional:
            if self.state.context == OUTSIDE:
                return self.fail(w, i, OUTSIDE_TRANSACTION, 0)
            m.txn = self.run.txn
            m.xid = self.run.xid
        elif around.txn != NONE64:
            # It belongs to no transaction, wherever it stands.
            self.set_run(NONE64, NONE64, NONE64, NONE64, NONE64, around.in_stream)
            self.open_run()
            self.run_of[i] = <uint32_t> self.runs.size() - 1
            self.run = around
            self.run_is_new = True
        if not m.transactional and m.lsn > 0:
            if m.lsn <= self.state.repeated_lsn:
                self.taken[i] = 0
                return OK
            self.state.message_lsn = max(self.state.message_lsn, m.lsn)
        m.seq = self.seq_of(i)
        m.prefix = self.records.keep(prefix, <size_t> prefix_length)
        m.content = self.records.keep(content, <size_t> content_length)
        self.records.messages.push_back(m)
        return OK

    cdef int origin(self, Window w, int64_t i) noexcept nogil:
        cdef Fields f
        cdef const uint8_t* name = NULL
        cdef int64_t length = 0
        cdef int64_t lsn
        cdef Transaction* t
        start_fields(&f, w.base + w.start[i], w.length[i], 1)  # never an xid, not even in a stream block
        lsn = read_lsn(&f)
        read_text(&f, &name, &length)
        finish(&f)
        if f.reason != OK:
            return self.fail(w, i, f.reason, f.reason_offset)
        if self.state.context == OUTSIDE:
            return self.fail(w, i, OUTSIDE_TRANSACTION, 0)
        t = &self.state.current
        if self.state.context == STREAMING:
            t = &self.state.streamed[self.state.current.xid]
        t.has_origin = True
        t.origin.assign(<const char*> name, <size_t> length)
        t.origin_lsn = lsn
        return OK

    cdef int relation(self, Window w, int64_t i) noexcept nogil:
        """A Relation. Returns MEET_RELATION unless it says byte for byte what is known already."""
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef int64_t size = <int64_t> w.length[i] - header
        cdef const uint8_t* p = w.base + w.start[i] + header
        cdef int32_t slot
        cdef Known known
        if size < 4:
            return <int> FAILED if self.fail(w, i, TRUNCATED, w.length[i]) else <int> FINISHED
        slot = self.lookup(load32(p))
        if slot < 0 or self.state.bad_type or self.explained[slot] or not same_bytes(self.bodies[slot], p, size):
            return MEET_RELATION
        known.slot = slot
        known.seq = self.seq_of(i)
        self._learn(load32(p), w.subxid[i], known)
        self.described[i] = slot
        return FINISHED

    cdef int64_t step(self, Window w, int64_t i) noexcept nogil:
        """Tags messages from i on. Returns a Stop; `at` is the message that it stopped at."""
        cdef uint8_t kind, cls, flags
        cdef int32_t slot
        cdef int result
        cdef int64_t count = w.count
        while i < count:
            kind = w.kind[i]
            cls = message_class(kind)
            flags = w.flags[i]
            if self.state.session_starts:
                self.begin_session(self.seq_of(i))
                self.marks.push_back(i)
            if self.state.lost and cls != 0 and not (cls & BOUNDARY):
                if self.fail(w, i, STATE_LOST, 0):
                    return FAILED
            elif flags & MALFORMED or cls == 0:
                if w.length[i] == 0:
                    result = self.fail(w, i, EMPTY_PAYLOAD, 0)
                elif w.length[i] > <uint32_t> 0x3fffffff:
                    result = self.fail(w, i, PAYLOAD_TOO_LONG, 0)
                elif cls == 0:
                    result = self.fail(w, i, _not_a_message(w.base + w.start[i], w.length[i]), 0)
                else:
                    result = self.fail(w, i, TRUNCATED, w.length[i])
                if result:
                    return FAILED
            elif cls & CHANGE:
                if self.state.context == STREAMING:
                    self._run_of_subtransaction(w, i)
                elif self.state.context == OUTSIDE:
                    if self.fail(w, i, OUTSIDE_TRANSACTION, 0):
                        return FAILED
                    i += 1
                    continue
                if self.run_is_new:
                    self.open_run()
                slot = self.lookup(w.relation[i])
                if slot >= 0:
                    self.item_message[self.items] = <uint32_t> i
                    self.item_slot[self.items] = slot
                    self.items += 1
                elif self.fail(w, i, NO_RELATION if slot == SLOT_UNKNOWN else RELATION_LOST,
                               5 if flags & IN_STREAM else 1):
                    return FAILED
            elif cls & BOUNDARY:
                if self.boundary(w, i):
                    return FAILED
                self.run_of[i] = <uint32_t> self.runs.size() - 1
                i += 1
                continue
            else:
                if self.state.context == STREAMING and kind != c'O':
                    self._run_of_subtransaction(w, i)
                self.open_run()
                result = OK
                if kind == c'R':
                    result = self.relation(w, i)
                    if result == MEET_RELATION or result == FAILED:
                        self.at = i
                        self.run_of[i] = <uint32_t> self.runs.size() - 1
                        return result
                elif kind == c'Y':
                    self.at = i
                    self.run_of[i] = <uint32_t> self.runs.size() - 1
                    return MEET_TYPE
                elif kind == c'M':
                    if self.message(w, i):
                        return FAILED
                    i += 1
                    continue
                elif kind == c'O':
                    result = self.origin(w, i)
                elif self.state.context == OUTSIDE:
                    result = self.fail(w, i, OUTSIDE_TRANSACTION, 0)
                else:
                    result = self.truncate(w, i)
                if result:
                    return FAILED
            self.open_run()
            self.run_of[i] = <uint32_t> self.runs.size() - 1
            i += 1
        return FINISHED

    # ---- Relation and Type: with Python objects ------------------------------------------------------------------

    cdef void register_relation(self, Window w, int64_t i) except *:
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef const uint8_t* p = w.base + w.start[i] + header
        cdef bytes body = (<const char*> p)[:w.length[i] - header]
        cdef Known known
        cdef bint distrusted = self.state.bad_type
        try:
            fields = fields_of(body)
        except Malformed as problem:
            if self.fail(w, i, problem.reason, header + <int64_t> problem.offset):
                self.reason = problem.reason
                raise
            return
        self.state.bad_type = False
        if distrusted:
            self.lose_relation(fields[0], w.subxid[i], self.seq_of(i))
            return
        relation = relation_of(body, tuple(sorted(self.type_names([c[1] for c in fields[4]]).items())))
        slot = self.slot_of(relation, body)
        known.slot = slot
        known.seq = self.seq_of(i)
        self._learn(fields[0], w.subxid[i], known)
        self.described[i] = slot

    cdef void register_type(self, Window w, int64_t i) except *:
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef const uint8_t* p = w.base + w.start[i] + header
        cdef bytes body = (<const char*> p)[:w.length[i] - header]
        cdef TypeName named
        cdef ScopedType scoped
        try:
            oid, namespace, name = parse_type(body)
        except Malformed as problem:
            if self.fail(w, i, problem.reason, header + <int64_t> problem.offset):
                self.reason = problem.reason
                raise
            return
        named.name_space = namespace.encode()
        named.name = name.encode()
        named.seq = self.seq_of(i)
        if self.state.context == STREAMING:
            scoped.oid = oid
            scoped.subxid = w.subxid[i]
            scoped.type = named
            self.state.streamed[self.state.current.xid].learn(scoped)
        else:
            self.state.name_type(<uint32_t> oid, named)

    def type_names(self, oids):
        """{oid: (namespace, name)} of those types that were explained, as seen from here."""
        cdef const TypeName* named
        found = {}
        for oid in oids:
            named = NULL
            if self.state.context == STREAMING:
                named = self.state.streamed[self.state.current.xid].type(<uint32_t> oid)
            if named == NULL:
                named = self.state.type(<uint32_t> oid)
            if named != NULL:
                found[oid] = (named.name_space.decode("utf-8"), named.name.decode("utf-8"))
        return found

    # ---- a window --------------------------------------------------------------------------------------------------

    cdef int64_t tag_window(self, Window w, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1:
        """Tags every message of the window.

        Afterwards `item_message`/`item_slot` hold what is to be decoded, `run_of` and `runs` what holds for each
        message. Raises Malformed with `at`, `reason` and `reason_offset` set where an error is to be raised.
        """
        cdef int64_t i = 0
        cdef int64_t stop
        self.base_seq = base_seq
        self.seqs = seqs
        self.lsns = lsns
        self.items = 0
        if <int64_t> self.item_message.size() < w.count:
            self.item_message.resize(w.count)
            self.item_slot.resize(w.count)
        self.run_of.resize(w.count)
        self.described.assign(w.count, SLOT_UNKNOWN)
        self.taken.assign(w.count, 1)
        self.runs.clear()
        self.marks.clear()
        self.run_is_new = True
        while True:
            with nogil:
                stop = self.step(w, i)
            if stop == FINISHED:
                break
            if stop == FAILED:
                raise Malformed(self.reason, self.reason_offset)
            if stop == MEET_RELATION:
                self.register_relation(w, self.at)
            else:
                self.register_type(w, self.at)
            i = self.at + 1
        if w.count:
            self.state.next_seq = self.seq_of(w.count - 1) + 1
        return w.count
