"""Turns a tagged window into a batch with TAGGED_SCHEMA, and a batch back into a window.

The rows of the batch may be in any order.
"""
cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uintptr_t
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.boundary cimport parse_boundary, parse_message
from pgoutput_fast._core.protocol.fields cimport Fields, finish, read_lsn, read_text, start_fields
from pgoutput_fast._core.protocol.kinds cimport (
    MSG_COMMIT,
    MSG_COMMIT_PREPARED,
    MSG_MESSAGE,
    MSG_ORIGIN,
    MSG_PREPARE,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_ABORT,
    MSG_STREAM_COMMIT,
    MSG_STREAM_PREPARE,
    MSG_TRUNCATE,
    MSG_UPDATE,
)
from pgoutput_fast._core.protocol.reasons cimport OK, TAGS_DISAGREE, TRUNCATED, UNKNOWN_VERSION
from pgoutput_fast._core.columns.native cimport append_bits, set_validity
from pgoutput_fast._core.tagging.records cimport TableBuilder
from pgoutput_fast._core.tagging.relation_versions cimport RelationVersions
from pgoutput_fast._core.tagging.scan cimport (
    BOUNDARY,
    CHANGE,
    IN_STREAM,
    MALFORMED,
    Payloads,
    Window,
    message_class,
    old_tuple,
    scan_window,
)
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    SLOT_UNKNOWN,
    BoundaryRecord,
    MessageRecord,
    MessageScope,
    OutcomeRecord,
    RecordLog,
    RecordReader,
    TruncateRecord,
)
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker
from pgoutput_fast._core.tagging.window_tags cimport Tags
from pgoutput_fast._core.protocol.wire cimport TRUNCATE_OF_ONE, load32, write_truncate_of

import pyarrow as pa

from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast.schema.foreign import cast, checked
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

_HEAD_SCHEMA = pa.schema([field for field in TAGGED_SCHEMA if field.name != "payload"])

# Slots of tagged rows that belong to no relation version.
cdef enum:
    NO_SLOT = -1
    SESSION_MARK = -2


cdef inline bint _waits_for_commit(uint8_t kind) noexcept nogil:
    """Whether the committed view keeps messages of this kind until commit: changes, Truncates and logical messages."""
    return message_class(kind) & CHANGE or kind == MSG_TRUNCATE or kind == MSG_MESSAGE


cdef tuple tagged_columns(StreamTracker tracker, Window w, bint changes_only):
    """Returns (columns, messages, extra payloads) for the rows of a tagged window.

    A message has one row, but a Truncate has one row per relation. The start of a session also has a row, with kind 0
    and the `seq` of the next message. Rejected messages have no row. With `changes_only`, only changes, truncates and
    logical messages have rows.

    columns: a batch with all columns of TAGGED_SCHEMA except the payload.
    messages: int64 array, the ordinal in the window of every row's message; null at a session's start. None if the rows
        are exactly the window's messages, in order, and `changes_only` is not set.
    extra payloads: large binary array with a Truncate for every relation but the first of a Truncate of several
        relations; the first row of such a message has the original message. If the window has n messages, the ordinal
        n + k is element k of this array. None if there is none.
    """
    cdef TableBuilder t = TableBuilder(_HEAD_SCHEMA)
    cdef _TaggedRows rows = _TaggedRows()
    with nogil:
        rows.select(tracker.tags, w, changes_only)
        rows.write_columns(tracker.tags, tracker.versions, w, t)
    if not changes_only and rows.are_all(w):
        return t.finish(), None, None
    extra = rows.take_extra_payloads(tracker.versions, w)
    return t.finish(), rows.messages(), extra


