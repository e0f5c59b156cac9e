"""Stage 2, tag: finds what a decoder must know of each message, from the headers and the stream's state.

Messages are tagged in order. Inserts, updates and deletes do not change the state, so each costs only one look-up. The
loop runs without the GIL. It stops only for rare messages: a Type message, a Relation message with something new, and
an invalid message for which an error is raised.
"""
cimport cython
from cython.operator cimport dereference
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair

from pgoutput_fast._core.protocol.boundary cimport parse_message
from pgoutput_fast._core.protocol.fields cimport (
    Fields,
    finish,
    read_lsn,
    read_text,
    same_bytes,
    start_fields,
)
from pgoutput_fast._core.protocol.kinds cimport MSG_MESSAGE, MSG_ORIGIN, MSG_RELATION, MSG_TYPE
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.protocol.reasons cimport (
    BAD_COUNT,
    BAD_FLAGS,
    EMPTY_PAYLOAD,
    FRAMED_PAYLOAD,
    OK,
    OUTSIDE_TRANSACTION,
    PAYLOAD_TOO_LONG,
    STATE_LOST,
    TEXT_PAYLOAD,
    TRAILING_BYTES,
    TRUNCATED,
    TYPE_CHANGED,
    UNKNOWN_TAG,
)
from pgoutput_fast._core.tagging.scan cimport BOUNDARY, CHANGE, IN_STREAM, MALFORMED, Window, is_hex_text, message_class
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    OUTSIDE,
    SLOT_UNKNOWN,
    STREAMING,
    MessageRecord,
    MessageScope,
    Records,
    RelationDescription,
    ScopedType,
    StreamState,
    Transaction,
    TruncateRecord,
    TypeName,
    set_text,
)
from pgoutput_fast._core.tagging.transactions cimport Transactions
from pgoutput_fast._core.protocol.wire cimport load32

from pgoutput_fast._core.protocol.relations import Malformed, fields_of, parse_type, relation_of
from pgoutput_fast.catalog.builtin_types import is_built_in
from pgoutput_fast.catalog.relations import type_offset
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.column_types import changed_type

# In `_forget_names`: the value in `named` of an oid for which no remaining version has been found yet.
cdef int32_t NAMELESS = -3

# With these options, `changed_type` compares what the wire alone says of types.
_PLAIN = Options()


cdef uint8_t _not_a_message(const uint8_t* p, int64_t size) noexcept nogil:
    """Returns the reason for a message with an unknown tag: the error can then say what the bytes may be."""
    if is_hex_text(p, size):
        return TEXT_PAYLOAD
    if (p[0] == c'w' and size > 25) or (p[0] == c'k' and size == 18):
        return FRAMED_PAYLOAD
    return UNKNOWN_TAG


