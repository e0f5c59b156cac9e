from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from pgoutput_fast._core.scan cimport Window
from pgoutput_fast._core.stream_state cimport (
    BoundaryRecord,
    Known,
    Records,
    Run,
    StreamState,
    Transaction,
)


cdef enum Stop:
    FINISHED = 0       # the window is done
    MEET_RELATION = 1  # a Relation that is not the version known so far
    MEET_TYPE = 2      # a Type
    FAILED = 3         # a malformed message, and it is to be raised


cdef class Tagger:
    cdef StreamState state
    cdef StreamState* saved
    cdef Run saved_run
    cdef Records records
    cdef readonly list versions          # Relation of each slot
    cdef dict slots                      # version id -> its slots, the latest last: Types can name its columns anew
    cdef vector[string] bodies           # wire body of each slot, to know a re-sent Relation by
    cdef vector[uint8_t] explained       # per slot: whether Types may say more of its columns
    cdef int64_t saved_versions
    cdef bint quarantine

    # The window at hand: which items (message, relation version) it holds, and what holds for stretches of messages.
    cdef vector[uint32_t] item_message
    cdef vector[int32_t] item_slot
    cdef int64_t items
    cdef vector[uint32_t] run_of         # per message
    cdef vector[int32_t] described       # per message: slot of the version that a Relation message described
    cdef vector[uint8_t] taken           # per message: 0 where it went to the rejects or came before
    cdef vector[Run] runs
    cdef vector[int64_t] marks           # ordinals in the window before which a session starts
    cdef Run run
    cdef bint run_is_new
    cdef const int64_t* seqs             # per message of the window, or NULL: they count on
    cdef const int64_t* lsns             # per message of the window, or NULL
    cdef int64_t base_seq
    cdef vector[int64_t] loaded_lsns     # `lsns` of tagged payloads, where some are null
    cdef object _loaded                  # keeps what the pointers above point to, where tagged payloads were loaded

    # Where and why it stopped.
    cdef int64_t at
    cdef uint8_t reason
    cdef int64_t reason_offset

    # Last answers of `lookup`, by the oid's low bits.
    cdef uint32_t cached_oid[64]
    cdef int32_t cached_slot[64]

    cdef void forget_lookups(self) noexcept nogil
    cdef int32_t lookup(self, uint32_t oid) noexcept nogil
    cdef int64_t seq_of(self, int64_t i) noexcept nogil
    cdef int32_t slot_of_version(self, version) except -2
    cdef void open_run(self) noexcept nogil
    cdef void set_run(self, int64_t txn, int64_t xid, int64_t subxid, int64_t commit_lsn, int64_t commit_timestamp,
                      bint in_stream) noexcept nogil
    cdef void _expect_repeated_messages(self) noexcept nogil
    cdef void void_transaction(self, const Transaction& t, int64_t at_seq) noexcept nogil
    cdef bint may_have_ended_others(self, uint8_t kind, uint8_t reason) noexcept nogil
    cdef void doubt_streams(self) noexcept nogil
    cdef void begin_session(self, int64_t seq) noexcept nogil
    cdef bint fail(self, Window w, int64_t i, uint8_t reason, int64_t offset) noexcept nogil
    cdef void lose_relations(self) noexcept nogil
    cdef void lose_relation(self, uint32_t oid, uint32_t subxid, int64_t seq) noexcept nogil
    cdef void _learn(self, uint32_t oid, uint32_t subxid, Known known) noexcept nogil
    cdef void _expect_repeated_messages(self) noexcept nogil
    cdef void _void_older(self, uint32_t xid, int64_t seq) noexcept nogil
    cdef void _leave(self) noexcept nogil
    cdef void _end_origin(self, BoundaryRecord* b, Transaction& t) noexcept nogil
    cdef void _run_of_subtransaction(self, Window w, int64_t i) noexcept nogil
    cdef int64_t step(self, Window w, int64_t i) noexcept nogil
    cdef uint8_t _expected(self, uint8_t outside) noexcept nogil
    cdef int boundary(self, Window w, int64_t i) noexcept nogil
    cdef int truncate(self, Window w, int64_t i) noexcept nogil
    cdef int message(self, Window w, int64_t i) noexcept nogil
    cdef int origin(self, Window w, int64_t i) noexcept nogil
    cdef int relation(self, Window w, int64_t i) noexcept nogil
    cdef void reject(self, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot, int32_t column,
                     int32_t described, int32_t sent) noexcept nogil
    cdef void register_relation(self, Window w, int64_t i) except *
    cdef void register_type(self, Window w, int64_t i) except *
    cdef int64_t tag_window(self, Window w, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1
