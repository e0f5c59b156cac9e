"""One call: windows become frames of tasks, threads do the tasks, and the results are taken in order.

With several threads, one thread at a time scans and tags the next window. Then the same thread does the window's tasks,
because it has the window in its cache. A thread that finds no more windows helps with tasks that have not begun. The
results are taken in the order of the stream.
"""
cimport cython
from libc.stdint cimport int64_t

from pgoutput_fast._core.protocol.limits cimport MESSAGE_WINDOW_BYTES
from pgoutput_fast._core.rows.planning cimport BatchPlanner, usual_window
from pgoutput_fast._core.rows.scratch cimport Scratch
from pgoutput_fast._core.rows.task cimport Frame, Task, new_lock, wait_for
from pgoutput_fast._core.rows.threads cimport WorkingThreads
from pgoutput_fast._core.rows.windows cimport WindowTagger

from collections import deque


@cython.final
cdef class UnusedMemory:
    def __cinit__(self):
        self.frames = []
        self.scratches = []

    cdef Frame take_frame(self):
        return self.frames.pop() if self.frames else Frame()


@cython.final
cdef class DecodeCall(WorkingThreads):
    def __cinit__(self, BatchPlanner planner, WindowTagger windows, UnusedMemory unused, int64_t threads):
        self.planner = planner
        self.windows = windows
        self.unused = unused
        self.threads = threads
        self.frames = deque()
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
            raise self.error  # memory ran out, or somebody interrupted the call: no message is the cause
        if self.failed and self.error is None:
            raise MemoryError
        self._take_finished(0)
        if self.error is not None:
            raise self.error
        return self.planner.take_batches()

    cdef int64_t _more_threads(self) except -1:
        """Returns how many threads beside this one would find work."""
        cdef int64_t messages = sum([len(array) for array in self.windows.arrays])
        cdef int64_t size = sum([array.nbytes for array in self.windows.arrays])
        cdef int64_t windows = max(messages // usual_window(), size // MESSAGE_WINDOW_BYTES)
        if self.windows.before is not None:
            windows += self.windows.before.num_rows // self.planner.batch_rows
        return min(self.threads - 1, windows)

    cdef int work(self) except -1:
        """Does the work of one thread. A task's error is kept with the task, any other error stops the call."""
        cdef Frame frame = None
        cdef Frame other
        cdef Scratch scratch
        cdef bint finished = False
        try:
            scratch = self.unused.scratches.pop() if self.unused.scratches else Scratch()
            while True:
                frame = None  # another thread may reuse the last frame
                frame = self._frame_in_turn()
                if frame is None:
                    break
                while frame.do_one(scratch):
                    pass
            for other in list(self.frames):
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
                if frame is not None:
                    frame.give_up(self.error)
        return 0

    cdef Frame _frame_in_turn(self):
        """Waits for this thread's turn, then returns what `_next_frame` returns.

        It does not use `with`, see `wait_for`.
        """
        cdef bint tagged = False
        self.turn.acquire()
        try:
            frame = self._next_frame()
            tagged = True
        finally:
            if not tagged:
                self.stopped = True
            self.turn.release()
        return frame

    cdef Frame _next_frame(self):
        """Tags and plans the next window; returns None if there is none. The caller must hold `turn`."""
        cdef Frame frame
        if self.stopped:
            return None
        self._take_finished(2 * self.threads)
        frame = self.unused.take_frame()
        if not self.windows.load_or_tag(frame, self.planner.window_messages):
            self.unused.frames.append(frame)
            return None
        self.planner.plan_window(frame, self.windows.left())
        self.frames.append(frame)
        return frame

    cdef int _take_finished(self, int64_t under_way) except -1:
        """Takes the results of the oldest frames, in order, until it comes to a frame that is not finished.

        While there are more than `under_way` frames, it waits for that frame. Raises the first error of their tasks.
        """
        cdef Frame frame
        cdef Task task
        while self.frames:
            frame = self.frames[0]
            if frame.left:
                if len(self.frames) <= under_way:
                    break
                wait_for(frame.at_work)  # held until all its tasks are done
            for task in frame.tasks:
                if task.error is not None:
                    raise task.error
                if not task.done:
                    raise MemoryError  # there was no memory to keep the error
            self.planner.take_results(frame)
            frame.forget()
            self.frames.popleft()
            self.unused.frames.append(frame)
        return 0

    cdef int end(self) except -1:
        """Closes all batches and drops all references to results. It allocates no memory, so it cannot fail."""
        cdef Frame frame
        while self.frames:
            frame = self.frames.popleft()
            frame.forget()
        return self.planner.end_call()