@cython.final
cdef class _TaggedRows:
    """The rows of a tagged window."""
    cdef vector[int64_t] message         # per row: its message's ordinal in the window
    cdef vector[int32_t] slot            # per row: slot of its relation version, NO_SLOT or SESSION_MARK
    cdef vector[int64_t] further         # rows of a Truncate after its first row
    cdef size_t marks                    # number of rows that are session starts

    cdef int select(self, Tags tags, Window w, bint changes_only) except -1 nogil:
        """Selects the messages that have rows."""
        cdef int64_t i, item = 0
        self.message.reserve(<size_t> w.count)
        self.slot.reserve(<size_t> w.count)
        for i in range(w.count):
            if changes_only and not _waits_for_commit(w.kind[i]):
                continue
            if (not changes_only and self.marks < tags.session_starts.size()
                    and tags.session_starts[self.marks] == i):
                self._add(i, SESSION_MARK)
                self.marks += 1
            if item < tags.items and tags.item_message[item] == i:
                self._add(i, tags.item_slot[item])
                item += 1
                while item < tags.items and tags.item_message[item] == i:
                    self.further.push_back(<int64_t> self.message.size())
                    self._add(i, tags.item_slot[item])
                    item += 1
            elif tags.taken[i]:
                self._add(i, tags.described[i] if tags.described[i] != SLOT_UNKNOWN else <int32_t> NO_SLOT)
        return 0

    cdef inline int _add(self, int64_t i, int32_t slot) except -1 nogil:
        self.message.push_back(i)
        self.slot.push_back(slot)
        return 0

    cdef int write_columns(self, Tags tags, RelationVersions versions, Window w, TableBuilder t) except -1 nogil:
        """Writes all columns except the payload."""
        cdef const MessageScope* scope
        cdef int64_t* out[PAYLOAD]
        cdef vector[uint8_t] bits
        cdef uint8_t* kind
        cdef int32_t slot
        cdef int64_t i
        cdef size_t k, n = self.message.size()
        for k in range(<size_t> PAYLOAD):
            if k != <size_t> KIND and k != <size_t> IN_STREAM_COLUMN:
                out[k] = <int64_t*> t.columns[k].data.append_uninitialized(n * 8)
        kind = t.columns[KIND].data.append_uninitialized(n)
        bits.resize(n, 0)
        for k in range(n):
            i = self.message[k]
            slot = self.slot[k]
            out[SEQ][k] = tags.seq_of(i)
            if slot == SESSION_MARK:
                kind[k] = 0
                out[LSN][k] = out[RELATION][k] = out[VERSION][k] = NONE64
                out[TXN][k] = out[XID][k] = out[SUBXID][k] = out[COMMIT_LSN][k] = out[COMMIT_TIMESTAMP][k] = NONE64
                continue
            scope = &tags.scopes[tags.scope_of[i]]
            kind[k] = w.kind[i]
            bits[k] = scope.in_stream
            out[LSN][k] = tags.lsn_of(i)
            out[RELATION][k] = <int64_t> versions.oids[slot] if slot >= 0 else NONE64
            out[VERSION][k] = versions.ids[slot] if slot >= 0 else NONE64
            out[TXN][k] = scope.txn
            out[XID][k] = scope.xid
            out[SUBXID][k] = scope.subxid
            out[COMMIT_LSN][k] = scope.commit_lsn
            out[COMMIT_TIMESTAMP][k] = scope.commit_timestamp
        for k in range(<size_t> PAYLOAD):
            if k == <size_t> KIND:
                t.columns[k].append_validity(NULL, n)
            elif k == <size_t> IN_STREAM_COLUMN:
                append_bits(t.columns[k].data, 0, bits.data(), n)
                t.columns[k].append_validity(NULL, n)
            else:
                set_validity(t.columns[k][0], out[k], n, NONE64)
        return 0

    cdef bint are_all(self, Window w) noexcept nogil:
        """Whether the rows are exactly the window's messages, in order."""
        cdef size_t k
        if self.marks or not self.further.empty() or <int64_t> self.message.size() != w.count:
            return False
        for k in range(self.message.size()):
            if self.message[k] != <int64_t> k:
                return False
        return True

    cdef object take_extra_payloads(self, RelationVersions versions, Window w):
        """Makes a Truncate per row of `further`, and lets the row refer to it. Returns these payloads, or None."""
        cdef vector[uint8_t] alone
        cdef vector[int64_t] ends
        cdef int64_t i, row
        cdef size_t k
        if self.further.empty():
            return None
        ends.push_back(0)
        alone.resize(self.further.size() * TRUNCATE_OF_ONE)
        for k in range(self.further.size()):
            row = self.further[k]
            i = self.message[row]
            ends.push_back(ends.back() + write_truncate_of(w.base + w.start[i], (w.flags[i] & IN_STREAM) != 0,
                                                           versions.oids[self.slot[row]], &alone[ends.back()]))
            self.message[row] = w.count + <int64_t> k
        return pa.Array.from_buffers(pa.large_binary(), self.further.size(), [
            None, pa.py_buffer((<const char*> ends.data())[:ends.size() * sizeof(int64_t)]),
            pa.py_buffer((<const char*> alone.data())[:ends.back()]),
        ])

    cdef object messages(self):
        """Returns the ordinals of the rows' messages as an Arrow array, null at a session's start."""
        cdef size_t k, n = self.message.size()
        if self.marks:
            return pa.array([self.message[k] if self.slot[k] != SESSION_MARK else None for k in range(n)], pa.int64())
        buffer = pa.py_buffer((<const char*> self.message.data())[:n * sizeof(int64_t)])
        return pa.Array.from_buffers(pa.int64(), n, [None, buffer])


