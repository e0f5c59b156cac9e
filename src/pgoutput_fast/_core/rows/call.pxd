from libc.stdint cimport int64_t

from pgoutput_fast._core.rows.planning cimport BatchPlanner
from pgoutput_fast._core.rows.task cimport WindowWork
from pgoutput_fast._core.rows.threads cimport WorkingThreads
from pgoutput_fast._core.rows.windows cimport WindowTagger


cdef class UnusedMemory:
    """Memory for reuse by later calls."""
    cdef list window_works
    cdef list scratches

    cdef WindowWork take_work(self)


cdef class DecodeCall(WorkingThreads):
    """One call: its windows, and the threads that work on them."""
    cdef BatchPlanner planner
    cdef WindowTagger windows
    cdef UnusedMemory unused
    cdef int64_t threads                 # maximum number of threads, including this one
    cdef object pending                  # windows whose results have not been taken, oldest first
    cdef tuple turn                      # a lock, held by the thread that tags
    cdef bint failed                     # a thread ended before its work was done
    cdef object error                    # the cause; None if there was no memory to keep it

    cdef WindowWork _next_window(self)
    cdef WindowWork _window_in_turn(self)
    cdef int64_t _more_threads(self) except -1
    cdef int _take_finished(self, int64_t under_way) except -1
    cdef list run(self)
    cdef int end(self) except -1
