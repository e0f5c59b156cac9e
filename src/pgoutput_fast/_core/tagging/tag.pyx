"""Stage 2, tag: one light pass tags each message with all that a decoder needs, from headers and the stream's state.

Messages are tagged in order. Inserts, updates and deletes do not change the state, so each costs only one lookup. The
loop runs without the GIL. It stops only for rare messages: a Type message, a Relation message with something new, and
an invalid message for which an error is raised.
"""
cimport cython
from cython.operator cimport dereference
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pgoutput_fast._core.protocol.boundary cimport parse_message
from pgoutput_fast._core.protocol.fields cimport (
    Fields,
    finish,
    read_lsn,
    read_text,
    start_fields,
)
from pgoutput_fast._core.protocol.kinds cimport (
    COLUMN_BINARY,
    COLUMN_NULL,
    COLUMN_TEXT,
    COLUMN_UNCHANGED,
    MSG_DELETE,
    MSG_INSERT,
    MSG_MESSAGE,
    MSG_ORIGIN,
    MSG_RELATION,
    MSG_TYPE,
    TUPLE_KEY,
    TUPLE_NEW,
    TUPLE_OLD,
)
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.protocol.reasons cimport (
    BAD_CELL_COUNT,
    BAD_COUNT,
    BAD_FLAGS,
    BAD_TUPLE_TAG,
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
from pgoutput_fast._core.protocol.wire cimport load16, load32
from pgoutput_fast._core.tagging.scan cimport BOUNDARY, CHANGE, IN_STREAM, MALFORMED, Window, is_hex_text, message_class
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    OUTSIDE,
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
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker
from pgoutput_fast._core.tagging.transactions cimport begin_session, tag_boundary
from pgoutput_fast._core.tagging.window_tags cimport Tags

from pgoutput_fast._core.protocol.relations import Malformed, fields_of, parse_type, relation_of
from pgoutput_fast.catalog.relations import type_offset
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.column_types import changed_type

# Not a user's options, so `changed_type` compares only the types in the messages.
_DEFAULT_OPTIONS = Options()

# Why `_tag_messages` stopped.
cdef enum Stop:
    FINISHED          # the window is done
    NEW_RELATION      # a Relation message that must be parsed, see `_tag_relation`
    NEW_TYPE          # a Type message
    FAILED            # an invalid message for which an error is raised


@cython.final
cdef class Tagger:
    def __cinit__(self, bint quarantine=False):
        self.tracker = StreamTracker(quarantine)
        self.saved = NULL

    def __dealloc__(self):
        del self.saved

    cdef int begin_call(self) except -1:
        """Saves the state, so that `undo` can restore it."""
        del self.saved
        self.saved = NULL
        self.saved = new StreamState(self.tracker.state)
        self.saved_scope = self.tracker.scope
        self.saved_versions = len(self.tracker.versions.relations)
        self.tracker.records = Records()
        return 0

    cdef int end_call(self) except -1:
        del self.saved
        self.saved = NULL
        self.tracker.tags.forget_loaded()
        return 0

    cdef int undo(self) except -1:
        """Restores the state that `begin_call` saved."""
        if self.saved == NULL:
            return 0
        # Memory may have run out, so only the last two lines allocate. They can fail safely: the next call begins with
        # new records.
        self.tracker.state.swap(dereference(self.saved))
        self.tracker.scope = self.saved_scope
        self.tracker.forget_lookups()
        self.end_call()
        self.tracker.versions.forget_after(self.saved_versions)
        self.tracker.records = Records()
        return 0

    def start_session(self):
        """Records that a new decoding session begins with the next message."""
        self.tracker.state.session_starts = True

    cdef int tag_window(self, Window w, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1:
        """Tags every message of the window. The result is in the tracker's `tags`.

        Raises:
            Malformed: if a message is invalid, unless it is rejected. The tracker's `invalid` has the message and the
                reason.
        """
        cdef StreamTracker tracker = self.tracker
        cdef Tags tags = tracker.tags
        cdef int64_t i = 0
        cdef int stop
        tags.start(w.count, base_seq, seqs, lsns)
        tracker.scope_is_new = True
        while True:
            with nogil:
                stop = _tag_messages(tracker, tags, w, &i)
            if stop == FINISHED:
                break
            if stop == FAILED:
                raise Malformed(tracker.invalid.reason, tracker.invalid.offset)
            if stop == NEW_RELATION:
                _register_relation(tracker, w, i)
            else:
                _register_type(tracker, w, i)
            i += 1
        if w.count:
            tracker.state.next_seq = tags.seq_of(w.count - 1) + 1
        return 0


cdef int _tag_messages(StreamTracker tracker, Tags tags, Window w, int64_t* at) except -1 nogil:
    """Tags messages from at[0] on. Returns a Stop and sets at[0] to the message at which it stopped."""
    cdef uint8_t cls, flags, misfit
    cdef int64_t offset = 0
    cdef int32_t slot
    cdef int stop = FINISHED
    cdef int64_t i = at[0]
    cdef int64_t count = w.count
    while i < count:
        cls = message_class(w.kind[i])
        flags = w.flags[i]
        if tracker.state.bad_type and w.kind[i] != MSG_TYPE and w.kind[i] != MSG_RELATION:
            tracker.state.bad_type = False  # a server sends Type messages right before their Relation message
        if tracker.state.session_starts:
            begin_session(tracker, tags.seq_of(i))
            tags.session_starts.push_back(i)
        if tracker.state.lost and cls != 0 and not (cls & BOUNDARY):
            stop = FAILED if tracker.fail(w, i, STATE_LOST, 0) else FINISHED
            tracker.open_scope()
        elif flags & MALFORMED or cls == 0:
            stop = FAILED if _fail_malformed(tracker, w, i, cls) else FINISHED
            tracker.open_scope()
        elif cls & CHANGE:
            if tracker.state.context == STREAMING:
                _set_scope_of_subtransaction(tracker, w, i)
            elif tracker.state.context == OUTSIDE:
                if tracker.fail(w, i, OUTSIDE_TRANSACTION, 0):
                    stop = FAILED
                    break
                i += 1
                continue
            if tracker.scope_is_new:
                tracker.open_scope()
            slot = tracker.lookup(w.relation[i])
            misfit = _misfit(tracker, w, i, slot, &offset) if tracker.quarantine else <uint8_t> OK
            if misfit != OK:
                # Later rows may depend on the description in this message.
                tracker.state.bad_type = True
            if slot >= 0 and misfit == OK:
                tags.add_item(i, slot)
            elif slot >= 0:
                tracker.fail_in(w, i, misfit, offset, slot, -1)
                tracker.lose_relation(w.relation[i], w.subxid[i], tags.seq_of(i))
            elif tracker.fail_of(w, i, w.relation[i], slot, 5 if flags & IN_STREAM else 1):
                stop = FAILED
        elif cls & BOUNDARY:
            stop = FAILED if tag_boundary(tracker, w, i) else FINISHED
        else:
            stop = _tag_other(tracker, tags, w, i)
            if stop != FINISHED:
                break
            i += 1
            continue
        if stop != FINISHED:
            break
        tags.set_last_scope(i)
        i += 1
    at[0] = i
    return stop


cdef uint8_t _not_a_message(const uint8_t* p, int64_t size) noexcept nogil:
    """Returns the reason for a message with an unknown kind byte, so that the error can tell what the bytes may be."""
    if is_hex_text(p, size):
        return TEXT_PAYLOAD
    if (p[0] == c'w' and size > 25) or (p[0] == c'k' and size == 18):
        return FRAMED_PAYLOAD
    return UNKNOWN_TAG


cdef bint _fail_malformed(StreamTracker tracker, Window w, int64_t i, uint8_t cls) except -1 nogil:
    """Handles a message whose header is malformed or unknown."""
    if w.length[i] == 0:
        return tracker.fail(w, i, EMPTY_PAYLOAD, 0)
    if w.length[i] > <uint32_t> MAX_PAYLOAD:
        return tracker.fail(w, i, PAYLOAD_TOO_LONG, 0)
    if cls == 0:
        return tracker.fail(w, i, _not_a_message(w.base + w.start[i], w.length[i]), 0)
    return tracker.fail(w, i, TRUNCATED, w.length[i])


cdef inline void _set_scope_of_subtransaction(StreamTracker tracker, Window w, int64_t i) noexcept nogil:
    """Inside a stream block: begins a new scope if this message belongs to another (sub)transaction."""
    if tracker.scope.subxid != <int64_t> w.subxid[i]:
        tracker.set_scope(tracker.scope.txn, tracker.scope.xid, w.subxid[i], NONE64, NONE64, True)


cdef uint8_t _misfit(StreamTracker tracker, Window w, int64_t i, int32_t slot, int64_t* offset) noexcept nogil:
    """Returns why a change may be a Relation or Type message with a damaged first byte, or OK if it is a change.

    In a change, the oid is followed by a tuple's tag, a number of columns and the kind of a value. In the others, a
    name follows. `offset` is the first difference.
    """
    cdef const uint8_t* p = w.base + w.start[i]
    cdef int64_t at = 9 if w.flags[i] & IN_STREAM else 5
    cdef int64_t size = w.length[i]
    cdef uint8_t kind = w.kind[i]
    offset[0] = at
    if not (p[at] == TUPLE_NEW and kind != MSG_DELETE
            or (p[at] == TUPLE_KEY or p[at] == TUPLE_OLD) and kind != MSG_INSERT):
        return BAD_TUPLE_TAG
    offset[0] = at + 1
    if slot >= 0:
        return BAD_CELL_COUNT if size >= at + 3 and load16(p + at + 1) != tracker.versions.widths[slot] else OK
    if size > at + 3 and load16(p + at + 1) != 0 and not (
            p[at + 3] == COLUMN_TEXT or p[at + 3] == COLUMN_BINARY or p[at + 3] == COLUMN_NULL
            or p[at + 3] == COLUMN_UNCHANGED):
        return BAD_CELL_COUNT
    return OK


# ---- messages that are neither changes nor boundaries --------------------------------------------------------------


cdef int _tag_other(StreamTracker tracker, Tags tags, Window w, int64_t i) except -1 nogil:
    """Tags a message that is neither a change nor a boundary. Returns a Stop."""
    cdef uint8_t kind = w.kind[i]
    cdef bint failed
    if tracker.state.context == STREAMING and kind != MSG_ORIGIN:
        _set_scope_of_subtransaction(tracker, w, i)
    tracker.open_scope()
    tags.set_last_scope(i)
    if kind == MSG_RELATION:
        return _tag_relation(tracker, w, i)
    if kind == MSG_TYPE:
        return NEW_TYPE
    if kind == MSG_MESSAGE:
        failed = _tag_message(tracker, tags, w, i)
    elif kind == MSG_ORIGIN:
        failed = _tag_origin(tracker, w, i)
    elif tracker.state.context == OUTSIDE:
        failed = tracker.fail(w, i, OUTSIDE_TRANSACTION, 0)
    else:
        failed = _tag_truncate(tracker, tags, w, i)
    return FAILED if failed else FINISHED


cdef bint _tag_truncate(StreamTracker tracker, Tags tags, Window w, int64_t i) except -1 nogil:
    """Records a Truncate, and adds an item per relation. Returns True if the caller must raise."""
    cdef const uint8_t* p = w.base + w.start[i]
    cdef int64_t at = 5 if w.flags[i] & IN_STREAM else 1
    cdef int64_t size = w.length[i]
    cdef int64_t count, k, good = 0
    cdef int32_t slot
    cdef TruncateRecord t
    if size < at + 5:
        return tracker.fail(w, i, TRUNCATED, size)
    count = <int32_t> load32(p + at)
    if count <= 0:
        return tracker.fail(w, i, BAD_COUNT, at)
    if p[at + 4] > 3:
        return tracker.fail(w, i, BAD_FLAGS, at + 4)
    t.cascade = (p[at + 4] & 1) != 0
    t.restart_identity = (p[at + 4] & 2) != 0
    at += 5
    if size - at != count * 4:
        return tracker.fail(w, i, TRUNCATED if size - at < count * 4 else TRAILING_BYTES,
                            size if size - at < count * 4 else at + count * 4)
    for k in range(count):
        slot = tracker.lookup(load32(p + at + 4 * k))
        if slot >= 0:
            good += 1
        elif tracker.fail_of(w, i, load32(p + at + 4 * k), slot, at + 4 * k):
            return True
    if good == 0:
        return False
    # The record names all relations: the server also truncates those that failed here.
    tags.taken[i] = 1
    t.seq = tags.seq_of(i)
    t.txn = tracker.scope.txn
    t.first = <int64_t> tracker.records.oids.size()
    t.count = count
    tags.reserve_items(tags.items + count + w.count)
    for k in range(count):
        tracker.records.oids.push_back(load32(p + at + 4 * k))
        slot = tracker.lookup(load32(p + at + 4 * k))
        if slot >= 0:
            tags.add_item(i, slot)
    tracker.records.truncates.push_back(t)
    return False


cdef bint _tag_message(StreamTracker tracker, Tags tags, Window w, int64_t i) except -1 nogil:
    """Records a logical message, unless it is a repeat. Returns True if the caller must raise."""
    cdef Fields f
    cdef MessageRecord m
    cdef const uint8_t* prefix = NULL
    cdef const uint8_t* content = NULL
    cdef int64_t prefix_length = 0, content_length = 0
    cdef MessageScope around = tracker.scope
    start_fields(&f, w.base + w.start[i], w.length[i], 5 if w.flags[i] & IN_STREAM else 1)
    parse_message(&f, &m, &prefix, &prefix_length, &content, &content_length)
    if f.reason != OK:
        return tracker.fail(w, i, f.reason, f.reason_offset)
    if m.transactional:
        if tracker.state.context == OUTSIDE:
            return tracker.fail(w, i, OUTSIDE_TRANSACTION, 0)
        m.txn = tracker.scope.txn
        m.xid = tracker.scope.xid
    elif around.txn != NONE64:
        # It belongs to no transaction, even inside one.
        tracker.set_scope(NONE64, NONE64, NONE64, NONE64, NONE64, around.in_stream)
        tracker.open_scope()
        tags.set_last_scope(i)
        tracker.scope = around
        tracker.scope_is_new = True
    if not m.transactional and m.lsn > 0:
        # An LSN identifies a message. So a repeat is detected even without the start of a session.
        if not tracker.state.messages.add(m.lsn):
            tags.taken[i] = 0
            return False
    m.seq = tags.seq_of(i)
    m.prefix = tracker.records.keep(prefix, <size_t> prefix_length)
    m.content = tracker.records.keep(content, <size_t> content_length)
    tracker.records.messages.push_back(m)
    return False


cdef bint _tag_origin(StreamTracker tracker, Window w, int64_t i) except -1 nogil:
    """Records the origin of the open transaction. Returns True if the caller must raise."""
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
        return tracker.fail(w, i, f.reason, f.reason_offset)
    if tracker.state.context == OUTSIDE:
        return tracker.fail(w, i, OUTSIDE_TRANSACTION, 0)
    t = &tracker.state.current
    if tracker.state.context == STREAMING:
        t = tracker.state.streamed.edit(tracker.state.current.xid)
    t.has_origin = True
    t.origin.assign(<const char*> name, <size_t> length)
    t.origin_lsn = lsn
    return False


cdef int _tag_relation(StreamTracker tracker, Window w, int64_t i) except -1 nogil:
    """Tags a Relation message. Returns NEW_RELATION if it must be parsed.

    It need not be parsed if it repeats the last description byte for byte, and no Type message can change its meaning.
    Returns FINISHED then, or if it was rejected.
    """
    cdef int header = 5 if w.flags[i] & IN_STREAM else 1
    cdef int64_t size = <int64_t> w.length[i] - header
    cdef const uint8_t* p = w.base + w.start[i] + header
    cdef int32_t slot
    cdef RelationDescription known
    if size < 4:
        return <int> FAILED if tracker.fail(w, i, TRUNCATED, w.length[i]) else <int> FINISHED
    slot = tracker.lookup(load32(p))
    if slot < 0 or tracker.state.bad_type or not tracker.versions.is_repeated(slot, p, size):
        return NEW_RELATION
    known.slot = slot
    known.seq = tracker.tags.seq_of(i)
    tracker.learn(load32(p), w.subxid[i], known)
    tracker.tags.described[i] = slot
    return FINISHED


# ---- Relation and Type: with Python objects ------------------------------------------------------------------------


cdef int _register_relation(StreamTracker tracker, Window w, int64_t i) except -1:
    cdef int header = 5 if w.flags[i] & IN_STREAM else 1
    cdef const uint8_t* p = w.base + w.start[i] + header
    cdef bytes body = (<const char*> p)[:w.length[i] - header]
    cdef RelationDescription known
    cdef bint types_unknown = tracker.state.bad_type
    try:
        fields = fields_of(body)
    except Malformed as problem:
        if tracker.fail(w, i, problem.reason, header + <int64_t> problem.offset):
            raise
        return 0
    tracker.state.bad_type = False
    # A previous Type message was unreadable, so this Relation's types are unknown: treat the relation as lost.
    if types_unknown:
        tracker.lose_relation(fields[0], w.subxid[i], tracker.tags.seq_of(i))
        return 0
    relation = relation_of(body, tuple(sorted(_type_names(tracker, [c[1] for c in fields[4]]).items())))
    slot = tracker.versions.slot_of(relation, body)
    column = changed_type(tracker.versions.relations[slot].columns, relation.columns, _DEFAULT_OPTIONS)
    if column is not None:
        if tracker.fail_in(w, i, TYPE_CHANGED, header + type_offset(relation, column), slot, column):
            raise Malformed(TYPE_CHANGED, tracker.invalid.offset)
        return 0
    known.slot = slot
    known.seq = tracker.tags.seq_of(i)
    tracker.learn(fields[0], w.subxid[i], known)
    tracker.tags.described[i] = slot
    return 0


cdef int _register_type(StreamTracker tracker, Window w, int64_t i) except -1:
    cdef int header = 5 if w.flags[i] & IN_STREAM else 1
    cdef const uint8_t* p = w.base + w.start[i] + header
    cdef bytes body = (<const char*> p)[:w.length[i] - header]
    cdef TypeName named
    cdef ScopedType scoped
    try:
        oid, namespace, name = parse_type(body)
    except Malformed as problem:
        if tracker.fail(w, i, problem.reason, header + <int64_t> problem.offset):
            raise
        return 0
    set_text(named.name_space, namespace.encode())
    set_text(named.name, name.encode())
    named.seq = tracker.tags.seq_of(i)
    if tracker.state.context == STREAMING:
        scoped.oid = oid
        scoped.subxid = w.subxid[i]
        scoped.type.swap(named)
        tracker.state.streamed.edit(tracker.state.current.xid).learn(scoped)
    else:
        tracker.state.name_type(<uint32_t> oid, named)
    return 0


cdef dict _type_names(StreamTracker tracker, list oids):
    """Returns {oid: (namespace, name)} of the types that Type messages named, as visible to the open transaction."""
    cdef const TypeName* named
    found = {}
    for oid in oids:
        named = NULL
        if tracker.state.context == STREAMING:
            named = tracker.state.streamed.find(tracker.state.current.xid).type(<uint32_t> oid)
        if named == NULL:
            named = tracker.state.type(<uint32_t> oid)
        if named != NULL:
            # Cython's own conversion copies the string, and does not handle a failed copy.
            found[oid] = (
                named.name_space.data()[:named.name_space.size()].decode("utf-8"),
                named.name.data()[:named.name.size()].decode("utf-8"),
            )
    return found
