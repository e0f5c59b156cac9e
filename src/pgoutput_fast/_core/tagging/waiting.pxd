from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.native cimport Buffer
from pgoutput_fast._core.tagging.relation_versions cimport RelationVersions
from pgoutput_fast._core.tagging.scan cimport Payloads, Window
from pgoutput_fast._core.tagging.stream_state cimport MessageScope
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef class WaitingRows:
    """Changes of one transaction with their tags. They use no spare memory, and never change.

    Each vector except `scopes` has one value per change.
    """
    cdef RelationVersions versions       # `slot` refers to these
    cdef object owner                    # the Arrow array of the payloads; None if they are in `copy`
    cdef Buffer copy
    cdef const uint8_t* base             # `start` is relative to this
    cdef const uint8_t* end              # nothing at or after it may be read
    cdef vector[uint8_t] kind, flags
    cdef vector[uint32_t] start, length, scope_of
    cdef vector[int32_t] slot
    cdef vector[uint32_t] oid            # of the relation version, like `version`: `batch` may run while another
    cdef vector[int64_t] version         # thread decodes and `versions` grows
    cdef vector[int64_t] seq
    cdef vector[int64_t] lsn             # empty if no LSN is known
    cdef vector[MessageScope] scopes
    cdef readonly int64_t txn            # key of the transaction
    cdef readonly int64_t rows
    cdef readonly int64_t nbytes         # size of the payloads

    cdef int reserve(self, size_t count) except -1 nogil
    cdef int add(self, Tags tags, Window w, int64_t i, int32_t slot, uint32_t scope) except -1 nogil
    cdef int load(self, Tags tags, Window w) except -1
    cdef int append(self, WaitingRows rows) except -1 nogil
    cdef int copy_payloads(self, Buffer& to) except -1 nogil


cdef list waiting_rows(StreamTracker tracker, Window w, Payloads payloads, int64_t first=*)


# Results of `plain_end`.
cdef enum PlainEnd:
    OTHER_ENDS       # not a simple case
    NO_END           # no transaction ended
    ENDED            # all transactions before the last Commit


cdef PlainEnd plain_end(Tags tags, Window w, int64_t* items) noexcept nogil
