from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport NONE64, MessageScope, Records


cdef class Tags:
    """The tags of a window's messages."""
    cdef const int64_t* seqs             # per message; NULL if they count up from base_seq
    cdef const int64_t* lsns             # per message, or NULL
    cdef int64_t base_seq
    cdef vector[uint8_t] taken           # per message: 0 if it was rejected or is a repeat
    cdef vector[MessageScope] scopes     # scopes of several consecutive messages each
    cdef vector[uint32_t] scope_of       # per message: its scope
    # The items: messages that have rows, and their relation versions.
    cdef vector[uint32_t] item_message
    cdef vector[int32_t] item_slot
    cdef int64_t items
    # Used only to write or load tagged payloads.
    cdef vector[int32_t] described       # per message: slot of the version that a Relation message described
    cdef vector[int64_t] session_starts  # window ordinals of messages that begin a session
    cdef vector[int64_t] loaded_lsns     # `lsns` points here if some are null
    cdef object loaded                   # owns the memory of the pointers above

    cdef inline int64_t seq_of(self, int64_t i) noexcept nogil:
        return self.seqs[i] if self.seqs != NULL else self.base_seq + i

    cdef inline int64_t lsn_of(self, int64_t i) noexcept nogil:
        return self.lsns[i] if self.lsns != NULL and self.lsns[i] != 0 else NONE64

    cdef inline void add_item(self, int64_t i, int32_t slot) noexcept nogil:
        """Adds an item: message i has rows of a relation version. The caller has reserved its memory."""
        self.item_message[self.items] = <uint32_t> i
        self.item_slot[self.items] = slot
        self.items += 1

    cdef inline void set_last_scope(self, int64_t i) noexcept nogil:
        """Assigns message i to the last scope."""
        self.scope_of[i] = <uint32_t> self.scopes.size() - 1

    cdef inline void commit(self, int64_t lsn, int64_t timestamp) noexcept nogil:
        """Sets the commit position and time of all messages."""
        cdef size_t k
        for k in range(self.scopes.size()):
            self.scopes[k].commit_lsn = lsn
            self.scopes[k].commit_timestamp = timestamp

    cdef int start(self, int64_t count, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1
    cdef int reserve_items(self, int64_t items) except -1 nogil
    cdef int forget_loaded(self) except -1
    cdef int swap_tags(self, Tags other) except -1
    cdef int reject_into(self, Records& records, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot,
                         int32_t column, int32_t described, int32_t sent) except -1 nogil
