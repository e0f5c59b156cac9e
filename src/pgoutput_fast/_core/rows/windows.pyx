"""Stages 1 and 2 of a call: the payloads of its arrays become tagged windows."""
cimport cython
from libc.stdint cimport int64_t, uintptr_t

from pgoutput_fast._core.protocol.limits cimport MESSAGE_WINDOW_BYTES
from pgoutput_fast._core.rows.task cimport WindowWork
from pgoutput_fast._core.tagging.scan cimport Payloads, scan_window
from pgoutput_fast._core.tagging.stream_state cimport NONE64, STREAMING
from pgoutput_fast._core.tagging.stream_tracker cimport InvalidMessage, StreamTracker
from pgoutput_fast._core.tagging.tag cimport Tagger
from pgoutput_fast._core.tagging.tagged cimport load_tagged, tagged_columns
from pgoutput_fast._core.tagging.waiting cimport WaitingRows, waiting_rows

import pyarrow as pa

from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.protocol.kinds import MESSAGE_KINDS
from pgoutput_fast.schema.column_types import column_type_of
from pgoutput_fast.schema.tables import TAGGED_SCHEMA


cdef const int64_t* _int64_values(object array) except? NULL:
    """Returns a pointer to the values of an Arrow int64 array without nulls; NULL for None."""
    if array is None:
        return NULL
    cdef object values = array.buffers()[1]
    cdef uintptr_t address = values.address
    return (<const int64_t*> address) + <int64_t> array.offset


