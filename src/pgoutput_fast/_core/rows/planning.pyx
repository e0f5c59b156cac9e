"""Plans batches: sorts the messages of a window by relation version, and makes a task per batch with messages.

It reads only the headers of messages, so the contents of a batch do not depend on threads.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.limits cimport USUAL_WINDOW_MESSAGES
from pgoutput_fast._core.rows.rows cimport RelationRows
from pgoutput_fast._core.rows.task cimport Batches, SpareBuffers, Task, WindowWork, messages_that_fit
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker

from pgoutput_fast._core.rows.rows import make_rows

cdef int64_t WINDOW_MESSAGES = USUAL_WINDOW_MESSAGES
# Many small tasks cost more than the cache saves. So after a window of more than MANY_TASKS tasks, with fewer than
# FEW_MESSAGES messages per task on average, the next window is twice as long, up to LONGEST_WINDOW messages.
cdef int64_t MANY_TASKS = 256
cdef int64_t FEW_MESSAGES = 64
cdef int64_t LONGEST_WINDOW = 1 << 17


def use_windows(int64_t messages):
    """Sets the maximum of messages per window. Returns the previous one. For tests."""
    global WINDOW_MESSAGES
    before = WINDOW_MESSAGES
    WINDOW_MESSAGES = max(messages, 1)
    return before


cdef int64_t usual_window() noexcept:
    return WINDOW_MESSAGES


@cython.final
cdef class BatchPlanner:
    def __cinit__(self, options, types, StreamTracker tracker):
        self.options = options
        self.types = types
        self.tracker = tracker
        self.batch_rows = options.batch_rows
        self.batch_bytes = options.batch_bytes
        self.window_messages = WINDOW_MESSAGES
        self.batches = []
        self.spares = SpareBuffers()
        self.touched = []
        self.described_columns = set()
        self.all_tables = options.tables is None
        self.selected = []

    # ---- a window ------------------------------------------------------------------------------------------------

    cdef int plan_window(self, WindowWork work, int64_t left) except -1:
        """Makes the tasks for the last tagged window.

        Relation versions are in the order of their first items. `left` is the number of later messages of this array.
        """
        cdef int64_t items, at = 0
        cdef Batches batches
        cdef Task task
        cdef list tasks = []
        cdef vector[int32_t] present
        cdef vector[int64_t] stops
        cdef size_t k
        self.tracker.tags.swap_tags(work.tags)
        items = work.tags.items
        with nogil:
            self._sort_messages(work, present, stops)
        for k in range(present.size()):
            if not (self.all_tables or self._is_selected(present[k])):
                at = stops[k]
                continue
            batches = self._batches_of(present[k])
            while at < stops[k]:
                task = self._task_of(work, batches, present[k], at, stops[k], left)
                at += task.count
                tasks.append(task)
        if len(tasks) <= MANY_TASKS:
            self.window_messages = WINDOW_MESSAGES
        elif items < FEW_MESSAGES * <int64_t> len(tasks):
            self.window_messages = max(WINDOW_MESSAGES, min(2 * self.window_messages, LONGEST_WINDOW))
        return work.start(tasks, self.options, self.types)

    cdef int _sort_messages(self, WindowWork work, vector[int32_t]& present, vector[int64_t]& stops) except -1 nogil:
        """Sorts the window's messages in `order` by relation version.

        `present` receives the slots of these versions, `stops` the end of each version's messages.
        """
        cdef int64_t i, begin, at = 0
        cdef int64_t items = work.tags.items
        cdef int32_t slot
        cdef size_t k
        if self.ends.size() < self.tracker.versions.bodies.size():
            self.ends.resize(self.tracker.versions.bodies.size())
        if <int64_t> work.order.size() < items:
            work.order.resize(<size_t> items)
        # Reserved here, because nothing may fail until `ends` is 0 everywhere again.
        present.reserve(min(<size_t> items, self.ends.size()))
        stops.reserve(min(<size_t> items, self.ends.size()))
        for i in range(items):
            slot = work.tags.item_slot[i]
            if self.ends[slot] == 0:
                present.push_back(slot)
            self.ends[slot] += 1
        for k in range(present.size()):
            begin = at
            at += self.ends[present[k]]
            self.ends[present[k]] = begin
        for i in range(items):
            slot = work.tags.item_slot[i]
            work.order[self.ends[slot]] = work.tags.item_message[i]
            self.ends[slot] += 1
        for k in range(present.size()):
            stops.push_back(self.ends[present[k]])
            self.ends[present[k]] = 0
        return 0

    cdef bint _is_selected(self, int32_t slot) except -1:
        """Whether the options select the table of a relation version."""
        relation = self.tracker.versions.relations[slot]
        while len(self.selected) <= slot:
            self.selected.append((None, False))
        known, chosen = self.selected[slot]
        if known is not relation:
            chosen = self.options.selects(relation)
            self.selected[slot] = (relation, chosen)
        return chosen

    cdef Batches _batches_of(self, int32_t slot):
        cdef Batches batches
        while len(self.batches) <= slot:
            self.batches.append(None)
        relation = self.tracker.versions.relations[slot]
        batches = self.batches[slot]
        if batches is None or (batches.relation is not relation and batches.relation != relation):
            batches = Batches(relation)
            self.batches[slot] = batches
        if not batches.touched:
            batches.done = []
            self.touched.append(batches)
            batches.touched = True
        return batches

    cdef Task _task_of(self, WindowWork work, Batches batches, int32_t slot, int64_t at, int64_t end, int64_t left):
        """Makes a task for as many messages of a relation version as fit into the open batch.

        The version's messages are `order[at:end]`. The task takes the first ones that fit.
        """
        cdef int64_t rows = batches.rows
        cdef int64_t each
        cdef Task task = Task()
        task.batches = batches
        task.previous_task = batches.last
        task.begin = at
        with nogil:
            task.count = messages_that_fit(
                work.window, work.order.data() + at, end - at, self.batch_rows, self.batch_bytes,
                &batches.rows, &batches.bytes,
            )
        task.closes = at + task.count < end
        task.expected = batches.rows - rows
        if not task.closes:
            # Later messages of the array may add rows at the same rate, up to the batch's limit.
            task.expected += task.expected * left // work.window.count
            each = max(1, batches.bytes // max(1, batches.rows))
            task.expected = min(task.expected, self.batch_bytes // each)
        if batches.open is None:
            batches.open = self._free_rows(batches, slot)
        task.rows = batches.open
        batches.last = task
        if task.closes:
            batches.open = batches.last = None
            batches.rows = batches.bytes = 0
        return task

    cdef RelationRows _free_rows(self, Batches batches, int32_t slot):
        cdef RelationRows rows = self.spares.take(batches)
        if rows is None:
            if self.options.columns is not None:
                self.options.check_columns(batches.relation, self.tracker.versions.relations, self.described_columns)
            rows = make_rows(batches.relation, self.options, self.types)
        rows.rejects.slot = slot
        return rows

    # ---- a call --------------------------------------------------------------------------------------------------

    cdef int begin_call(self) except -1:
        self.touched = []
        return 0

    cdef int take_results(self, WindowWork work) except -1:
        """Takes the rejects and the finished batches of a window whose tasks are all done."""
        cdef Task task
        self.tracker.records.take_rejects(work.records)
        for task in work.tasks:
            task.batches.done.extend(task.made)
            if task.closes:
                self.spares.keep(task.batches, task.rows)
        return 0

    cdef list take_batches(self):
        """Closes the open batches. Returns [(relation, batch)] of the whole call."""
        cdef Batches batches
        cdef list changes = []
        for batches in self.touched:
            if batches.open is not None:
                batches.open.finish_batch()
                batches.done.extend(batches.open.batches)
                batches.open.batches = []
                self.spares.keep(batches, batches.open)
                batches.open = None
            changes.extend([(batches.relation, batch) for batch in batches.done])
        return changes

    cdef int end_call(self) except -1:
        """Drops all open batches and all references to results. It allocates no memory, so it cannot fail."""
        cdef Batches batches
        for batches in self.touched:
            batches.touched = False
            batches.done = None
            batches.open = batches.last = None
            batches.rows = batches.bytes = 0
        return 0
