"""Selects control messages: messages that change a stream's state, so that later messages depend on them."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset
from libcpp.algorithm cimport sort, unique
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.boundary cimport parse_boundary
from pgoutput_fast._core.protocol.fields cimport Fields, finish, read_lsn, read_text, start_fields
from pgoutput_fast._core.protocol.kinds cimport (
    MSG_BEGIN,
    MSG_BEGIN_PREPARE,
    MSG_COMMIT,
    MSG_MESSAGE,
    MSG_ORIGIN,
    MSG_STREAM_START,
    MSG_TRUNCATE,
)
from pgoutput_fast._core.protocol.reasons cimport OK
from pgoutput_fast._core.tagging.scan cimport (
    BETWEEN,
    BOUNDARY,
    CHANGE,
    ELSEWHERE,
    INSIDE,
    Payloads,
    SearchPosition,
    damaged_offsets,
    message_class,
    offset_at,
)
from pgoutput_fast._core.tagging.seen_lsns cimport MOST_LSNS, SeenLsns
from pgoutput_fast._core.tagging.stream_state cimport OUTSIDE, PLAIN, PREPARING, STREAMING, BoundaryRecord
from pgoutput_fast._core.protocol.wire cimport load32, load64, prefetch

import numpy as np

INT64, UINT32 = np.dtype(np.int64), np.dtype(np.uint32)

# Number of largest LSNs of logical messages to keep. A state has MOST_LSNS of them, and the largest of the rest.
LSNS_KEPT = MOST_LSNS + 1

# Prefetch distance, in messages. Tags are too far apart for the processor to prefetch them by itself.
cdef int64_t AHEAD = 16

# In addition to the contexts of a state: unknown.
cdef int UNKNOWN = -1

# Number of recently seen oids to compare with. Repeats beyond them are dropped later.
cdef enum:
    RECENT_BITS = 8
    RECENT = 1 << RECENT_BITS


cdef class _Oids:
    """A set of oids, for streams in which most changes have an oid that was seen shortly before.

    Oids come from the input. Its time is O(n log n) whatever they are, which a hash table does not promise.
    """
    cdef int64_t recent[RECENT]          # -1 if there is none
    cdef vector[uint32_t] oids           # may have duplicates
    cdef size_t distinct                 # number of oids when duplicates were last dropped

    def __cinit__(self):
        memset(self.recent, 0xFF, sizeof(self.recent))
        self.distinct = 0

    cdef int add(self, uint32_t oid) except -1 nogil:
        cdef size_t place = (oid * <uint32_t> 2654435761U) >> (32 - RECENT_BITS)
        if self.recent[place] == oid:
            return 0
        self.recent[place] = oid
        self.oids.push_back(oid)
        if self.oids.size() > 2 * self.distinct + 4 * RECENT:
            self.drop_duplicates()
        return 0

    cdef int drop_duplicates(self) except -1 nogil:
        sort(self.oids.begin(), self.oids.end())
        self.oids.erase(unique(self.oids.begin(), self.oids.end()), self.oids.end())
        self.distinct = self.oids.size()
        return 0

    cdef list all(self):
        self.drop_duplicates()
        return [self.oids[k] for k in range(self.oids.size())]


cdef inline int _add_relations(_Oids oids, uint8_t kind, const uint8_t* p, int64_t size,
                               bint in_stream) except -1 nogil:
    """Adds the relations of a change or a Truncate. A malformed message has none."""
    cdef int64_t at = 5 if in_stream else 1
    cdef int64_t count, k
    if kind != MSG_TRUNCATE:
        if size >= at + 4:
            oids.add(load32(p + at))
        return 0
    if size < at + 5:
        return 0
    count = <int32_t> load32(p + at)
    at += 5
    if size - at == count * 4:
        for k in range(count):
            oids.add(load32(p + at + 4 * k))
    return 0


cdef bint _is_origin(const uint8_t* p, int64_t size) noexcept nogil:
    cdef Fields f
    cdef const uint8_t* name = NULL
    cdef int64_t length = 0
    start_fields(&f, p, size, 1)
    read_lsn(&f)
    read_text(&f, &name, &length)
    finish(&f)
    return f.reason == OK


cdef int64_t _message_lsn(const uint8_t* p, int64_t size, bint in_stream) noexcept nogil:
    """Returns the LSN of a logical message if it is non-transactional, else 0."""
    cdef int64_t at = 5 if in_stream else 1
    cdef int64_t lsn
    if size < at + 9 or p[at] != 0:
        return 0
    lsn = <int64_t> load64(p + at + 1)
    return lsn if lsn > 0 else 0


cdef int _hear(SeenLsns& seen, int64_t lsn) except -1 nogil:
    if lsn > 0:
        seen.add(lsn)
    return 0


cdef object _array(const void* data, size_t count, object dtype):
    return np.frombuffer((<const char*> data)[:count * <size_t> dtype.itemsize], dtype)


cdef list _largest(const SeenLsns& seen):
    # `floor` is included: it is the largest LSN that the set dropped.
    cdef vector[int64_t] lsns = seen.lsns()
    return ([seen.floor()] if seen.floor() > 0 else []) + [lsns[k] for k in range(lsns.size())]


cdef class _Selection:
    """The result of `select` for a batch of payloads."""
    cdef vector[int64_t] kept
    # Of the plain transactions that were left out: ordinals of Begin and Commit, LSN and time of the Commit, and xids.
    cdef vector[int64_t] begun, ended, commit_lsns, commit_timestamps
    cdef vector[uint32_t] begun_xids
    cdef SeenLsns seen, seen_outside, seen_inside
    cdef _Oids oids, oids_outside, oids_inside
    cdef int context                     # at the current message
    cdef SearchPosition place
    # The plain transaction around the current message, if `place` is INSIDE.
    cdef int64_t begin, lsn              # ordinal of its Begin, LSN of the Commit that the Begin announced
    cdef uint32_t xid
    cdef size_t first                    # index of its Begin in `kept`

    def __cinit__(self):
        self.oids, self.oids_outside, self.oids_inside = _Oids(), _Oids(), _Oids()

    cdef int64_t select(self, Payloads payloads, int context, bint seen_end) except -2 nogil:
        """Returns the number of messages read, or -1 if offsets are damaged."""
        cdef int64_t count = payloads.count
        cdef int64_t i, end
        cdef int64_t at = offset_at(payloads, 0)
        cdef uint8_t kind, cls
        cdef const uint8_t* p
        self.context = context
        self.place = BETWEEN if seen_end and context == OUTSIDE else ELSEWHERE
        for i in range(count):
            end = offset_at(payloads, i + 1)
            if end < at or at < 0 or end > payloads.data_size:
                return -1
            if i + AHEAD < count:
                prefetch(payloads.data + offset_at(payloads, i + AHEAD))
            p = payloads.data + at
            kind = p[0] if at < end else 0
            cls = message_class(kind)
            if cls & CHANGE or kind == MSG_TRUNCATE:
                self._see_change(kind, p, end - at)
                at = end
                continue
            if kind == MSG_MESSAGE:
                self._see_message(p, end - at)
                at = end
                continue
            self.kept.push_back(i)
            if cls == 0:
                return i + 1  # later messages are not read
            if cls & BOUNDARY:
                self._read_boundary(payloads, i, p, end - at)
            elif kind == MSG_ORIGIN and not _is_origin(p, end - at):
                self.place = ELSEWHERE
            at = end
        return count

    cdef int _see_change(self, uint8_t kind, const uint8_t* p, int64_t size) except -1 nogil:
        """Keeps the oids of a change or a Truncate."""
        if self.context == UNKNOWN:
            _add_relations(self.oids_outside, kind, p, size, False)
            _add_relations(self.oids_inside, kind, p, size, True)
        else:
            _add_relations(self.oids, kind, p, size, self.context == STREAMING)
        return 0

    cdef int _see_message(self, const uint8_t* p, int64_t size) except -1 nogil:
        """Keeps the LSN of a non-transactional logical message."""
        if self.context == UNKNOWN:
            _hear(self.seen_outside, _message_lsn(p, size, False))
            _hear(self.seen_inside, _message_lsn(p, size, True))
        else:
            _hear(self.seen, _message_lsn(p, size, self.context == STREAMING))
        return 0

    cdef int _read_boundary(self, Payloads payloads, int64_t i, const uint8_t* p, int64_t size) except -1 nogil:
        """Updates the context from boundary message i."""
        cdef Fields f
        cdef BoundaryRecord b
        cdef const uint8_t* gid = NULL
        cdef int64_t gid_length = 0
        cdef uint8_t kind = p[0]
        start_fields(&f, p, size, 1)
        if self.place == BETWEEN and kind == MSG_BEGIN:
            parse_boundary(&f, kind, &b, &gid, &gid_length)
            self.place = INSIDE if f.reason == OK else ELSEWHERE
            self.begin = i
            self.lsn = b.lsn
            self.xid = <uint32_t> b.xid
            self.first = self.kept.size() - 1
        elif self.place == INSIDE and kind == MSG_COMMIT:
            parse_boundary(&f, kind, &b, &gid, &gid_length)
            if f.reason == OK and b.lsn == self.lsn:
                self._drop_transaction(payloads, i, b.timestamp)
                self.place = BETWEEN
            else:
                self.place = ELSEWHERE
        elif kind == MSG_BEGIN or kind == MSG_BEGIN_PREPARE or kind == MSG_STREAM_START or self.place == INSIDE:
            self.place = ELSEWHERE
        else:
            self.place = BETWEEN
        self.context = (STREAMING if kind == MSG_STREAM_START else PLAIN if kind == MSG_BEGIN else
                        PREPARING if kind == MSG_BEGIN_PREPARE else OUTSIDE)
        return 0

    cdef int _drop_transaction(self, Payloads payloads, int64_t end, int64_t timestamp) except -1 nogil:
        """Drops a plain transaction that has ended with message `end`, except its Relation and Type messages."""
        cdef size_t k, left = self.first
        self.begun.push_back(self.begin)
        self.ended.push_back(end)
        self.commit_lsns.push_back(self.lsn)
        self.commit_timestamps.push_back(timestamp)
        self.begun_xids.push_back(self.xid)
        for k in range(self.first + 1, self.kept.size() - 1):
            if payloads.data[offset_at(payloads, self.kept[k])] != MSG_ORIGIN:
                self.kept[left] = self.kept[k]
                left += 1
        self.kept.resize(left)
        return 0


def control_messages(array, int context, bint seen_end):
    """Selects the messages of a batch of payloads that change the state.

    Args:
        array: payloads, a binary or large binary Arrow array.
        context: the context before the first message: 0 nothing open, 1 a plain transaction, 2 a transaction that is
            being prepared, 3 a stream block, -1 unknown.
        seen_end: whether an earlier message ended a transaction. If not, nothing is left out until the batch ends one.

    Returns:
        A dict with these keys:

        messages: ordinals of boundary, Relation, Type and Origin messages. Boundary and Origin messages of plain
            transactions that begin and end in the batch are left out. A message with an unknown kind byte is the last:
            later messages are not read.
        begun, ended: int64 arrays, ordinals of the Begins and the Commits that were left out.
        xids: uint32 array, the xids of these transactions.
        commit_lsns, commit_timestamps: int64 arrays, LSN and time (microseconds since 1970) of their commits.
        lsns: the largest distinct LSNs of non-transactional logical messages, at most `LSNS_KEPT`, in ascending order.
        relations: oids of the relations of changes and Truncates, ascending.
        relations_before: two lists like `relations`, of messages with unknown context, as for `lsns_before`.
        lsns_before: two lists like `lsns`, of messages with unknown context: as read outside of a stream block, and as
            read inside of one.
    """
    cdef Payloads payloads = Payloads(array)
    cdef _Selection found = _Selection()
    cdef int64_t looked_at = 0
    cdef size_t k
    if payloads.count:
        with nogil:
            looked_at = found.select(payloads, context, seen_end)
    if looked_at < 0:
        raise damaged_offsets(-1)
    return {
        "messages": [found.kept[k] for k in range(found.kept.size())],
        "begun": _array(found.begun.data(), found.begun.size(), INT64),
        "ended": _array(found.ended.data(), found.ended.size(), INT64),
        "xids": _array(found.begun_xids.data(), found.begun_xids.size(), UINT32),
        "commit_lsns": _array(found.commit_lsns.data(), found.commit_lsns.size(), INT64),
        "commit_timestamps": _array(found.commit_timestamps.data(), found.commit_timestamps.size(), INT64),
        "relations": found.oids.all(),
        "relations_before": (found.oids_outside.all(), found.oids_inside.all()),
        "lsns": _largest(found.seen),
        "lsns_before": (_largest(found.seen_outside), _largest(found.seen_inside)),
    }


def boundary_of(bytes payload):
    """Returns (xid, subxid, lsn, end_lsn, gid, first segment) of a boundary message; None if it is malformed.

    If its kind does not have a field, an xid is 0, an LSN is -2**63, the gid is empty and `first segment` is False.
    """
    cdef Fields f
    cdef BoundaryRecord b
    cdef const uint8_t* gid = NULL
    cdef int64_t gid_length = 0
    cdef const uint8_t* p = payload
    start_fields(&f, p, len(payload), 1)
    parse_boundary(&f, p[0], &b, &gid, &gid_length)
    if f.reason != OK:
        return None
    name = (<const char*> gid)[:gid_length] if gid != NULL else b""
    return (
        <uint32_t> b.xid, <uint32_t> b.subxid, b.lsn, b.end_lsn, name, b.first_segment == 1
    )


def is_origin(bytes payload):
    """Whether an Origin message is well-formed."""
    cdef const uint8_t* p = payload
    return bool(_is_origin(p, len(payload)))
