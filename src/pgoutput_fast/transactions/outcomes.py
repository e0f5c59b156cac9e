"""Did it commit? Outcomes of transactions, and their effect on tagged rows."""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.protocol.kinds import KEPT_UNTIL_COMMIT, MSG_MESSAGE
from pgoutput_fast.schema.own_memory import in_own_memory
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.transactions.reorder_buffer import Due

__all__ = [
    "NO_OUTCOMES",
    "TransactionOutcomes",
    "by_transaction",
    "chosen_rows",
    "committed_rows",
    "values_of",
    "without_rolled_back",
]

# The kinds that wait for a commit: changes, truncates and transactional messages.
_WAITS = np.zeros(256, np.bool_)
_WAITS[list(KEPT_UNTIL_COMMIT)] = True
# Above this many transactions with rollbacks to savepoints, only those of the rows at hand are looked at.
_FEW_ABORTS = 1000


def values_of(rows: pa.Table, name: str, null: int | None = None) -> np.ndarray[Any, Any]:
    """The values of a column, with nulls replaced by `null`."""
    column = rows.column(name)
    if null is not None and column.null_count:
        column = column.fill_null(null)
    return column.to_numpy()  # type: ignore[no-any-return]


def chosen_rows(rows: pa.Table, chosen: np.ndarray[Any, Any]) -> pa.Table:
    """The rows that a boolean mask selects: a slice without a copy if they are consecutive."""
    places = np.flatnonzero(chosen)
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return rows.slice(int(places[0]), len(places))
    return rows.filter(pa.array(chosen))


def by_transaction(
    rows: pa.Table, txns: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]
) -> Iterator[tuple[int, pa.Table]]:
    """The wanted rows as (txn, its rows in stream order).

    The rows of a transaction are copied, unless all rows are wanted and belong to one transaction.

    Args:
        rows: tagged rows.
        txns: transaction keys of the rows.
        wanted: boolean mask of the wanted rows.
    """
    places = np.flatnonzero(wanted)
    if len(places) == 0:
        return
    txns = txns[places]
    mixed = bool(np.any(txns[1:] != txns[:-1]))
    if not mixed and len(places) == rows.num_rows:
        yield int(txns[0]), rows
        return
    if mixed:
        order = np.argsort(txns, kind="stable")
        places, txns = places[order], txns[order]
    starts = np.flatnonzero(np.concatenate([[True], txns[1:] != txns[:-1]])).tolist()
    for begin, end in zip(starts, [*starts[1:], len(txns)], strict=True):
        yield int(txns[begin]), _copied(rows, places[begin:end])


def _copied(rows: pa.Table, places: np.ndarray[Any, Any]) -> pa.Table:
    """A copy of the rows at these ascending indices."""
    if places[-1] - places[0] + 1 == len(places):
        return in_own_memory(rows.slice(int(places[0]), len(places)))
    return rows.take(pa.array(places))


