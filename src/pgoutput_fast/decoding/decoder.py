"""The public API: Decoder, decode(), tag() and decode_tagged()."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.display import html_table
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.inputs import as_binary_arrays, as_int64, as_lsns
from pgoutput_fast.decoding.position import Position
from pgoutput_fast.decoding.rejected_rows import has_marks
from pgoutput_fast.decoding.result import Decoded, RelationBatch
from pgoutput_fast.decoding.state import StreamState, native_decoder, state_of, without_changes
from pgoutput_fast.protocol.limits import LAST_INT64
from pgoutput_fast.schema.foreign import cast, checked_table
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA, TAGGED_SCHEMA, one_batch

if TYPE_CHECKING:
    from pgoutput_fast.transactions.marks import Marks
    from pgoutput_fast.transactions.view import CommittedView

__all__ = ["Decoder", "decode", "decode_tagged", "tag"]


class Decoder:
    """Decodes a stream of pgoutput messages, call by call.

    Args:
        options: how to decode. The default is `Options()`.
        state: where an earlier decoder stopped. The default is the beginning of the stream.
        catalog: relation versions to know in addition to those of the state.
        after: skip the changes before this position. The payloads must begin with the position's transaction or
            earlier. Only for the committed view.

    Raises:
        ValueError: for `after` or a state with changes that wait for their commit, if the options are not those of the
            committed view; and for a state that is not a decoder's.
        SpillError: if a spill file that the state names is missing or damaged.

    A decoder of the committed view may have files: `close` it, or use it in a `with` block. Otherwise the files are
    removed when Python collects the decoder. Threads may share a decoder: it serializes their calls.

    A payload is one message as the plugin wrote it: a row of `pg_logical_slot_peek_binary_changes`, or a CopyData
    frame of a walsender without the frame's header.

    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> first = Decoder()
    >>> _ = first.decode(writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]))
    >>> then = Decoder(state=StreamState.from_json(first.state.to_json()))  # in another process, perhaps
    >>> rest = then.decode(writer.change(orders, "delete", key=["1"]) + writer.commit(100, 108, 0))
    >>> rest.changes[0].batch.select(["_change_type", "_seq", "_txn", "id"]).to_pylist()
    [{'_change_type': 'delete', '_seq': 3, '_txn': 0, 'id': 1}]
    >>> then
    <Decoder: transactions as_sent, next message 5, open transactions 0, tables 1>
    """

    def __init__(
        self,
        options: Options | None = None,
        state: StreamState | None = None,
        catalog: Catalog | None = None,
        *,
        after: Position | None = None,
    ) -> None:
        self.options = options if options is not None else Options()
        _expect("options", self.options, Options)
        _expect("state", state, StreamState)
        _expect("catalog", catalog, Catalog)
        _expect("after", after, Position)
        if after is not None and self.options.transactions != "committed":
            raise ValueError(
                "a position is a place in committed changes: use Options(transactions='committed')"
            )
        # The compiled core releases the GIL, and a call changes the state: the lock serializes calls.
        self._lock = threading.Lock()
        self._closed = False
        self._native = native_decoder(self.options, state, catalog)
        reorder_buffer = state.reorder_buffer if state is not None else None
        if reorder_buffer is not None and self.options.transactions != "committed":
            raise ValueError(
                "the state has changes that wait for their commit: continue with Options(transactions='committed')"
            )
        self._view = (
            _committed_view()(self.options, reorder_buffer, after)
            if self.options.transactions == "committed"
            else None
        )
        if after is not None:
            self._native.skip_messages(after.message_lsn)
        # Number of open and of prepared transactions whose earlier changes the committed view lacks.
        self._lacking = (0, 0) if self._view is None else without_changes(state)

    @property
    def state(self) -> StreamState:
        """A snapshot of the state. Another decoder, also in another process, can continue from it."""
        with self._lock:
            self._expect_open()
            state = state_of(self._native)
            if self._view is None or any(self._lacking):
                return state  # a state without waiting changes
            return state.with_reorder_buffer(self._view.snapshot())

    @property
    def catalog(self) -> Catalog:
        """The relation versions that the stream has described so far."""
        with self._lock:
            return self._native.catalog

    def __repr__(self) -> str:
        return f"<Decoder: {', '.join(f'{name} {value}' for name, value in self._facts())}>"

    def _repr_html_(self) -> str:
        return html_table("Decoder", ["", ""], self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        """The decoder's progress, as (label, value)."""
        facts = [("transactions", self.options.transactions)]
        # repr() does not wait for a call in another thread.
        if not self._lock.acquire(blocking=False):
            return [*facts, ("state", "busy")]
        try:
            if self._closed:
                return [*facts, ("state", "closed")]
            names = {relation.qualified_name for relation in self._native.catalog.relations}
            return [
                *facts,
                ("next message", f"{self._native.next_seq:,}"),
                ("open transactions", f"{len(state_of(self._native).open_txns):,}"),
                ("tables", f"{len(names):,}"),
            ]
        finally:
            self._lock.release()

    def start_session(self) -> None:
        """Notes that a new connection or peek begins.

        Open streamed transactions are void: the server sends them again.
        """
        with self._lock:
            self._expect_open()
            self._native.start_session()
            self._lacking = 0, self._lacking[1]

    def decode(self, payloads: Any, lsn: Any = None, seq: Any = None) -> Decoded:
        """Decodes the next messages of the stream.

        Args:
            payloads: a binary or large binary Arrow array, a chunked array of them, or an iterable of bytes, in stream
                order.
            lsn: the start LSN of each payload's frame, as `parse_lsn` takes it (int64, text or Decimals; a list or an
                Arrow array); null or 0 if unknown.
            seq: the ordinal of each message (int64, strictly increasing). By default the decoder counts on from its
                state.

        Raises:
            DecodeError: for a malformed message under `on_error="raise"`. The committed view decodes a change after its
                commit, so it does not report errors in rolled-back changes.
            SpillError, OSError: if a spill file cannot be read or written.
            MemoryError: if there is not enough memory.
            TypeError, ValueError: for arguments of the wrong type or length, and for Arrow data that is damaged.
            ValueError: in the committed view, if the initial state lacks the changes of transactions that were open or
                prepared in it. `start_session` discards the open ones.

        After an error, the decoder is as it was before the call.
        """
        arrays = as_binary_arrays(payloads)
        with self._lock:
            self._expect_open()
            lsns, seqs = _positions(arrays, lsn, seq, self._native.next_seq)
            if self._view is not None:
                return self._open_view().decode(self._native, arrays, lsns, seqs)
            with self._native.tentative():
                changes, records = self._native.decode(arrays, lsns, seqs)
                return Decoded([RelationBatch(*each) for each in changes], records, self.options)

    def stream(self, batches: Iterable[Any]) -> Iterator[Decoded]:
        """Decodes batches as they arrive and yields the results; a transaction may span several batches.

        In the committed view, a large transaction is returned at its end as several results of bounded size. The
        `transactions` and `outcomes` read so far come in the result before its changes. Between two results, `state` is
        the state after the first: a decoder that continues from it yields the rest, and then needs the payloads from
        ordinal `state.next_seq` on.

        Args:
            batches: payloads as for `decode`; or record batches and tables with a column `payload` (or `data`) and
                perhaps columns `lsn` and `seq`.

        Raises:
            DecodeError: as `decode`. The decoder is then as it was before this result.
            SpillError: if a spill file cannot be read.
        """
        expect_list("batches", batches, "payloads' batches")
        for batch in batches:
            if self._view is None:
                yield self.decode(*_columns(batch))
            else:
                yield from self._one_by_one(self._pieces(*_columns(batch)))
            del batch  # free it before the next one is built

    def _one_by_one(self, pieces: Iterator[Decoded]) -> Iterator[Decoded]:
        """Yields the results; the lock is held only while a result is computed."""
        while True:
            with self._lock:
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece
            del piece

    def _pieces(self, payloads: Any, lsn: Any, seq: Any) -> Iterator[Decoded]:
        arrays = as_binary_arrays(payloads)
        lsns, seqs = _positions(arrays, lsn, seq, self._native.next_seq)
        yield from self._open_view().stream(self._native, arrays, lsns, seqs)

    def close(self, *, discard: bool = False) -> None:
        """Closes the decoder: drops waiting changes and removes their spill files. A second call does nothing.

        The files that the last saved state names stay in `Options.spill_directory`: another decoder may continue from
        that state.

        Args:
            discard: remove these files, too. Set it if no decoder will continue from that state.
        """
        with self._lock:
            if self._view is not None and not self._closed:
                self._view.close(discard)
            self._closed = True

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_view(self) -> CommittedView:
        """The committed view, checked before a call."""
        self._expect_open()
        assert self._view is not None
        begun, prepared = self._lacking
        if begun or prepared:
            again = (
                ""
                if prepared
                else ". If the server sends open transactions again, call start_session() first"
            )
            raise ValueError(
                f"the state has {begun} open and {prepared} prepared transactions, but not their changes so far: it is "
                "not a state of the committed view. Continue with transactions='as_sent', or from a state that a "
                f"decoder of the committed view gave{again}"
            )
        return self._view

    def _expect_open(self) -> None:
        if self._closed:
            raise ValueError(
                "the decoder is closed: take its state before you close it, and continue with a new Decoder"
            )