@cython.final
cdef class Tagger(Transactions):
    """The state machine of a stream.

    A call runs `begin_call`, then `tag_window` for each window, then `end_call` or `undo`.
    """

    def __cinit__(self, bint quarantine=False):
        self.versions = []
        self.slots = {}
        self.saved = NULL

    def __dealloc__(self):
        del self.saved

    # ---- calls -------------------------------------------------------------------------------------------------

    def begin_call(self):
        """Saves the state, so that `undo` can restore it."""
        del self.saved
        self.saved = NULL
        self.saved = new StreamState(self.state)
        self.saved_scope = self.scope
        self.saved_versions = len(self.versions)
        self.records = Records()

    def end_call(self):
        del self.saved
        self.saved = NULL

    def undo(self):
        """Restores the state that `begin_call` saved."""
        if self.saved == NULL:
            return
        # Memory may have run out, so only the last two lines allocate. They can fail without harm: nothing refers to
        # a version that is left over, and the next call begins with new records.
        self.state.swap(dereference(self.saved))
        self.scope = self.saved_scope
        self.forget_lookups()
        self.end_call()
        cdef Py_ssize_t slot
        for slot in range(self.saved_versions, len(self.versions)):
            self.slots.pop(self.versions[slot].version, None)
        self._forget_names()
        del self.versions[self.saved_versions:]
        self.records = Records()

    def start_session(self):
        """Notes that a new decoding session begins with the next message."""
        self.state.session_starts = True

    @property
    def next_seq(self):
        return self.state.next_seq

    def slot_of(self, relation, body=None):
        """Returns the slot of a relation's version; a new version gets a new slot. `body` is its wire form, if known.

        A version keeps its first description, even if Type messages give its columns' types other names later.
        """
        slot = self.slots.get(relation.version)
        if slot is not None:
            return slot
        slot = len(self.versions)
        # If a later step fails, every slot still has all of these.
        self.bodies.resize(<size_t> slot + 1)
        self.version_ids.resize(<size_t> slot + 1)
        self.oids.resize(<size_t> slot + 1)
        self.version_ids[slot] = <int64_t> relation.version
        self.oids[slot] = <uint32_t> relation.oid
        self.has_user_types.resize(<size_t> slot + 1)
        set_text(self.bodies[slot], relation.wire_body() if body is None else body)
        self.has_user_types[slot] = any(not is_built_in(column.type_oid) for column in relation.columns)
        self.versions.append(relation)
        self._name(relation, slot)
        self.slots[relation.version] = slot
        return slot

    cdef int _name(self, relation, int32_t slot) except -1:
        """Notes the name of the relation with this oid: SLOT_UNKNOWN if its versions have different names."""
        cdef uint32_t oid = relation.oid
        cdef unordered_map[uint32_t, int32_t].iterator known = self.named.find(oid)
        cdef int32_t other
        if known == self.named.end():
            self.named.insert(pair[uint32_t, int32_t](oid, slot))
            return 0
        other = dereference(known).second
        if other != NAMELESS and (
            other < 0
            or self.versions[other].name != relation.name
            or self.versions[other].namespace != relation.namespace
        ):
            slot = SLOT_UNKNOWN
        dereference(known).second = slot
        return 0

    cdef int _forget_names(self) except -1:
        """Removes from `named` what versions after the saved ones said. Allocates no memory."""
        cdef unordered_map[uint32_t, int32_t].iterator known
        cdef Py_ssize_t slot
        if self.saved_versions == len(self.versions):
            return 0
        for slot in range(self.saved_versions, len(self.versions)):
            known = self.named.find(<uint32_t> self.versions[slot].oid)
            if known != self.named.end():
                dereference(known).second = NAMELESS
        for slot in range(self.saved_versions):
            self._name(self.versions[slot], slot)
        for slot in range(self.saved_versions, len(self.versions)):
            known = self.named.find(<uint32_t> self.versions[slot].oid)
            if known != self.named.end() and dereference(known).second == NAMELESS:
                self.named.erase(known)
        return 0

    cdef int32_t slot_of_version(self, version) except -2:
        """Returns the slot of a version id, -1 if it is not known."""
        return self.slots.get(version, -1)

    # ---- the other messages ------------------------------------------------------------------------------------

    cdef void _set_scope_of_subtransaction(self, Window w, int64_t i) noexcept nogil:
        """Inside a stream block: begins a new scope if this message is of another (sub)transaction."""
        if self.scope.subxid != <int64_t> w.subxid[i]:
            self.set_scope(self.scope.txn, self.scope.xid, w.subxid[i], NONE64, NONE64, True)

    cdef int truncate(self, Window w, int64_t i) except -1 nogil:
        cdef const uint8_t* p = w.base + w.start[i]
        cdef int64_t at = 5 if w.flags[i] & IN_STREAM else 1
        cdef int64_t size = w.length[i]
        cdef int64_t count, k, good = 0
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
            if slot >= 0:
                good += 1
            elif self.fail_of(w, i, load32(p + at + 4 * k), slot, at + 4 * k):
                return FAILED
        if good == 0:
            return OK
        # The record names all relations: the server also truncates those that failed here.
        self.taken[i] = 1
        t.seq = self.seq_of(i)
        t.txn = self.scope.txn
        t.first = <int64_t> self.records.oids.size()
        t.count = count
        if <int64_t> self.item_slot.size() < self.items + count + w.count:
            self.item_message.resize(self.items + count + w.count)
            self.item_slot.resize(self.items + count + w.count)
        for k in range(count):
            self.records.oids.push_back(load32(p + at + 4 * k))
            slot = self.lookup(load32(p + at + 4 * k))
            if slot >= 0:
                self.item_message[self.items] = <uint32_t> i
                self.item_slot[self.items] = slot
                self.items += 1
        self.records.truncates.push_back(t)
        return OK

    cdef int message(self, Window w, int64_t i) except -1 nogil:
        cdef Fields f
        cdef MessageRecord m
        cdef const uint8_t* prefix = NULL
        cdef const uint8_t* content = NULL
        cdef int64_t prefix_length = 0, content_length = 0
        cdef MessageScope around = self.scope
        self.scope_of[i] = <uint32_t> self.scopes.size() - 1
        start_fields(&f, w.base + w.start[i], w.length[i], 5 if w.flags[i] & IN_STREAM else 1)
        parse_message(&f, &m, &prefix, &prefix_length, &content, &content_length)
        if f.reason != OK:
            return self.fail(w, i, f.reason, f.reason_offset)
        if m.transactional:
            if self.state.context == OUTSIDE:
                return self.fail(w, i, OUTSIDE_TRANSACTION, 0)
            m.txn = self.scope.txn
            m.xid = self.scope.xid
        elif around.txn != NONE64:
            # It belongs to no transaction, even if it comes inside one.
            self.set_scope(NONE64, NONE64, NONE64, NONE64, NONE64, around.in_stream)
            self.open_scope()
            self.scope_of[i] = <uint32_t> self.scopes.size() - 1
            self.scope = around
            self.scope_is_new = True
        if not m.transactional and m.lsn > 0:
            # An LSN identifies a message. So a message that comes again is found even if nobody said that a session
            # began.
            if not self.state.messages.add(m.lsn):
                self.taken[i] = 0
                return OK
        m.seq = self.seq_of(i)
        m.prefix = self.records.keep(prefix, <size_t> prefix_length)
        m.content = self.records.keep(content, <size_t> content_length)
        self.records.messages.push_back(m)
        return OK

    cdef int origin(self, Window w, int64_t i) except -1 nogil:
        cdef Fields f
        cdef const uint8_t* name = NULL
        cdef int64_t length = 0
        cdef int64_t lsn
        cdef Transaction* t
        start_fields(&f, w.base + w.start[i], w.length[i], 1)  # an Origin has no xid, not even in a stream block
        lsn = read_lsn(&f)
        read_text(&f, &name, &length)
        finish(&f)
        if f.reason != OK:
            return self.fail(w, i, f.reason, f.reason_offset)
        if self.state.context == OUTSIDE:
            return self.fail(w, i, OUTSIDE_TRANSACTION, 0)
        t = &self.state.current
        if self.state.context == STREAMING:
            t = self.state.streamed.edit(self.state.current.xid)
        t.has_origin = True
        t.origin.assign(<const char*> name, <size_t> length)
        t.origin_lsn = lsn
        return OK

    cdef int relation(self, Window w, int64_t i) except -1 nogil:
        """Tags a Relation message. Returns NEW_RELATION if it must be parsed.

        It need not be parsed if it repeats byte for byte what is known, and no Type message can change its meaning.
        """
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef int64_t size = <int64_t> w.length[i] - header
        cdef const uint8_t* p = w.base + w.start[i] + header
        cdef int32_t slot
        cdef RelationDescription known
        if size < 4:
            return <int> FAILED if self.fail(w, i, TRUNCATED, w.length[i]) else <int> FINISHED
        slot = self.lookup(load32(p))
        if slot < 0 or self.state.bad_type or self.has_user_types[slot] or not same_bytes(self.bodies[slot], p, size):
            return NEW_RELATION
        known.slot = slot
        known.seq = self.seq_of(i)
        self.learn(load32(p), w.subxid[i], known)
        self.described[i] = slot
        return FINISHED

    cdef int64_t step(self, Window w, int64_t i) except -1 nogil:
        """Tags messages from i on. Returns a Stop; `at` is then the message at which it stopped."""
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
                elif w.length[i] > <uint32_t> MAX_PAYLOAD:
                    result = self.fail(w, i, PAYLOAD_TOO_LONG, 0)
                elif cls == 0:
                    result = self.fail(w, i, _not_a_message(w.base + w.start[i], w.length[i]), 0)
                else:
                    result = self.fail(w, i, TRUNCATED, w.length[i])
                if result:
                    return FAILED
            elif cls & CHANGE:
                if self.state.context == STREAMING:
                    self._set_scope_of_subtransaction(w, i)
                elif self.state.context == OUTSIDE:
                    if self.fail(w, i, OUTSIDE_TRANSACTION, 0):
                        return FAILED
                    i += 1
                    continue
                if self.scope_is_new:
                    self.open_scope()
                slot = self.lookup(w.relation[i])
                if slot >= 0:
                    self.item_message[self.items] = <uint32_t> i
                    self.item_slot[self.items] = slot
                    self.items += 1
                elif self.fail_of(w, i, w.relation[i], slot, 5 if flags & IN_STREAM else 1):
                    return FAILED
            elif cls & BOUNDARY:
                if self.boundary(w, i):
                    return FAILED
                self.scope_of[i] = <uint32_t> self.scopes.size() - 1
                i += 1
                continue
            else:
                if self.state.context == STREAMING and kind != MSG_ORIGIN:
                    self._set_scope_of_subtransaction(w, i)
                self.open_scope()
                result = OK
                if kind == MSG_RELATION:
                    result = self.relation(w, i)
                    if result == NEW_RELATION or result == FAILED:
                        self.at = i
                        self.scope_of[i] = <uint32_t> self.scopes.size() - 1
                        return result
                elif kind == MSG_TYPE:
                    self.at = i
                    self.scope_of[i] = <uint32_t> self.scopes.size() - 1
                    return NEW_TYPE
                elif kind == MSG_MESSAGE:
                    if self.message(w, i):
                        return FAILED
                    i += 1
                    continue
                elif kind == MSG_ORIGIN:
                    result = self.origin(w, i)
                elif self.state.context == OUTSIDE:
                    result = self.fail(w, i, OUTSIDE_TRANSACTION, 0)
                else:
                    result = self.truncate(w, i)
                if result:
                    return FAILED
            self.open_scope()
            self.scope_of[i] = <uint32_t> self.scopes.size() - 1
            i += 1
        return FINISHED

    # ---- Relation and Type: with Python objects ------------------------------------------------------------------

    cdef void register_relation(self, Window w, int64_t i) except *:
        cdef int header = 5 if w.flags[i] & IN_STREAM else 1
        cdef const uint8_t* p = w.base + w.start[i] + header
        cdef bytes body = (<const char*> p)[:w.length[i] - header]
        cdef RelationDescription known
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
        column = changed_type(self.versions[slot].columns, relation.columns, _PLAIN)
        if column is not None:
            if self.fail_in(w, i, TYPE_CHANGED, header + type_offset(relation, column), slot, column):
                raise Malformed(TYPE_CHANGED, self.reason_offset)
            return
        known.slot = slot
        known.seq = self.seq_of(i)
        self.learn(fields[0], w.subxid[i], known)
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
        set_text(named.name_space, namespace.encode())
        set_text(named.name, name.encode())
        named.seq = self.seq_of(i)
        if self.state.context == STREAMING:
            scoped.oid = oid
            scoped.subxid = w.subxid[i]
            scoped.type.swap(named)
            self.state.streamed.edit(self.state.current.xid).learn(scoped)
        else:
            self.state.name_type(<uint32_t> oid, named)

    def type_names(self, oids):
        """Returns {oid: (namespace, name)} of the types that Type messages named, as the open transaction sees them."""
        cdef const TypeName* named
        found = {}
        for oid in oids:
            named = NULL
            if self.state.context == STREAMING:
                named = self.state.streamed.find(self.state.current.xid).type(<uint32_t> oid)
            if named == NULL:
                named = self.state.type(<uint32_t> oid)
            if named != NULL:
                # Cython's own conversion copies the string, and does not expect the copy to fail.
                found[oid] = (
                    named.name_space.data()[:named.name_space.size()].decode("utf-8"),
                    named.name.data()[:named.name.size()].decode("utf-8"),
                )
        return found

    # ---- a window --------------------------------------------------------------------------------------------------

    cdef int64_t tag_window(self, Window w, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1:
        """Tags every message of the window.

        Afterwards `item_message` and `item_slot` say what must be decoded. `scope_of` and `scopes` say which
        transaction each message belongs to.

        Raises:
            Malformed: if a message is invalid, unless it is rejected. `at`, `reason` and `reason_offset` are set then.
        """
        cdef int64_t i = 0
        cdef int64_t stop
        self.base_seq = base_seq
        self.seqs = seqs
        self.lsns = lsns
        self.items = 0
        if <int64_t> self.item_slot.size() < w.count:
            self.item_message.resize(w.count)
            self.item_slot.resize(w.count)  # last: if memory runs out, the next call resizes both again
        self.scope_of.resize(w.count)
        self.described.clear()
        self.described.resize(w.count, SLOT_UNKNOWN)
        self.taken.clear()
        self.taken.resize(w.count, 1)
        self.scopes.clear()
        self.marks.clear()
        self.scope_is_new = True
        while True:
            with nogil:
                stop = self.step(w, i)
            if stop == FINISHED:
                break
            if stop == FAILED:
                raise Malformed(self.reason, self.reason_offset)
            if stop == NEW_RELATION:
                self.register_relation(w, self.at)
            else:
                self.register_type(w, self.at)
            i = self.at + 1
        if w.count:
            self.state.next_seq = self.seq_of(w.count - 1) + 1
        return w.count
