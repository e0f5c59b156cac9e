from libc.stdint cimport int64_t


cdef class WorkingThreads:
    """Threads that all do the same work, beside the calling thread. A subclass says what the work is."""
    cdef bint stopped                    # no thread begins more work
    cdef list thread_locks               # a lock for each thread that was started; the thread holds it while it works

    cdef int work(self) except -1
    cdef int start_threads(self, int64_t count) except -1
    cdef int join_threads(self) except -1
