"""Runs the stages: payloads -> windows -> scan -> tag -> tasks. A task slices, converts and assembles."""
cimport cython
from libc.stdint cimport int64_t

from pgoutput_fast._core.rows.call cimport DecodeCall, UnusedMemory
from pgoutput_fast._core.rows.planning cimport BatchPlanner
from pgoutput_fast._core.rows.task cimport WindowWork
from pgoutput_fast._core.rows.windows cimport WindowTagger
from pgoutput_fast._core.tagging.records cimport take_records
from pgoutput_fast._core.tagging.relation_versions cimport RelationVersions
from pgoutput_fast._core.tagging.seen_lsns cimport SeenLsns
from pgoutput_fast._core.tagging.stream_state cimport OUTSIDE, PLAIN
from pgoutput_fast._core.tagging.stream_tracker cimport StreamTracker
from pgoutput_fast._core.tagging.tag cimport Tagger
from pgoutput_fast._core.tagging.waiting cimport ENDED, NO_END, OTHER_ENDS, PlainEnd, plain_end

from struct import error as StructError

from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast._core.tagging.state_json import export_state, import_state
from pgoutput_fast.catalog.relations import Catalog

# What a call returns.
cdef enum:
    DECODE
    TAG
    TAG_CHANGES
    TAG_WAITING
    DECODE_ENDED


