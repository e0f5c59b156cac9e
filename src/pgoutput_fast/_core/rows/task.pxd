from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.rows.rows cimport RelationRows
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.tagging.scan cimport Window
from pgoutput_fast._core.tagging.stream_state cimport Records
from pgoutput_fast._core.tagging.window_tags cimport Tags


cdef class Batches:
    """The batches of one relation version: the open batch, and the finished batches of the current call."""
    cdef object relation
    cdef list spare                      # idle RelationRows
    cdef RelationRows open               # the open batch; None if there is none
    cdef Task last                       # the last task of the open batch; None before its first messages
    cdef int64_t rows, bytes             # of all messages for the open batch, including rejected ones
    cdef list done
    cdef bint touched                    # whether the current call has messages for this relation version


cdef class SpareBuffers:
    """Idle RelationRows. Making one costs some microseconds, keeping one costs some kilobytes.

    All together have at most SPARE_COLUMNS columns. Beyond that, the RelationRows of the relation version that has been
    idle longest are dropped first.
    """
    cdef dict owners                     # Batches with idle RelationRows, longest idle first
    cdef int64_t columns                 # total number of their columns

    cdef RelationRows take(self, Batches batches)
    cdef int keep(self, Batches batches, RelationRows rows) except -1


cdef class Task:
    """Messages of one window that go into one batch."""
    cdef Batches batches
    cdef RelationRows rows
    cdef tuple unfinished_lock           # its window's lock, see WindowWork
    cdef Task previous_task              # a task that must run first, because it fills the same batch
    cdef int64_t begin, count            # its messages in the window's `order`
    cdef int64_t expected                # estimated number of further rows of the batch
    cdef bint closes
    cdef list made                       # the batches that it finished
    cdef bint done
    cdef object error                    # the error if it failed


cdef tuple new_lock()
cdef int acquire(tuple lock) except -1
cdef int release(tuple lock) except -1
cdef int wait_for(tuple lock) except -1


cdef class WindowWork:
    """A window in decoding, and its tasks."""
    cdef Window window
    cdef Tags tags
    cdef vector[uint32_t] order          # the items' messages, by relation version
    cdef list tasks                      # in the order of results
    cdef list waiting                    # the same tasks in the order of execution
    cdef Py_ssize_t begun                # how many have begun
    cdef int64_t left                    # how many are not done
    cdef Records records                 # rejects
    cdef object options
    cdef object types
    cdef tuple unfinished_lock           # a new lock per window, held until all tasks are done

    cdef int start(self, list tasks, options, types) except -1
    cdef bint do_one(self, Scratch scratch) except -1
    cdef int _do(self, Task task, Scratch scratch) except -1
    cdef int _one_less(self) except -1
    cdef int give_up(self, object error) except -1
    cdef int forget(self) except -1


cdef int64_t messages_that_fit(Window w, const uint32_t* messages, int64_t count, int64_t most_rows, int64_t most_bytes,
                               int64_t* rows, int64_t* bytes) noexcept nogil