def decode(payloads: Any, lsn: Any = None, seq: Any = None, *, options: Options | None = None) -> Decoded:
    """Decodes a stream from its beginning: `Decoder(options).decode(payloads, lsn, seq)`.

    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    >>> writer = Writer()
    >>> wal = writer.begin(xid=7, final_lsn=100, commit_timestamp=0)
    >>> wal += writer.change(orders, "insert", new=["1", "first"])
    >>> wal += writer.commit(commit_lsn=100, end_lsn=108, commit_timestamp=0)
    >>> decode(wal).table("public.orders").select(["_change_type", "id", "note"]).to_pylist()
    [{'_change_type': 'insert', 'id': 1, 'note': 'first'}]
    """
    return Decoder(options).decode(payloads, lsn, seq)


def tag(
    payloads: Any, state: StreamState | None = None, lsn: Any = None, seq: Any = None
) -> tuple[pa.RecordBatch, StreamState]:
    """Tags each payload with all that a decoder needs to know about it, without decoding.

    Args:
        payloads, lsn, seq: as for `Decoder.decode`.
        state: the state after the preceding payloads.

    Returns:
        A record batch with TAGGED_SCHEMA, a row per message, and the state to continue with. The state's `catalog`
        describes the relation versions. A Truncate has a row per relation: the first row has the original message, each
        further row a Truncate of its relation alone.

    Raises:
        DecodeError: for a message that cannot be tagged, because it is malformed or out of order.
        ValueError: for more than 2 GiB of payloads in one call, and for a state with changes that wait for their
            commit: only a decoder of the committed view can continue from it.

    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> tagged, state = tag(wal)
    >>> [chr(kind) for kind in tagged.column("kind").to_pylist()], state.catalog
    (['B', 'R', 'I', 'C'], Catalog(public.orders))
    >>> decode_tagged(tagged.slice(2, 1), state.catalog).table("public.orders").column("id").to_pylist()
    [1]
    """
    _expect("state", state, StreamState)
    if state is not None and state.reorder_buffer is not None:
        raise ValueError(
            "the state has changes that wait for their commit: continue with a Decoder with "
            "Options(transactions='committed')"
        )
    native = native_decoder(Options(), state)
    arrays = as_binary_arrays(payloads)
    lsns, seqs = _positions(arrays, lsn, seq, native.next_seq)
    batch, _ = native.tag(arrays, lsns, seqs)
    return batch, state_of(native)


