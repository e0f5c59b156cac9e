"""The committed view: changes wait as tagged payloads until their transaction ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast._core.tagging.complete_transactions import complete_ranges
from pgoutput_fast._core.tagging.waiting import WaitingRows
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.catalog.user_types import NO_TYPES, UserTypes
from pgoutput_fast.decoding.position import Position
from pgoutput_fast.decoding.result import Decoded, RelationBatch
from pgoutput_fast.protocol.limits import PIECE_BYTES
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import (
    MESSAGES_SCHEMA,
    OUTCOMES_SCHEMA,
    REJECTS_SCHEMA,
    TAGGED_SCHEMA,
    TRANSACTIONS_SCHEMA,
    TRUNCATES_SCHEMA,
    one_batch,
)
from pgoutput_fast.transactions.lost import rejected
from pgoutput_fast.transactions.outcomes import TransactionOutcomes, chosen_rows, values_of
from pgoutput_fast.transactions.release import Piece, Releaser
from pgoutput_fast.transactions.remainder import Remainder, count_changes, last_message_lsn
from pgoutput_fast.transactions.reorder_buffer import Due, ReorderBuffer, as_batch, as_table
from pgoutput_fast.transactions.spill import Spiller

__all__ = ["CommittedView"]

# Messages tagged at a time, and approximate rows of a large transaction decoded at a time.
_TAGGED_MESSAGES = 1 << 15
_PIECE_ROWS = 1 << 15
# Tagged payloads have 32-bit offsets.
_MOST_TAGGED_BYTES = 1 << 30
# A run of at least this many messages of complete plain transactions is decoded directly, without the reorder buffer.
# Shorter runs are not worth a split.
_LEAST_COMPLETE = 512
# Up to this many messages are tagged without checking whether their transactions are complete.
_SHORT_MESSAGES = 1 << 14
# With a spill directory, at most this many bytes of waiting changes are in the state itself.
_MOST_IN_STATE = 1 << 20


class CommittedView:
    """Keeps changes until their commit arrives, and drops those that are rolled back.

    Args:
        options: how to decode released changes; where to keep changes, and how many.
        reorder_buffer: the changes that an earlier view kept.
        after: changes before this position are skipped.

    Raises:
        SpillError: if a file that the reorder buffer names is missing or damaged.
    """

    def __init__(
        self, options: Options, reorder_buffer: ReorderBuffer | None = None, after: Position | None = None
    ) -> None:
        directory = options.spill_directory
        assert directory is None or isinstance(directory, str)
        self._options = options
        self._spiller = Spiller(directory)
        self._reorder_buffer = (
            reorder_buffer.open_for(self._spiller) if reorder_buffer is not None else ReorderBuffer()
        )
        self._decoder: NativeDecoder | None = None  # created on demand
        self._learnt = 0  # number of the tagging decoder's relation versions that it knows
        self._remainder = None if after is None else Remainder(after)

    def snapshot(self) -> ReorderBuffer:
        """A copy of the reorder buffer for a state. With a spill directory, most changes are spilled first."""
        if self._options.spill_directory is not None and self._reorder_buffer.memory > _MOST_IN_STATE:
            reorder_buffer = self._reorder_buffer.copy()
            reorder_buffer.spill(self._spiller, _MOST_IN_STATE // 2)
            self._reorder_buffer = reorder_buffer
        return self._reorder_buffer.snapshot(self._spiller)

    def close(self, discard: bool) -> None:
        """Drops all changes and removes files that no saved state names; with `discard`, all files."""
        self._reorder_buffer = ReorderBuffer()
        self._spiller.close(discard)

    def decode(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Decoded:
        """Tags the payloads with `native` and decodes all that is committed by now. An error changes nothing."""
        with self._call(native) as call:
            while call.reorder_buffer.due:
                call.give_due()
            for segment in _segments(native, lambda txn: call.fits(txn), arrays, lsns, seqs):
                call.take(segment)
                while call.reorder_buffer.due:
                    call.give_due()
            return call.decoded()

    def stream(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Iterator[Decoded]:
        """As `decode`, in pieces, each of which is a call. A piece ends where a large transaction ends."""
        yield from self._give(native)
        segments = _segments(native, lambda txn: call.fits(txn), arrays, lsns, seqs)
        more = True
        while more:
            with self._call(native) as call:
                while more and not call.reorder_buffer.due:
                    segment = next(segments, None)
                    if segment is None:
                        more = False
                    else:
                        call.take(segment)
                decoded = call.decoded()
            yield decoded
            yield from self._give(native)

    def _give(self, native: Any) -> Iterator[Decoded]:
        """The due changes, in pieces."""
        while self._reorder_buffer.due:
            with self._call(native) as call:
                call.give_due()
                decoded = call.decoded()
            yield decoded

    @contextmanager
    def _call(self, native: Any) -> Iterator[_Call]:
        """A call on a copy of the reorder buffer, which takes effect if the whole block succeeds."""
        decoder, learnt = self._decoder, self._learnt
        # After a failed call, the decoder may know relations that the stream does not have.
        self._decoder, self._learnt = None, 0
        if decoder is None:
            decoder = NativeDecoder(self._options)
        call = _Call(
            self._options,
            self._reorder_buffer.copy(),
            self._spiller,
            native,
            decoder,
            learnt,
            self._remainder,
        )
        with native.tentative():
            yield call
            call.reorder_buffer.end_call()
        self._reorder_buffer, self._decoder, self._learnt = call.reorder_buffer, decoder, call.learnt
        self._remainder = call.remainder
        self._spiller.went_on()

    @staticmethod
    def released(batch: pa.RecordBatch, outcomes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of committed transactions, with commit position and time."""
        rows = TransactionOutcomes.of_batch(outcomes).released(pa.Table.from_batches([batch]))
        return _tagged_batch(rows)


