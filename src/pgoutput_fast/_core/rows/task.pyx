"""Tasks: a task makes a batch's rows from messages of one window. One thread runs a task and needs no other messages.

The contents of a batch are planned before, from the messages' headers alone. So a batch does not depend on the thread
that decodes it, or on the time.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t

from pgoutput_fast._core.rows.metadata cimport METADATA_COUNT
from pgoutput_fast._core.rows.scratch cimport ROWS_DONE, ROWS_FAILED, Scratch
from pgoutput_fast._core.tagging.scan cimport OLD_TUPLE, Window
from pgoutput_fast._core.tagging.stream_state cimport NONE64

from _thread import allocate_lock

from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.protocol.kinds import MESSAGE_KINDS
from pgoutput_fast.schema.column_types import column_type_of

# They take about 6 MB, and up to 20 kB more per list or composite. That is enough for 1,000 narrow relation versions,
# or for ten of the maximum width.
cdef int64_t SPARE_COLUMNS = 1 << 14


cdef int64_t messages_that_fit(Window w, const uint32_t* messages, int64_t count, int64_t most_rows, int64_t most_bytes,
                               int64_t* rows, int64_t* bytes) noexcept nogil:
    """Returns how many of the messages fit into a batch that has `rows` and `bytes`, and increases both by theirs.

    The first message of a batch always fits.
    """
    cdef int64_t k, more, size
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
        # A Truncate may name a relation many times.
        size = w.length[message] if k == 0 or message != messages[k - 1] else 0
        if rows[0] and (rows[0] + more > most_rows or bytes[0] + size > most_bytes):
            return k
        rows[0] += more
        bytes[0] += size
    return count


cdef class Batches:
    def __cinit__(self, relation):
        self.relation = relation
        self.spare = []


cdef class SpareBuffers:
    def __cinit__(self):
        self.owners = {}

    cdef RelationRows take(self, Batches batches):
        """Returns an idle RelationRows of the relation version, or None."""
        if not batches.spare:
            return None
        self.columns -= _columns_of(batches)
        if len(batches.spare) == 1:
            self.owners.pop(batches, None)  # `keep` may have failed before it added them
        return batches.spare.pop()

    cdef int keep(self, Batches batches, RelationRows rows) except -1:
        """Keeps an idle RelationRows."""
        cdef Batches oldest
        batches.spare.append(rows)
        self.columns += _columns_of(batches)
        self.owners.pop(batches, None)
        self.owners[batches] = None
        while self.columns > SPARE_COLUMNS and self.owners:
            oldest = next(iter(self.owners))
            del self.owners[oldest]
            self.columns -= len(oldest.spare) * _columns_of(oldest)
            oldest.spare = []
        return 0


cdef int64_t _columns_of(Batches batches) except -1:
    return METADATA_COUNT + len(batches.relation.columns)


cdef tuple new_lock():
    """Makes a lock: its methods `acquire` and `release`.

    With the stable ABI, calling a method allocates memory for a bound method. These objects are made in advance, so
    that a lock can be released even if memory has run out.
    """
    try:
        lock = allocate_lock()
    except RuntimeError:
        raise MemoryError("no memory for a lock") from None
    return lock.acquire, lock.release


cdef int acquire(tuple lock) except -1:
    lock[0]()
    return 0


cdef int release(tuple lock) except -1:
    """Releases the lock. This allocates no memory."""
    lock[1]()
    return 0


cdef int wait_for(tuple lock) except -1:
    """Waits until the lock is free.

    This allocates no memory. A `with` statement allocates when an exception passes through it. If that fails, the
    process crashes, or the lock is never released.
    """
    acquire(lock)
    release(lock)
    return 0


cdef list _NO_TASKS = []  # never appended to


cdef class Task:
    pass


cdef class WindowWork:
    def __cinit__(self):
        self.window = Window()
        self.tags = Tags()
        self.tasks = _NO_TASKS
        self.waiting = _NO_TASKS

    cdef int start(self, list tasks, options, types) except -1:
        """Sets the window's tasks. From now on, any thread may run them."""
        cdef Task task
        cdef Task each
        self.options = options
        self.types = types
        self.tasks = tasks
        self.left = len(tasks)
        self.unfinished_lock = new_lock()
        if tasks:
            acquire(self.unfinished_lock)
        for each in tasks:
            each.unfinished_lock = self.unfinished_lock
        # Tasks that continue a batch come last, because the batch's earlier task may still be running.
        waiting = [task for task in tasks if task.previous_task is None]
        waiting.extend([task for task in tasks if task.previous_task is not None])
        self.begun = 0
        self.waiting = waiting  # last, because any thread that still has this object may now begin a task
        return 0

    cdef bint do_one(self, Scratch scratch) except -1:
        """Runs a task that has not begun. Returns False if there is none. An error is stored in the task."""
        cdef Task task
        if self.begun == len(self.waiting):
            return False
        task = self.waiting[self.begun]
        self.begun += 1
        try:
            try:
                self._do(task, scratch)
                self.records.take_rejects(scratch.records)
                task.done = True
            except BaseException as error:
                scratch.records.drop_rejects()
                task.error = error
        finally:
            self._one_less()
        return True

    cdef int _one_less(self) except -1:
        """Decrements the number of unfinished tasks."""
        self.left -= 1
        if self.left == 0:
            release(self.unfinished_lock)
        return 0

    cdef int _do(self, Task task, Scratch scratch) except -1:
        cdef RelationRows rows = task.rows
        cdef Task previous = task.previous_task
        cdef int64_t at = 0
        cdef int progress
        task.previous_task = None
        if previous is not None and not previous.done:
            if previous.error is None and previous.unfinished_lock is not self.unfinished_lock:
                wait_for(previous.unfinished_lock)  # held until it is done
            if not previous.done:
                raise RuntimeError("the earlier task of this batch failed") from previous.error
        while True:
            with nogil:
                progress = rows.fill(self.tags, self.window, self.order.data() + task.begin, task.count,
                                     task.expected, &at, scratch)
            if progress == ROWS_FAILED:
                raise self._error(rows, scratch)
            if progress == ROWS_DONE:
                break
            rows.finish_batch()
        if task.closes:
            rows.finish_batch()
        rows.free_scratch()
        task.made = rows.batches
        rows.batches = []
        return 0

    cdef int give_up(self, object error) except -1:
        """Fails all tasks that have not begun, so that no thread waits for them. It allocates no memory."""
        cdef Task task
        while self.begun < len(self.waiting):
            task = self.waiting[self.begun]
            self.begun += 1
            task.error = error
            self._one_less()
        return 0

    cdef int forget(self) except -1:
        """Drops references to results, batches and tagged rows, after the results were taken. Allocates no memory."""
        cdef Task task
        for task in self.tasks:
            task.previous_task = None
            task.rows = None
            task.made = None
        self.tasks = _NO_TASKS
        self.waiting = _NO_TASKS
        self.begun = 0
        self.tags.forget_loaded()
        return 0

    def _error(self, RelationRows rows, Scratch scratch):
        cdef int32_t k = scratch.row_error.column
        cdef int64_t lsn = self.tags.lsn_of(scratch.row_error.message)
        column = rows.relation.columns[k] if 0 <= k < len(rows.relation.columns) else None
        column_type = column_type_of(column, self.options, self.types) if column is not None else None
        return DecodeError(
            reason_text(scratch.row_error.reason, column_type, scratch.row_error.sent, rows.count),
            seq=self.tags.seq_of(scratch.row_error.message),
            lsn=lsn if lsn != NONE64 else None,
            byte_offset=scratch.row_error.byte_offset,
            relation=rows.relation.qualified_name,
            column=column.name if column is not None else None,
            kind=MESSAGE_KINDS.get(self.window.kind[scratch.row_error.message]),
        )