cdef const int64_t* _values(object column) except NULL:
    cdef uintptr_t address = column.buffers()[1].address
    return (<const int64_t*> address) + <int64_t> column.offset


cdef inline bint _bit(const uint8_t* bits, int64_t k) noexcept nogil:
    return bits[k >> 3] >> (k & 7) & 1


cdef const int64_t* _filled(object column, int64_t null, vector[int64_t]& buffer) except NULL:
    """Returns the column's values. If any is null, returns a copy in `buffer` with `null` in place of nulls."""
    cdef const int64_t* values = _values(column)
    if column.null_count == 0:
        return values
    cdef uintptr_t address = column.buffers()[0].address
    cdef const uint8_t* valid = <const uint8_t*> address
    cdef int64_t offset = column.offset
    cdef int64_t k, count = len(column)
    buffer.resize(<size_t> count)
    for k in range(count):
        buffer[k] = values[k] if _bit(valid, offset + k) else null
    return buffer.data()


@cython.final
cdef class _LoadedColumns:
    """The columns of tagged payloads, in any order of rows."""
    cdef dict columns                    # the Arrow arrays by name; they own the memory below
    # Copies of columns that have nulls. Not a C array, because Cython does not destroy its elements in an extension
    # type.
    cdef vector[vector[int64_t]] buffers
    cdef const int8_t* kind
    cdef const uint8_t* stream_bits
    cdef int64_t stream_offset
    cdef const int64_t* version
    cdef int64_t last_version            # the last lookup
    cdef int32_t last_slot
    cdef const int64_t* txn
    cdef const int64_t* xid
    cdef const int64_t* subxid
    cdef const int64_t* commit_lsn
    cdef const int64_t* commit_timestamp
    cdef const int64_t* relation

    def __cinit__(self, batch):
        cdef uintptr_t address
        self.columns = _checked_columns(batch)
        self.buffers.resize(7)
        kinds = self.columns["kind"]
        streams = self.columns["in_stream"]
        address = kinds.buffers()[1].address
        self.kind = (<const int8_t*> address) + <int64_t> kinds.offset
        address = streams.buffers()[1].address
        self.stream_bits = <const uint8_t*> address
        self.stream_offset = streams.offset
        self.version = _filled(self.columns["version"], NONE64, self.buffers[0])
        self.last_version = NONE64
        self.last_slot = -1
        self.txn = _filled(self.columns["txn"], NONE64, self.buffers[1])
        self.xid = _filled(self.columns["xid"], NONE64, self.buffers[2])
        self.subxid = _filled(self.columns["subxid"], NONE64, self.buffers[3])
        self.commit_lsn = _filled(self.columns["commit_lsn"], NONE64, self.buffers[4])
        self.commit_timestamp = _filled(self.columns["commit_timestamp"], NONE64, self.buffers[5])
        self.relation = _filled(self.columns["relation"], NONE64, self.buffers[6])

    cdef inline bint in_stream(self, int64_t i) noexcept nogil:
        return _bit(self.stream_bits, self.stream_offset + i)

    cdef int32_t slot_of(self, int64_t i, RelationVersions versions) except -2:
        """Returns the slot of the relation version of row i, -1 if it is unknown."""
        if self.version[i] != self.last_version:
            self.last_slot = versions.slot_of_id(self.version[i])
            self.last_version = self.version[i]
        return self.last_slot

    cdef inline bint has_scope(self, int64_t i, const MessageScope& scope) noexcept nogil:
        """Whether row i is in this scope."""
        return (self.txn[i] == scope.txn and self.xid[i] == scope.xid and self.subxid[i] == scope.subxid
                and self.commit_lsn[i] == scope.commit_lsn and self.commit_timestamp[i] == scope.commit_timestamp
                and self.in_stream(i) == <bint> scope.in_stream)

    cdef inline void read_scope(self, int64_t i, MessageScope* scope) noexcept nogil:
        scope.txn = self.txn[i]
        scope.xid = self.xid[i]
        scope.subxid = self.subxid[i]
        scope.commit_lsn = self.commit_lsn[i]
        scope.commit_timestamp = self.commit_timestamp[i]
        scope.in_stream = self.in_stream(i)


