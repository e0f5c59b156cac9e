"""The committed view: changes wait, as tagged payloads, until their transaction's fate is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast._core.tagging.complete_transactions import complete_ranges
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.catalog.user_types import NO_TYPES, UserTypes
from pgoutput_fast.committed.outcomes import NO_FATES, Outcomes, values_of
from pgoutput_fast.committed.release import Piece, Releaser
from pgoutput_fast.committed.reorder_buffer import Due, ReorderBuffer
from pgoutput_fast.committed.spill import Spiller
from pgoutput_fast.decoding.result import Decoded, RelationBatch
from pgoutput_fast.errors import reason_text
from pgoutput_fast.protocol.kinds import HELD_UNTIL_COMMIT, MSG_TRUNCATE
from pgoutput_fast.protocol.limits import PIECE_BYTES
from pgoutput_fast.protocol.reasons import Reason
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import (
    MESSAGES_SCHEMA,
    OUTCOMES_SCHEMA,
    REJECTS_SCHEMA,
    TAGGED_SCHEMA,
    TRANSACTIONS_SCHEMA,
    TRUNCATES_SCHEMA,
)

__all__ = ["CommittedView"]

# These wait in the reorder buffer: changes, truncates and transactional messages.
_IS_HELD = np.zeros(256, np.bool_)
_IS_HELD[list(HELD_UNTIL_COMMIT)] = True

# So many messages are tagged at a time, and about so many rows of a large transaction given at a time.
_TAGGED_MESSAGES = 1 << 15
_PIECE_ROWS = 1 << 15
# Payloads have offsets of 32 bits once they are tagged.
_MOST_TAGGED_BYTES = 1 << 30
# A stretch of plain transactions is decoded straight away if it has so many messages; else it is not worth a cut.
_LEAST_STRETCH = 512
# Beside a directory that stays, a state need not carry more than this itself.
_MOST_IN_STATE = 1 << 20


class CommittedView:
    """Holds changes back until their commit comes, and drops those that are rolled back.

    Args:
        options: how to decode what is released, and where and how much to hold.
        reorder_buffer: the changes that wait since an earlier view.

    Raises:
        SpillError: if a file that the reorder buffer names is missing or damaged.
    """

    def __init__(self, options: Options, reorder_buffer: ReorderBuffer | None = None) -> None:
        directory = options.spill_directory
        assert directory is None or isinstance(directory, str)
        self._options = options
        self._spiller = Spiller(directory)
        self._reorder_buffer = (
            reorder_buffer.of(self._spiller) if reorder_buffer is not None else ReorderBuffer()
        )
        self._decoder: NativeDecoder | None = None  # made when it is needed
        self._learnt = 0  # how many of the tagging decoder's relation versions it knows

    def snapshot(self) -> ReorderBuffer:
        """What a state must keep. Beside a directory that stays, most of it goes there first."""
        if self._options.spill_directory is not None and self._reorder_buffer.memory > _MOST_IN_STATE:
            reorder_buffer = self._reorder_buffer.copy()
            reorder_buffer.spill(self._spiller, _MOST_IN_STATE // 2)
            self._reorder_buffer = reorder_buffer
        return self._reorder_buffer.snapshot(self._spiller)

    def close(self, discard: bool) -> None:
        """Lets go of everything; files that no saved state names are removed, with `discard` those as well."""
        self._reorder_buffer = ReorderBuffer()
        self._spiller.close(discard)

    def decode(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Decoded:
        """Tags the payloads with `native` and decodes what is committed by now, as one call that succeeds or not."""
        with self._call(native) as call:
            while call.reorder_buffer.due:
                call.give_due()
            for segment in _segments(native, lambda txn: call.fits(txn), arrays, lsns, seqs):
                call.take(segment)
                while call.reorder_buffer.due:
                    call.give_due()
            return call.decoded()

    def stream(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Iterator[Decoded]:
        """The same in pieces, each a call of its own: where a large transaction ends, what follows waits."""
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
        """What is due, piece by piece."""
        while self._reorder_buffer.due:
            with self._call(native) as call:
                call.give_due()
                decoded = call.decoded()
            yield decoded

    @contextmanager
    def _call(self, native: Any) -> Iterator[_Call]:
        """Work on a copy of the reorder buffer. It counts if the whole block succeeds."""
        decoder, learnt = self._decoder, self._learnt
        # If the call fails, it may have learnt what is not so.
        self._decoder, self._learnt = None, 0
        if decoder is None:
            decoder = NativeDecoder(self._options)
        call = _Call(self._options, self._reorder_buffer.copy(), self._spiller, native, decoder, learnt)
        with native.tentative():
            yield call
        self._reorder_buffer, self._decoder, self._learnt = call.reorder_buffer, decoder, call.learnt
        self._spiller.went_on()

    @staticmethod
    def released(batch: pa.RecordBatch, outcomes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` whose transaction is committed, with its commit's position and time."""
        rows = pa.Table.from_batches([batch])
        waits = pa.array(_IS_HELD[values_of(rows, "kind", 0).astype(np.uint8)])
        fates = Outcomes.of_outcomes(outcomes)
        changes = Piece.of([rows.filter(waits)], fates, fates.rolled_back).committed()
        return _one_batch(pa.concat_tables([changes, rows.filter(pc.invert(waits))]))


