"""What one thread does at a time: messages of a window -> rows of their batches, without a look at any others.

Which messages a batch has is settled before, by their headers alone: it does not depend on who decodes them, or when.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t

from pgoutput_fast._core.rows cimport ROWS_DONE, ROWS_FAILED, Scratch
from pgoutput_fast._core.scan cimport OLD_TUPLE, Window
from pgoutput_fast._core.stream_state cimport NONE64

import threading

from pgoutput_fast.errors import DecodeError, reason_text
from pgoutput_fast.types import column_type_of


cdef int64_t messages_that_fit(Window w, const uint32_t* messages, int64_t count, int64_t most_rows, int64_t most_bytes,
                               int64_t* rows, int64_t* bytes) noexcept nogil:
    """How many of the messages go into a batch that has `rows` and `bytes` already; adds theirs to both.

    The first message of a batch always fits.
    """
    cdef int64_t k, more
    cdef uint32_t message
    cdef int64_t all_rows = rows[0] + count
    cdef int64_t all_bytes = bytes[0]
    for k in range(count):
        all_rows += (w.flags[messages[k]] & OLD_TUPLE) != 0
        all_bytes += w.length[messages[k]]
    if all_rows <= most_rows and all_bytes <= most_bytes:
        rows[0] = all_rows
        bytes[0] = all_bytes
        return count
    for k in range(count):
        message = messages[k]
        # An update with an old tuple has two rows.
        more = 2 if w.flags[message] & OLD_TUPLE else 1
        if rows[0] and (rows[0] + more > most_rows or bytes[0] + w.length[message] > most_bytes):
            return k
        rows[0] += more
        bytes[0] += w.length[message]
    return count


cdef class Batches:
    def __cinit__(self, relation):
        self.relation = relation
        self.spare = []
        self.done = []


cdef class Frame:
    def __cinit__(self):
        self.window = Window()
        self.tags = Tags()
        self.jobs = []


cdef class Task:
    def __cinit__(self):
        self.made = []


cdef class Job:
    def __cinit__(self, Frame frame, options, types, bint alone):
        self.frame = frame
        self.options = options
        self.types = types
        self.tasks = []
        if not alone:
            self.finished = threading.Event()

    def run(self, list scratches):
        """Does the tasks. What goes wrong is kept in `error`: of the first task, in their order, where anything did.

        `scratches` are rooms that nobody uses: one is taken, and given back.
        """
        cdef Scratch scratch
        cdef Task task
        try:
            scratch = scratches.pop()
        except IndexError:
            scratch = Scratch()
        try:
            # Those that go on with a batch come last: what began it may be under way still.
            for task in self.tasks:
                if task.before is None:
                    self._do(task, scratch)
            for task in self.tasks:
                if task.before is not None:
                    self._go_on(task, scratch)
            for task in self.tasks:
                if task.error is not None:
                    self.error = task.error
                    break
            self.records.take_rejects(scratch.records)
            scratches.append(scratch)
        except BaseException as error:
            self.error = error
        finally:
            if self.finished is not None:
                self.finished.set()

    def give_up(self):
        """Nobody will do it any more: whoever waits for it need not."""
        self.error = RuntimeError("the call was given up")
        if self.finished is not None:
            self.finished.set()

    cdef int forget(self) except -1:
        """It is done, and what it made is taken: no task leads to it any more, nor to batches."""
        cdef Task task
        for task in self.tasks:
            task.job = None
            task.before = None
            task.rows = None
            task.made = []
        self.tasks = []
        self.frame = None
        self.future = None
        return 0

    cdef int _go_on(self, Task task, Scratch scratch) except -1:
        """Does a task when what was before it is done."""
        cdef Task before = task.before
        cdef Job job = before.job
        task.before = None
        if not before.done and job is not None and job is not self and job.finished is not None:
            job.finished.wait()
        if before.done:
            return self._do(task, scratch)
        task.error = before.error if before.error is not None else RuntimeError("the call was given up")
        return 0

    cdef int _do(self, Task task, Scratch scratch) except -1:
        cdef Frame frame = self.frame
        cdef RelationRows rows = task.rows
        cdef int64_t at = 0
        cdef int progress
        while True:
            with nogil:
                progress = rows.fill(frame.tags, frame.window, frame.order.data() + task.begin, task.count,
                                     task.expected, &at, scratch)
            if progress == ROWS_FAILED:
                task.error = self._error(rows, scratch)
                return 0
            if progress == ROWS_DONE:
                break
            rows.finish_batch()
        if task.closes:
            rows.finish_batch()
        task.made = rows.batches
        rows.batches = []
        task.done = True
        return 0

    def _error(self, RelationRows rows, Scratch scratch):
        cdef int32_t k = scratch.trouble.column
        cdef int64_t lsn = self.frame.tags.lsn_of(scratch.trouble.message)
        column = rows.relation.columns[k] if 0 <= k < len(rows.relation.columns) else None
        column_type = column_type_of(column, self.options, self.types) if column is not None else None
        return DecodeError(
            reason_text(scratch.trouble.reason, column_type, scratch.trouble.sent, rows.count),
            seq=self.frame.tags.seq_of(scratch.trouble.message),
            lsn=lsn if lsn != NONE64 else None,
            byte_offset=scratch.trouble.byte_offset,
            relation=rows.relation.qualified_name,
            column=column.name if column is not None else None,
        )
