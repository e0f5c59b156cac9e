"""The tags of a window: all that is needed to decode its messages, in any order and on any thread."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.algorithm cimport swap

from pgoutput_fast._core.protocol.kinds cimport MSG_TRUNCATE
from pgoutput_fast._core.tagging.scan cimport IN_STREAM, Window
from pgoutput_fast._core.tagging.stream_state cimport SLOT_UNKNOWN, Records, RejectRecord
from pgoutput_fast._core.protocol.wire cimport load32, write_truncate_of


cdef class Tags:
    cdef int start(self, int64_t count, int64_t base_seq, const int64_t* seqs, const int64_t* lsns) except -1:
        """Drops the previous window, and prepares for one of `count` messages."""
        self.base_seq = base_seq
        self.seqs = seqs
        self.lsns = lsns
        self.items = 0
        self.reserve_items(count)
        self.scope_of.resize(<size_t> count)
        self.described.clear()
        self.described.resize(<size_t> count, SLOT_UNKNOWN)
        self.taken.clear()
        self.taken.resize(<size_t> count, 1)
        self.scopes.clear()
        self.session_starts.clear()
        return 0

    cdef int reserve_items(self, int64_t items) except -1 nogil:
        """Makes space for `items` items in all."""
        if <int64_t> self.item_slot.size() < items:
            self.item_message.resize(<size_t> items)
            self.item_slot.resize(<size_t> items)  # last: if memory runs out, the next call resizes both again
        return 0

    cdef int forget_loaded(self) except -1:
        """Drops the loaded tagged payloads, so that their memory can be freed. Allocates no memory."""
        if self.loaded is not None:
            self.seqs = self.lsns = NULL
            self.loaded = None
        return 0

    cdef int swap_tags(self, Tags other) except -1:
        """Swaps all values. So a window's tags leave the tagger, and the tagger gets memory for reuse."""
        swap(self.seqs, other.seqs)
        swap(self.lsns, other.lsns)
        swap(self.base_seq, other.base_seq)
        self.taken.swap(other.taken)
        self.scopes.swap(other.scopes)
        self.scope_of.swap(other.scope_of)
        self.item_message.swap(other.item_message)
        self.item_slot.swap(other.item_slot)
        swap(self.items, other.items)
        self.described.swap(other.described)
        self.session_starts.swap(other.session_starts)
        self.loaded_lsns.swap(other.loaded_lsns)
        self.loaded, other.loaded = other.loaded, self.loaded

    cdef int reject_into(self, Records& records, Window w, int64_t i, uint8_t reason, int64_t offset, int32_t slot,
                         int32_t column, int32_t described, int32_t sent) except -1 nogil:
        """Rejects a whole message.

        A Truncate is rejected once per invalid relation. The first reject has the whole message. Each further one has a
        Truncate of its relation alone, because copies of the whole message would take much memory.
        """
        cdef RejectRecord r
        cdef const uint8_t* p = w.base + w.start[i]
        cdef uint8_t alone[14]
        cdef int64_t length = w.length[i]
        r.seq = self.seq_of(i)
        r.lsn = self.lsn_of(i)
        r.byte_offset = offset
        r.slot = slot
        r.column = column
        r.reason = reason
        r.described = described
        r.sent = sent
        if (w.kind[i] == MSG_TRUNCATE and offset >= (10 if w.flags[i] & IN_STREAM else 6) and offset + 4 <= length
                and records.rejects.size() and records.rejects.back().seq == r.seq):
            length = write_truncate_of(p, (w.flags[i] & IN_STREAM) != 0, load32(p + offset), alone)
            p = alone
        r.raw = records.keep(p, <size_t> length)
        records.rejects.push_back(r)
