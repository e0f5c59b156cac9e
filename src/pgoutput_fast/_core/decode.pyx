"""The stages in a row: payloads -> windows -> scan -> tag -> for each relation version slice, convert, assemble."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uintptr_t
from libcpp.vector cimport vector

from pgoutput_fast._core.records cimport take_records
from pgoutput_fast._core.rows cimport ROWS_DONE, ROWS_FAILED, RelationRows, Scratch
from pgoutput_fast._core.scan cimport Payloads, Window, scan_window
from pgoutput_fast._core.stream_state cimport OUTSIDE, PLAIN, STREAMING
from pgoutput_fast._core.tag cimport Tagger
from pgoutput_fast._core.tagged cimport load_tagged, tagged_columns

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

# A window's headers and items take some 30 bytes a message beside the payloads themselves.
cdef int64_t WINDOW_MESSAGES = 1 << 16
cdef int64_t WINDOW_BYTES = 1 << 25


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
    head = heads[0] if len(heads) == 1 else pa.Table.from_batches(heads).combine_chunks().to_batches()[0]
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
    """A stream's tagger and the rows of its relation versions."""
    cdef readonly object options
    cdef object types                    # what a live server said of its types
    cdef Tagger tagger
    cdef Window window
    cdef Scratch scratch
    cdef list rows                       # RelationRows of each slot, None until its first change
    cdef vector[int64_t] starts          # per slot: where its messages begin in `order`
    cdef vector[uint32_t] order          # the window's items, by slot

    def __init__(self, options, state=None, catalog=None):
        self.options = options
        self.tagger = Tagger(options.on_error == "quarantine")
        self.window = Window()
        self.scratch = Scratch()
        self.rows = []
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
        cdef list touched = []
        self.tagger.begin_call()
        try:
            load_tagged(self.tagger, self.window, batch)
            self._emit(touched)
            changes = self._take(touched)
            return changes, take_records(self.tagger.records, self.tagger.versions, self.options, self.types)
        except Malformed:
            raise self._error_of_tag() from None
        finally:
            self._discard(touched)
            self.tagger.end_call()

    def _run(self, list arrays, lsn, seq, bint only_tag, bint changes_only, before):
        cdef const int64_t* lsns = _int64_values(lsn)
        cdef const int64_t* seqs = _int64_values(seq)
        cdef int64_t done = 0, at, taken
        cdef Payloads payloads
        cdef bint in_stream
        cdef list touched = []
        cdef list tagged = []
        cdef bint whole = True
        cdef bint nested = self.tagger.saved != NULL
        if not nested:
            self.tagger.begin_call()
        try:
            if before is not None:
                load_tagged(self.tagger, self.window, before)
                self._emit(touched)
            for array in arrays:
                payloads = Payloads(array)
                at = 0
                while at < payloads.count:
                    in_stream = self.tagger.state.context == STREAMING and not self.tagger.state.session_starts
                    taken = scan_window(payloads, at, WINDOW_MESSAGES, WINDOW_BYTES, &in_stream, self.window)
                    self.tagger.tag_window(
                        self.window,
                        self.tagger.state.next_seq,
                        seqs + done if seqs != NULL else NULL,
                        lsns + done if lsns != NULL else NULL,
                    )
                    if only_tag:
                        head, messages = tagged_columns(self.tagger, self.window, changes_only)
                        stretch = array.slice(at, taken)
                        whole = whole and messages is None
                        if messages is not None:
                            stretch = stretch.take(messages)
                            stretch = stretch.fill_null(b"") if messages.null_count else stretch
                        tagged.append((head, stretch))
                    else:
                        self._emit(touched)
                    at += taken
                    done += taken
            if only_tag:
                result = _one_tagged_batch(tagged, arrays[0] if whole and len(arrays) == 1 else None)
            else:
                result = self._take(touched)
            records = take_records(self.tagger.records, self.tagger.versions, self.options, self.types)
        except Malformed:
            error = self._error_of_tag()
            if not nested:
                self.tagger.undo()
            raise error from None
        except BaseException:
            if not nested:
                self.tagger.undo()
            raise
        finally:
            self._discard(touched)
        if not nested:
            self.tagger.end_call()
        return result, records

    cdef list _take(self, list touched):
        cdef RelationRows rows
        taken = []
        for rows in touched:
            for batch in rows.take_batches():
                taken.append((rows.relation, batch))
        return taken

    cdef _discard(self, list touched):
        cdef RelationRows rows
        for rows in touched:
            rows.touched = False
            rows.discard()

    # ---- a window ------------------------------------------------------------------------------------------------

    cdef RelationRows _rows_of(self, int32_t slot):
        cdef RelationRows rows
        while len(self.rows) <= slot:
            self.rows.append(None)
        relation = self.tagger.versions[slot]
        rows = self.rows[slot]
        if rows is None or (rows.relation is not relation and rows.relation != relation):
            rows = make_rows(relation, self.options, self.types)
            rows.slot = slot
            self.rows[slot] = rows
        return rows

    cdef int _emit(self, list touched) except -1:
        """Decodes the tagged window's items, one relation version after the other, each in stream order."""
        cdef int64_t items = self.tagger.items
        cdef int64_t slots = len(self.tagger.versions)
        cdef int64_t i, at, begin
        cdef int32_t slot
        cdef int progress
        cdef RelationRows rows
        cdef list present = []
        if items == 0:
            return 0
        with nogil:
            self.starts.assign(<size_t> slots + 1, 0)
            if <int64_t> self.order.size() < items:
                self.order.resize(<size_t> items)
            for i in range(items):
                self.starts[self.tagger.item_slot[i] + 1] += 1
        # First-seen order, which is also the order of the batches.
        for slot in range(slots):
            if self.starts[slot + 1]:
                present.append(slot)
        with nogil:
            for i in range(slots):
                self.starts[i + 1] += self.starts[i]
            for i in range(items):
                slot = self.tagger.item_slot[i]
                self.order[self.starts[slot]] = self.tagger.item_message[i]
                self.starts[slot] += 1
        if len(present) > 1:
            # `starts` holds ends now; what comes first in the stream is emitted first.
            present.sort(key=lambda k: self.order[self.starts[k - 1] if k else 0])
        for slot in present:
            rows = self._rows_of(slot)
            if not rows.touched:
                rows.touched = True
                touched.append(rows)
            begin = self.starts[slot - 1] if slot else 0
            at = 0
            while True:
                with nogil:
                    progress = rows.fill(self.tagger, self.window, self.order.data() + begin,
                                         self.starts[slot] - begin, &at, self.scratch)
                if progress == ROWS_DONE:
                    break
                if progress == ROWS_FAILED:
                    raise self._error_of_rows(rows)
                rows.finish_batch()
        return 0

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

    cdef object _error_of_rows(self, RelationRows rows):
        cdef int32_t k = self.scratch.trouble.column
        column = rows.relation.columns[k] if 0 <= k < len(rows.relation.columns) else None
        column_type = column_type_of(column, self.options, self.types) if column is not None else None
        return DecodeError(
            reason_text(self.scratch.trouble.reason, column_type, self.scratch.trouble.sent, rows.count),
            seq=self.tagger.seq_of(self.scratch.trouble.message),
            lsn=self._lsn_of(self.scratch.trouble.message),
            byte_offset=self.scratch.trouble.byte_offset,
            relation=rows.relation.qualified_name,
            column=column.name if column is not None else None,
        )