# ---- a call ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segment:
    """A stretch of payloads; plain if it is nothing but whole plain transactions, or the rest of one and such."""

    payloads: pa.Array
    lsns: pa.Array | None
    seqs: pa.Array | None
    plain: bool


def _segments(
    native: Any, fits: Callable[[int], bool], arrays: list[pa.Array], lsns: Any, seqs: Any
) -> Iterator[_Segment]:
    """The payloads in order. To be asked for one by one: where they are cut depends on where the stream stands."""
    begin = 0
    for array in arrays:
        at = 0
        announced = None
        if native.open_plain is not None:
            txn, *announced = native.open_plain
            if not fits(txn):
                announced = None
        ends = complete_ranges(array, native.between_transactions, _LEAST_STRETCH, announced)
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


def _segment(array: pa.Array, lsns: Any, seqs: Any, begin: int, at: int, count: int, plain: bool) -> _Segment:
    lsns, seqs = (None if each is None else each.slice(begin + at, count) for each in (lsns, seqs))
    return _Segment(array.slice(at, count), lsns, seqs, plain)


def _first_txn(tagged: pa.RecordBatch) -> int | None:
    """Whose the rows are, if the first tells: that of the first one, where all are of a transaction."""
    txns = tagged.column("txn")
    return int(txns[0].as_py()) if len(txns) and not txns.null_count else None


