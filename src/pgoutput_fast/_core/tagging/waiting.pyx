"""Changes that wait for the end of their transaction: they are tagged once, and decoded when the transaction ends."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcpy
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport Buffer, append_bits, set_validity
from pgoutput_fast._core.protocol.fields cimport EPOCH_SHIFT
from pgoutput_fast._core.protocol.kinds cimport MSG_BEGIN, MSG_COMMIT, MSG_MESSAGE, MSG_TRUNCATE
from pgoutput_fast._core.protocol.wire cimport load64
from pgoutput_fast._core.tagging.records cimport TableBuilder
from pgoutput_fast._core.tagging.scan cimport BOUNDARY, Payloads, Window, message_class
from pgoutput_fast._core.tagging.stream_state cimport NONE64, MessageScope
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker
from pgoutput_fast._core.tagging.tagged cimport (
    COMMIT_LSN,
    COMMIT_TIMESTAMP,
    IN_STREAM_COLUMN,
    KIND,
    LSN,
    PAYLOAD,
    RELATION,
    SEQ,
    SUBXID,
    TXN,
    VERSION,
    XID,
)
from pgoutput_fast._core.tagging.window_tags cimport Tags

from pgoutput_fast.schema.tables import TAGGED_SCHEMA

# A window with more transactions becomes a table, because many small batches cost more than a table.
cdef size_t MOST_TRANSACTIONS = 16
# By kind: whether the message is neither a boundary message nor unknown.
cdef uint8_t[256] CHANGES_NO_PLACE
for _kind in range(256):
    CHANGES_NO_PLACE[_kind] = message_class(_kind) != 0 and not message_class(_kind) & BOUNDARY
# In `group_of`: a scope without changes.
cdef uint32_t NO_GROUP = <uint32_t> -1


@cython.final
cdef class WaitingRows:
    cdef int reserve(self, size_t count) except -1 nogil:
        self.kind.reserve(count)
        self.flags.reserve(count)
        self.start.reserve(count)
        self.length.reserve(count)
        self.scope_of.reserve(count)
        self.slot.reserve(count)
        self.oid.reserve(count)
        self.version.reserve(count)
        self.seq.reserve(count)
        return 0

    cdef int add(self, Tags tags, Window w, int64_t i, int32_t slot, uint32_t scope) except -1 nogil:
        """Adds message i of a window. It must be a change."""
        self.kind.push_back(w.kind[i])
        self.flags.push_back(w.flags[i])
        self.start.push_back(w.start[i])
        self.length.push_back(w.length[i])
        self.scope_of.push_back(scope)
        self.slot.push_back(slot)
        self.oid.push_back(self.versions.oids[slot])
        self.version.push_back(self.versions.ids[slot])
        self.seq.push_back(tags.seq_of(i))
        if tags.lsns != NULL:
            self.lsn.push_back(tags.lsns[i])
        self.rows += 1
        self.nbytes += w.length[i]
        return 0

    cdef int load(self, Tags tags, Window w) except -1:
        """Makes a window of the changes."""
        cdef int64_t i, count = self.rows
        w.reserve(count)
        tags.start(count, 0, self.seq.data(), self.lsn.data() if not self.lsn.empty() else NULL)
        tags.loaded = self
        tags.scopes.assign(self.scopes.begin(), self.scopes.end())
        w.base = self.base
        w.end = self.end
        w.first = 0
        w.count = count
        memcpy(w.kind, self.kind.data(), count)
        memcpy(w.flags, self.flags.data(), count)
        memcpy(w.start, self.start.data(), 4 * count)
        memcpy(w.length, self.length.data(), 4 * count)
        memcpy(tags.scope_of.data(), self.scope_of.data(), 4 * count)
        memcpy(tags.item_slot.data(), self.slot.data(), 4 * count)
        for i in range(count):
            tags.item_message[i] = <uint32_t> i
        tags.items = count
        return 0

    cdef int copy_payloads(self, Buffer& to) except -1 nogil:
        """Appends all payloads to a buffer."""
        cdef uint8_t* out = to.append_uninitialized(<size_t> self.nbytes)
        cdef int64_t i
        for i in range(self.rows):
            memcpy(out, self.base + self.start[i], self.length[i])
            out += self.length[i]
        return 0

    @property
    def is_shared(self):
        """Whether the payloads are in the caller's memory."""
        return self.owner is not None

    def copied(self):
        """Returns the same rows with their own copy of the payloads."""
        cdef WaitingRows other = WaitingRows.__new__(WaitingRows)
        other.versions, other.txn = self.versions, self.txn
        with nogil:
            other.reserve(<size_t> self.rows)
            other.copy.reserve(<size_t> self.nbytes)
            other.append(self)
        return other

    def joined(self, WaitingRows following):
        """Returns these rows followed by those of `following`, with their own copy of the payloads.

        Both must be of one transaction and one decoder, and have less than 2 GiB of payloads.
        """
        cdef WaitingRows other = WaitingRows.__new__(WaitingRows)
        other.versions, other.txn = self.versions, self.txn
        with nogil:
            other.reserve(<size_t> (self.rows + following.rows))
            other.copy.reserve(<size_t> (self.nbytes + following.nbytes))
            other.append(self)
            other.append(following)
        return other

    cdef int append(self, WaitingRows rows) except -1 nogil:
        """Appends the rows to rows that own their payloads."""
        cdef uint32_t at = <uint32_t> self.copy.size(), scopes = <uint32_t> self.scopes.size()
        cdef int64_t i
        rows.copy_payloads(self.copy)
        self.base = self.copy.data()
        self.end = self.base + self.copy.size()
        # An LSN of 0 is unknown.
        if not rows.lsn.empty() and self.lsn.empty():
            self.lsn.resize(<size_t> self.rows, 0)
        for i in range(rows.rows):
            self.start.push_back(at)
            at += rows.length[i]
            self.scope_of.push_back(scopes + rows.scope_of[i])
        if not rows.lsn.empty():
            self.lsn.insert(self.lsn.end(), rows.lsn.begin(), rows.lsn.end())
        elif not self.lsn.empty():
            self.lsn.resize(<size_t> (self.rows + rows.rows), 0)
        self.kind.insert(self.kind.end(), rows.kind.begin(), rows.kind.end())
        self.flags.insert(self.flags.end(), rows.flags.begin(), rows.flags.end())
        self.length.insert(self.length.end(), rows.length.begin(), rows.length.end())
        self.slot.insert(self.slot.end(), rows.slot.begin(), rows.slot.end())
        self.oid.insert(self.oid.end(), rows.oid.begin(), rows.oid.end())
        self.version.insert(self.version.end(), rows.version.begin(), rows.version.end())
        self.seq.insert(self.seq.end(), rows.seq.begin(), rows.seq.end())
        self.scopes.insert(self.scopes.end(), rows.scopes.begin(), rows.scopes.end())
        self.rows += rows.rows
        self.nbytes += rows.nbytes
        return 0

    def batch(self):
        """Returns the rows as a batch with TAGGED_SCHEMA, which has its own memory."""
        cdef TableBuilder t = TableBuilder(TAGGED_SCHEMA)
        with nogil:
            _write_columns(self, t)
            _write_payloads(self, t)
        return t.finish()


