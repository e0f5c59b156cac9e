from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.rows.rows cimport RelationRows, Scratch
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport Records
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef class Batches:
    """Of one relation version: the batch that is being filled, and those of this call that are done."""
    cdef object relation
    cdef list spare                      # RelationRows that nobody fills
    cdef RelationRows open               # the batch at hand, None if there is none
    cdef Task last                       # what fills it, None before its first messages
    cdef int64_t rows, bytes             # that went to it: rows of all its messages, those of rejects too
    cdef list done
    cdef bint touched                    # whether the call at hand has messages for it


cdef class Spares:
    """RelationRows that nobody fills: making one costs some microseconds, keeping one some kilobytes.

    No more are kept than have SPARE_COLUMNS columns; those of the relation version that was longest unused go first.
    """
    cdef dict kept                       # Batches that have any; the longest unused come first
    cdef int64_t columns                 # that all of them have

    cdef RelationRows take(self, Batches batches)
    cdef int keep(self, Batches batches, RelationRows rows) except -1


cdef class Task:
    """Messages of one window that go into one batch."""
    cdef Batches batches
    cdef RelationRows rows
    cdef object at_work                  # its frame's lock
    cdef Task before                     # what must be done first, as it fills the same batch
    cdef int64_t begin, count            # in the frame's order
    cdef int64_t expected                # rows that the batch will get yet, as far as one knows
    cdef bint closes
    cdef list made                       # batches
    cdef bint done
    cdef object error                    # why it could not be


cdef object new_lock()
cdef int wait_for(object lock) except -1


cdef class Frame:
    """A window on its way through the stages, and the tasks that it became."""
    cdef Window window
    cdef Tags tags
    cdef vector[uint32_t] order          # the items' messages, by relation version
    cdef list tasks                      # in the order in which results are taken
    cdef list waiting                    # the same in the order in which they are begun
    cdef Py_ssize_t begun                # how many of those were
    cdef int64_t left                    # how many are not done
    cdef Records records                 # rejects
    cdef object options
    cdef object types
    cdef object at_work                  # a lock of this use, held until all are done

    cdef int start(self, list tasks, options, types) except -1
    cdef bint do_one(self, Scratch scratch) except -1
    cdef int _do(self, Task task, Scratch scratch) except -1
    cdef int _one_less(self) except -1
    cdef int give_up(self, object error) except -1
    cdef int forget(self) except -1


cdef int64_t messages_that_fit(Window w, const uint32_t* messages, int64_t count, int64_t most_rows, int64_t most_bytes,
                               int64_t* rows, int64_t* bytes) noexcept nogil