class _Call:
    """One call's work on a copy of the reorder buffer. Nothing of it counts before the call has succeeded."""

    def __init__(
        self,
        options: Options,
        reorder_buffer: ReorderBuffer,
        spiller: Spiller,
        native: Any,
        decoder: NativeDecoder,
        learnt: int,
    ) -> None:
        self.reorder_buffer = reorder_buffer
        self.learnt = learnt
        self._releaser = Releaser(reorder_buffer, spiller, options.memory_limit, _PIECE_ROWS, PIECE_BYTES)
        self._options = options
        self._native = native
        self._decoder = decoder
        self._changes: list[Any] = []
        self._records = _Records()

    def fits(self, txn: int) -> bool:
        """Whether all that waits of a transaction may be given in one piece."""
        return self._releaser.fits([txn])

    def take(self, segment: _Segment) -> None:
        """Decodes what a stretch of payloads brings or releases, but for what is too much for one piece."""
        arguments = [segment.payloads], segment.lsns, segment.seqs
        if segment.plain:
            # It may begin with the rest of a transaction; then what waits of that one comes first.
            begun = self._native.open_plain
            before = self.reorder_buffer.take([begun[0]]) if begun is not None else []
            rows = _one_batch(before[0] if len(before) == 1 else pa.concat_tables(before)) if before else None
            changes, records = self._native.decode(*arguments, rows)
            self._changes += changes
            self._records.add(records, boundaries=True, contents=True)
            # Their xids came again, or a session began.
            for txn in records.voided:
                self.reorder_buffer.drop(txn)
            forgotten = [txn for txn in records.unknown_outcomes if txn in self.reorder_buffer.waiting]
            self.reorder_buffer.due += tuple(Due(txn, 0, 0, 0, lost=True) for txn in forgotten)
        else:
            tagged, records = self._native.tag(*arguments, changes_only=True)
            self._records.add(records, boundaries=True)
            fates, begun = Outcomes.of_records(records), self._native.open_plain
            if fates is NO_FATES and begun is not None and _first_txn(tagged) == begun[0]:
                # A transaction comes in one stretch: all of this is of one that a later call ends.
                self.reorder_buffer.keep(begun[0], pa.Table.from_batches([tagged]))
            else:
                piece = self._releaser.take(pa.Table.from_batches([tagged]), fates)
                if piece is not None:
                    self._give(piece)
        self._releaser.spill()

    def give_due(self) -> None:
        """Decodes the next piece of what is due."""
        self._give(self._releaser.take_due())

    def _give(self, piece: Piece) -> None:
        if piece.rows.num_rows == 0:
            return
        lost = piece.lost()
        if lost is not None:
            self._records.reject(lost, self._native.catalog)
        self.learnt = self._decoder.learn_from(self._native, self.learnt)
        changes, records = self._decoder.decode_tagged(_one_batch(piece.committed()))
        self._changes += changes
        self._records.add(records, contents=True)

    def decoded(self) -> Decoded:
        """What it gave."""
        self._records.knows(self._native.relations, self._native.types)
        return Decoded([RelationBatch(*each) for each in self._changes], self._records, self._options)


class _Records:
    """Boundaries and outcomes as they came, truncates and messages as they were released."""

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
        """Tagged rows of transactions of which is not known what became of them."""
        self._lost.append(_rejected(rows, catalog))

    def knows(self, relations: tuple[list[Relation], int], types: UserTypes) -> None:
        """What is known behind the call: so many relation versions of a list that may grow, and user types."""
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
        return _single(pa.Table.from_batches(parts).sort_by("seq"))


def _together(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    batches = [each for each in batches if each.num_rows] or batches[:1]
    if len(batches) == 1:
        return batches[0]
    return _single(pa.Table.from_batches(batches, schema))


def _single(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _rejected(rows: pa.Table, catalog: Catalog) -> pa.Table:
    """Reject rows of whole messages, for nobody knows what became of their transaction. A Truncate has one row here,
    with the message as it came."""
    seqs, lengths = values_of(rows, "seq"), pc.binary_length(rows.column("payload")).to_numpy()
    longest_first = np.lexsort((-lengths, seqs))
    _, first = np.unique(seqs[longest_first], return_index=True)
    rows = rows.take(pa.array(longest_first[first]))
    columns = {"seq": rows.column("seq"), "lsn": rows.column("lsn"), "raw": rows.column("payload")}
    names = {relation.version: relation.qualified_name for relation in catalog.relations}
    changed = zip(values_of(rows, "kind").tolist(), rows.column("version").to_pylist(), strict=True)
    relations = [names.get(version) if kind != MSG_TRUNCATE else None for kind, version in changed]
    columns["relation"] = pa.array(relations, pa.string())
    columns["reason"] = pa.array([reason_text(Reason.OUTCOME_UNKNOWN)] * rows.num_rows, pa.string())
    return pa.Table.from_arrays(
        [columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in REJECTS_SCHEMA],
        schema=REJECTS_SCHEMA,
    )


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError("more than 2 GiB of payloads end in one call: pass fewer payloads to a call")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], TAGGED_SCHEMA)
