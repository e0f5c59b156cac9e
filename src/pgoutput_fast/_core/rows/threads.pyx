"""The threads of a call. The call waits for all of them, even if it is interrupted."""
cimport cython
from libc.stdint cimport int64_t

from pgoutput_fast._core.rows.task cimport acquire, new_lock, release

from _thread import start_new_thread


@cython.final
@cython.no_gc
cdef class HeldLock:
    """Holds a lock for the lifetime of the object. So the lock is released even if a thread cannot start."""
    cdef readonly tuple lock
    cdef bint released

    def __cinit__(self):
        cdef tuple lock = new_lock()
        acquire(lock)
        self.lock = lock

    def __dealloc__(self):
        if self.lock is not None and not self.released:
            release(self.lock)

    cdef int release_now(self) except -1:
        """Releases the lock, because a trace or a debugger may keep the object alive."""
        release(self.lock)
        self.released = True
        return 0


cdef class WorkingThreads:
    def __cinit__(self):
        self.stopped = False
        self.thread_locks = []

    cdef int work(self) except -1:
        """Runs the work of one thread. Before it raises, it sets the state that the other threads need."""
        raise NotImplementedError

    cdef int start_threads(self, int64_t count) except -1:
        """Starts at most `count` threads. `join_threads` must follow, even if this raises.

        threading.Thread is not used, because an interruption inside of it would leave an incomplete thread object.
        """
        for _ in range(count):
            holder = HeldLock()
            self.thread_locks.append(holder.lock)
            try:
                start_new_thread(self._work_beside, (holder,))
            except RuntimeError:
                # No more threads can be started: the others do all the work.
                self.thread_locks.pop()
                break
        return 0

    def _work_beside(self, HeldLock holder):
        try:
            self.work()
        except BaseException:
            pass  # `work` has kept the error and stopped the other threads
        finally:
            holder.release_now()

    cdef int join_threads(self) except -1:
        """Waits for the end of all threads, even if interrupted, because their data is freed afterwards."""
        cdef Py_ssize_t ended = 0
        interruption = None
        while ended < len(self.thread_locks):
            try:
                acquire(self.thread_locks[ended])
                ended += 1
            except BaseException as error:
                self.stopped = True
                interruption = error
        if interruption is not None:
            raise interruption
        return 0
