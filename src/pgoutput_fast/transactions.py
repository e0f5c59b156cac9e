"""The committed view: changes wait, as tagged payloads, until their transaction's fate is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.decode import NativeDecoder
from pgoutput_fast._core.stretches import plain_stretches
from pgoutput_fast.decoded import Decoded, RelationBatch
from pgoutput_fast.errors import STATE_LOST, reason_text
from pgoutput_fast.held import Due, Held
from pgoutput_fast.options import Options
from pgoutput_fast.schema import (
    MESSAGES_SCHEMA,
    OUTCOMES_SCHEMA,
    REJECTS_SCHEMA,
    TAGGED_SCHEMA,
    TRANSACTIONS_SCHEMA,
    TRUNCATES_SCHEMA,
)
from pgoutput_fast.spill import Spiller

__all__ = ["CommittedView"]

# What is held back: changes, truncates and transactional messages.
_IS_HELD = np.zeros(256, np.bool_)
_IS_HELD[list(b"IUDTM")] = True
_MESSAGE = ord("M")

# So many messages are tagged at a time, and about so many rows or bytes of a large transaction given at a time.
_TAGGED_MESSAGES = 1 << 16
_PIECE_ROWS = 1 << 15
_PIECE_BYTES = 1 << 25
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
        held: what an earlier view held back.

    Raises:
        SpillError: if a file that `held` names is missing or damaged.
    """

    def __init__(self, options: Options, held: Held | None = None) -> None:
        directory = options.spill_directory
        assert directory is None or isinstance(directory, str)
        self._options = options
        self._spiller = Spiller(directory)
        self._held = held.of(self._spiller) if held is not None else Held()
        self._decoder = NativeDecoder(options)
        self._learnt = 0  # how many of the tagging decoder's relation versions it knows

    def snapshot(self) -> Held:
        """What a state must keep. Beside a directory that stays, most of it goes there first."""
        if self._options.spill_directory is not None and self._held.memory > _MOST_IN_STATE:
            held = self._held.copy()
            held.spill(self._spiller, _MOST_IN_STATE // 2)
            self._held = held
        return self._held.snapshot(self._spiller)

    def close(self, discard: bool) -> None:
        """Lets go of everything; files that no saved state names are removed, with `discard` those as well."""
        self._held = Held()
        self._spiller.close(discard)

    def decode(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Decoded:
        """Tags the payloads with `native` and decodes what is committed by now, as one call that succeeds or not."""
        with self._call(native) as call:
            while call.held.due:
                call.give_due()
            for segment in _segments(native, arrays, lsns, seqs):
                call.take(segment)
                while call.held.due:
                    call.give_due()
        return call.decoded()

    def stream(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Iterator[Decoded]:
        """The same in pieces, each a call of its own: where a large transaction ends, what follows waits."""
        yield from self._give(native)
        segments = _segments(native, arrays, lsns, seqs)
        more = True
        while more:
            with self._call(native) as call:
                while more and not call.held.due:
                    segment = next(segments, None)
                    if segment is None:
                        more = False
                    else:
                        call.take(segment)
            yield call.decoded()
            yield from self._give(native)

    def _give(self, native: Any) -> Iterator[Decoded]:
        """What is due, piece by piece."""
        while self._held.due:
            with self._call(native) as call:
                call.give_due()
            yield call.decoded()

    @contextmanager
    def _call(self, native: Any) -> Iterator[_Call]:
        """Work on a copy of what is held, which counts if the whole block succeeds."""
        call = _Call(self._options, self._held.copy(), self._spiller, native, self._decoder, self._learnt)
        try:
            with native.tentative():
                yield call
        except BaseException:
            # It may have learnt what is not so.
            self._decoder, self._learnt = NativeDecoder(self._options), 0
            raise
        self._held, self._learnt = call.held, call.learnt
        self._spiller.went_on()

    @staticmethod
    def released(batch: pa.RecordBatch, outcomes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` whose transaction is committed, with its commit's position and time."""
        rows = pa.Table.from_batches([batch])
        waits = pa.array(_IS_HELD[_values(rows, "kind", 0).astype(np.uint8)])
        fates = _Fates.of_outcomes(outcomes)
        rolled_back = [(txn, *abort) for txn, found in fates.aborts.items() for abort in found]
        changes = _committed(_without_rolled_back(rows.filter(waits), rolled_back), fates)
        return _one_batch(pa.concat_tables([changes, rows.filter(pc.invert(waits))]))


# ---- a call ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segment:
    """A stretch of payloads; plain if it is nothing but whole plain transactions."""

    payloads: pa.Array
    lsns: pa.Array | None
    seqs: pa.Array | None
    plain: bool


def _segments(native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Iterator[_Segment]:
    """The payloads in order. To be asked for one by one: where they are cut depends on where the stream stands."""
    begin = 0
    for array in arrays:
        at = 0
        ends = plain_stretches(array, native.between_transactions, _LEAST_STRETCH)
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


class _Call:
    """One call's work on a copy of what is held; nothing of it counts before it has succeeded."""

    def __init__(
        self, options: Options, held: Held, spiller: Spiller, native: Any, decoder: NativeDecoder, learnt: int
    ) -> None:
        self.held = held
        self.learnt = learnt
        self._options = options
        self._spiller = spiller
        self._native = native
        self._decoder = decoder
        self._changes: list[Any] = []
        self._records = _Records()

    def take(self, segment: _Segment) -> None:
        """Decodes what a stretch of payloads brings or releases, but for what is too much for one piece."""
        arguments = [segment.payloads], segment.lsns, segment.seqs
        if segment.plain:
            changes, records = self._native.decode(*arguments)
            self._changes += changes
            self._records.add(records, boundaries=True, contents=True)
            # Their xids came again, or a session began.
            for txn in records.voided:
                self.held.drop(txn)
        else:
            tagged, records = self._native.tag(*arguments)
            self._records.add(records, boundaries=True)
            self._take_tagged(tagged, _Fates.of_records(records))
        if self.held.memory > self._options.memory_limit:
            self.held.spill(self._spiller, self._options.memory_limit // 2)

    def _take_tagged(self, tagged: pa.RecordBatch, fates: _Fates) -> None:
        arrived = pa.Table.from_batches([tagged])
        waits = _IS_HELD[_values(arrived, "kind").astype(np.uint8)]
        txns = _values(arrived, "txn", -1)
        ends = waits & (np.isin(txns, fates.txns) | (txns < 0)) if len(fates.txns) else waits & (txns < 0)
        waits &= ~ends
        for txn, rows in _by_transaction(arrived, txns, waits):
            self.held.keep(txn, rows)
        for txn, aborts in fates.aborts.items():
            self.held.roll_back(txn, aborts)
        if not ends.any() and not len(fates.txns):
            return
        known = [txn for txn in fates.txns.tolist() if txn in self.held.waiting]
        dropped = set(fates.txns[~fates.committed & ~fates.lost].tolist())
        for txn in known:
            if txn in dropped:
                self.held.drop(txn)
        known = [txn for txn in known if txn not in dropped]
        rows, nbytes = self.held.size(known)
        if rows > _PIECE_ROWS or nbytes > _PIECE_BYTES:
            # Too much for one piece: all of it is given bit by bit.
            for txn, part in _by_transaction(
                arrived, txns, ends & (txns >= 0) & ~np.isin(txns, list(dropped))
            ):
                self.held.keep(txn, part)
            for txn, aborts in fates.aborts.items():
                self.held.roll_back(txn, aborts)
            self.held.due += fates.due(self.held.waiting)
            self._give([arrived.filter(pa.array(ends & (txns < 0)))], _NO_FATES, [])
            return
        rolled_back = self.held.aborts(known)
        rolled_back += [(txn, *abort) for txn, found in fates.aborts.items() for abort in found]
        self._give([*self.held.take(known), arrived.filter(pa.array(ends))], fates, rolled_back)

    def give_due(self) -> None:
        """Decodes the next piece of what is due."""
        tables, whose, rolled_back = self.held.take_due(_PIECE_ROWS, _PIECE_BYTES)
        self._give(tables, _Fates.of_due(whose), rolled_back)

    def _give(self, tables: list[pa.Table], fates: _Fates, rolled_back: list[tuple[int, int, int]]) -> None:
        rows = pa.concat_tables(tables) if tables else TAGGED_SCHEMA.empty_table()
        if rows.num_rows == 0:
            return
        rows = _without_rolled_back(rows, rolled_back)
        if fates.lost.any():
            lost = np.isin(_values(rows, "txn", -1), fates.txns[fates.lost])
            self._records.reject(rows.filter(pa.array(lost)))
        self.learnt = self._decoder.learn_from(self._native, self.learnt)
        changes, records = self._decoder.decode_tagged(_one_batch(_committed(rows, fates)))
        self._changes += changes
        self._records.add(records, contents=True)

    def decoded(self) -> Decoded:
        """What it gave."""
        changes = [RelationBatch(*each) for each in self._changes]
        return Decoded(changes, self._records, self._options, self._native.types)


class _Records:
    """Boundaries and outcomes as they came, truncates and messages as they were released."""

    def __init__(self) -> None:
        self._boundaries: list[Any] = []
        self._contents: list[Any] = []
        self._all: list[Any] = []
        self._lost: list[pa.Table] = []

    def add(self, records: Any, *, boundaries: bool = False, contents: bool = False) -> None:
        self._all.append(records)
        if boundaries:
            self._boundaries.append(records)
        if contents:
            self._contents.append(records)

    def reject(self, rows: pa.Table) -> None:
        """Tagged rows of transactions whose end is not known."""
        self._lost.append(_rejected(rows))

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


def _rejected(rows: pa.Table) -> pa.Table:
    """Reject rows of whole messages of a transaction whose end is not known. A Truncate has one row here."""
    _, first = np.unique(_values(rows, "seq"), return_index=True)
    rows = rows.take(pa.array(first))
    columns = {"seq": rows.column("seq"), "lsn": rows.column("lsn"), "raw": rows.column("payload")}
    columns["reason"] = pa.array([reason_text(STATE_LOST)] * rows.num_rows, pa.string())
    return pa.Table.from_arrays(
        [columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in REJECTS_SCHEMA],
        schema=REJECTS_SCHEMA,
    )


# ---- tagged rows -------------------------------------------------------------------------------------------------


def _values(rows: pa.Table, name: str, null: int | None = None) -> np.ndarray[Any, Any]:
    column = rows.column(name)
    if null is not None and column.null_count:
        column = column.fill_null(null)
    return column.to_numpy()  # type: ignore[no-any-return]


def _by_transaction(
    rows: pa.Table, txns: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]
) -> Iterator[tuple[int, pa.Table]]:
    """(txn, its rows in stream order) of the wanted rows, each in memory of its own."""
    places = np.flatnonzero(wanted)
    if len(places) == 0:
        return
    txns = txns[places]
    if bool(np.any(txns[1:] != txns[:-1])):
        order = np.argsort(txns, kind="stable")
        places, txns = places[order], txns[order]
    starts = np.flatnonzero(np.concatenate([[True], txns[1:] != txns[:-1]])).tolist()
    for begin, end in zip(starts, [*starts[1:], len(txns)], strict=True):
        yield int(txns[begin]), rows.take(pa.array(places[begin:end]))


@dataclass(frozen=True)
class _Fates:
    """What became of transactions, by txn in ascending order; and of subtransactions that were rolled back."""

    txns: np.ndarray[Any, Any]
    at_seq: np.ndarray[Any, Any]
    commit_lsn: np.ndarray[Any, Any]
    commit_timestamp: np.ndarray[Any, Any]
    committed: np.ndarray[Any, Any]
    lost: np.ndarray[Any, Any]
    aborts: dict[int, list[tuple[int, int]]]

    @classmethod
    def of_records(cls, records: Any) -> _Fates:
        """Of what a call brought, transactions whose end is not known among them."""
        columns, rolled_back = records.fates()
        if not columns[0] and not records.forgotten:
            return _NO_FATES if not rolled_back else replace(_NO_FATES, aborts=_grouped(rolled_back))
        return cls._from([np.frombuffer(each, np.int64) for each in columns], records.forgotten, rolled_back)

    @classmethod
    def of_outcomes(cls, outcomes: pa.RecordBatch) -> _Fates:
        """Of a table of outcomes."""
        table = pa.Table.from_batches([outcomes])
        whole = table.column("subxid").is_null().to_numpy()
        committed = pc.equal(table.column("outcome"), "committed").to_numpy()
        parts = table.filter(pa.array(~whole & ~committed))
        rolled_back = zip(
            *(_values(parts, name).tolist() for name in ("txn", "subxid", "at_seq")), strict=True
        )
        columns = [_values(table, name, 0)[whole] for name in ("txn", "at_seq", "commit_lsn")]
        times = table.column("commit_timestamp").cast(pa.int64()).fill_null(0).to_numpy()
        return cls._from([*columns, times[whole], committed[whole]], (), rolled_back)

    @classmethod
    def of_due(cls, due: Iterable[Due]) -> _Fates:
        due = list(due)
        ended = [d for d in due if not d.lost]
        columns = zip(*((d.txn, d.at_seq, d.commit_lsn, d.commit_timestamp, 1) for d in ended), strict=True)
        known = [np.array(each, np.int64) for each in columns] or [np.zeros(0, np.int64)] * 5
        return cls._from(known, [d.txn for d in due if d.lost], ())

    @classmethod
    def _from(
        cls,
        columns: Sequence[np.ndarray[Any, Any]],
        lost: Sequence[int],
        rolled_back: Iterable[tuple[int, int, int]],
    ) -> _Fates:
        """`columns`: txn, at_seq, commit_lsn, commit_timestamp, committed of those whose end is known."""
        is_lost = np.zeros(len(columns[0]), np.bool_)
        if lost:
            nothing = np.zeros(len(lost), np.int64)
            columns = [np.concatenate([columns[0], np.array(lost, np.int64)])] + [
                np.concatenate([each, nothing]) for each in columns[1:]
            ]
            is_lost = np.concatenate([is_lost, nothing == 0])
        txns, at_seq, lsn, timestamp, committed = columns
        if len(txns) > 1:
            order = np.argsort(txns, kind="stable")
            txns, at_seq, lsn, timestamp = txns[order], at_seq[order], lsn[order], timestamp[order]
            committed, is_lost = committed[order], is_lost[order]
        return cls(txns, at_seq, lsn, timestamp, committed.astype(np.bool_), is_lost, _grouped(rolled_back))

    def due(self, waiting: Iterable[int]) -> tuple[Due, ...]:
        """Those that were committed or lost and have rows that wait, in the order of their ends."""
        waiting = set(waiting)
        columns = (self.at_seq, self.txns, self.commit_lsn, self.commit_timestamp, self.lost, self.committed)
        found = sorted(zip(*(column.tolist() for column in columns), strict=True))
        return tuple(
            Due(txn, at_seq, lsn, time, lost)
            for at_seq, txn, lsn, time, lost, committed in found
            if (committed or lost) and txn in waiting
        )


def _grouped(rolled_back: Iterable[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    """{txn: [(subxid, at_seq)]}."""
    found: dict[int, list[tuple[int, int]]] = {}
    for txn, subxid, at_seq in rolled_back:
        found.setdefault(txn, []).append((subxid, at_seq))
    return found


_NOTHING = np.zeros(0, np.int64)
_NO_FATES = _Fates(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING > 0, _NOTHING > 0, {})


def _without_rolled_back(rows: pa.Table, aborts: list[tuple[int, int, int]]) -> pa.Table:
    """Drops what subtransactions' aborts roll back: rows of (txn, subxid) before at_seq, for each of `aborts`.

    A transactional message stays: the wire gives it the top transaction's xid, whatever savepoint it was in.
    """
    if not aborts or rows.num_rows == 0:
        return rows
    txns, subxids, seqs = np.array(aborts, np.int64).T
    names = np.unique(txns)
    # One integer for both: subxids have 32 bits, and there are not 2^31 transactions in one call.
    keys = np.searchsorted(names, txns) << 32 | subxids
    order = np.lexsort((seqs, keys))
    keys, seqs = keys[order], seqs[order]
    last = np.append(keys[1:] != keys[:-1], True)
    keys, seqs = keys[last], seqs[last]
    of_rows = _values(rows, "txn", -1)
    place = np.searchsorted(names, of_rows)
    known = names[np.minimum(place, len(names) - 1)] == of_rows
    wanted = place << 32 | _values(rows, "subxid", -1) & 0x1FFFFFFFF
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    gone = (
        known
        & (keys[place] == wanted)
        & rows.column("subxid").is_valid().to_numpy()
        & (_values(rows, "seq") < seqs[place])
        & (_values(rows, "kind") != _MESSAGE)
    )
    return rows.filter(pa.array(~gone)) if bool(gone.any()) else rows


def _committed(rows: pa.Table, fates: _Fates) -> pa.Table:
    """The rows of committed transactions and of none, with their commit's position, in the order of the commits."""
    txns = _values(rows, "txn", -1)
    if (
        len(fates.txns) == 1
        and fates.committed[0]
        and bool(np.all(txns == fates.txns[0]))
        and _told(rows, fates)
    ):
        return rows
    if len(fates.txns):
        at = np.minimum(np.searchsorted(fates.txns, txns), len(fates.txns) - 1)
        ended = (fates.txns[at] == txns) & fates.committed[at]
    else:
        at, ended = np.zeros(len(txns), np.int64), np.zeros(len(txns), np.bool_)
    alone = txns < 0
    chosen = ended | alone
    if not chosen.all():
        rows = rows.filter(pa.array(chosen))
        at, ended, alone = at[chosen], ended[chosen], alone[chosen]
    seqs = _values(rows, "seq")
    ends = seqs if not len(fates.txns) else np.where(alone, seqs, fates.at_seq[at])
    order = np.lexsort((seqs, ends))
    if bool(np.any(order[1:] < order[:-1])):
        rows, at, alone = rows.take(pa.array(order)), at[order], alone[order]
    for name, values in (("commit_lsn", fates.commit_lsn), ("commit_timestamp", fates.commit_timestamp)):
        field = TAGGED_SCHEMA.field(name)
        if len(values):
            column = pa.array(values[at], pa.int64(), mask=alone).view(field.type)
        else:
            column = pa.nulls(rows.num_rows, field.type)
        rows = rows.set_column(TAGGED_SCHEMA.get_field_index(name), field, column)
    return rows


def _told(rows: pa.Table, fates: _Fates) -> bool:
    """Whether the rows have the commit's position and time, for a plain transaction's Begin announced them."""
    if rows.num_rows == 0 or rows.column("commit_lsn").null_count:
        return False
    lsn, timestamp = (
        _values(rows.slice(0, 1), name).view(np.int64)[0] for name in ("commit_lsn", "commit_timestamp")
    )
    return bool(lsn == fates.commit_lsn[0] and timestamp == fates.commit_timestamp[0])


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError("more than 2 GiB of payloads end in one call: pass fewer payloads to a call")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], TAGGED_SCHEMA)
