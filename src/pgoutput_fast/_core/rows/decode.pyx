"""Runs the stages: payloads -> windows -> scan -> tag -> tasks. A task slices, converts and assembles.

With several threads, one thread at a time scans and tags the next window. Then the same thread does the window's tasks,
because it has the window in its cache. A thread that finds no more windows helps with tasks that nobody has begun. The
results are taken in the order of the stream.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.limits cimport MESSAGE_WINDOW_BYTES, USUAL_WINDOW_MESSAGES
from pgoutput_fast._core.tagging.records cimport take_records
from pgoutput_fast._core.rows.rows cimport RelationRows, Scratch
from pgoutput_fast._core.tagging.scan cimport Payloads, Window, scan_window
from pgoutput_fast._core.tagging.stream_state cimport OUTSIDE, PLAIN, STREAMING
from pgoutput_fast._core.tagging.tag cimport Tagger
from pgoutput_fast._core.rows.task cimport Batches, Frame, Spares, Task, messages_that_fit, new_lock, wait_for
from pgoutput_fast._core.tagging.tagged cimport load_tagged, tagged_columns

from _thread import start_new_thread
from collections import deque
from struct import error as StructError

import pyarrow as pa

from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast._core.rows.rows import make_rows
from pgoutput_fast._core.tagging.state_json import export_state, import_state
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.errors import DecodeError, reason_text
from pgoutput_fast.protocol.kinds import MESSAGE_KINDS
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.schema.column_types import column_type_of

cdef int64_t WINDOW_MESSAGES = USUAL_WINDOW_MESSAGES
# If a window has more than MANY_TASKS tasks, with fewer than FEW_MESSAGES messages each on average, the next window is
# twice as long. A task's fixed cost is then more than the cache saves.
cdef int64_t MANY_TASKS = 256
cdef int64_t FEW_MESSAGES = 64
cdef int64_t LONGEST_WINDOW = 1 << 17


def use_windows(int64_t messages):
    """Sets how many messages a window has at most. Returns the number before. For tests."""
    global WINDOW_MESSAGES
    before = WINDOW_MESSAGES
    WINDOW_MESSAGES = max(messages, 1)
    return before


cdef const int64_t* _int64_values(object array) except? NULL:
    """Returns a pointer to the values of an Arrow int64 array without nulls; NULL for None."""
    if array is None:
        return NULL
    cdef object values = array.buffers()[1]
    cdef uintptr_t address = values.address
    return (<const int64_t*> address) + <int64_t> array.offset


cdef object _one_tagged_batch(list tagged, payload):
    """Combines the columns and payloads of windows into one batch.

    `payload` is the array that consists of all these payloads, or None if there is none.
    """
    if not tagged:
        return pa.RecordBatch.from_pylist([], TAGGED_SCHEMA)
    if payload is None and len(tagged) == 1:
        payload = tagged[0][1]
    elif payload is None:
        payload = pa.concat_arrays([piece.cast(pa.large_binary()) for _, piece in tagged])
    try:
        payload = payload if payload.type == pa.binary() else payload.cast(pa.binary())
    except pa.ArrowInvalid:
        raise ValueError(
            "more than 2 GiB of payloads in one call: tag them in several, each with the state of the one before"
        ) from None
    heads = [head for head, _ in tagged]
    head = heads[0]
    if len(heads) > 1:
        # If there are no rows, to_batches makes no batch.
        head = next(iter(pa.Table.from_batches(heads).combine_chunks().to_batches()), head)
    return pa.RecordBatch.from_arrays([*head.columns, payload], schema=TAGGED_SCHEMA)


@cython.final
cdef class _Tentative:
    cdef Tagger tagger

    def __cinit__(self, Tagger tagger):
        self.tagger = tagger

    def __enter__(self):
        self.tagger.begin_call()

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self.tagger.end_call()
        else:
            self.tagger.undo()


@cython.final
cdef class NativeDecoder:
    """A stream's tagger and the batches of its relation versions."""
    cdef readonly object options
    cdef readonly object types           # what a live server said of its types
    cdef Tagger tagger
    cdef int64_t batch_rows, batch_bytes
    cdef int64_t window_messages         # how many messages the next window has at most
    cdef list batches                    # Batches of each slot, None until its first change
    cdef Spares spares
    cdef list touched                    # Batches with messages in the current call, in the order of the messages
    cdef list idle                       # frames that are not in use
    cdef list scratches                  # Scratches that no thread uses
    cdef Window window                   # the window that was tagged last
    cdef set described_columns           # (table, column) that some version has; see Options.check_columns
    cdef vector[int64_t] ends            # per slot: 0, except while `_plan` runs

    def __init__(self, options, catalog=None, values=None):
        """Begins at a stream's beginning, or at a given state.

        Args:
            options: the decoding options.
            catalog: relation versions that are known from the beginning.
            values: the state, as one dict of all that `state_values` gave. None for a stream's beginning.
        """
        self.options = options
        self.tagger = Tagger(options.on_error == "quarantine")
        self.batch_rows = options.batch_rows
        self.batch_bytes = options.batch_bytes
        self.window_messages = WINDOW_MESSAGES
        self.batches = []
        self.spares = Spares()
        self.touched = []
        self.idle = []
        self.scratches = []
        self.described_columns = set()
        known = catalog if catalog is not None else Catalog()
        self.types = known.types
        try:
            for relation in known.relations:
                self.tagger.slot_of(relation)
            if values is not None:
                import_state(self.tagger, values)
        except KeyError as problem:
            raise ValueError(f"not a stream state: {problem} is missing") from None
        except (TypeError, AttributeError, OverflowError, StructError) as problem:
            raise ValueError(f"not a stream state: {problem}") from None

    def state_values(self):
        """Returns the stream's state: a dict of JSON values, and `Described` for what was said outside of streams."""
        return export_state(self.tagger)

    @property
    def catalog(self):
        versions, count = self.tagger.versions, len(self.tagger.versions)
        return Catalog.lazily(lambda: {each.version: each for each in versions[:count]}, self.types)

    def start_session(self):
        self.tagger.start_session()

    @property
    def next_seq(self):
        return self.tagger.next_seq

    @property
    def relations(self):
        """The list of relation versions that it has met, and how many they are now. More are appended to the list."""
        return self.tagger.versions, len(self.tagger.versions)

    @property
    def between_transactions(self):
        """Whether no transaction or stream block is open before the next message."""
        return self.tagger.state.context == OUTSIDE or self.tagger.state.session_starts

    @property
    def open_plain(self):
        """(txn, commit LSN and timestamp) of the open plain transaction, as its Begin said; None if none is open."""
        if self.tagger.state.context != PLAIN or self.tagger.state.session_starts:
            return None
        return (
            self.tagger.state.current.txn,
            self.tagger.state.current.commit_lsn,
            self.tagger.state.current.commit_timestamp,
        )

    def learn_from(self, NativeDecoder other, int64_t start):
        """Takes over another decoder's types, and its relation versions from the `start`-th on.

        Returns how many versions the other decoder has met.
        """
        self.types = other.types
        cdef int64_t k
        cdef int64_t met = len(other.tagger.versions)
        for k in range(start, met):
            self.tagger.slot_of(other.tagger.versions[k])
        return met

    def tentative(self):
        """Returns a context manager. If its block raises, the calls in it are undone."""
        return _Tentative(self.tagger)

    # ---- a call --------------------------------------------------------------------------------------------------

    def decode(self, list arrays, lsn, seq, before=None):
        """Decodes the payloads in `arrays`. Returns ([(relation, batch)], records).

        `lsn` and `seq` are int64 Arrow arrays or None. `before` is a batch with TAGGED_SCHEMA that this decoder tagged
        earlier: it is decoded first.
        """
        return self._run(arrays, lsn, seq, False, False, before)

    def tag(self, list arrays, lsn, seq, bint changes_only=False):
        """Tags the payloads in `arrays`. Returns (batch with TAGGED_SCHEMA, records).

        It copies payloads only if it must. With `changes_only`, the batch has only changes, truncates and logical
        messages, and their payloads are copied.
        """
        return self._run(arrays, lsn, seq, True, changes_only, None)

    def decode_tagged(self, batch):
        """Decodes a batch with TAGGED_SCHEMA. Returns ([(relation, batch)], records)."""
        cdef _Call call = _Call(self, [], None, None, batch)
        self.tagger.begin_call()
        try:
            changes = call.run()
            return changes, take_records(self.tagger.records, self.tagger.versions, self.options, self.types)
        except Malformed:
            raise self._error_of_tag() from None
        finally:
            call.end()
            self.tagger.end_call()

    def _run(self, list arrays, lsn, seq, bint only_tag, bint changes_only, before):
        cdef _Call call = _Call(self, arrays, lsn, seq, before)
        cdef bint nested = self.tagger.saved != NULL
        cdef bint succeeded = False
        if not nested:
            self.tagger.begin_call()
        try:
            result = call.tag(changes_only) if only_tag else call.run()
            records = take_records(self.tagger.records, self.tagger.versions, self.options, self.types)
            succeeded = True
        except Malformed:
            raise self._error_of_tag() from None
        finally:
            call.end()
            if not nested and succeeded:
                self.tagger.end_call()
            elif not nested:
                self.tagger.undo()
        return result, records

    # ---- a window ------------------------------------------------------------------------------------------------

    cdef Frame _free_frame(self):
        return self.idle.pop() if self.idle else Frame()

    cdef Batches _batches_of(self, int32_t slot):
        cdef Batches batches
        while len(self.batches) <= slot:
            self.batches.append(None)
        relation = self.tagger.versions[slot]
        batches = self.batches[slot]
        if batches is None or (batches.relation is not relation and batches.relation != relation):
            batches = Batches(relation)
            self.batches[slot] = batches
        if not batches.touched:
            batches.done = []
            self.touched.append(batches)
            batches.touched = True
        return batches

    cdef int _plan(self, Frame frame, int64_t left) except -1:
        """Makes the frame's tasks for the window that was tagged last.

        Relation versions come in the order of their first items. `left` is how many messages of this array follow.
        """
        cdef int64_t items, i, begin, end, at, rows, each
        cdef int32_t slot
        cdef Batches batches
        cdef Task task
        cdef list tasks = []
        cdef vector[int32_t] present
        cdef vector[int64_t] stops
        cdef size_t k
        self.tagger.swap_tags(frame.tags)
        items = frame.tags.items
        with nogil:
            if self.ends.size() < self.tagger.bodies.size():
                self.ends.resize(self.tagger.bodies.size())
            if <int64_t> frame.order.size() < items:
                frame.order.resize(<size_t> items)
            # Allocated here, because nothing may fail until `ends` is 0 everywhere again.
            present.reserve(min(<size_t> items, self.ends.size()))
            stops.reserve(min(<size_t> items, self.ends.size()))
            for i in range(items):
                slot = frame.tags.item_slot[i]
                if self.ends[slot] == 0:
                    present.push_back(slot)
                self.ends[slot] += 1
            at = 0
            for slot in present:
                begin = at
                at += self.ends[slot]
                self.ends[slot] = begin
            for i in range(items):
                slot = frame.tags.item_slot[i]
                frame.order[self.ends[slot]] = frame.tags.item_message[i]
                self.ends[slot] += 1
            for slot in present:
                stops.push_back(self.ends[slot])
                self.ends[slot] = 0
        at = 0
        for k in range(present.size()):
            slot = present[k]
            end = stops[k]
            batches = self._batches_of(slot)
            while at < end:
                task = Task()
                task.batches = batches
                task.before = batches.last
                task.begin = at
                rows = batches.rows
                with nogil:
                    task.count = messages_that_fit(
                        frame.window, frame.order.data() + at, end - at, self.batch_rows, self.batch_bytes,
                        &batches.rows, &batches.bytes,
                    )
                at += task.count
                task.closes = at < end
                task.expected = batches.rows - rows
                if not task.closes:
                    # The rest of the array may add rows at the same rate, but no more than the batch can take.
                    task.expected += task.expected * left // frame.window.count
                    each = max(1, batches.bytes // max(1, batches.rows))
                    task.expected = min(task.expected, self.batch_bytes // each)
                if batches.open is None:
                    batches.open = self._free_rows(batches, slot)
                task.rows = batches.open
                batches.last = task
                if task.closes:
                    batches.open = batches.last = None
                    batches.rows = batches.bytes = 0
                tasks.append(task)
        if len(tasks) <= MANY_TASKS:
            self.window_messages = WINDOW_MESSAGES
        elif items < FEW_MESSAGES * <int64_t> len(tasks):
            self.window_messages = max(WINDOW_MESSAGES, min(2 * self.window_messages, LONGEST_WINDOW))
        return frame.start(tasks, self.options, self.types)

    cdef RelationRows _free_rows(self, Batches batches, int32_t slot):
        cdef RelationRows rows = self.spares.take(batches)
        if rows is None:
            if self.options.columns is not None:
                self.options.check_columns(batches.relation, self.tagger.versions, self.described_columns)
            rows = make_rows(batches.relation, self.options, self.types)
        rows.slot = slot
        return rows

    # ---- errors --------------------------------------------------------------------------------------------------

    cdef object _lsn_of(self, int64_t message):
        if self.tagger.lsns == NULL or self.tagger.lsns[message] == 0:
            return None
        return self.tagger.lsns[message]

    cdef object _kind_of(self, int64_t message):
        """Returns the name of a message's kind, None if the kind or the message is not known."""
        if self.window is None or not 0 <= message < self.window.count:
            return None
        return MESSAGE_KINDS.get(self.window.kind[message])

    cdef object _error_of_tag(self):
        relation = self.tagger.versions[self.tagger.reason_slot] if self.tagger.reason_slot >= 0 else None
        column = relation.columns[self.tagger.reason_column] if self.tagger.reason_column >= 0 else None
        return DecodeError(
            reason_text(
                self.tagger.reason,
                column_type_of(column, self.options, self.types) if column is not None else None,
            ),
            seq=self.tagger.seq_of(self.tagger.at),
            lsn=self._lsn_of(self.tagger.at),
            byte_offset=self.tagger.reason_offset,
            relation=relation.qualified_name if relation is not None else None,
            column=column.name if column is not None else None,
            kind=self._kind_of(self.tagger.at),
        )


@cython.final
@cython.no_gc
cdef class HeldLock:
    """Holds a lock until nobody refers to the object. So the lock is released even if a thread cannot begin."""
    cdef readonly object lock
    cdef bint released

    def __cinit__(self):
        lock = new_lock()
        lock.acquire()
        self.lock = lock

    def __dealloc__(self):
        if self.lock is not None and not self.released:
            self.lock.release()

    cdef int release(self) except -1:
        """Releases the lock now, because a trace or a debugger may keep the object."""
        self.lock.release()
        self.released = True
        return 0


@cython.final
cdef class _Call:
    """One call: the messages that are not tagged yet, the frames in use, and the threads that work on both."""
    cdef NativeDecoder decoder
    cdef list arrays
    cdef object lsn, seq                 # Arrow arrays; the pointers below point to their values
    cdef const int64_t* lsns
    cdef const int64_t* seqs
    cdef object before                   # tagged rows that come first; None once they are loaded
    cdef int64_t array, at, done         # the array after the current one; tagged messages in this array, and in all
    cdef Payloads payloads               # of the current array
    cdef object frames                   # those whose results have not been taken, the oldest first
    cdef object turn                     # a lock: the thread that tags holds it
    cdef bint stopped                    # nothing more will be tagged
    cdef bint failed                     # a thread ended before its work was done
    cdef object error                    # why; None if there was no memory to keep it

    def __cinit__(self, NativeDecoder decoder, list arrays, lsn, seq, before):
        self.decoder = decoder
        self.arrays = arrays
        self.lsn = lsn
        self.seq = seq
        self.lsns = _int64_values(lsn)
        self.seqs = _int64_values(seq)
        self.before = before
        self.frames = deque()
        self.turn = new_lock()

    # ---- windows ---------------------------------------------------------------------------------------------------

    cdef bint _tag_next(self, Frame frame) except -1:
        """Scans and tags the next window. Returns False if there is none."""
        cdef Tagger tagger = self.decoder.tagger
        cdef bint in_stream
        cdef int64_t taken
        while self.payloads is None or self.at == self.payloads.count:
            if self.array == len(self.arrays):
                return False
            self.payloads = Payloads(self.arrays[self.array])
            self.array += 1
            self.at = 0
        in_stream = tagger.state.context == STREAMING and not tagger.state.session_starts
        taken = scan_window(self.payloads, self.at, self.decoder.window_messages, MESSAGE_WINDOW_BYTES, &in_stream,
                            frame.window)
        self.decoder.window = frame.window
        tagger.tag_window(
            frame.window,
            tagger.state.next_seq,
            self.seqs + self.done if self.seqs != NULL else NULL,
            self.lsns + self.done if self.lsns != NULL else NULL,
        )
        self.at += taken
        self.done += taken
        return True

    def tag(self, bint changes_only):
        """Returns all messages as one batch with TAGGED_SCHEMA."""
        cdef Frame frame = self.decoder._free_frame()
        cdef list tagged = []
        cdef bint whole = len(self.arrays) == 1
        while self._tag_next(frame):
            head, messages, more = tagged_columns(self.decoder.tagger, frame.window, changes_only)
            part = self.payloads.owner.slice(self.at - frame.window.count, frame.window.count)
            whole = whole and messages is None
            if messages is not None:
                if more is not None:
                    part = pa.concat_arrays([part.cast(pa.large_binary()), more])
                part = part.take(messages)
                part = part.fill_null(b"") if messages.null_count else part
            tagged.append((head, part))
        self.decoder.idle.append(frame)
        return _one_tagged_batch(tagged, self.arrays[0] if whole else None)

    cdef Frame _next_frame(self):
        """Tags and plans the next window; returns None if there is none. The caller must hold `turn`."""
        cdef Frame frame
        cdef int64_t left
        if self.stopped:
            return None
        self._take_finished(2 * <int64_t> self.decoder.options.threads)
        frame = self.decoder._free_frame()
        if self.before is not None:
            self.decoder.window = frame.window
            load_tagged(self.decoder.tagger, frame.window, self.before)
            self.before = None
            left = 0
        elif self._tag_next(frame):
            left = self.payloads.count - self.at
        else:
            return None
        self.decoder._plan(frame, left)
        self.frames.append(frame)
        return frame

    # ---- threads ---------------------------------------------------------------------------------------------------

    def _work(self):
        """Does the work of one thread. A task's error is kept with the task, any other error stops the call."""
        cdef Frame frame = None
        cdef Frame other
        cdef Scratch scratch
        cdef bint finished = False
        try:
            scratch = self.decoder.scratches.pop() if self.decoder.scratches else Scratch()
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
            self.decoder.scratches.append(scratch)
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

    cdef int64_t _more_threads(self) except -1:
        """Returns how many threads beside this one would find work."""
        cdef int64_t messages = sum([len(array) for array in self.arrays])
        cdef int64_t size = sum([array.nbytes for array in self.arrays])
        cdef int64_t windows = max(messages // WINDOW_MESSAGES, size // MESSAGE_WINDOW_BYTES)
        if self.before is not None:
            windows += self.before.num_rows // self.decoder.batch_rows
        return min(<int64_t> self.decoder.options.threads - 1, windows)

    cdef int _start(self, list at_work) except -1:
        """Starts threads. Appends a lock for each to `at_work`; the thread holds it while it works.

        threading.Thread is not used: an interruption inside of it would leave an incomplete thread object.
        """
        for _ in range(self._more_threads()):
            holder = HeldLock()
            at_work.append(holder.lock)
            try:
                start_new_thread(self._work_beside, (holder,))
            except RuntimeError:
                # No more threads can be started: the others do all the work.
                at_work.pop()
                break
        return 0

    def _work_beside(self, HeldLock holder):
        try:
            self._work()
        except BaseException:
            pass  # the call knows that this thread failed
        finally:
            holder.release()

    cdef int _join(self, list at_work) except -1:
        """Waits until no thread works any more, even if the wait is interrupted: their data is freed afterwards."""
        cdef Py_ssize_t ended = 0
        interruption = None
        while ended < len(at_work):
            try:
                at_work[ended].acquire()
                ended += 1
            except BaseException as error:
                self.stopped = True
                interruption = error
        if interruption is not None:
            raise interruption
        return 0

    def run(self):
        """Decodes everything. Returns [(relation, batch)] of the whole call."""
        cdef Batches batches
        cdef list at_work = []
        self.decoder.touched = []
        try:
            if self.decoder.options.threads > 1:
                self._start(at_work)
            self._work()
        except BaseException:
            self.stopped = True
            raise
        finally:
            self._join(at_work)
        if self.error is not None and (isinstance(self.error, MemoryError) or not isinstance(self.error, Exception)):
            raise self.error  # memory ran out, or somebody interrupted the call: no message is the cause
        if self.failed and self.error is None:
            raise MemoryError
        self._take_finished(0)
        if self.error is not None:
            raise self.error
        changes = []
        for batches in self.decoder.touched:
            if batches.open is not None:
                batches.open.finish_batch()
                batches.done.extend(batches.open.batches)
                batches.open.batches = []
                self.decoder.spares.keep(batches, batches.open)
                batches.open = None
            changes.extend([(batches.relation, batch) for batch in batches.done])
        return changes

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
            self.decoder.tagger.records.take_rejects(frame.records)
            for task in frame.tasks:
                task.batches.done.extend(task.made)
                if task.closes:
                    self.decoder.spares.keep(task.batches, task.rows)
            frame.forget()
            self.frames.popleft()
            self.decoder.idle.append(frame)
        return 0

    cdef int end(self) except -1:
        """Closes all batches and drops all references to results. It allocates no memory, so it cannot fail."""
        cdef Batches batches
        cdef Frame frame
        while self.frames:
            frame = self.frames.popleft()
            frame.forget()
        for batches in self.decoder.touched:
            batches.touched = False
            batches.done = None
            batches.open = batches.last = None
            batches.rows = batches.bytes = 0
        return 0