def decode_tagged(
    batch: pa.RecordBatch,
    catalog: Catalog,
    options: Options | None = None,
    outcomes: pa.RecordBatch | pa.Table | None = None,
) -> Decoded:
    """Decodes tagged payloads: any subset of a stream, in any order.

    Args:
        batch: rows with TAGGED_SCHEMA.
        catalog: the relation versions that the rows refer to.
        options: how to decode. With `transactions="committed"`, only rows of transactions that committed according to
            `outcomes` are decoded.
        outcomes: the stream's `Decoded.outcomes`. Only the committed mode needs them.

    Rows of messages that were rejected when a stream was tagged in quarantine are `rejects` again. So are, in committed
    mode, the rows of transactions whose outcome is unknown.

    Raises:
        DecodeError: for a malformed payload, and for a relation version that the catalog lacks. With
            `on_error="raise"` also for a message that was rejected when it was tagged.
        TypeError: for tables with other columns.
        ValueError: in committed mode without outcomes, and for Arrow data that is damaged.

    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"])
    >>> wal += writer.change(orders, "insert", new=["2"]) + writer.commit(100, 108, 0)
    >>> tagged, state = tag(wal)
    >>> last_first = tagged.take(pa.array([3, 2]))
    >>> decode_tagged(last_first, state.catalog).changes[0].batch.column("id").to_pylist()
    [2, 1]
    """
    options = options if options is not None else Options()
    _expect("options", options, Options)
    if not isinstance(catalog, Catalog):
        raise TypeError(f"catalog must be a Catalog, such as state.catalog; not {type(catalog).__name__}")
    batch = _one_batch("tagged payloads", batch, TAGGED_SCHEMA)
    marks = None
    if has_marks(batch):
        batch = _as_schema("tagged payloads", batch, TAGGED_SCHEMA, ("seq", "kind", "in_stream", "payload"))
        marks, batch = _marks().of(batch, catalog, options, outcomes)
    if options.transactions == "committed":
        if outcomes is None:
            raise ValueError(
                "transactions='committed' needs the outcomes of the stream's transactions: pass outcomes="
            )
        # pyarrow filters these rows, so their types and nulls are checked first.
        batch = _as_schema("tagged payloads", batch, TAGGED_SCHEMA, ("seq", "kind", "in_stream", "payload"))
        outcomes = _one_batch("outcomes", outcomes, OUTCOMES_SCHEMA)
        outcomes = _as_schema("outcomes", outcomes, OUTCOMES_SCHEMA, ("txn", "outcome", "at_seq"))
        batch = _committed_view().released(batch, outcomes)
    changes, records = native_decoder(options, None, catalog).decode_tagged(batch)
    tables = records if marks is None else marks.added_to(records)
    return Decoded([RelationBatch(*each) for each in changes], tables, options)


