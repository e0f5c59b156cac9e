from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pgoutput_fast._core.rows.rows cimport RelationRows
from pgoutput_fast._core.rows.task cimport Batches, SpareBuffers, Task, WindowWork
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker


# The usual maximum of messages per window.
cdef int64_t usual_window() noexcept


cdef class BatchPlanner:
    """Assigns the messages of a window to batches of relation versions, and makes tasks."""
    cdef object options
    cdef object types                    # types read from a server
    cdef StreamTracker tracker
    cdef int64_t batch_rows, batch_bytes
    cdef int64_t window_messages         # maximum of messages in the next window
    cdef list batches                    # Batches of every slot, None until its first change
    cdef SpareBuffers spares
    cdef list touched                    # Batches with messages in the current call, in message order
    cdef set described_columns           # (table, column) of all versions; see Options.check_columns
    cdef bint all_tables                 # whether the options select all tables
    cdef list selected                   # per slot: (relation version, whether its table is selected)
    cdef vector[int64_t] ends            # per slot: 0, except while `_sort_messages` runs

    cdef int plan_window(self, WindowWork work, int64_t left) except -1
    cdef int _sort_messages(self, WindowWork work, vector[int32_t]& present, vector[int64_t]& stops) except -1 nogil
    cdef bint _is_selected(self, int32_t slot) except -1
    cdef Batches _batches_of(self, int32_t slot)
    cdef Task _task_of(self, WindowWork work, Batches batches, int32_t slot, int64_t at, int64_t end, int64_t left)
    cdef RelationRows _free_rows(self, Batches batches, int32_t slot)
    cdef int begin_call(self) except -1
    cdef int take_results(self, WindowWork work) except -1
    cdef list take_batches(self)
    cdef int end_call(self) except -1