cdef object _one_tagged_batch(list tagged, payload):
    """Combines the columns and payloads of windows into one batch.

    `payload` is the array of all these payloads, or None if there is none.
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
cdef class WindowTagger:
    def __cinit__(self, Tagger tagger, list arrays, lsn, seq, list tagged_first):
        self.tagger = tagger
        self.arrays = arrays
        self.lsn = lsn
        self.seq = seq
        self.lsns = _int64_values(lsn)
        self.seqs = _int64_values(seq)
        self.tagged_first = tagged_first

    cdef bint tag_next(self, WindowWork work, int64_t most_messages) except -1:
        """Scans and tags the next window of payloads. Returns False if there is none."""
        cdef Tagger tagger = self.tagger
        cdef bint in_stream
        cdef int64_t taken
        while self.payloads is None or self.at == self.payloads.count:
            if self.next_array == len(self.arrays):
                return False
            self.payloads = Payloads(self.arrays[self.next_array])
            self.next_array += 1
            self.at = 0
        in_stream = tagger.tracker.state.context == STREAMING and not tagger.tracker.state.session_starts
        taken = scan_window(self.payloads, self.at, most_messages, MESSAGE_WINDOW_BYTES, &in_stream, work.window)
        self.window = work.window
        tagger.tag_window(
            work.window,
            tagger.tracker.state.next_seq,
            self.seqs + self.done if self.seqs != NULL else NULL,
            self.lsns + self.done if self.lsns != NULL else NULL,
        )
        self.at += taken
        self.done += taken
        return True

    cdef bint load_or_tag(self, WindowWork work, int64_t most_messages) except -1:
        """Loads the next window of rows that were tagged earlier.

        After the last of them, it calls `tag_next`. Returns False if there is no window left.
        """
        cdef StreamTracker tracker = self.tagger.tracker
        cdef WaitingRows waiting
        cdef WindowWork tagged
        if self.next_tagged == len(self.tagged_first):
            return self.tag_next(work, most_messages)
        self.window = work.window
        rows, commit = self.tagged_first[self.next_tagged]
        if isinstance(rows, WindowWork):
            # `work` receives the window, and the planner takes the tags from the tracker.
            tagged = rows
            work.window, tagged.window = tagged.window, work.window
            tracker.tags.swap_tags(tagged.tags)
            self.window = work.window
        elif isinstance(rows, WaitingRows):
            waiting = rows
            if waiting.versions is not tracker.versions:
                raise ValueError("another decoder tagged these rows")
            waiting.load(tracker.tags, work.window)
            if commit is not None:
                tracker.tags.commit(commit[0], commit[1])
        else:
            load_tagged(tracker, work.window, rows)
            if commit is not None:
                tracker.tags.commit(commit[0], commit[1])
        self.next_tagged += 1
        return True

    cdef int64_t tagged_rows(self) except -1:
        """Returns how many of the rows tagged earlier are not loaded yet."""
        cdef int64_t count = 0, k
        for k in range(self.next_tagged, len(self.tagged_first)):
            rows, _ = self.tagged_first[k]
            if isinstance(rows, WindowWork):
                count += (<WindowWork> rows).tags.items
            else:
                count += (<WaitingRows> rows).rows if isinstance(rows, WaitingRows) else rows.num_rows
        return count

    cdef int64_t left(self) except -1:
        """Returns the number of pending messages: of the current array, and of rows tagged earlier.

        Before the first array, all arrays count.
        """
        cdef int64_t count = self.tagged_rows()
        if self.payloads is not None:
            return count + self.payloads.count - self.at
        return count + <int64_t> sum([len(array) for array in self.arrays])

    cdef object tag_all(self, WindowWork work, int64_t most_messages, bint changes_only):
        """Returns all messages as one batch with TAGGED_SCHEMA."""
        cdef list tagged = []
        cdef bint whole = len(self.arrays) == 1
        while self.tag_next(work, most_messages):
            head, part = self._tagged(work, changes_only)
            whole = whole and part is None
            tagged.append((head, self._part(work) if part is None else part))
        return _one_tagged_batch(tagged, self.arrays[0] if whole else None)

    cdef list tag_waiting(self, WindowWork work, int64_t most_messages):
        """Returns the changes, truncates and logical messages of all messages.

        A window produces WaitingRows per transaction, or one batch with TAGGED_SCHEMA.
        """
        cdef list found = []
        while self.tag_next(work, most_messages):
            found.extend(self.wait(work))
        return found

    cdef list wait(self, WindowWork work):
        """Like `tag_waiting`, for the last tagged window."""
        rows = waiting_rows(self.tagger.tracker, work.window, self.payloads)
        return rows if rows is not None else [_one_tagged_batch([self._tagged(work, True)], None)]

    cdef list rest(self, WindowWork work, int64_t first):
        """Returns the changes of the last tagged window from an item on, and removes them from the window."""
        rows = waiting_rows(self.tagger.tracker, work.window, self.payloads, first)
        self.tagger.tracker.tags.items = first
        return rows

    cdef tuple _tagged(self, WindowWork work, bint changes_only):
        """Returns (columns, payloads) of the last tagged window. The payloads are None for all messages."""
        head, messages, extra = tagged_columns(self.tagger.tracker, work.window, changes_only)
        if messages is None:
            return head, None
        part = self._part(work)
        if extra is not None:
            part = pa.concat_arrays([part.cast(pa.large_binary()), extra])
        part = part.take(messages)
        return head, part.fill_null(b"") if messages.null_count else part

    cdef object _part(self, WindowWork work):
        return self.payloads.owner.slice(self.at - work.window.count, work.window.count)

    # ---- errors --------------------------------------------------------------------------------------------------

    cdef object error_of_tag(self, options, types):
        """Returns the DecodeError for the message that the tagger or `load_tagged` refused."""
        cdef StreamTracker tracker = self.tagger.tracker
        cdef InvalidMessage invalid = tracker.invalid
        relation = tracker.versions.relations[invalid.slot] if invalid.slot >= 0 else None
        column = relation.columns[invalid.column] if invalid.column >= 0 else None
        return DecodeError(
            reason_text(invalid.reason, column_type_of(column, options, types) if column is not None else None),
            seq=tracker.tags.seq_of(invalid.message),
            lsn=self._lsn_of(invalid.message),
            byte_offset=invalid.offset,
            relation=relation.qualified_name if relation is not None else None,
            column=column.name if column is not None else None,
            kind=self._kind_of(invalid.message),
        )

    cdef object _lsn_of(self, int64_t message):
        cdef int64_t lsn = self.tagger.tracker.tags.lsn_of(message)
        return lsn if lsn != NONE64 else None

    cdef object _kind_of(self, int64_t message):
        """Returns the name of a message's kind, None if the kind or the message is unknown."""
        if self.window is None or not 0 <= message < self.window.count:
            return None
        return MESSAGE_KINDS.get(self.window.kind[message])