def _expect(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def _committed_view() -> type[CommittedView]:
    # Imported lazily: it needs pyarrow.compute, which takes longer to import than this whole package.
    from pgoutput_fast.transactions.view import CommittedView

    return CommittedView


def _marks() -> type[Marks]:
    # Imported lazily, as the view.
    from pgoutput_fast.transactions.marks import Marks

    return Marks


def _one_batch(what: str, table: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """A table's rows as one batch, if it has a schema's columns."""
    if not isinstance(table, pa.RecordBatch | pa.Table):
        raise TypeError(f"{what} must be a pyarrow RecordBatch or Table; not {type(table).__name__}")
    if table.schema.names != schema.names:
        raise TypeError(f"{what} must have the columns {', '.join(schema.names)}")
    if isinstance(table, pa.RecordBatch):
        return table
    return one_batch(checked_table(table, what))


def _as_schema(
    what: str, batch: pa.RecordBatch, schema: pa.Schema, filled: tuple[str, ...]
) -> pa.RecordBatch:
    """The batch, validated and cast to a schema's types. The columns in `filled` must have no nulls."""
    checked_table(batch, what)
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        place = f"column {field.name} of {what}"
        if field.name in filled and column.null_count:
            raise ValueError(f"{place} cannot be null")
        columns.append(cast(column, place, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _positions(arrays: list[pa.Array], lsn: Any, seq: Any, next_seq: int) -> tuple[Any, Any]:
    if lsn is None and seq is None:
        return None, None
    count = sum(map(len, arrays))
    seqs = as_int64(seq, count, "seq", nulls=False)
    if seqs is not None and count:
        import pyarrow.compute as pc

        if seqs[0].as_py() < next_seq:
            raise ValueError(f"seq must begin at {next_seq} or later, not at {seqs[0].as_py()}")
        if count > 1 and not pc.all(pc.greater(seqs[1:], seqs[:-1])).as_py():
            raise ValueError("seq must be strictly increasing")
        if seqs[-1].as_py() == LAST_INT64:
            raise ValueError(f"seq must stay below {LAST_INT64}: the next message needs a number, too")
    return as_lsns(lsn, count), seqs


def _columns(batch: Any) -> tuple[Any, Any, Any]:
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        return batch, None, None
    names = batch.schema.names
    payload = next((name for name in ("payload", "data") if name in names), None)
    if payload is None:
        raise TypeError(f"a batch of the stream needs a column payload or data; it has {', '.join(names)}")
    return (
        batch.column(payload),
        batch.column("lsn") if "lsn" in names else None,
        batch.column("seq") if "seq" in names else None,
    )