# ---- a call ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PayloadRange:
    """Adjacent payloads.

    `plain`: they are complete plain transactions only; the first may have begun earlier. `short`: they are few, and
    this is not checked yet.
    """

    payloads: pa.Array
    lsns: pa.Array | None
    seqs: pa.Array | None
    plain: bool
    short: bool = False


def _segments(
    native: Any, fits: Callable[[int], bool], arrays: list[pa.Array], lsns: Any, seqs: Any
) -> Iterator[_PayloadRange]:
    """The payloads in order. Process a segment before taking the next: the stream's state decides the next split."""
    begin = 0
    for array in arrays:
        at = 0
        announced = None
        if native.open_plain is not None:
            txn, *announced = native.open_plain
            if not fits(txn):
                announced = None
        if (
            at == 0
            and 0 < len(array) <= _SHORT_MESSAGES
            and (native.open_plain is None or announced is not None)
        ):
            yield _segment(array, lsns, seqs, begin, 0, len(array), False, True)
            begin += len(array)
            continue
        ends = complete_ranges(array, native.between_transactions, _LEAST_COMPLETE, announced)
        for first, last in [*ends, (len(array), len(array))]:
            while at < first:
                count = min(first - at, _TAGGED_MESSAGES)
                while count > 1 and array.slice(at, count).nbytes > _MOST_TAGGED_BYTES:
                    count //= 2
                yield _segment(array, lsns, seqs, begin, at, count, False)
                at += count
            if first < last:
                yield _segment(array, lsns, seqs, begin, first, last - first, True)
                at = last
        begin += len(array)


def _segment(
    array: pa.Array, lsns: Any, seqs: Any, begin: int, at: int, count: int, plain: bool, short: bool = False
) -> _PayloadRange:
    lsns = None if lsns is None else lsns.slice(begin + at, count)
    seqs = None if seqs is None else seqs.slice(begin + at, count)
    return _PayloadRange(array if count == len(array) else array.slice(at, count), lsns, seqs, plain, short)