@cython.final
cdef class _UndoOnError:
    """A context manager: an error in its block undoes all calls in the block."""
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
    cdef Tagger tagger
    cdef StreamTracker tracker           # the tagger's
    cdef RelationVersions versions       # the tracker's
    cdef BatchPlanner planner
    cdef UnusedMemory unused

    def __init__(self, options, catalog=None, values=None):
        """Starts at the beginning of a stream, or at a given state.

        Args:
            options: the decoding options.
            catalog: relation versions known from the start.
            values: the state, as one dict with all values from `state_values`. None for the beginning of a stream.
        """
        self.options = options
        known = catalog if catalog is not None else Catalog()
        self.tagger = Tagger(options.on_error == "quarantine")
        self.tracker = self.tagger.tracker
        self.versions = self.tracker.versions
        self.planner = BatchPlanner(options, known.types, self.tracker)
        self.unused = UnusedMemory()
        for relation in known.relations:
            self.versions.slot_of(relation)
        if values is None:
            return
        try:
            import_state(self.tracker, values)
        except KeyError as problem:
            raise ValueError(f"not a stream state: {problem} is missing") from None
        except (TypeError, AttributeError, OverflowError, StructError) as problem:
            raise ValueError(f"not a stream state: {problem}") from None

    @property
    def types(self):
        """The types as described by a live server."""
        return self.planner.types

    def state_values(self):
        """Returns the stream's state: a dict of JSON values, and `Described` for descriptions outside of streams."""
        return export_state(self.tracker)

    @property
    def catalog(self):
        versions, count = self.versions.relations, len(self.versions.relations)
        return Catalog.lazily(lambda: {each.version: each for each in versions[:count]}, self.planner.types)

    def start_session(self):
        self.tagger.start_session()

    @property
    def next_seq(self):
        return self.tracker.state.next_seq

    @property
    def last_commit(self):
        """(commit LSN, end LSN) of the last commit that was tagged; zeros before the first one."""
        return self.tracker.state.commit_lsn, self.tracker.state.commit_end_lsn

    @property
    def last_message_lsn(self):
        """The largest LSN of a non-transactional logical message; 0 before the first one."""
        return self.tracker.state.messages.last()

    def skip_messages(self, int64_t lsn):
        """Skips non-transactional logical messages up to an LSN."""
        self.tracker.state.messages = SeenLsns(lsn)

    @property
    def relations(self):
        """The list of relation versions so far, and their current number. Later versions are appended to the list."""
        return self.versions.relations, len(self.versions.relations)

    @property
    def between_transactions(self):
        """Whether no transaction or stream block is open before the next message."""
        return self.tracker.state.context == OUTSIDE or self.tracker.state.session_starts

    @property
    def open_plain(self):
        """The open plain transaction, neither streamed nor being prepared: (txn, commit LSN, commit timestamp).

        The LSN and the timestamp of its Commit come from its Begin message. None if there is no such transaction.
        """
        if self.tracker.state.context != PLAIN or self.tracker.state.session_starts:
            return None
        return (
            self.tracker.state.current.txn,
            self.tracker.state.current.commit_lsn,
            self.tracker.state.current.commit_timestamp,
        )

    def learn_from(self, NativeDecoder other, int64_t start):
        """Adopts another decoder's types, and its relation versions from the `start`-th on.

        Returns the number of versions that the other decoder has.
        """
        self.planner.types = other.planner.types
        cdef int64_t k
        cdef int64_t met = len(other.versions.relations)
        for k in range(start, met):
            self.versions.slot_of(other.versions.relations[k])
        return met

    def tentative(self):
        """Returns a context manager. If its block raises, the calls in it are undone."""
        return _UndoOnError(self.tagger)

    # ---- a call --------------------------------------------------------------------------------------------------

    def decode(self, list arrays, lsn, seq, tagged_first=None):
        """Decodes the payloads in `arrays`. Returns ([(relation, batch)], records).

        `lsn` and `seq` are int64 Arrow arrays or None. `tagged_first` are rows that this decoder tagged earlier: they
        are decoded first. It is a list of pairs: WaitingRows or a batch with TAGGED_SCHEMA, and the (LSN, timestamp) of
        the commit of all its rows, or None if they have it already.
        """
        return self._run(arrays, lsn, seq, DECODE, tagged_first)

    def tag(self, list arrays, lsn, seq, bint changes_only=False):
        """Tags the payloads in `arrays`. Returns (batch with TAGGED_SCHEMA, records).

        Payloads are copied only if necessary. With `changes_only`, the batch has only changes, truncates and logical
        messages, and their payloads are copied.
        """
        return self._run(arrays, lsn, seq, TAG_CHANGES if changes_only else TAG, None)

    def tag_waiting(self, list arrays, lsn, seq):
        """Tags the payloads in `arrays`. Returns (rows, records).

        `rows` are the changes, truncates and logical messages: WaitingRows, or batches with TAGGED_SCHEMA. WaitingRows
        share the memory of the arrays.
        """
        return self._run(arrays, lsn, seq, TAG_WAITING, None)

    def decode_ended(self, array, lsn, seq, open_rows):
        """Tags the payloads in `array`, and decodes ended transactions if these are a few plain ones.

        `open_rows()` returns the earlier rows of the open transaction, in the form of `tagged_first` in `decode`. It is
        called only if they end.

        Returns:
            (changes, rows, records, whether transactions ended). If they did, `changes` are all their changes,
            including those of `open_rows`, and `rows` are WaitingRows of the transaction that is open after them. If
            not, there are no changes, and `rows` are like those of `tag_waiting`.
        """
        return self._run([array], lsn, seq, DECODE_ENDED, open_rows)

    def decode_tagged(self, batch):
        """Decodes a batch with TAGGED_SCHEMA. Returns ([(relation, batch)], records)."""
        return self.decode_committed([(batch, None)])

    def decode_committed(self, list rows):
        """Decodes pairs of a batch with TAGGED_SCHEMA and the (LSN, timestamp) of the commit of all its rows, or None.

        With None, the rows already have the position of their commit. Returns ([(relation, batch)], records).
        """
        cdef WindowTagger windows = WindowTagger(self.tagger, [], None, None, rows)
        cdef DecodeCall call = DecodeCall(self.planner, windows, self.unused, self.options.threads)
        self.tagger.begin_call()
        try:
            changes = call.run()
            return changes, self._take_records()
        except Malformed:
            raise windows.error_of_tag(self.options, self.planner.types) from None
        finally:
            call.end()
            # There is no undo, not even after an error. Valid tagged rows do not change the stream's state. Rejected
            # ones may, but the state of a decoder of tagged rows is never read.
            self.tagger.end_call()

    def _run(self, list arrays, lsn, seq, int what, tagged_first):
        cdef list first = tagged_first if tagged_first is not None and what == DECODE else []
        cdef WindowTagger windows = WindowTagger(self.tagger, arrays, lsn, seq, first)
        cdef DecodeCall call = DecodeCall(self.planner, windows, self.unused, self.options.threads)
        cdef bint nested = self.tagger.saved != NULL
        cdef bint succeeded = False
        if not nested:
            self.tagger.begin_call()
        try:
            if what == DECODE_ENDED:
                result, rows, ended = self._decode_ended(windows, call, tagged_first)
            else:
                result = call.run() if what == DECODE else self._tag_all(windows, what)
            records = self._take_records()
            succeeded = True
        except Malformed:
            raise windows.error_of_tag(self.options, self.planner.types) from None
        finally:
            call.end()
            if not nested and succeeded:
                self.tagger.end_call()
            elif not nested:
                self.tagger.undo()
        return (result, rows, records, ended) if what == DECODE_ENDED else (result, records)

    cdef tuple _decode_ended(self, WindowTagger windows, DecodeCall call, open_rows):
        cdef WindowWork work = self.unused.take_work()
        cdef int64_t items = 0
        cdef PlainEnd end = NO_END
        cdef list rows = []
        cdef list changes = []
        if windows.tag_next(work, self.planner.window_messages):
            end = plain_end(self.tracker.tags, work.window, &items) if windows.left() == 0 else OTHER_ENDS
            if end == ENDED:
                rows = windows.rest(work, items)
                self.tracker.tags.swap_tags(work.tags)
                windows.tagged_first = [*open_rows(), (work, None)]
                changes = call.run()
            else:
                rows = windows.wait(work)
                rows.extend(windows.tag_waiting(work, self.planner.window_messages))
        self.unused.window_works.append(work)
        return changes, rows, end == ENDED

    cdef object _tag_all(self, WindowTagger windows, int what):
        cdef WindowWork work = self.unused.take_work()
        if what == TAG_WAITING:
            tagged = windows.tag_waiting(work, self.planner.window_messages)
        else:
            tagged = windows.tag_all(work, self.planner.window_messages, what == TAG_CHANGES)
        self.unused.window_works.append(work)
        return tagged

    cdef object _take_records(self):
        return take_records(self.tracker.records, self.versions.relations, self.options, self.planner.types)