cdef dict _checked_columns(batch):
    """Returns the columns of a batch of tagged payloads by name, with the types of TAGGED_SCHEMA."""
    if batch.schema.names != TAGGED_SCHEMA.names:
        raise TypeError(f"tagged payloads have the columns {', '.join(TAGGED_SCHEMA.names)}")
    columns = {}
    for k, field in enumerate(TAGGED_SCHEMA):
        column = batch.column(k)
        what = f"column {field.name} of tagged payloads"
        if len(column) != batch.num_rows:
            raise ValueError(f"{what} has {len(column)} values for {batch.num_rows} rows")
        # Arrow's cast reads the whole column, so a column that needs one is checked in full. Other columns are read
        # only here, and payload offsets are checked on use.
        column = cast(checked(column, what, full=not column.type.equals(field.type)), what, field.type)
        if field.name in ("seq", "kind", "in_stream", "payload"):
            if column.null_count:
                raise ValueError(f"{what} cannot be null")
        columns[field.name] = column
    return columns


cdef int load_tagged(StreamTracker tracker, Window w, object batch) except -1:
    """Makes a window with items, scopes and records from a batch with TAGGED_SCHEMA, like those that tagging made.

    The rows may be in any order, and rows may be missing.
    """
    cdef Tags tags = tracker.tags
    cdef int64_t i, count = batch.num_rows
    cdef bint in_stream, scanned
    cdef _LoadedColumns loaded
    cdef Payloads payloads
    cdef MessageScope scope
    cdef uint8_t cls
    cdef dict truncates = {}
    cdef dict origins = {}
    tags.items = 0
    w.count = 0
    if count == 0:
        _checked_columns(batch)
        return 0
    loaded = _LoadedColumns(batch)
    payloads = Payloads(loaded.columns["payload"])
    in_stream = loaded.in_stream(0)
    scan_window(payloads, 0, count, (<int64_t> 1) << 31, &in_stream, w)
    tags.start(count, 0, _values(loaded.columns["seq"]), _filled(loaded.columns["lsn"], 0, tags.loaded_lsns))
    tags.loaded = (loaded, payloads)
    for i in range(count):
        if i == 0 or not loaded.has_scope(i, scope):
            loaded.read_scope(i, &scope)
            tags.scopes.push_back(scope)
        tags.set_last_scope(i)
        if <uint8_t> loaded.kind[i] != w.kind[i]:
            _fail(tracker, w, i, TAGS_DISAGREE, 0)
            continue
        # The scan treats rows as consecutive messages. Its result for other rows is not valid.
        scanned = w.flags[i] & (IN_STREAM | MALFORMED) == (IN_STREAM if scope.in_stream else 0)
        if not scanned:
            w.flags[i] = IN_STREAM if scope.in_stream else 0
        cls = message_class(w.kind[i])
        if cls & CHANGE or w.kind[i] == MSG_TRUNCATE:
            _load_item(tracker, w, i, scope.subxid, loaded, truncates, scanned)
        elif cls & BOUNDARY:
            _load_boundary(tracker, w, i, &scope)
        elif w.kind[i] == MSG_MESSAGE:
            _load_message(tracker, w, i, &scope)
        elif w.kind[i] == MSG_ORIGIN:
            _load_origin(tracker, w, i, scope.txn, origins)
    _record_truncates(tracker, w, truncates)
    return _complete_boundaries(tracker, origins)


cdef int _fail(StreamTracker tracker, Window w, int64_t i, uint8_t reason, int64_t offset) except -1:
    """Rejects row i, or raises Malformed."""
    if tracker.fail(w, i, reason, offset):
        raise Malformed(reason, offset)
    return 0


cdef inline const uint8_t* _body(Window w, int64_t i) noexcept nogil:
    return w.base + w.start[i] + (5 if w.flags[i] & IN_STREAM else 1)