class _Call:
    """The work of one call on a copy of the reorder buffer. It takes effect after the call has succeeded."""

    def __init__(
        self,
        options: Options,
        reorder_buffer: ReorderBuffer,
        spiller: Spiller,
        native: Any,
        decoder: NativeDecoder,
        learnt: int,
        remainder: Remainder | None,
    ) -> None:
        self.reorder_buffer = reorder_buffer
        self.learnt = learnt
        self.remainder = remainder if remainder is not None and not remainder.is_over else None
        # Earlier pieces may have changes of it.
        self._first_due = next(iter(reorder_buffer.due), None)
        self._releaser = Releaser(reorder_buffer, spiller, options.memory_limit, _PIECE_ROWS, PIECE_BYTES)
        self._options = options
        self._native = native
        self._decoder = decoder
        self._changes: list[Any] = []
        self._records = _Records()

    def fits(self, txn: int) -> bool:
        """Whether all waiting rows of a transaction fit into one piece."""
        return self._releaser.fits([txn])

    def take(self, segment: _PayloadRange) -> None:
        """Decodes the changes that a segment releases, or makes them due if they are too many for one piece."""
        if self.remainder is not None:
            self._add_waiting(*self._native.tag_waiting([segment.payloads], segment.lsns, segment.seqs))
        elif segment.plain:
            arguments = [segment.payloads], segment.lsns, segment.seqs
            changes, records = self._native.decode(*arguments, self._take_open_rows(self._native.open_plain))
            self._add_ended(changes, records, [])
        elif segment.short:
            open_rows = partial(self._take_open_rows, self._native.open_plain)
            arguments = segment.payloads, segment.lsns, segment.seqs
            changes, rows, records, ended = self._native.decode_ended(*arguments, open_rows)
            if ended:
                self._add_ended(changes, records, rows)
            else:
                self._add_waiting(rows, records)
        else:
            arguments = [segment.payloads], segment.lsns, segment.seqs
            self._add_waiting(*self._native.tag_waiting(*arguments))
        self._releaser.spill()

    def _add_ended(self, changes: list[Any], records: Any, rest: list[WaitingRows]) -> None:
        """Adds the changes of ended plain transactions, and the rows of the open one after them."""
        self._changes += changes
        self._records.add(records, boundaries=True, contents=True)
        # Void: their xids began again, or a session began.
        for txn in records.voided:
            self.reorder_buffer.drop(txn)
        forgotten = [txn for txn in records.unknown_outcomes if txn in self.reorder_buffer.waiting]
        self.reorder_buffer.due += tuple(Due(txn, 0, 0, 0, lost=True) for txn in forgotten)
        for rows in rest:
            self.reorder_buffer.keep(rows.txn, rows)

    def _add_waiting(self, rows: list[Any], records: Any) -> None:
        """Adds rows that wait for the end of their transaction, or whose end is among the records."""
        self._records.add(records, boundaries=True)
        outcomes = TransactionOutcomes.of_records(records)
        if self.remainder is None and all(isinstance(each, WaitingRows) for each in rows):
            piece = self._releaser.take_tagged(rows, outcomes)
        else:
            batches = [as_batch(each) for each in rows]
            piece = self._releaser.take(pa.Table.from_batches(batches, TAGGED_SCHEMA), outcomes)
        if piece is not None:
            self._give(piece)

    def _take_open_rows(
        self, open_plain: tuple[int, int, int] | None
    ) -> list[tuple[WaitingRows | pa.RecordBatch, None]]:
        """Takes the waiting rows of the open plain transaction. Its Begin had the position of its commit."""
        rows = self.reorder_buffer.take_rows([open_plain[0]]) if open_plain is not None else []
        if not all(isinstance(each, WaitingRows) for each in rows):
            return [(_tagged_batch(pa.concat_tables([as_table(each) for each in rows])), None)]
        return [(each, None) for each in rows]

    def give_due(self) -> None:
        """Decodes the next piece of the due changes."""
        piece = self._releaser.take_due(as_tagged=self.remainder is None)
        if self.reorder_buffer.due:
            first, *others = self.reorder_buffer.due
            self.reorder_buffer.due = (_with_given(first, piece), *others)
        self._give(piece)

    def _give(self, piece: Piece) -> None:
        if piece.tagged and all(isinstance(rows, WaitingRows) for rows, _ in piece.tagged):
            changes, records = self._native.decode([], None, None, piece.tagged)
        elif piece.tagged:
            batches = [(as_batch(rows), commit) for rows, commit in piece.tagged]
            self.learnt = self._decoder.learn_from(self._native, self.learnt)
            changes, records = self._decoder.decode_committed(batches)
        elif piece.rows.num_rows == 0:
            return
        else:
            lost = piece.lost()
            if lost is not None:
                self._records.reject(lost, self._native.catalog)
            rows = piece.committed()
            if self.remainder is not None:
                rows, self.remainder = self.remainder.of(rows)
            self.learnt = self._decoder.learn_from(self._native, self.learnt)
            changes, records = self._decoder.decode_tagged(_tagged_batch(rows))
        self._changes += changes
        self._records.add(records, contents=True)

    def decoded(self) -> Decoded:
        """The result of the call."""
        self._records.set_known(self._native.relations, self._native.types)
        changes = [RelationBatch(*each) for each in self._changes]
        return Decoded(changes, self._records, self._options, self._position())

    def _position(self) -> Position:
        """The position after this call. `Decoded` adds its own changes to those of a whole transaction."""
        message_lsn = self._native.last_message_lsn
        due = next((due for due in self.reorder_buffer.due if not due.lost), None)
        if due is not None:
            position = Position(due.commit_lsn, due.given, None, message_lsn, due.message_lsn)
        else:
            lsn, end_lsn = self._native.last_commit
            begun = [(due.commit_lsn, due.given) for due in (self._first_due,) if due is not None]
            if self.remainder is not None:
                begun.append((self.remainder.position.commit_lsn, self.remainder.position.changes))
            changes = max((given for commit_lsn, given in begun if commit_lsn == lsn), default=0)
            position = Position(lsn, changes, end_lsn, message_lsn)
        if self.remainder is None:
            return position
        return max(position, replace(self.remainder.position, message_lsn=message_lsn))


