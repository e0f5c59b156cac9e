from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.vector cimport vector

from pgoutput_fast._core.rows cimport RelationRows, Scratch
from pgoutput_fast._core.scan cimport Window
from pgoutput_fast._core.stream_state cimport Records
from pgoutput_fast._core.tags cimport Tags


cdef class Batches:
    """Of one relation version: the batch that is being filled, and those of this call that are done."""
    cdef object relation
    cdef list spare                      # RelationRows that nobody fills
    cdef RelationRows open               # the batch at hand, None if there is none
    cdef Task last                       # what fills it, None before its first messages
    cdef int64_t rows, bytes             # that went to it: rows of all its messages, those of rejects too
    cdef list done
    cdef bint touched                    # whether the call at hand has messages for it


cdef class Frame:
    """A window on its way through the stages."""
    cdef Window window
    cdef Tags tags
    cdef vector[uint32_t] order          # the items' messages, by relation version
    cdef list jobs


cdef class Task:
    """Messages of one window that go into one batch."""
    cdef Batches batches
    cdef RelationRows rows
    cdef Job job                         # None when it is done
    cdef Task before                     # what must be done first, as it fills the same batch
    cdef int64_t begin, count            # in the frame's order
    cdef int64_t expected                # rows that the batch will get yet, as far as one knows
    cdef bint closes
    cdef list made                       # batches
    cdef bint done
    cdef object error                    # why it could not be


cdef class Job:
    """Tasks of one window that one thread does one after the other."""
    cdef Frame frame
    cdef object options
    cdef object types
    cdef readonly list tasks
    cdef int64_t messages
    cdef Records records                 # rejects
    cdef readonly object finished        # an Event, where several threads are at work
    cdef readonly object error
    cdef public object future

    cdef int forget(self) except -1
    cdef int _go_on(self, Task task, Scratch scratch) except -1
    cdef int _do(self, Task task, Scratch scratch) except -1


cdef int64_t messages_that_fit(Window w, const uint32_t* messages, int64_t count, int64_t most_rows, int64_t most_bytes,
                               int64_t* rows, int64_t* bytes) noexcept nogil