cdef int _load_item(StreamTracker tracker, Window w, int64_t i, int64_t subxid, _LoadedColumns loaded,
                    dict truncates, bint scanned) except -1:
    """Loads a change, or a Truncate: adds the item to decode. Tags that the caller does not need may be null.

    `scanned` says whether the window has the message's header. Reading it from the payload again is a cache miss.
    """
    cdef bint stream = w.flags[i] & IN_STREAM
    cdef int header = 5 if stream else 1
    cdef int32_t slot
    if w.length[i] < (10 if stream else 6):
        return _fail(tracker, w, i, TRUNCATED, w.length[i])
    if not scanned:
        w.subxid[i] = load32(w.base + w.start[i] + 1) if stream else 0
        w.relation[i] = load32(w.base + w.start[i] + header) if w.kind[i] != MSG_TRUNCATE else 0
        if w.kind[i] == MSG_UPDATE:
            w.flags[i] |= old_tuple(w.base[w.start[i] + header + 4])
    if subxid != NONE64 and not (stream and w.subxid[i] == subxid):
        return _fail(tracker, w, i, TAGS_DISAGREE, 1 if stream else 0)
    slot = loaded.slot_of(i, tracker.versions)
    if slot < 0:
        return _fail(tracker, w, i, UNKNOWN_VERSION, 0)
    if loaded.relation[i] != NONE64 and loaded.relation[i] != tracker.versions.oids[slot]:
        return _fail(tracker, w, i, TAGS_DISAGREE, 0)
    if w.kind[i] == MSG_TRUNCATE:
        if not _load_truncate(tracker, w, i, truncates):
            return 0
    elif w.relation[i] != tracker.versions.oids[slot]:
        return _fail(tracker, w, i, TAGS_DISAGREE, header)
    tracker.tags.add_item(i, slot)
    return 0


cdef bint _load_truncate(StreamTracker tracker, Window w, int64_t i, dict truncates) except -1:
    """Collects the rows of every Truncate in `truncates`, by seq: [row with the most relations, oids of other rows].

    One row has the original message; in batches of earlier versions of this package, every row has it. In a subset of a
    batch, that row may be missing, and the oids of the other rows are needed. Returns False if the message is malformed
    and was rejected.
    """
    cdef int64_t count = <int32_t> load32(_body(w, i))
    cdef int64_t before
    if count <= 0 or w.length[i] != (10 if w.flags[i] & IN_STREAM else 6) + 4 * count:
        _fail(tracker, w, i, TRUNCATED, w.length[i])
        return False
    seq = tracker.tags.seq_of(i)
    known = truncates.get(seq)
    if known is None:
        truncates[seq] = [i, None]
        return True
    before = known[0]
    if count > <int64_t> load32(_body(w, before)):
        known[0] = i
    elif count == 1:
        if known[1] is None:
            known[1] = {}
        known[1][load32(_body(w, i) + 5)] = None
    return True


cdef int _record_truncates(StreamTracker tracker, Window w, dict truncates) except -1:
    """Adds a record for every Truncate. It has all relations if one row names them, else those that have rows."""
    cdef TruncateRecord t
    cdef const uint8_t* p
    cdef int64_t i, k
    for i, others in truncates.values():
        p = _body(w, i)
        t.seq = tracker.tags.seq_of(i)
        t.txn = tracker.tags.scopes[tracker.tags.scope_of[i]].txn
        t.first = <int64_t> tracker.records.oids.size()
        t.count = <int32_t> load32(p)
        t.cascade = (p[4] & 1) != 0
        t.restart_identity = (p[4] & 2) != 0
        for k in range(t.count):
            tracker.records.oids.push_back(load32(p + 5 + 4 * k))
        if t.count == 1 and others is not None:
            others.pop(load32(p + 5), None)
            for oid in others:
                tracker.records.oids.push_back(<int64_t> oid)
            t.count += <int64_t> len(others)
        tracker.records.truncates.push_back(t)
    return 0