def _with_given(due: Due, piece: Piece) -> Due:
    """Adds the number of changes in a piece. The piece does not have the transaction's last changes."""
    if piece.tagged:
        rows = [rows for rows, (commit_lsn, _) in piece.tagged if commit_lsn == due.commit_lsn]
        parts = [each if isinstance(each, WaitingRows) else as_table(each) for each in rows]
    else:
        parts = [chosen_rows(piece.rows, values_of(piece.rows, "txn", -1) == due.txn)]
    for part in parts:
        message_lsn = last_message_lsn(part, due.message_lsn)
        due = replace(due, given=due.given + count_changes(part), message_lsn=message_lsn)
    return due


class _Records:
    """Boundaries and outcomes as they arrived, truncates and messages as they were released."""

    def __init__(self) -> None:
        self._boundaries: list[Any] = []
        self._contents: list[Any] = []
        self._all: list[Any] = []
        self._lost: list[pa.Table] = []
        self._relations: tuple[list[Relation], int] = ([], 0)
        self.types: UserTypes = NO_TYPES

    def add(self, records: Any, *, boundaries: bool = False, contents: bool = False) -> None:
        self._all.append(records)
        if boundaries:
            self._boundaries.append(records)
        if contents:
            self._contents.append(records)

    def reject(self, rows: pa.Table, catalog: Catalog) -> None:
        """Adds tagged rows of transactions with an unknown outcome."""
        self._lost.append(rejected(rows, catalog))

    def set_known(self, relations: tuple[list[Relation], int], types: UserTypes) -> None:
        """Sets the relation versions known after the call (a prefix of a list that may grow) and the user types."""
        self._relations = relations
        self.types = types

    @property
    def known(self) -> list[Relation]:
        versions, count = self._relations
        return versions[:count]

    @property
    def transactions(self) -> pa.RecordBatch:
        return _together([each.transactions for each in self._boundaries], TRANSACTIONS_SCHEMA)

    @property
    def outcomes(self) -> pa.RecordBatch:
        return _together([each.outcomes for each in self._boundaries], OUTCOMES_SCHEMA)

    @property
    def truncates(self) -> pa.RecordBatch:
        return _together([each.truncates for each in self._contents], TRUNCATES_SCHEMA)

    @property
    def messages(self) -> pa.RecordBatch:
        return _together([each.messages for each in self._contents], MESSAGES_SCHEMA)

    @property
    def rejects(self) -> pa.RecordBatch:
        parts = [each.rejects for each in self._all]
        parts += [batch for table in self._lost for batch in table.to_batches()]
        parts = [each for each in parts if each.num_rows]
        if len(parts) < 2:
            return _together(parts, REJECTS_SCHEMA)
        return one_batch(pa.Table.from_batches(parts).sort_by("seq"))


def _together(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    batches = [each for each in batches if each.num_rows] or batches[:1]
    if len(batches) == 1:
        return batches[0]
    return one_batch(pa.Table.from_batches(batches, schema))


def _tagged_batch(table: pa.Table) -> pa.RecordBatch:
    return one_batch(table, "transactions with more than 2 GiB of payloads end")
