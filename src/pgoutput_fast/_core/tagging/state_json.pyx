"""Converts the stream state to plain values and back. StreamState pickles these values and writes them as JSON.

The descriptions by Relation and Type messages outside of streams have a value per relation and type, so they are large
if there are many tables. `Described` keeps them unconverted, at no cost, until the values are needed.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from pgoutput_fast._core.tagging.seen_lsns cimport MOST_LSNS, SeenLsns
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    OUTSIDE,
    PLAIN,
    PREPARING,
    SLOT_LOST,
    STREAMING,
    RelationDescription,
    ScopedRelation,
    ScopedType,
    SharedMap,
    StreamState,
    Transaction,
    TypeName,
    set_text,
)
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker

CONTEXTS = ("outside", "plain", "preparing", "streaming")

# Stands for the whole transaction in a list of its subtransactions. No xid is 0.
_WHOLE = 0


cdef str _text(const string& text):
    # Cython's own conversion copies the string, and does not handle a failed copy.
    return text.data()[:text.size()].decode("utf-8")


cdef object _nullable(int64_t value):
    return None if value == NONE64 else value


cdef int64_t _or_none64(value) except? -2:
    return NONE64 if value is None else <int64_t> value


# Decoding continues from the ordinals of a state. Up to this limit, the counters cannot overflow.
cdef int64_t LAST_ORDINAL = <int64_t> 1 << 62


cdef int64_t _ordinal(value) except? -2:
    cdef int64_t ordinal = value
    if not 0 <= ordinal <= LAST_ORDINAL:
        raise ValueError("not a stream state: an ordinal is none")
    return ordinal


cdef object _version(list versions, int32_t slot):
    """Returns a version id as a string: it uses all of int64, and JSON numbers may lose digits."""
    return None if slot < 0 else str(versions[slot].version)


@cython.final
cdef class Described:
    """The descriptions by Relation and Type messages outside of streams at one moment.

    `relations` returns {oid: [version, seq]} and `types` returns {oid: [namespace, name, seq]}. `changed_since` returns
    only the changes since an earlier moment.
    """
    cdef SharedMap[RelationDescription] known
    cdef SharedMap[TypeName] named
    cdef list versions                   # of the stream; grows
    cdef dict slots                      # version id -> slot, its index in `versions`
    cdef int64_t lost_at                 # descriptions before this message are lost

    cdef object _relations(self, vector[uint32_t] oids):
        cdef const RelationDescription* known
        found = {}
        for oid in oids:
            known = self.known.find(oid)
            found[str(oid)] = [
                _version(self.versions, known.slot if known.seq >= self.lost_at else <int32_t> SLOT_LOST), known.seq
            ]
        return found

    cdef object _types(self, vector[uint32_t] oids):
        return {
            str(oid): [
                _text(self.named.find(oid).name_space),
                _text(self.named.find(oid).name),
                self.named.find(oid).seq,
            ]
            for oid in oids
        }

    def relations(self):
        return self._relations(self.known.keys())

    def types(self):
        return self._types(self.named.keys())

    def changed_since(self, Described before):
        """Returns (relations, types) that differ from those of `before`.

        None if `before` is of another stream, or if all descriptions up to then are lost.
        """
        if before.versions is not self.versions or before.lost_at != self.lost_at:
            return None
        return (
            self._relations(self.known.changed_since(before.known)),
            self._types(self.named.changed_since(before.named)),
        )

    def in_order(self, versions):
        """Returns the stream's relation versions with these ids, in the order of their first description."""
        return [self.versions[slot] for slot in sorted(self.slots[each] for each in versions if each in self.slots)]


cdef dict _export_transaction(const StreamState& s, const Transaction& t, list versions):
    cdef vector[ScopedRelation] relations = t.all_relations()
    cdef vector[ScopedType] types = t.all_types()
    cdef vector[uint32_t] unread = t.unread()
    values = {
        "txn": _nullable(t.txn),
        "xid": t.xid,
        "commit_lsn": _nullable(t.commit_lsn),
        "commit_timestamp": _nullable(t.commit_timestamp),
        "gid": _text(t.gid),
        "prepare_end_lsn": _nullable(t.prepare_end_lsn),
        "prepare_timestamp": _nullable(t.prepare_timestamp),
        "doubtful": bool(t.doubtful),
        "origin": _text(t.origin) if t.has_origin else None,
        "origin_lsn": _nullable(t.origin_lsn),
        "relations": [
            [relations[i].oid, relations[i].subxid, _version(versions, s.slot_of(relations[i].known)),
             relations[i].known.seq]
            for i in range(<int> relations.size())
        ],
        "types": [
            [types[i].oid, types[i].subxid, _text(types[i].type.name_space),
             _text(types[i].type.name), types[i].type.seq]
            for i in range(<int> types.size())
        ],
    }
    if unread.size():
        values["relations_missed"] = list(unread)  # the subtransactions that missed them
    return values