cdef int _load_boundary(StreamTracker tracker, Window w, int64_t i, MessageScope* scope) except -1:
    """Adds the record of a boundary message, and the record of the outcome that it decides."""
    cdef Fields f
    cdef BoundaryRecord b
    cdef OutcomeRecord o
    cdef const uint8_t* gid = NULL
    cdef int64_t gid_length = -1
    cdef uint8_t kind = w.kind[i]
    start_fields(&f, w.base + w.start[i], w.length[i], 1)
    parse_boundary(&f, kind, &b, &gid, &gid_length)
    if f.reason != OK:
        _fail(tracker, w, i, f.reason, f.reason_offset)
        return 0
    b.seq = tracker.tags.seq_of(i)
    b.txn = scope.txn
    b.xid = scope.xid
    if gid != NULL:
        b.gid = tracker.records.keep(gid, <size_t> gid_length)
    tracker.records.boundaries.push_back(b)
    if scope.txn == NONE64 or not (kind == MSG_COMMIT or kind == MSG_STREAM_COMMIT or kind == MSG_COMMIT_PREPARED
                                   or kind == MSG_STREAM_ABORT or kind == MSG_ROLLBACK_PREPARED):
        return 0
    o.txn = scope.txn
    o.at_seq = b.seq
    o.committed = kind != MSG_STREAM_ABORT and kind != MSG_ROLLBACK_PREPARED
    if o.committed:
        o.commit_lsn = b.lsn
        o.commit_timestamp = b.timestamp
    elif kind == MSG_STREAM_ABORT and b.subxid != b.xid:
        o.subxid = b.subxid
    tracker.records.outcomes.push_back(o)
    return 0


cdef int _load_origin(StreamTracker tracker, Window w, int64_t i, int64_t txn, dict origins) except -1:
    """Keeps the last Origin of every transaction in `origins`."""
    cdef Fields f
    cdef const uint8_t* name = NULL
    cdef int64_t length = 0
    cdef int64_t lsn
    start_fields(&f, w.base + w.start[i], w.length[i], 1)
    lsn = read_lsn(&f)
    read_text(&f, &name, &length)
    finish(&f)
    if f.reason != OK:
        _fail(tracker, w, i, f.reason, f.reason_offset)
        return 0
    known = origins.get(txn)
    if known is None or known[0] < tracker.tags.seq_of(i):
        origins[txn] = (tracker.tags.seq_of(i), lsn, (<const char*> name)[:length])
    return 0


cdef int _complete_boundaries(StreamTracker tracker, dict origins) except -1:
    """Completes boundary records from other messages of the transaction: its origin, and when it was prepared."""
    cdef BoundaryRecord b
    cdef RecordReader[BoundaryRecord] reader
    cdef RecordLog[BoundaryRecord] completed
    cdef bytes name
    cdef dict prepared = {}
    reader.begin(tracker.records.boundaries)
    while reader.next(b):
        if (b.kind == MSG_PREPARE or b.kind == MSG_STREAM_PREPARE) and b.txn != NONE64:
            prepared[b.txn] = b.timestamp
    if not origins and not prepared:
        return 0
    reader.begin(tracker.records.boundaries)
    while reader.next(b):
        if b.kind == MSG_COMMIT_PREPARED and b.txn in prepared:
            b.prepare_timestamp = prepared[b.txn]
        if b.txn in origins and (b.kind == MSG_COMMIT or b.kind == MSG_STREAM_COMMIT
                                 or b.kind == MSG_PREPARE or b.kind == MSG_STREAM_PREPARE
                                 or (b.kind == MSG_STREAM_ABORT and b.subxid == b.xid)):
            _, b.origin_lsn, name = origins[b.txn]
            b.origin = tracker.records.keep(<const uint8_t*> <const char*> name, <size_t> len(name))
        completed.push_back(b)
    tracker.records.boundaries.swap(completed)
    return 0


cdef int _load_message(StreamTracker tracker, Window w, int64_t i, MessageScope* scope) except -1:
    cdef Fields f
    cdef MessageRecord m
    cdef const uint8_t* prefix = NULL
    cdef const uint8_t* content = NULL
    cdef int64_t prefix_length = 0, content_length = 0
    start_fields(&f, w.base + w.start[i], w.length[i], 5 if w.flags[i] & IN_STREAM else 1)
    parse_message(&f, &m, &prefix, &prefix_length, &content, &content_length)
    if f.reason != OK:
        _fail(tracker, w, i, f.reason, f.reason_offset)
        return 0
    m.seq = tracker.tags.seq_of(i)
    if m.transactional:
        m.txn = scope.txn
        m.xid = scope.xid
    m.prefix = tracker.records.keep(prefix, <size_t> prefix_length)
    m.content = tracker.records.keep(content, <size_t> content_length)
    tracker.records.messages.push_back(m)
    return 0
