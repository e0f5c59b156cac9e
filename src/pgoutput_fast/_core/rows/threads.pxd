from libc.stdint cimport int64_t


cdef class WorkingThreads:
    """Threads that run the same work as the calling thread. A subclass implements `work`."""
    cdef bint stopped                    # no thread begins more work
    cdef list thread_locks               # a lock per started thread, held while the thread works

    cdef int work(self) except -1
    cdef int start_threads(self, int64_t count) except -1
    cdef int join_threads(self) except -1
