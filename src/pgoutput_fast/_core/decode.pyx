"""The stages in a row: payloads -> windows -> scan -> tag -> tasks, each of which slices, converts and assembles.

With threads, the caller's scans and tags ahead of the others; tasks of the oldest window that nobody has begun, it does
itself. What they make is taken in the order of the stream.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libcpp.vector cimport vector

from pgoutput_fast._core.records cimport take_records
from pgoutput_fast._core.rows cimport RelationRows
from pgoutput_fast._core.scan cimport Payloads, scan_window
from pgoutput_fast._core.stream_state cimport OUTSIDE, PLAIN, STREAMING
from pgoutput_fast._core.tag cimport Tagger
from pgoutput_fast._core.task cimport Batches, Frame, Job, Task, messages_that_fit
from pgoutput_fast._core.tagged cimport load_tagged, tagged_columns

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from struct import error as StructError

import pyarrow as pa

from pgoutput_fast._core.describe import Malformed
from pgoutput_fast._core.rows import make_rows
from pgoutput_fast._core.state_json import export_state, import_state
from pgoutput_fast.catalog import Catalog
from pgoutput_fast.errors import DecodeError, reason_text
from pgoutput_fast.schema import TAGGED_SCHEMA
from pgoutput_fast.state import StreamState
from pgoutput_fast.types import column_type_of

# A window's headers and items take some 30 bytes a message beside the payloads themselves. Of larger ones, the cache
# has forgotten what scanning fetched when the values are read.
cdef int64_t WINDOW_MESSAGES = 1 << 14
cdef int64_t WINDOW_BYTES = 1 << 25
# Threads get at least this many messages at a time, if there are as many: a call of Python takes longer than a few.
cdef int64_t JOB_MESSAGES = 1 << 12


def use_windows(int64_t messages, int64_t job_messages):
    """Sets how many messages a window and a thread's job have at most and at least; what they had. For tests."""
    global WINDOW_MESSAGES, JOB_MESSAGES
    before = WINDOW_MESSAGES, JOB_MESSAGES
    WINDOW_MESSAGES, JOB_MESSAGES = max(messages, 1), max(job_messages, 1)
    return before


cdef const int64_t* _int64_values(object array) except? NULL:
    """Pointer to the values of an Arrow int64 array without nulls; NULL for None."""
    if array is None:
        return NULL
    cdef object values = array.buffers()[1]
    cdef uintptr_t address = values.address
    return (<const int64_t*> address) + <int64_t> array.offset


