from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from pgoutput_fast._core.tagging.seen_lsns cimport SeenLsns


cdef extern from "tagging/stream_state.hpp" namespace "pgo" nogil:
    const int64_t NONE64
    const int32_t SLOT_UNKNOWN
    const int32_t SLOT_LOST

    cdef cppclass RelationDescription:
        int32_t slot
        int64_t seq

    cdef cppclass ScopedRelation:
        uint32_t oid
        uint32_t subxid
        RelationDescription known

    cdef cppclass TypeName:
        string name_space
        string name
        int64_t seq
        void swap(TypeName& other)

    cdef cppclass ScopedType:
        uint32_t oid
        uint32_t subxid
        TypeName type

    cdef cppclass Transaction:
        Transaction() except +
        int64_t txn
        uint32_t xid
        int64_t commit_lsn
        int64_t commit_timestamp
        string gid
        int64_t prepare_end_lsn
        int64_t prepare_timestamp
        cbool doubtful
        cbool has_origin
        string origin
        int64_t origin_lsn
        void begin(int64_t key, uint32_t its_xid)
        void swap(Transaction& other)
        const RelationDescription* relation(uint32_t oid)
        const TypeName* type(uint32_t oid)
        void learn(const ScopedRelation& description) except +
        void learn(const ScopedType& description) except +
        void forget(uint32_t subxid) except +
        void miss_relation(uint32_t subxid) except +
        vector[uint32_t] unread() except +
        vector[ScopedRelation] all_relations() except +
        vector[ScopedType] all_types() except +

    ctypedef enum Context "pgo::Context":
        OUTSIDE "pgo::OUTSIDE"
        PLAIN "pgo::PLAIN"
        PREPARING "pgo::PREPARING"
        STREAMING "pgo::STREAMING"

    cdef cppclass SharedMap[T]:
        cbool empty()
        const T* find(uint32_t key)
        size_t count(uint32_t key)
        T* edit(uint32_t key) except +
        void erase(uint32_t key) except +
        void clear()
        vector[uint32_t] keys() except +
        vector[uint32_t] changed_since(const SharedMap[T]& before) except +

    cdef cppclass StreamState:
        StreamState() except +
        StreamState(const StreamState&) except +
        int64_t next_seq
        Context context
        cbool lost
        cbool bad_type
        cbool session_starts
        SeenLsns messages
        int64_t commit_lsn, commit_end_lsn
        Transaction current
        SharedMap[Transaction] streamed
        const SharedMap[Transaction]& prepared()
        void prepare(const Transaction& transaction) except +
        void prepare(const Transaction& transaction, cbool doubted) except +
        void end_prepared(uint32_t xid) except +
        void doubt(int64_t seq)
        cbool is_doubtful(const Transaction& stream)
        cbool perhaps_ended(const Transaction& transaction)
        vector[uint32_t] doubted_with_gid(const string& gid) except +
        vector[Transaction] unfinished() except +
        void swap(StreamState& other)
        const SharedMap[RelationDescription]& relations()
        const SharedMap[TypeName]& types()
        void describe(uint32_t oid, RelationDescription known) except +
        void name_type(uint32_t oid, const TypeName& type) except +
        void lose_relations(int64_t seq)
        int64_t relations_lost_at()
        int32_t slot_of(const RelationDescription& known)
        void lose_messages(int64_t seq)
        cbool missed_messages(const Transaction& stream)
        cbool misses_relations(const Transaction& stream)
        const RelationDescription* relation(uint32_t oid)
        const TypeName* type(uint32_t oid)
        void promote(const Transaction& transaction) except +

    cdef cppclass MessageScope:
        int64_t txn
        int64_t xid
        int64_t subxid
        int64_t commit_lsn
        int64_t commit_timestamp
        cbool in_stream

    cdef cppclass Slice:
        int64_t offset
        int64_t length

    cdef cppclass BoundaryRecord:
        int64_t seq, txn, xid, subxid
        int64_t lsn, end_lsn, timestamp, prepare_timestamp
        int64_t origin_lsn
        Slice gid, origin
        uint8_t kind
        int8_t first_segment

    cdef cppclass OutcomeRecord:
        int64_t txn, subxid, at_seq, commit_lsn, commit_timestamp
        cbool committed

    cdef cppclass TruncateRecord:
        int64_t seq, txn
        int64_t first, count
        cbool cascade, restart_identity

    cdef cppclass MessageRecord:
        int64_t seq, lsn, txn, xid
        Slice prefix, content
        cbool transactional

    cdef cppclass RejectRecord:
        int64_t seq, lsn, byte_offset, type_oid
        int32_t slot, column
        uint8_t change_type, format, reason
        int32_t described, sent
        Slice raw

    cdef cppclass PooledAllocator[T]:
        pass

    cdef cppclass RecordLog[R]:
        size_t size()
        void push_back(const R& record) except +
        void clear()
        void swap(RecordLog[R]& other)

    cdef cppclass RecordReader[R]:
        RecordReader() except +
        void begin(const RecordLog[R]& log)
        cbool next(R& record)

    cdef cppclass Records:
        Records() except +
        RecordLog[BoundaryRecord] boundaries
        RecordLog[OutcomeRecord] outcomes
        RecordLog[TruncateRecord] truncates
        RecordLog[MessageRecord] messages
        vector[RejectRecord, PooledAllocator[RejectRecord]] rejects
        vector[int64_t, PooledAllocator[int64_t]] oids
        vector[int64_t] unknown_outcomes
        void swap(Records& other)
        const uint8_t* bytes_of(const Slice& slice)
        Slice keep(const uint8_t* p, size_t n) except +
        void take_rejects(Records& source) except +
        void drop_rejects()


cdef inline int set_text(string& to, bytes text) except -1:
    # Cython's own conversion copies the string, and does not handle a failed copy.
    to.assign(<const char*> text, <size_t> len(text))
    return 0