cdef int _write_columns(WaitingRows rows, TableBuilder t) except -1 nogil:
    """Writes all columns except the payload."""
    cdef int64_t* out[PAYLOAD]
    cdef const MessageScope* scope
    cdef vector[uint8_t] bits
    cdef size_t k, n = <size_t> rows.rows
    for k in range(<size_t> PAYLOAD):
        if k != <size_t> KIND and k != <size_t> IN_STREAM_COLUMN:
            out[k] = <int64_t*> t.columns[k].data.append_uninitialized(n * 8)
    bits.resize(n)
    for k in range(n):
        scope = &rows.scopes[rows.scope_of[k]]
        bits[k] = scope.in_stream
        out[SEQ][k] = rows.seq[k]
        out[LSN][k] = rows.lsn[k] if not rows.lsn.empty() and rows.lsn[k] != 0 else NONE64
        out[RELATION][k] = <int64_t> rows.oid[k]
        out[VERSION][k] = rows.version[k]
        out[TXN][k] = scope.txn
        out[XID][k] = scope.xid
        out[SUBXID][k] = scope.subxid
        out[COMMIT_LSN][k] = scope.commit_lsn
        out[COMMIT_TIMESTAMP][k] = scope.commit_timestamp
    for k in range(<size_t> PAYLOAD):
        if k == <size_t> KIND:
            t.columns[k].data.append(rows.kind.data(), n)
            t.columns[k].append_validity(NULL, n)
        elif k == <size_t> IN_STREAM_COLUMN:
            append_bits(t.columns[k].data, 0, bits.data(), n)
            t.columns[k].append_validity(NULL, n)
        else:
            set_validity(t.columns[k][0], out[k], n, NONE64)
    return 0


cdef int _write_payloads(WaitingRows rows, TableBuilder t) except -1 nogil:
    # A window has less than 2 GiB, so 32-bit offsets are enough.
    cdef int32_t* offsets = t.columns[PAYLOAD].reserve_offsets(<size_t> rows.rows)
    cdef int32_t at = 0
    cdef int64_t i
    rows.copy_payloads(t.columns[PAYLOAD].data)
    for i in range(rows.rows):
        at += <int32_t> rows.length[i]
        offsets[i + 1] = at
    t.columns[PAYLOAD].append_validity(NULL, <size_t> rows.rows)
    return 0


# ---- a tagged window -----------------------------------------------------------------------------------------------


cdef bint _has(Window w, uint8_t kind) noexcept nogil:
    return memchr(w.kind, kind, <size_t> w.count) != NULL


