"""The stream state as plain values, and back: what StreamState pickles and writes as JSON."""
from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from pgoutput_fast._core.stream_state cimport (
    NONE64,
    OUTSIDE,
    PLAIN,
    PREPARING,
    SLOT_LOST,
    STREAMING,
    Known,
    ScopedRelation,
    ScopedType,
    SharedMap,
    StreamState,
    Transaction,
    TypeName,
)
from pgoutput_fast._core.tag cimport Tagger

CONTEXTS = ("outside", "plain", "preparing", "streaming")


cdef str _text(const string& text):
    # Cython's own way makes a copy, which it does not expect to fail.
    return text.data()[:text.size()].decode("utf-8")


cdef object _nullable(int64_t value):
    return None if value == NONE64 else value


cdef int64_t _or_none64(value) except? -2:
    return NONE64 if value is None else <int64_t> value


cdef object _version(list versions, int32_t slot):
    """Version ids use all of int64, more than JSON numbers promise to keep: they are written as strings."""
    return None if slot < 0 else str(versions[slot].version)


cdef dict _export_relations(const SharedMap[Known]& known, list versions):
    cdef vector[uint32_t] oids = known.keys()
    return {str(oid): [_version(versions, known.find(oid).slot), known.find(oid).seq] for oid in oids}


cdef dict _export_types(const SharedMap[TypeName]& known):
    cdef vector[uint32_t] oids = known.keys()
    return {
        str(oid): [
            _text(known.find(oid).name_space),
            _text(known.find(oid).name),
            known.find(oid).seq,
        ]
        for oid in oids
    }


cdef dict _export_transaction(const Transaction& t, list versions):
    cdef vector[ScopedRelation] relations = t.all_relations()
    cdef vector[ScopedType] types = t.all_types()
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
            [relations[i].oid, relations[i].subxid, _version(versions, relations[i].known.slot), relations[i].known.seq]
            for i in range(<int> relations.size())
        ],
        "types": [
            [types[i].oid, types[i].subxid, _text(types[i].type.name_space),
             _text(types[i].type.name), types[i].type.seq]
            for i in range(<int> types.size())
        ],
    }
    return values


cdef dict _export_prepared(Tagger tagger, uint32_t xid):
    cdef const Transaction* t = tagger.state.prepared().find(xid)
    values = _export_transaction(t[0], tagger.versions)
    if tagger.state.perhaps_ended(t[0]):
        values["perhaps_ended"] = True
    return values


def export_state(Tagger tagger):
    """The state as a dict of JSON values; relation versions by their ids."""
    cdef StreamState* s = &tagger.state
    cdef vector[uint32_t] xids = s.streamed.keys()
    streamed = [_export_transaction(s.streamed.find(xid)[0], tagger.versions) for xid in xids]
    xids = s.prepared().keys()
    prepared = [_export_prepared(tagger, xid) for xid in xids]
    return {
        "next_seq": s.next_seq,
        "context": CONTEXTS[<int> s.context],
        "lost": bool(s.lost),
        "bad_type": bool(s.bad_type),
        "session_starts": bool(s.session_starts),
        "message_lsn": s.message_lsn,
        "repeated_lsn": s.repeated_lsn,
        "current": _export_transaction(s.current, tagger.versions) if s.context != OUTSIDE else None,
        "streamed": streamed,
        "prepared": prepared,
        "relations": _export_relations(s.relations(), tagger.versions),
        "types": _export_types(s.types()),
    }


cdef int32_t _slot(Tagger tagger, version) except? -9:
    if version is None:
        return SLOT_LOST
    cdef int32_t slot = tagger.slot_of_version(int(version))
    if slot < 0:
        raise ValueError(f"the state refers to relation version {version}, which its catalog lacks")
    return slot


cdef int _import_transaction(Tagger tagger, dict values, Transaction* t) except -1:
    cdef ScopedRelation relation
    cdef ScopedType scoped
    t[0] = Transaction()
    t.txn = _or_none64(values["txn"])
    t.xid = values["xid"]
    t.commit_lsn = _or_none64(values["commit_lsn"])
    t.commit_timestamp = _or_none64(values["commit_timestamp"])
    t.gid = values["gid"].encode()
    t.prepare_end_lsn = _or_none64(values["prepare_end_lsn"])
    t.prepare_timestamp = _or_none64(values["prepare_timestamp"])
    t.doubtful = values["doubtful"]
    t.has_origin = values["origin"] is not None
    t.origin = (values["origin"] or "").encode()
    t.origin_lsn = _or_none64(values["origin_lsn"])
    for oid, subxid, version, seq in values["relations"]:
        relation.oid = oid
        relation.subxid = subxid
        relation.known.slot = _slot(tagger, version)
        relation.known.seq = seq
        t.learn(relation)
    for oid, subxid, namespace, name, seq in values["types"]:
        scoped.oid = oid
        scoped.subxid = subxid
        scoped.type.name_space = namespace.encode()
        scoped.type.name = name.encode()
        scoped.type.seq = seq
        t.learn(scoped)
    return 0


def import_state(Tagger tagger, dict values):
    """The inverse of `export_state`; the versions it names must have slots. KeyError, TypeError, AttributeError or
    OverflowError for other dicts."""
    cdef StreamState s
    cdef Known known
    cdef TypeName named
    cdef Transaction t
    s.next_seq = values["next_seq"]
    if values["context"] not in CONTEXTS:
        raise TypeError("its context is none")
    s.context = (OUTSIDE, PLAIN, PREPARING, STREAMING)[CONTEXTS.index(values["context"])]
    s.lost = values["lost"]
    s.bad_type = values["bad_type"]
    s.session_starts = values["session_starts"]
    s.message_lsn = values["message_lsn"]
    s.repeated_lsn = values["repeated_lsn"]
    if values["current"] is not None:
        _import_transaction(tagger, values["current"], &s.current)
    for each in values["streamed"]:
        _import_transaction(tagger, each, &t)
        if s.streamed.count(t.xid):
            raise ValueError(f"the state has two streamed transactions with xid {t.xid}")
        s.streamed.edit(t.xid).swap(t)
    for each in values["prepared"]:
        _import_transaction(tagger, each, &t)
        if s.prepared().count(t.xid):
            raise ValueError(f"the state has two prepared transactions with xid {t.xid}")
        s.prepare(t, each.get("perhaps_ended", False))
    for oid, (version, seq) in values["relations"].items():
        known.slot = _slot(tagger, version)
        known.seq = seq
        s.describe(<uint32_t> int(oid), known)
    for oid, (namespace, name, seq) in values["types"].items():
        named.name_space = namespace.encode()
        named.name = name.encode()
        named.seq = seq
        s.name_type(<uint32_t> int(oid), named)
    if s.context == STREAMING and s.streamed.count(s.current.xid) == 0:
        raise ValueError("the state says that a stream block is open, but not which")
    tagger.state.swap(s)
    tagger.forget_lookups()
    if tagger.state.context == PLAIN or tagger.state.context == PREPARING:
        tagger.set_run(tagger.state.current.txn, tagger.state.current.xid, NONE64, tagger.state.current.commit_lsn, tagger.state.current.commit_timestamp, False)
    elif tagger.state.context == STREAMING:
        tagger.set_run(tagger.state.streamed.find(tagger.state.current.xid).txn, tagger.state.current.xid, NONE64, NONE64, NONE64, True)
    else:
        tagger.set_run(NONE64, NONE64, NONE64, NONE64, NONE64, False)