cdef dict _export_stream(StreamTracker tracker, uint32_t xid):
    cdef const Transaction* t = tracker.state.streamed.find(xid)
    values = _export_transaction(tracker.state, t[0], tracker.versions.relations)
    values["doubtful"] = bool(tracker.state.is_doubtful(t[0]))
    if tracker.state.missed_messages(t[0]):
        values["relations_missed"] = sorted({_WHOLE, *values.get("relations_missed", ())})
    return values


cdef dict _export_prepared(StreamTracker tracker, uint32_t xid):
    cdef const Transaction* t = tracker.state.prepared().find(xid)
    values = _export_transaction(tracker.state, t[0], tracker.versions.relations)
    if tracker.state.perhaps_ended(t[0]):
        values["perhaps_ended"] = True
    return values


cdef list _export_messages(const SeenLsns& seen):
    """Returns the LSNs in ascending order, as differences from the previous LSN; the first one from `floor`."""
    cdef vector[int64_t] lsns = seen.lsns()
    cdef size_t k
    return [lsns[k] - (lsns[k - 1] if k else seen.floor()) for k in range(lsns.size())]


def export_state(StreamTracker tracker):
    """Returns (the state as a dict of JSON values, a `Described` with the rest). Relation versions are given as ids."""
    cdef StreamState* s = &tracker.state
    cdef Described described = Described.__new__(Described)
    described.known = s.relations()
    described.named = s.types()
    described.versions = tracker.versions.relations
    described.slots = tracker.versions.slots
    described.lost_at = s.relations_lost_at()
    cdef vector[uint32_t] xids = s.streamed.keys()
    streamed = [_export_stream(tracker, xid) for xid in xids]
    xids = s.prepared().keys()
    prepared = [_export_prepared(tracker, xid) for xid in xids]
    values = {
        "next_seq": s.next_seq,
        "context": CONTEXTS[<int> s.context],
        "lost": bool(s.lost),
        "bad_type": bool(s.bad_type),
        "session_starts": bool(s.session_starts),
        "message_floor": s.messages.floor(),
        "message_lsns": _export_messages(s.messages),
        "current": _export_transaction(s[0], s.current, tracker.versions.relations) if s.context != OUTSIDE else None,
        "streamed": streamed,
        "prepared": prepared,
    }
    return values, described


cdef int32_t _slot(StreamTracker tracker, version) except? -9:
    if version is None:
        return SLOT_LOST
    cdef int32_t slot = tracker.versions.slot_of_id(int(version))
    if slot < 0:
        raise ValueError(f"the state refers to relation version {version}, which its catalog lacks")
    return slot


cdef int _import_transaction(StreamTracker tracker, dict values, Transaction* t) except -1:
    cdef ScopedRelation relation
    cdef ScopedType scoped
    t[0] = Transaction()
    t.txn = NONE64 if values["txn"] is None else _ordinal(values["txn"])
    t.xid = values["xid"]
    t.commit_lsn = _or_none64(values["commit_lsn"])
    t.commit_timestamp = _or_none64(values["commit_timestamp"])
    set_text(t.gid, values["gid"].encode())
    t.prepare_end_lsn = _or_none64(values["prepare_end_lsn"])
    t.prepare_timestamp = _or_none64(values["prepare_timestamp"])
    t.doubtful = values["doubtful"]
    t.has_origin = values["origin"] is not None
    set_text(t.origin, (values["origin"] or "").encode())
    t.origin_lsn = _or_none64(values["origin_lsn"])
    for oid, subxid, version, seq in values["relations"]:
        relation.oid = oid
        relation.subxid = subxid
        relation.known.slot = _slot(tracker, version)
        relation.known.seq = seq
        t.learn(relation)
    for oid, subxid, namespace, name, seq in values["types"]:
        scoped.oid = oid
        scoped.subxid = subxid
        set_text(scoped.type.name_space, namespace.encode())
        set_text(scoped.type.name, name.encode())
        scoped.type.seq = seq
        t.learn(scoped)
    for subxid in values.get("relations_missed", ()):
        t.miss_relation(subxid)
    return 0