cdef object _one_tagged_batch(list tagged, payload):
    """Windows' columns and payloads as one batch; `payload` is the array that all of them are stretches of, if any."""
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
        # Of no rows, to_batches makes no batch at all.
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
    cdef object types                    # what a live server said of its types
    cdef Tagger tagger
    cdef int64_t batch_rows, batch_bytes
    cdef list batches                    # Batches of each slot, None until its first change
    cdef list touched                    # those that the call at hand has messages for, in the order of these
    cdef list idle                       # frames that are on no way
    cdef list scratches                  # and rooms that no thread uses
    cdef vector[int64_t] ends            # per slot: 0, but while a window is planned

    def __init__(self, options, state=None, catalog=None):
        self.options = options
        self.tagger = Tagger(options.on_error == "quarantine")
        self.batch_rows = options.batch_rows
        self.batch_bytes = options.batch_bytes
        self.batches = []
        self.touched = []
        self.idle = []
        self.scratches = []
        known = state.catalog if state is not None else Catalog()
        if catalog is not None:
            known = known.merged(catalog)
        self.types = known.types
        try:
            for relation in known.relations:
                self.tagger.slot_of(relation)
            if state is not None and state.values is not None:
                import_state(self.tagger, state.values)
        except KeyError as problem:
            raise ValueError(f"not a stream state: {problem} is missing") from None
        except (TypeError, AttributeError, OverflowError, StructError) as problem:
            raise ValueError(f"not a stream state: {problem}") from None

    @property
    def state(self):
        return StreamState(export_state(self.tagger), self.catalog)

    @property
    def catalog(self):
        return Catalog(self.tagger.versions, self.types)

    def start_session(self):
        self.tagger.start_session()

    @property
    def next_seq(self):
        return self.tagger.next_seq

    @property
    def between_transactions(self):
        """Whether no transaction or stream block is open before the next message."""
        return self.tagger.state.context == OUTSIDE or self.tagger.state.session_starts

    @property
    def open_plain(self):
        """(txn, commit LSN and timestamp that its Begin announced) of the plain transaction that is open, or None."""
        if self.tagger.state.context != PLAIN or self.tagger.state.session_starts:
            return None
        return (
            self.tagger.state.current.txn,
            self.tagger.state.current.commit_lsn,
            self.tagger.state.current.commit_timestamp,
        )

    def learn_from(self, NativeDecoder other, int64_t start):
        """Relation versions that another decoder met from its `start`-th on; how many it has met by now.

        The other's types count here, too.
        """
        self.types = other.types
        cdef int64_t k
        cdef int64_t met = len(other.tagger.versions)
        for k in range(start, met):
            self.tagger.slot_of(other.tagger.versions[k])
        return met

    def tentative(self):
        """A context in which a call counts only if the whole block succeeds."""
        return _Tentative(self.tagger)

    # ---- a call --------------------------------------------------------------------------------------------------

    def decode(self, list arrays, lsn, seq, before=None):
        """([(relation, batch)], records) of the payloads in `arrays`; lsn and seq are int64 Arrow arrays or None.

        `before` is a batch with TAGGED_SCHEMA of what this decoder tagged earlier: it is decoded first.
        """
        return self._run(arrays, lsn, seq, False, False, before)

    def tag(self, list arrays, lsn, seq, bint changes_only=False):
        """(batch with TAGGED_SCHEMA, records) of the payloads in `arrays`, which are copied only where they must be.

        With `changes_only`: of changes, truncates and messages, in memory of their own.
        """
        return self._run(arrays, lsn, seq, True, changes_only, None)

    def decode_tagged(self, batch):
        """([(relation, batch)], records) of a batch with TAGGED_SCHEMA."""
        cdef Frame frame = self._free_frame()
        cdef _Flight flight = _Flight(self)
        self.tagger.begin_call()
        try:
            load_tagged(self.tagger, frame.window, batch)
            flight.take(frame, 0)
            changes = flight.land()
            return changes, take_records(self.tagger.records, self.tagger.versions, self.options, self.types)
        except Malformed:
            raise self._error_of_tag() from None
        finally:
            flight.end()
            self.tagger.end_call()

    def _run(self, list arrays, lsn, seq, bint only_tag, bint changes_only, before):
        cdef const int64_t* lsns = _int64_values(lsn)
        cdef const int64_t* seqs = _int64_values(seq)
        cdef int64_t done = 0, at, taken
        cdef Payloads payloads
        cdef bint in_stream
        cdef Frame frame = None
        cdef _Flight flight = _Flight(self)
        cdef list tagged = []
        cdef bint whole = True
        cdef bint nested = self.tagger.saved != NULL
        if not nested:
            self.tagger.begin_call()
        try:
            if before is not None:
                frame = self._free_frame()
                load_tagged(self.tagger, frame.window, before)
                flight.take(frame, len(arrays))
            for array in arrays:
                payloads = Payloads(array)
                at = 0
                while at < payloads.count:
                    frame = self._free_frame()
                    in_stream = self.tagger.state.context == STREAMING and not self.tagger.state.session_starts
                    taken = scan_window(payloads, at, WINDOW_MESSAGES, WINDOW_BYTES, &in_stream, frame.window)
                    self.tagger.tag_window(
                        frame.window,
                        self.tagger.state.next_seq,
                        seqs + done if seqs != NULL else NULL,
                        lsns + done if lsns != NULL else NULL,
                    )
                    at += taken
                    done += taken
                    if only_tag:
                        head, messages = tagged_columns(self.tagger, frame.window, changes_only)
                        stretch = array.slice(at - taken, taken)
                        whole = whole and messages is None
                        if messages is not None:
                            stretch = stretch.take(messages)
                            stretch = stretch.fill_null(b"") if messages.null_count else stretch
                        tagged.append((head, stretch))
                        self.idle.append(frame)
                    else:
                        flight.take(frame, payloads.count - at)
            if only_tag:
                result = _one_tagged_batch(tagged, arrays[0] if whole and len(arrays) == 1 else None)
            else:
                result = flight.land()
            records = take_records(self.tagger.records, self.tagger.versions, self.options, self.types)
        except Malformed:
            error = self._error_of_tag()
            # What is malformed further ahead in the stream comes first.
            earlier = flight.trouble()
            if not nested:
                self.tagger.undo()
            raise (error if earlier is None else earlier) from None
        except BaseException:
            if not nested:
                self.tagger.undo()
            raise
        finally:
            flight.end()
        if not nested:
            self.tagger.end_call()
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
            batches.touched = True
            self.touched.append(batches)
        return batches

    cdef int _plan(self, Frame frame, int64_t left, bint alone) except -1:
        """The frame's jobs for what was tagged last: relation versions in the order of their first items.

        `left` messages of this array are still to come.
        """
        cdef int64_t items, i, begin, end, at, rows
        cdef int32_t slot
        cdef Batches batches
        cdef Task task
        cdef Job job = None
        cdef vector[int32_t] present
        cdef vector[int64_t] stops
        cdef size_t k
        self.tagger.swap_tags(frame.tags)
        items = frame.tags.items
        frame.jobs = []
        with nogil:
            if self.ends.size() < self.tagger.bodies.size():
                self.ends.resize(self.tagger.bodies.size())
            if <int64_t> frame.order.size() < items:
                frame.order.resize(<size_t> items)
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
                if job is None or job.messages >= JOB_MESSAGES:
                    job = Job(frame, self.options, self.types, alone)
                    frame.jobs.append(job)
                task = Task()
                task.batches = batches
                task.job = job
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
                    task.expected += task.expected * left // frame.window.count
                if batches.open is None:
                    batches.open = self._free_rows(batches, slot)
                task.rows = batches.open
                batches.last = task
                if task.closes:
                    batches.open = batches.last = None
                    batches.rows = batches.bytes = 0
                job.tasks.append(task)
                job.messages += task.count
        return 0

    cdef RelationRows _free_rows(self, Batches batches, int32_t slot):
        cdef RelationRows rows
        if batches.spare:
            rows = batches.spare.pop()
        else:
            rows = make_rows(batches.relation, self.options, self.types)
        rows.slot = slot
        return rows

    # ---- errors --------------------------------------------------------------------------------------------------

    cdef object _lsn_of(self, int64_t message):
        if self.tagger.lsns == NULL or self.tagger.lsns[message] == 0:
            return None
        return self.tagger.lsns[message]

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
        )


