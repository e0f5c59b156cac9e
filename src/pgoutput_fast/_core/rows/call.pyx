"""One call: windows become tasks, threads run the tasks, and the results are taken in order.

With several threads, one thread at a time scans and tags the next window. The same thread then runs the window's tasks,
because it has the window in its cache. When no windows are left, a thread helps with tasks that have not begun. The
results are taken in the order of the stream.
"""
cimport cython
from libc.stdint cimport int64_t

from pgoutput_fast._core.protocol.limits cimport MESSAGE_WINDOW_BYTES
from pgoutput_fast._core.rows.planning cimport BatchPlanner, usual_window
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.task cimport Task, WindowWork, acquire, new_lock, release, wait_for
from pgoutput_fast._core.rows.threads cimport WorkingThreads
from pgoutput_fast._core.rows.windows cimport WindowTagger

from collections import deque


@cython.final
cdef class UnusedMemory:
    def __cinit__(self):
        self.window_works = []
        self.scratches = []

    cdef WindowWork take_work(self):
        return self.window_works.pop() if self.window_works else WindowWork()


@cython.final
cdef class DecodeCall(WorkingThreads):
    def __cinit__(self, BatchPlanner planner, WindowTagger windows, UnusedMemory unused, int64_t threads):
        self.planner = planner
        self.windows = windows
        self.unused = unused
        self.threads = threads
        self.pending = deque()
        self.turn = new_lock()

    cdef list run(self):
        """Decodes everything. Returns [(relation, batch)] of the whole call."""
        self.planner.begin_call()
        try:
            if self.threads > 1:
                self.start_threads(self._more_threads())
            self.work()
        except BaseException:
            self.stopped = True
            raise
        finally:
            self.join_threads()
        if self.error is not None and (isinstance(self.error, MemoryError) or not isinstance(self.error, Exception)):
            raise self.error  # memory ran out, or the call was interrupted: no message is the cause
        if self.failed and self.error is None:
            raise MemoryError
        self._take_finished(0)
        if self.error is not None:
            raise self.error
        return self.planner.take_batches()

    cdef int64_t _more_threads(self) except -1:
        """Returns how many threads besides this one would have work."""
        cdef int64_t messages = sum([len(array) for array in self.windows.arrays])
        cdef int64_t size = sum([array.nbytes for array in self.windows.arrays])
        cdef int64_t windows = max(messages // usual_window(), size // MESSAGE_WINDOW_BYTES)
        windows += self.windows.tagged_rows() // usual_window()
        return min(self.threads - 1, windows)

    cdef int work(self) except -1:
        """Runs the work of one thread. A task's error is stored in the task, any other error stops the call."""
        cdef WindowWork mine = None
        cdef WindowWork other
        cdef Scratch scratch
        cdef bint finished = False
        try:
            scratch = self.unused.scratches.pop() if self.unused.scratches else Scratch()
            while True:
                mine = None  # another thread may reuse the previous one
                mine = self._window_in_turn()
                if mine is None:
                    break
                while mine.do_one(scratch):
                    pass
            for other in list(self.pending):
                while other.do_one(scratch):
                    pass
            self.unused.scratches.append(scratch)
            finished = True
        except BaseException as error:
            if self.error is None:
                self.error = error
        finally:
            # This also runs if there is no memory to keep the error.
            if not finished:
                self.stopped = self.failed = True
                if mine is not None:
                    mine.give_up(self.error)
        return 0

    cdef WindowWork _window_in_turn(self):
        """Waits for this thread's turn, then returns the result of `_next_window`.

        It does not use `with`, see `wait_for`.
        """
        cdef bint tagged = False
        acquire(self.turn)
        try:
            work = self._next_window()
            tagged = True
        finally:
            if not tagged:
                self.stopped = True
            release(self.turn)
        return work

    cdef WindowWork _next_window(self):
        """Tags and plans the next window; returns None if there is none. The caller must hold `turn`."""
        cdef WindowWork work
        if self.stopped:
            return None
        self._take_finished(2 * self.threads)
        work = self.unused.take_work()
        if not self.windows.load_or_tag(work, self.planner.window_messages):
            self.unused.window_works.append(work)
            return None
        self.planner.plan_window(work, self.windows.left())
        self.pending.append(work)
        return work

    cdef int _take_finished(self, int64_t under_way) except -1:
        """Takes the results of the oldest windows, in order, up to the first window that is not finished.

        While there are more than `under_way` windows, it waits for that window. Raises the first error of their tasks.
        """
        cdef WindowWork work
        cdef Task task
        while self.pending:
            work = self.pending[0]
            if work.left:
                if len(self.pending) <= under_way:
                    break
                wait_for(work.unfinished_lock)  # held until all its tasks are done
            for task in work.tasks:
                if task.error is not None:
                    raise task.error
                if not task.done:
                    raise MemoryError  # there was no memory to keep the error
            self.planner.take_results(work)
            work.forget()
            self.pending.popleft()
            self.unused.window_works.append(work)
        return 0

    cdef int end(self) except -1:
        """Closes all batches and drops all references to results. It allocates no memory, so it cannot fail."""
        cdef WindowWork work
        while self.pending:
            work = self.pending[0]
            del self.pending[0]  # calling `popleft` may allocate
            work.forget()
        return self.planner.end_call()
