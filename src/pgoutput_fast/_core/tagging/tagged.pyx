"""Tagged payloads: makes a batch with TAGGED_SCHEMA from a tagged window, and a window from a batch in any order."""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
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
from pgoutput_fast._core.columns.native cimport append_bits, settle_nulls
from pgoutput_fast._core.tagging.records cimport TableBuilder
from pgoutput_fast._core.tagging.scan cimport (
    BOUNDARY,
    CHANGE,
    IN_STREAM,
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
from pgoutput_fast._core.tagging.tag cimport Tagger
from pgoutput_fast._core.protocol.wire cimport TRUNCATE_OF_ONE, load32, write_truncate_of

import pyarrow as pa

from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast.schema.foreign import cast, checked
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

_HEAD_SCHEMA = pa.schema([field for field in TAGGED_SCHEMA if field.name != "payload"])

# Positions of TAGGED_SCHEMA's columns.
cdef enum:
    SEQ = 0
    LSN = 1
    KIND = 2
    RELATION = 3
    VERSION = 4
    TXN = 5
    XID = 6
    SUBXID = 7
    IN_STREAM_COLUMN = 8
    COMMIT_LSN = 9
    COMMIT_TIMESTAMP = 10
    PAYLOAD = 11


# Slots of tagged rows that belong to no relation version.
cdef enum:
    NO_SLOT = -1
    SESSION_MARK = -2


cdef inline bint _waits(uint8_t kind) noexcept nogil:
    return message_class(kind) & CHANGE or kind == MSG_TRUNCATE or kind == MSG_MESSAGE


cdef tuple tagged_columns(Tagger tagger, Window w, bint changes_only):
    """Returns (columns, messages, more messages) for the rows of a tagged window.

    A message has one row, but a Truncate has one row per relation. A session's start has a row, too: its kind is 0, its
    `seq` is the next message's. Rejected messages have no row. With `changes_only`, only changes, truncates and logical
    messages have rows.

    columns: a batch with all columns of TAGGED_SCHEMA but the payload.
    messages: int64 array, the ordinal in the window of each row's message; null at a session's start. None if the rows
        are exactly the window's messages, in order, and `changes_only` is not set.
    more messages: large binary array; None if it would be empty. If the window has n messages, the ordinals n, n + 1,
        ... mean its elements 0, 1, ... It is needed for a Truncate of several relations: the first row has the message
        as it came, each further row has a Truncate of its own relation alone.
    """
    cdef TableBuilder t = TableBuilder(_HEAD_SCHEMA)
    cdef vector[int64_t] message
    cdef vector[int32_t] slot
    cdef int64_t i, item = 0
    cdef size_t k, n, mark = 0
    cdef int64_t* out[PAYLOAD]
    cdef vector[uint8_t] bits
    cdef uint8_t* kind
    cdef const MessageScope* scope
    cdef vector[int64_t] further             # rows of a Truncate after its first row
    cdef vector[uint8_t] alone               # their payloads
    cdef vector[int64_t] ends
    with nogil:
        message.reserve(<size_t> w.count)
        slot.reserve(<size_t> w.count)
        for i in range(w.count):
            if changes_only and not _waits(w.kind[i]):
                continue
            if not changes_only and mark < tagger.marks.size() and tagger.marks[mark] == i:
                message.push_back(i)
                slot.push_back(SESSION_MARK)
                mark += 1
            if item < tagger.items and tagger.item_message[item] == i:
                message.push_back(i)
                slot.push_back(tagger.item_slot[item])
                item += 1
                while item < tagger.items and tagger.item_message[item] == i:
                    further.push_back(<int64_t> message.size())
                    message.push_back(i)
                    slot.push_back(tagger.item_slot[item])
                    item += 1
            elif tagger.taken[i]:
                message.push_back(i)
                slot.push_back(tagger.described[i] if tagger.described[i] != SLOT_UNKNOWN else <int32_t> NO_SLOT)
        n = message.size()
        for k in range(<size_t> PAYLOAD):
            if k != <size_t> KIND and k != <size_t> IN_STREAM_COLUMN:
                out[k] = <int64_t*> t.columns[k].data.append_uninitialized(n * 8)
        kind = t.columns[KIND].data.append_uninitialized(n)
        bits.resize(n, 0)
        for k in range(n):
            i = message[k]
            out[SEQ][k] = tagger.seq_of(i)
            if slot[k] == SESSION_MARK:
                kind[k] = 0
                out[LSN][k] = out[RELATION][k] = out[VERSION][k] = NONE64
                out[TXN][k] = out[XID][k] = out[SUBXID][k] = out[COMMIT_LSN][k] = out[COMMIT_TIMESTAMP][k] = NONE64
                continue
            scope = &tagger.scopes[tagger.scope_of[i]]
            kind[k] = w.kind[i]
            bits[k] = scope.in_stream
            out[LSN][k] = tagger.lsns[i] if tagger.lsns != NULL and tagger.lsns[i] != 0 else NONE64
            out[RELATION][k] = <int64_t> tagger.oids[slot[k]] if slot[k] >= 0 else NONE64
            out[VERSION][k] = tagger.version_ids[slot[k]] if slot[k] >= 0 else NONE64
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
                settle_nulls(t.columns[k][0], out[k], n, NONE64)
        ends.push_back(0)
        alone.resize(further.size() * TRUNCATE_OF_ONE)
        for k in range(further.size()):
            i = message[further[k]]
            ends.push_back(ends.back() + write_truncate_of(w.base + w.start[i], (w.flags[i] & IN_STREAM) != 0,
                                                           tagger.oids[slot[further[k]]], &alone[ends.back()]))
            message[further[k]] = w.count + <int64_t> k
    if not changes_only and mark == 0 and <int64_t> n == w.count and further.empty() and _in_turn(message):
        return t.finish(), None, None
    more = None
    if not further.empty():
        more = pa.Array.from_buffers(pa.large_binary(), further.size(), [
            None, pa.py_buffer((<const char*> ends.data())[:ends.size() * sizeof(int64_t)]),
            pa.py_buffer((<const char*> alone.data())[:ends.back()]),
        ])
    if mark == 0:
        buffer = pa.py_buffer((<const char*> message.data())[:n * sizeof(int64_t)])
        return t.finish(), pa.Array.from_buffers(pa.int64(), n, [None, buffer]), more
    return t.finish(), pa.array([message[k] if slot[k] != SESSION_MARK else None for k in range(n)], pa.int64()), more


cdef bint _in_turn(const vector[int64_t]& message) noexcept nogil:
    cdef size_t k
    for k in range(message.size()):
        if message[k] != <int64_t> k:
            return False
    return True


cdef const int64_t* _values(object column) except NULL:
    cdef uintptr_t address = column.buffers()[1].address
    return (<const int64_t*> address) + <int64_t> column.offset


cdef inline bint _bit(const uint8_t* bits, int64_t k) noexcept nogil:
    return bits[k >> 3] >> (k & 7) & 1


cdef const int64_t* _filled(object column, int64_t null, vector[int64_t]& buffer) except NULL:
    """Returns the column's values. If any is null, they are copied into `buffer`, with `null` in place of nulls."""
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


cdef int load_tagged(Tagger tagger, Window w, object batch) except -1:
    """Makes a window with items, scopes and records from a batch with TAGGED_SCHEMA, as tagging would have made it.

    The rows may come in any order, and rows may be missing.
    """
    cdef int64_t i, count = batch.num_rows
    cdef bint in_stream = False
    cdef uint8_t cls
    if batch.schema.names != TAGGED_SCHEMA.names:
        raise TypeError(f"tagged payloads have the columns {', '.join(TAGGED_SCHEMA.names)}")
    columns = {}
    for k, field in enumerate(TAGGED_SCHEMA):
        column = batch.column(k)
        what = f"column {field.name} of tagged payloads"
        if len(column) != count:
            raise ValueError(f"{what} has {len(column)} values for {count} rows")
        # Arrow reads a column to cast it, so that column is checked in full. Other columns are only read here, and
        # each offset of the payloads is checked when it is used.
        column = cast(checked(column, what, full=not column.type.equals(field.type)), what, field.type)
        if field.name in ("seq", "kind", "in_stream", "payload"):
            if column.null_count:
                raise ValueError(f"{what} cannot be null")
        columns[field.name] = column
    cdef Payloads payloads = Payloads(columns["payload"])
    tagger.items = 0
    w.count = 0
    if count == 0:
        return 0
    scan_window(payloads, 0, count, (<int64_t> 1) << 31, &in_stream, w)
    kinds = columns["kind"]
    streams = columns["in_stream"]
    # The columns own these values. `_loaded` keeps the columns.
    tagger.seqs = _values(columns["seq"])
    tagger.lsns = _filled(columns["lsn"], 0, tagger.loaded_lsns)
    tagger.base_seq = 0
    cdef uintptr_t address = kinds.buffers()[1].address
    cdef const int8_t* kind = (<const int8_t*> address) + <int64_t> kinds.offset
    address = streams.buffers()[1].address
    cdef const uint8_t* stream_bits = <const uint8_t*> address
    cdef int64_t stream_offset = streams.offset
    cdef vector[int64_t] buffers[6]
    cdef const int64_t* version = _filled(columns["version"], NONE64, buffers[0])
    cdef const int64_t* txn = _filled(columns["txn"], NONE64, buffers[1])
    cdef const int64_t* xid = _filled(columns["xid"], NONE64, buffers[2])
    cdef const int64_t* subxid = _filled(columns["subxid"], NONE64, buffers[3])
    cdef const int64_t* commit_lsn = _filled(columns["commit_lsn"], NONE64, buffers[4])
    cdef const int64_t* commit_timestamp = _filled(columns["commit_timestamp"], NONE64, buffers[5])
    cdef bint stream
    cdef int header
    cdef dict truncates = {}
    cdef dict origins = {}
    cdef MessageScope scope
    cdef int32_t slot = -1
    cdef int64_t last_version = NONE64
    tagger.item_message.resize(<size_t> count)
    tagger.item_slot.resize(<size_t> count)
    tagger.scope_of.resize(<size_t> count)
    tagger.taken.clear()
    tagger.taken.resize(<size_t> count, 1)
    tagger.scopes.clear()
    tagger._loaded = (columns, payloads)
    for i in range(count):
        stream = _bit(stream_bits, stream_offset + i)
        if (i == 0 or txn[i] != scope.txn or xid[i] != scope.xid or subxid[i] != scope.subxid
                or commit_lsn[i] != scope.commit_lsn or commit_timestamp[i] != scope.commit_timestamp
                or stream != scope.in_stream):
            scope.txn = txn[i]
            scope.xid = xid[i]
            scope.subxid = subxid[i]
            scope.commit_lsn = commit_lsn[i]
            scope.commit_timestamp = commit_timestamp[i]
            scope.in_stream = stream
            tagger.scopes.push_back(scope)
        tagger.scope_of[i] = <uint32_t> tagger.scopes.size() - 1
        if <uint8_t> kind[i] != w.kind[i] and kind[i] != 0:
            if tagger.fail(w, i, TAGS_DISAGREE, 0):
                raise Malformed(TAGS_DISAGREE, 0)
            continue
        w.kind[i] = <uint8_t> kind[i]
        w.flags[i] = IN_STREAM if stream else 0
        cls = message_class(w.kind[i])
        if cls & CHANGE or w.kind[i] == MSG_TRUNCATE:
            if w.length[i] < (10 if stream else 6):
                if tagger.fail(w, i, TRUNCATED, w.length[i]):
                    raise Malformed(TRUNCATED, w.length[i])
                continue
            if version[i] != last_version:
                last_version = version[i]
                slot = tagger.slot_of_version(last_version)
            if slot < 0:
                if tagger.fail(w, i, UNKNOWN_VERSION, 0):
                    raise Malformed(UNKNOWN_VERSION, 0)
                continue
            header = 5 if stream else 1
            if cls & CHANGE and load32(w.base + w.start[i] + header) != tagger.oids[slot]:
                if tagger.fail(w, i, TAGS_DISAGREE, header):
                    raise Malformed(TAGS_DISAGREE, header)
                continue
            if w.kind[i] == MSG_UPDATE:
                w.flags[i] |= old_tuple(w.base[w.start[i] + header + 4])
            elif w.kind[i] == MSG_TRUNCATE and not _load_truncate(tagger, w, i, truncates):
                continue
            tagger.item_message[tagger.items] = <uint32_t> i
            tagger.item_slot[tagger.items] = slot
            tagger.items += 1
        elif cls & BOUNDARY:
            _load_boundary(tagger, w, i, &scope)
        elif w.kind[i] == MSG_MESSAGE:
            _load_message(tagger, w, i, &scope)
        elif w.kind[i] == MSG_ORIGIN:
            _load_origin(tagger, w, i, scope.txn, origins)
    _record_truncates(tagger, w, truncates)
    return _complete_boundaries(tagger, origins)


cdef inline const uint8_t* _body(Window w, int64_t i) noexcept nogil:
    return w.base + w.start[i] + (5 if w.flags[i] & IN_STREAM else 1)


cdef bint _load_truncate(Tagger tagger, Window w, int64_t i, dict truncates) except -1:
    """Collects the rows of each Truncate in `truncates`, by seq: [row with the most relations, oids of other rows].

    One row has the message as it came; in batches of earlier versions of this package, every row has it. In a subset of
    a batch, that row may be missing; the oids of the other rows are needed then. Returns False if the message is
    malformed and was rejected.
    """
    cdef int64_t count = <int32_t> load32(_body(w, i))
    cdef int64_t before
    if count <= 0 or w.length[i] != (10 if w.flags[i] & IN_STREAM else 6) + 4 * count:
        if tagger.fail(w, i, TRUNCATED, w.length[i]):
            raise Malformed(TRUNCATED, w.length[i])
        return False
    seq = tagger.seq_of(i)
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


cdef int _record_truncates(Tagger tagger, Window w, dict truncates) except -1:
    """Adds a record for each Truncate. It has all relations if one row names them, else those that have rows."""
    cdef TruncateRecord t
    cdef const uint8_t* p
    cdef int64_t i, k
    for i, others in truncates.values():
        p = _body(w, i)
        t.seq = tagger.seq_of(i)
        t.txn = tagger.scopes[tagger.scope_of[i]].txn
        t.first = <int64_t> tagger.records.oids.size()
        t.count = <int32_t> load32(p)
        t.cascade = (p[4] & 1) != 0
        t.restart_identity = (p[4] & 2) != 0
        for k in range(t.count):
            tagger.records.oids.push_back(load32(p + 5 + 4 * k))
        if t.count == 1 and others is not None:
            others.pop(load32(p + 5), None)
            for oid in others:
                tagger.records.oids.push_back(<int64_t> oid)
            t.count += <int64_t> len(others)
        tagger.records.truncates.push_back(t)
    return 0


cdef int _load_boundary(Tagger tagger, Window w, int64_t i, MessageScope* scope) except -1:
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
        if tagger.fail(w, i, f.reason, f.reason_offset):
            raise Malformed(f.reason, f.reason_offset)
        return 0
    b.seq = tagger.seq_of(i)
    b.txn = scope.txn
    b.xid = scope.xid
    if gid != NULL:
        b.gid = tagger.records.keep(gid, <size_t> gid_length)
    tagger.records.boundaries.push_back(b)
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
    tagger.records.outcomes.push_back(o)
    return 0


cdef int _load_origin(Tagger tagger, Window w, int64_t i, int64_t txn, dict origins) except -1:
    """Keeps the last Origin of each transaction in `origins`."""
    cdef Fields f
    cdef const uint8_t* name = NULL
    cdef int64_t length = 0
    cdef int64_t lsn
    start_fields(&f, w.base + w.start[i], w.length[i], 1)
    lsn = read_lsn(&f)
    read_text(&f, &name, &length)
    finish(&f)
    if f.reason != OK:
        if tagger.fail(w, i, f.reason, f.reason_offset):
            raise Malformed(f.reason, f.reason_offset)
        return 0
    known = origins.get(txn)
    if known is None or known[0] < tagger.seq_of(i):
        origins[txn] = (tagger.seq_of(i), lsn, (<const char*> name)[:length])
    return 0


cdef int _complete_boundaries(Tagger tagger, dict origins) except -1:
    """Adds to boundary records what other messages of the transaction say: its origin, and when it was prepared."""
    cdef BoundaryRecord b
    cdef RecordReader[BoundaryRecord] reader
    cdef RecordLog[BoundaryRecord] completed
    cdef bytes name
    cdef dict prepared = {}
    reader.begin(tagger.records.boundaries)
    while reader.next(b):
        if (b.kind == MSG_PREPARE or b.kind == MSG_STREAM_PREPARE) and b.txn != NONE64:
            prepared[b.txn] = b.timestamp
    if not origins and not prepared:
        return 0
    reader.begin(tagger.records.boundaries)
    while reader.next(b):
        if b.kind == MSG_COMMIT_PREPARED and b.txn in prepared:
            b.prepare_timestamp = prepared[b.txn]
        if b.txn in origins and (b.kind == MSG_COMMIT or b.kind == MSG_STREAM_COMMIT
                                 or b.kind == MSG_PREPARE or b.kind == MSG_STREAM_PREPARE
                                 or (b.kind == MSG_STREAM_ABORT and b.subxid == b.xid)):
            _, b.origin_lsn, name = origins[b.txn]
            b.origin = tagger.records.keep(<const uint8_t*> <const char*> name, <size_t> len(name))
        completed.push_back(b)
    tagger.records.boundaries.swap(completed)
    return 0


cdef int _load_message(Tagger tagger, Window w, int64_t i, MessageScope* scope) except -1:
    cdef Fields f
    cdef MessageRecord m
    cdef const uint8_t* prefix = NULL
    cdef const uint8_t* content = NULL
    cdef int64_t prefix_length = 0, content_length = 0
    start_fields(&f, w.base + w.start[i], w.length[i], 5 if w.flags[i] & IN_STREAM else 1)
    parse_message(&f, &m, &prefix, &prefix_length, &content, &content_length)
    if f.reason != OK:
        if tagger.fail(w, i, f.reason, f.reason_offset):
            raise Malformed(f.reason, f.reason_offset)
        return 0
    m.seq = tagger.seq_of(i)
    if m.transactional:
        m.txn = scope.txn
        m.xid = scope.xid
    m.prefix = tagger.records.keep(prefix, <size_t> prefix_length)
    m.content = tagger.records.keep(content, <size_t> content_length)
    tagger.records.messages.push_back(m)
    return 0