@cython.final
cdef class _Flight:
    """The frames of one call, and the threads that work on them."""
    cdef NativeDecoder decoder
    cdef object pool
    cdef object frames                   # those under way, the oldest first

    def __cinit__(self, NativeDecoder decoder):
        self.decoder = decoder
        self.frames = deque()

    cdef int take(self, Frame frame, int64_t left) except -1:
        """Plans what was tagged last and has it done; `left` messages are still to come."""
        cdef int64_t threads = self.decoder.options.threads
        self.decoder._plan(frame, left, threads == 1)
        self.frames.append(frame)
        if self.pool is None and threads > 1 and (len(frame.jobs) > 1 or left > 0):
            self.pool = ThreadPoolExecutor(threads - 1, "pgoutput_fast")
        if self.pool is None:
            return self._complete()
        for job in frame.jobs:
            job.future = self.pool.submit(job.run, self.decoder.scratches)
        while len(self.frames) > 2 * threads:
            self._complete()
        return 0

    cdef int _complete(self) except -1:
        """The oldest frame: does of it what nobody has begun, waits for the rest, and takes what they made."""
        cdef Frame frame = self.frames[0]
        cdef Job job
        cdef Task task
        for job in frame.jobs:
            if job.future is None or job.future.cancel():
                job.run(self.decoder.scratches)
            else:
                job.finished.wait()
            if job.error is not None:
                raise job.error
            self.decoder.tagger.records.take_rejects(job.records)
            for task in job.tasks:
                task.batches.done.extend(task.made)
                if task.closes:
                    task.batches.spare.append(task.rows)
            job.forget()
        frame.jobs = []
        self.frames.popleft()
        self.decoder.idle.append(frame)
        return 0

    cdef list land(self):
        """[(relation, batch)] of the whole call."""
        cdef Batches batches
        while self.frames:
            self._complete()
        changes = []
        for batches in self.decoder.touched:
            if batches.open is not None:
                batches.open.finish_batch()
                batches.done.extend(batches.open.batches)
                batches.open.batches = []
                batches.spare.append(batches.open)
                batches.open = None
            changes.extend([(batches.relation, batch) for batch in batches.done])
        return changes

    cdef object trouble(self):
        """The first thing that went wrong in the frames under way, if anything did."""
        try:
            while self.frames:
                self._complete()
        except DecodeError as error:
            return error
        return None

    cdef int end(self) except -1:
        """No thread is left at work, and no batch open."""
        cdef Batches batches
        cdef Frame frame
        cdef Job job
        for frame in self.frames:
            for job in frame.jobs:
                if job.future is None or job.future.cancel():
                    job.give_up()
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
            self.pool = None
        for frame in self.frames:
            for job in frame.jobs:
                job.forget()
            frame.jobs = []
        self.frames.clear()
        for batches in self.decoder.touched:
            batches.touched = False
            batches.done = []
            batches.open = batches.last = None
            batches.rows = batches.bytes = 0
        self.decoder.touched = []
        return 0