@dataclass(frozen=True)
class TransactionOutcomes:
    """Answers for tagged rows whether their transactions committed.

    `released` applies these rules, in this order:

    1. A rollback to a savepoint drops the rows of its subtransaction that precede it, also if the transaction commits.
       A logical message stays: the server sends it with the xid of the top-level transaction.
    2. Rows outside of transactions are released at their own position.
    3. Rows of committed transactions are released with the LSN and the time of the commit. A repeated commit counts
       once.
    4. All other rows are not: their transaction was rolled back, is open, or is lost.

    The result is in the order of the commits, and in stream order within a transaction.

    Attributes:
        txns: keys of the transactions, ascending. The other arrays have a value per transaction.
        at_seq: ordinals of the messages that end them.
        commit_lsn, commit_timestamp: LSN and time (microseconds since 1970) of their commits.
        committed: whether they committed.
        lost: whether their outcome is unknown.
        aborts: the rolled-back subtransactions, {txn: [(subxid, at_seq)]}.
    """

    txns: np.ndarray[Any, Any]
    at_seq: np.ndarray[Any, Any]
    commit_lsn: np.ndarray[Any, Any]
    commit_timestamp: np.ndarray[Any, Any]
    committed: np.ndarray[Any, Any]
    lost: np.ndarray[Any, Any]
    aborts: dict[int, list[tuple[int, int]]]

    def __reduce__(self) -> tuple[Any, ...]:
        # Small transactions have many outcomes. These are sent to each task, and compress well.
        packed = pickle.dumps([getattr(self, field.name) for field in fields(self)], 5)
        return _unpacked, (len(packed), pa.compress(packed, "zstd", asbytes=True))

    @classmethod
    def of_records(cls, records: Any) -> TransactionOutcomes:
        """The outcomes of the transactions of one call; those with an unknown outcome are included as lost."""
        columns, rolled_back = records.outcome_columns()
        if not columns[0] and not records.unknown_outcomes:
            return NO_OUTCOMES if not rolled_back else replace(NO_OUTCOMES, aborts=_group_by_txn(rolled_back))
        return cls._from(
            [np.frombuffer(each, np.int64) for each in columns], records.unknown_outcomes, rolled_back
        )

    @classmethod
    def of_batch(cls, outcomes: pa.RecordBatch | pa.Table) -> TransactionOutcomes:
        """The outcomes of rows with OUTCOMES_SCHEMA. Transactions with an `unknown` outcome are lost.

        They may have a commit, too: a part of such a transaction may have been rolled back.
        """
        table = outcomes if isinstance(outcomes, pa.Table) else pa.Table.from_batches([outcomes])
        lost = pc.fill_null(pc.equal(table.column("outcome"), "unknown"), False).to_numpy()
        unknown = table.filter(pa.array(lost)) if lost.any() else table.slice(0, 0)
        table = table.filter(pa.array(~lost)) if lost.any() else table
        whole = table.column("subxid").is_null().to_numpy()
        committed = pc.equal(table.column("outcome"), "committed").to_numpy()
        parts = table.filter(pa.array(~whole & ~committed))
        rolled_back = zip(
            *(values_of(parts, name).tolist() for name in ("txn", "subxid", "at_seq")), strict=True
        )
        lost_txns = unknown.column("txn").to_pylist()
        if lost_txns:
            whole = whole & ~np.isin(values_of(table, "txn", -1), lost_txns)
        columns = [values_of(table, name, 0)[whole] for name in ("txn", "at_seq", "commit_lsn")]
        times = table.column("commit_timestamp").cast(pa.int64()).fill_null(0).to_numpy()
        lost_at = unknown.column("at_seq").to_pylist()
        return cls._from([*columns, times[whole], committed[whole]], lost_txns, rolled_back, lost_at)

    @classmethod
    def of_due(cls, due: Iterable[Due]) -> TransactionOutcomes:
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
        lost_at: Sequence[int] | None = None,
    ) -> TransactionOutcomes:
        """`columns` are txn, at_seq, commit_lsn, commit_timestamp, committed of transactions with a known outcome.

        `lost_at` are the ordinals of the messages from which on the outcomes of `lost` are unknown, by default 0.
        """
        is_lost = np.zeros(len(columns[0]), np.bool_)
        if lost:
            nothing = np.zeros(len(lost), np.int64)
            ends = nothing if lost_at is None else np.array(lost_at, np.int64)
            of_lost = (np.array(lost, np.int64), ends, nothing, nothing, nothing)
            columns = [np.concatenate(pair) for pair in zip(columns, of_lost, strict=True)]
            is_lost = np.concatenate([is_lost, nothing == 0])
        txns, at_seq, lsn, timestamp, committed = columns
        if len(txns) > 1:
            order = np.argsort(txns, kind="stable")
            txns, at_seq, lsn, timestamp = txns[order], at_seq[order], lsn[order], timestamp[order]
            committed, is_lost = committed[order], is_lost[order]
        return cls(
            txns, at_seq, lsn, timestamp, committed.astype(np.bool_), is_lost, _group_by_txn(rolled_back)
        )

    @classmethod
    def joined(cls, parts: Iterable[TransactionOutcomes]) -> TransactionOutcomes:
        """The outcomes of the parts of a stream, given in stream order."""
        parts = list(parts)
        names = [field.name for field in fields(cls) if field.name != "aborts"]
        columns = {
            name: np.concatenate([getattr(each, name) for each in (NO_OUTCOMES, *parts)]) for name in names
        }
        txns, lost = columns["txns"], columns["lost"]
        if lost.any():
            kept = lost | ~np.isin(txns, txns[lost])
            columns = {name: values[kept] for name, values in columns.items()}
        if np.any(columns["txns"][1:] < columns["txns"][:-1]):
            order = np.argsort(columns["txns"], kind="stable")
            for name in names:  # one by one: there may be many
                columns[name] = columns[name][order]
        return cls(**columns, aborts=_group_by_txn(abort for each in parts for abort in each.rolled_back))

    @cached_property
    def rolled_back(self) -> list[tuple[int, int, int]]:
        """(txn, subxid, at_seq) of `aborts`."""
        return [(txn, *abort) for txn, aborts in self.aborts.items() for abort in aborts]

    @property
    def last_commit(self) -> tuple[int, int] | None:
        """LSN and time (microseconds since 1970) of the last commit; None if there is none."""
        if not self.committed.any():
            return None
        lsns, times = self.commit_lsn[self.committed], self.commit_timestamp[self.committed]
        last = int(lsns.argmax())
        return int(lsns[last]), int(times[last])

    def committed_before(self, seq: int) -> list[int]:
        """Keys of the committed transactions that began before a message, ascending."""
        found: list[int] = self.txns[self.committed & (self.txns < seq)].tolist()
        return found

    def first_open(self, after: int, last: int) -> int | None:
        """Key of the oldest transaction that is open after a message, and commits up to another one, if any."""
        begun = slice(0, int(np.searchsorted(self.txns, after, "right")))
        at_seq = self.at_seq[begun]
        found = self.txns[begun][self.committed[begun] & (at_seq > after) & (at_seq <= last)]
        return int(found[0]) if len(found) else None

    def between(self, first: int, last: int) -> TransactionOutcomes:
        """The commits between two messages, inclusive, and all rolled-back subtransactions.

        A rollback to a savepoint may be before the first message, and its transaction's commit after it.
        """
        return self._chosen(self.committed & (self.at_seq >= first) & (self.at_seq <= last), self.aborts)

    def commits_within(self, bounds: Mapping[str, tuple[int, int]]) -> TransactionOutcomes:
        """The commits whose `commit_lsn` and `commit_timestamp` are in these ranges."""
        chosen = self.committed.copy()
        for name, (first, last) in bounds.items():
            values = getattr(self, name)
            chosen &= (values >= first) & (values <= last)
        return self._chosen(chosen, self.aborts)

    def of_transactions(self, first: int, last: int, earlier: Iterable[int] = ()) -> TransactionOutcomes:
        """Only the outcomes of transactions with keys between two, inclusive, and with some smaller keys."""
        keys = np.array([*earlier, first, last + 1], np.int64)
        begins, ends = np.searchsorted(self.txns, keys), np.searchsorted(self.txns, keys[:-2], "right")
        *before, begin, end = begins.tolist()
        ordered = self._aborted
        aborted = ordered[bisect_left(ordered, first) : bisect_left(ordered, last + 1)]
        aborts = {txn: self.aborts[txn] for txn in (*keys[:-2].tolist(), *aborted) if txn in self.aborts}
        if not before:
            return self._chosen(slice(begin, end), aborts)
        chosen = [np.arange(*each) for each in zip(before, ends.tolist(), strict=True)]
        return self._chosen(np.concatenate([*chosen, np.arange(begin, end)]), aborts)

    def with_rollbacks_of(self, others: TransactionOutcomes) -> TransactionOutcomes:
        """These outcomes, and the rolled-back subtransactions of others."""
        return replace(self, aborts=_group_by_txn([*others.rolled_back, *self.rolled_back]))

    def released(self, rows: pa.Table) -> pa.Table:
        """The committed changes, truncates and messages, with commit position, in commit order; then all other rows."""
        waits = _WAITS[values_of(rows, "kind", 0).astype(np.uint8)]
        committed = self.committed_part(chosen_rows(rows, waits))
        return committed if waits.all() else pa.concat_tables([committed, rows.filter(pa.array(~waits))])

    def committed_part(self, rows: pa.Table) -> pa.Table:
        """The rows that committed, or are outside of transactions, with commit position, in commit order."""
        return committed_rows(without_rolled_back(rows, self._rolled_back_in(rows)), self)

    def lost_rows(self, rows: pa.Table) -> pa.Table:
        """The changes, truncates and messages of transactions whose outcome is unknown."""
        lost = np.isin(values_of(rows, "txn", -1), self.txns[self.lost])
        lost &= _WAITS[values_of(rows, "kind", 0).astype(np.uint8)]
        found = rows.filter(pa.array(lost))
        return without_rolled_back(found, self._rolled_back_in(found))

    def lost_between(self, first: int, last: int) -> TransactionOutcomes:
        """The unknown outcomes that became so between two messages, inclusive, and all rolled-back subtransactions."""
        return self._chosen(self.lost & (self.at_seq >= first) & (self.at_seq <= last), self.aborts)

    def _rolled_back_in(self, rows: pa.Table) -> list[tuple[int, int, int]]:
        """`rolled_back`, without transactions whose keys are not between those of the rows."""
        if len(self.aborts) < _FEW_ABORTS or not rows.num_rows:
            return self.rolled_back
        txns = values_of(rows, "txn", -1)
        return self.of_transactions(int(txns.min()), int(txns.max())).rolled_back

    @cached_property
    def _aborted(self) -> list[int]:
        return sorted(self.aborts)

    def _chosen(self, chosen: Any, aborts: dict[int, list[tuple[int, int]]]) -> TransactionOutcomes:
        arrays = {name: array[chosen] for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return replace(self, **arrays, aborts=aborts)

    def due(self, waiting: Iterable[int]) -> tuple[Due, ...]:
        """The transactions of `waiting` that were committed or lost, in order of their ends."""
        waiting = set(waiting)
        columns = (self.at_seq, self.txns, self.commit_lsn, self.commit_timestamp, self.lost, self.committed)
        in_order = sorted(zip(*(column.tolist() for column in columns), strict=True))
        return tuple(
            Due(txn, at_seq, lsn, time, lost)
            for at_seq, txn, lsn, time, lost, committed in in_order
            if (committed or lost) and txn in waiting
        )


def _unpacked(nbytes: int, packed: bytes) -> TransactionOutcomes:
    values = pickle.loads(pa.decompress(packed, nbytes, "zstd", asbytes=True))
    return TransactionOutcomes(*values)


def _group_by_txn(rolled_back: Iterable[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    """{txn: [(subxid, at_seq)]}."""
    by_txn: dict[int, list[tuple[int, int]]] = {}
    for txn, subxid, at_seq in rolled_back:
        by_txn.setdefault(txn, []).append((subxid, at_seq))
    return by_txn


_NOTHING = np.zeros(0, np.int64)
NO_OUTCOMES = TransactionOutcomes(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING > 0, _NOTHING > 0, {})


def without_rolled_back(rows: pa.Table, aborts: list[tuple[int, int, int]]) -> pa.Table:
    """Drops the rows of rolled-back subtransactions.

    For (txn, subxid, at_seq) of `aborts`, these are the rows of the subtransaction before at_seq. A transactional
    message stays: the server sends it with the xid of the top-level transaction, whatever its savepoint.
    """
    if not aborts or rows.num_rows == 0:
        return rows
    txns, subxids, seqs = np.array(aborts, np.int64).T
    names = np.unique(txns)
    # Both fit into one integer: a subxid has 32 bits, and a call has fewer than 2^31 transactions.
    keys = np.searchsorted(names, txns) << 32 | subxids
    order = np.lexsort((seqs, keys))
    keys, seqs = keys[order], seqs[order]
    last = np.append(keys[1:] != keys[:-1], True)
    keys, seqs = keys[last], seqs[last]
    of_rows = values_of(rows, "txn", -1)
    place = np.searchsorted(names, of_rows)
    known = names[np.minimum(place, len(names) - 1)] == of_rows
    wanted = place << 32 | values_of(rows, "subxid", -1) & 0x1FFFFFFFF
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    gone = (
        known
        & (keys[place] == wanted)
        & rows.column("subxid").is_valid().to_numpy()
        & (values_of(rows, "seq") < seqs[place])
        & (values_of(rows, "kind") != MSG_MESSAGE)
    )
    return rows.filter(pa.array(~gone)) if bool(gone.any()) else rows


def committed_rows(rows: pa.Table, outcomes: TransactionOutcomes) -> pa.Table:
    """The rows of committed transactions and rows outside of transactions, with commit position and time.

    They are in commit order.
    """
    txns = values_of(rows, "txn", -1)
    if (
        len(outcomes.txns) == 1
        and outcomes.committed[0]
        and bool(np.all(txns == outcomes.txns[0]))
        and _are_released(rows, outcomes)
    ):
        return rows
    if len(outcomes.txns):
        at = np.minimum(np.searchsorted(outcomes.txns, txns), len(outcomes.txns) - 1)
        ended = (outcomes.txns[at] == txns) & outcomes.committed[at]
    else:
        at, ended = np.zeros(len(txns), np.int64), np.zeros(len(txns), np.bool_)
    alone = txns < 0
    chosen = ended | alone
    if not chosen.all():
        rows = rows.filter(pa.array(chosen))
        at, ended, alone = at[chosen], ended[chosen], alone[chosen]
    seqs = values_of(rows, "seq")
    ends = seqs if not len(outcomes.txns) else np.where(alone, seqs, outcomes.at_seq[at])
    order = np.lexsort((seqs, ends))
    if bool(np.any(order[1:] < order[:-1])):
        rows, at, alone = rows.take(pa.array(order)), at[order], alone[order]
    for name, values in (
        ("commit_lsn", outcomes.commit_lsn),
        ("commit_timestamp", outcomes.commit_timestamp),
    ):
        field = TAGGED_SCHEMA.field(name)
        if len(values):
            column = pa.array(values[at], pa.int64(), mask=alone).view(field.type)
        else:
            column = pa.nulls(rows.num_rows, field.type)
        rows = rows.set_column(TAGGED_SCHEMA.get_field_index(name), field, column)
    return rows


def _are_released(rows: pa.Table, outcomes: TransactionOutcomes) -> bool:
    """Whether rows of one transaction are in stream order, with the commit's position and time from its Begin."""
    if rows.num_rows == 0 or rows.column("commit_lsn").null_count:
        return False
    seqs = values_of(rows, "seq")
    lsn, timestamp = (
        values_of(rows.slice(0, 1), name).view(np.int64)[0] for name in ("commit_lsn", "commit_timestamp")
    )
    is_same = lsn == outcomes.commit_lsn[0] and timestamp == outcomes.commit_timestamp[0]
    return bool(is_same and np.all(seqs[1:] >= seqs[:-1]))