cdef int64_t _lsn(value) except? -2:
    cdef int64_t lsn = value
    if type(value) is not int or lsn < 0:
        raise ValueError("not a stream state: an LSN is none")
    return lsn


cdef int _import_messages(dict values, SeenLsns* seen) except -1:
    cdef int64_t lsn
    if "message_lsn" in values:
        # Earlier versions of this package wrote the last LSN, and the highest LSN of earlier sessions. A server sends
        # messages in LSN order, so a message is a repeat unless its LSN is above both.
        lsn, distances = max(_lsn(values["message_lsn"]), _lsn(values.get("repeated_lsn", 0))), []
    else:
        lsn, distances = _lsn(values["message_floor"]), values["message_lsns"]
    if type(distances) is not list or len(distances) > MOST_LSNS:
        raise ValueError(f"not a stream state: its LSNs of logical messages are no list of at most {MOST_LSNS}")
    seen[0] = SeenLsns(lsn)
    for distance in distances:
        if type(distance) is not int or distance < 1:
            raise ValueError("not a stream state: its LSNs of logical messages do not ascend")
        lsn = _lsn(<object> lsn + distance)
        seen.add(lsn)
    return 0


def import_state(StreamTracker tracker, dict values):
    """Restores a state from the values of `export_state`, merged into one dict. The versions in it must have slots.

    Raises:
        KeyError, TypeError, AttributeError, OverflowError, ValueError: if the dict is not a state.
    """
    cdef StreamState s
    cdef RelationDescription known
    cdef TypeName named
    cdef Transaction t
    s.next_seq = _ordinal(values["next_seq"])
    if values["context"] not in CONTEXTS:
        raise TypeError("its context is none")
    s.context = (OUTSIDE, PLAIN, PREPARING, STREAMING)[CONTEXTS.index(values["context"])]
    s.lost = values["lost"]
    s.bad_type = values["bad_type"]
    s.session_starts = values["session_starts"]
    _import_messages(values, &s.messages)
    if (values["current"] is None) != (s.context == OUTSIDE):
        raise ValueError("not a stream state: what is open and what it is do not agree")
    if values["current"] is not None:
        _import_transaction(tracker, values["current"], &s.current)
    for each in values["streamed"]:
        _import_transaction(tracker, each, &t)
        if s.streamed.count(t.xid):
            raise ValueError(f"the state has two streamed transactions with xid {t.xid}")
        s.streamed.edit(t.xid).swap(t)
    for each in values["prepared"]:
        _import_transaction(tracker, each, &t)
        if s.prepared().count(t.xid):
            raise ValueError(f"the state has two prepared transactions with xid {t.xid}")
        s.prepare(t, each.get("perhaps_ended", False))
    for oid, (version, seq) in values["relations"].items():
        known.slot = _slot(tracker, version)
        known.seq = seq
        s.describe(<uint32_t> int(oid), known)
    for oid, (namespace, name, seq) in values["types"].items():
        set_text(named.name_space, namespace.encode())
        set_text(named.name, name.encode())
        named.seq = seq
        s.name_type(<uint32_t> int(oid), named)
    if s.context == STREAMING and s.streamed.count(s.current.xid) == 0:
        raise ValueError("the state says that a stream block is open, but not which")
    tracker.state.swap(s)
    tracker.forget_lookups()
    cdef const Transaction* open_one = &tracker.state.current
    if tracker.state.context == PLAIN or tracker.state.context == PREPARING:
        tracker.set_scope(open_one.txn, open_one.xid, NONE64, open_one.commit_lsn, open_one.commit_timestamp, False)
    elif tracker.state.context == STREAMING:
        tracker.set_scope(tracker.state.streamed.find(open_one.xid).txn, open_one.xid, NONE64, NONE64, NONE64, True)
    else:
        tracker.set_scope(NONE64, NONE64, NONE64, NONE64, NONE64, False)