cdef bint _as_announced(Tags tags, Window w, int64_t i) noexcept nogil:
    """Whether a valid Commit has the time that its Begin announced. The tagger has already compared the LSNs."""
    return (w.length[i] == 26 and tags.scopes[tags.scope_of[i]].commit_timestamp
            == <int64_t> load64(w.base + w.start[i] + 18) + EPOCH_SHIFT)


cdef PlainEnd plain_end(Tags tags, Window w, int64_t* items) noexcept nogil:
    """Finds the end of the last plain transaction in a tagged window. `items` receives the number of items before it.

    The result is OTHER_ENDS if there are invalid boundary messages or boundary messages other than those of plain
    transactions. It is also OTHER_ENDS if there is a Truncate or a logical message: the tagger has already recorded it,
    so those of earlier rows would come after it.
    """
    cdef int64_t i, last = -1
    cdef uint8_t kind
    if _has(w, MSG_TRUNCATE) or _has(w, MSG_MESSAGE):
        return OTHER_ENDS
    for i in range(w.count):
        kind = w.kind[i]
        if kind == MSG_COMMIT:
            if not tags.taken[i] or not _as_announced(tags, w, i):
                return OTHER_ENDS
            last = i
        elif CHANGES_NO_PLACE[kind]:
            continue
        elif kind != MSG_BEGIN or not tags.taken[i]:
            return OTHER_ENDS
    items[0] = tags.items
    while items[0] > 0 and <int64_t> tags.item_message[items[0] - 1] > last:
        items[0] -= 1
    return ENDED if last >= 0 else NO_END


cdef list waiting_rows(StreamTracker tracker, Window w, Payloads payloads, int64_t first=-1):
    """Returns the changes of a tagged window, by transaction: WaitingRows that share the memory of the payloads.

    With `first`, it skips the items before: only changes of few transactions may follow. Without `first`, it returns
    None if the window has a Truncate or a logical message, or too many transactions.
    """
    cdef Tags tags = tracker.tags
    cdef vector[int64_t] txns            # per group
    cdef vector[uint32_t] group_of       # per scope
    cdef vector[uint32_t] place_of       # per scope: its index among the group's scopes
    cdef vector[int64_t] counts          # per group: number of changes
    cdef list found = []
    cdef WaitingRows rows
    cdef bint few
    cdef size_t k, group
    if first < 0:
        if _has(w, MSG_TRUNCATE) or _has(w, MSG_MESSAGE):
            return None
        first = 0
    with nogil:
        few = _group_scopes(tags, first, txns, group_of, counts)
    if not few:
        return None
    for group in range(txns.size()):
        rows = WaitingRows.__new__(WaitingRows)
        rows.versions, rows.owner, rows.txn = tracker.versions, payloads.owner, txns[group]
        rows.base, rows.end = w.base, w.end
        with nogil:
            rows.reserve(<size_t> counts[group])
            if tags.lsns != NULL:
                rows.lsn.reserve(<size_t> counts[group])
        found.append(rows)
    place_of.resize(tags.scopes.size())
    for k in range(tags.scopes.size()):
        if group_of[k] < txns.size():
            rows = found[group_of[k]]
            place_of[k] = <uint32_t> rows.scopes.size()
            rows.scopes.push_back(tags.scopes[k])
    _add_items(tags, w, first, found, group_of, place_of)
    return found


cdef bint _group_scopes(Tags tags, int64_t first, vector[int64_t]& txns, vector[uint32_t]& group_of,
                        vector[int64_t]& counts) except -1 nogil:
    """Groups the scopes that have changes by transaction. Returns False if there are too many transactions."""
    cdef int64_t item
    cdef uint32_t scope
    cdef size_t group
    group_of.resize(tags.scopes.size(), NO_GROUP)
    for item in range(first, tags.items):
        scope = tags.scope_of[tags.item_message[item]]
        if group_of[scope] == NO_GROUP:
            group = 0
            while group < txns.size() and txns[group] != tags.scopes[scope].txn:
                group += 1
            if group == txns.size():
                if group == MOST_TRANSACTIONS or tags.scopes[scope].txn == NONE64:
                    return False
                txns.push_back(tags.scopes[scope].txn)
                counts.push_back(0)
            group_of[scope] = <uint32_t> group
        counts[group_of[scope]] += 1
    return True


cdef int _add_items(Tags tags, Window w, int64_t first, list found, vector[uint32_t]& group_of,
                    vector[uint32_t]& place_of) except -1:
    """Adds all items of the window to the rows of their transactions."""
    cdef WaitingRows rows
    cdef int64_t item = first
    cdef uint32_t group
    # Most messages are of the same transaction as the previous one.
    while item < tags.items:
        group = group_of[tags.scope_of[tags.item_message[item]]]
        rows = found[group]
        with nogil:
            while item < tags.items and group_of[tags.scope_of[tags.item_message[item]]] == group:
                rows.add(tags, w, tags.item_message[item], tags.item_slot[item],
                         place_of[tags.scope_of[tags.item_message[item]]])
                item += 1
    return 0
