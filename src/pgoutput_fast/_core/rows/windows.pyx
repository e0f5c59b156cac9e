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

import pyarrow as pa

from pgoutput_fast.errors import DecodeError, reason_text
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
cdef class WindowTagger:
    def __cinit__(self, Tagger tagger, list arrays, lsn, seq, tagged_first):
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
        """Loads the tagged rows that come first: they are the first window, and have tags already.

        After that, or if there are none, it calls `tag_next`. Returns False if there is no window left.
        """
        if self.tagged_first is None:
            return self.tag_next(work, most_messages)
        self.window = work.window
        load_tagged(self.tagger.tracker, work.window, self.tagged_first)
        self.tagged_first = None
        return True

    cdef int64_t left(self) noexcept:
        """Returns how many messages of the current array are not tagged yet."""
        return 0 if self.payloads is None else self.payloads.count - self.at

    cdef object tag_all(self, WindowWork work, int64_t most_messages, bint changes_only):
        """Returns all messages as one batch with TAGGED_SCHEMA."""
        cdef list tagged = []
        cdef bint whole = len(self.arrays) == 1
        while self.tag_next(work, most_messages):
            head, messages, extra = tagged_columns(self.tagger.tracker, work.window, changes_only)
            part = self.payloads.owner.slice(self.at - work.window.count, work.window.count)
            whole = whole and messages is None
            if messages is not None:
                if extra is not None:
                    part = pa.concat_arrays([part.cast(pa.large_binary()), extra])
                part = part.take(messages)
                part = part.fill_null(b"") if messages.null_count else part
            tagged.append((head, part))
        return _one_tagged_batch(tagged, self.arrays[0] if whole else None)

    # ---- errors --------------------------------------------------------------------------------------------------

    cdef object error_of_tag(self, options, types):
        """Returns the DecodeError for what the tagger or `load_tagged` found."""
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
        """Returns the name of a message's kind, None if the kind or the message is not known."""
        if self.window is None or not 0 <= message < self.window.count:
            return None
        return MESSAGE_KINDS.get(self.window.kind[message])
