"""Releases rows in commit order: a transaction's rows wait until it ends.

When a transaction commits, its rows are released, except those of rolled-back subtransactions. When it is rolled back,
its rows are dropped. If it is lost, its outcome is unknown: `Piece.lost` returns its rows. Rows outside of transactions
are released at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.tagging.waiting import WaitingRows
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.transactions.outcomes import (
    NO_OUTCOMES,
    TransactionOutcomes,
    by_transaction,
    chosen_rows,
    committed_rows,
    values_of,
    without_rolled_back,
)
from pgoutput_fast.transactions.reorder_buffer import Due, ReorderBuffer, as_table
from pgoutput_fast.transactions.spill import Spiller

__all__ = ["Committed", "Piece", "Releaser"]

# Rows of one transaction, and (LSN, timestamp) of its commit.
Committed: TypeAlias = tuple[WaitingRows | pa.RecordBatch, tuple[int, int]]

_BEHIND = 1 << 62  # every message


@dataclass(frozen=True)
class Piece:
    """Rows that are released together.

    Attributes:
        rows: rows of ended transactions and rows outside of transactions, without those of rolled-back subtransactions.
        outcomes: outcomes of their transactions.
        tagged: only if `rows` is empty: rows of whole committed transactions, in commit order, still without commit
            position.
    """

    rows: pa.Table
    outcomes: TransactionOutcomes
    tagged: list[Committed] = field(default_factory=list)

    @classmethod
    def of(
        cls, tables: list[pa.Table], outcomes: TransactionOutcomes, aborts: list[tuple[int, int, int]]
    ) -> Piece:
        """All rows of some tables; `aborts` are (txn, subxid, at_seq) of the rolled-back subtransactions."""
        rows = pa.concat_tables(tables) if tables else TAGGED_SCHEMA.empty_table()
        return cls(without_rolled_back(rows, aborts), outcomes)

    def committed(self) -> pa.Table:
        """The rows of committed transactions and those outside of any, with commit position, in commit order."""
        return committed_rows(self.rows, self.outcomes)

    def lost(self) -> pa.Table | None:
        """The rows of lost transactions; None if no transaction is lost."""
        if not self.outcomes.lost.any():
            return None
        lost = np.isin(values_of(self.rows, "txn", -1), self.outcomes.txns[self.outcomes.lost])
        return self.rows.filter(pa.array(lost))


class Releaser:
    """Takes tagged rows in stream order, buffers them, and returns released rows in pieces.

    Args:
        reorder_buffer: the waiting changes. A transaction with too many of them for one piece becomes due in it and is
            released in several pieces.
        spiller, memory_limit: if more than `memory_limit` bytes wait in memory, `spiller` writes rows to files until
            half of the limit remains.
        most_rows, most_bytes: approximate size of a piece of waiting rows.
    """

    def __init__(
        self,
        reorder_buffer: ReorderBuffer,
        spiller: Spiller,
        memory_limit: int,
        most_rows: int,
        most_bytes: int,
    ) -> None:
        self._reorder_buffer = reorder_buffer
        self._spiller = spiller
        self._memory_limit = memory_limit
        self._most_rows = most_rows
        self._most_bytes = most_bytes

    def take(self, arrived: pa.Table, outcomes: TransactionOutcomes) -> Piece | None:
        """Takes the next rows of a stream and returns the rows that are released now.

        If too many rows waited for the transactions that end here, all of these transactions become due in order of
        their ends, and the piece has only the rows outside of transactions.

        Args:
            arrived: the rows; few enough to be in one piece.
            outcomes: outcomes of the transactions that end within these messages.
        """
        txns = values_of(arrived, "txn", -1)
        ends = txns < 0
        if len(outcomes.txns):
            ends |= np.isin(txns, outcomes.txns)
        self._keep(arrived, txns, ~ends, outcomes.aborts)
        if not ends.any() and not len(outcomes.txns):
            return None
        known = [txn for txn in outcomes.txns.tolist() if txn in self._reorder_buffer.waiting]
        dropped = set(outcomes.txns[~outcomes.committed & ~outcomes.lost].tolist())
        for txn in known:
            if txn in dropped:
                self._reorder_buffer.drop(txn)
        known = [txn for txn in known if txn not in dropped]
        if self.fits(known):
            return self._at_once(known, arrived.filter(pa.array(ends)), outcomes)
        self._keep(arrived, txns, ends & (txns >= 0) & ~np.isin(txns, list(dropped)), outcomes.aborts)
        self._reorder_buffer.due += outcomes.due(self._reorder_buffer.waiting)
        return Piece(arrived.filter(pa.array(ends & (txns < 0))), NO_OUTCOMES)

    def take_tagged(self, arrived: list[WaitingRows], outcomes: TransactionOutcomes) -> Piece | None:
        """As `take`, for native tagged rows."""
        if outcomes is NO_OUTCOMES:
            for rows in arrived:
                self._reorder_buffer.keep(rows.txn, rows)
            return None
        ended = outcomes.due([*self._reorder_buffer.waiting, *(rows.txn for rows in arrived)])
        at_once = self.fits([due.txn for due in ended])
        # Only rows tagged by the native core can be released without a table.
        if (
            outcomes.aborts
            or not outcomes.committed.all()
            or (at_once and not self._reorder_buffer.are_tagged([due.txn for due in ended]))
        ):
            tables = [as_table(rows) for rows in arrived]
            return self.take(pa.concat_tables([TAGGED_SCHEMA.empty_table(), *tables]), outcomes)
        last = {due.txn for due in ended} if at_once else set()
        for rows in arrived:
            if rows.txn not in last:
                self._reorder_buffer.keep(rows.txn, rows)
        if not at_once:
            self._reorder_buffer.due += ended
            return None
        tagged = []
        for due in ended:
            waiting: list[Any] = self._reorder_buffer.take_rows([due.txn])
            rows_of_txn = [*waiting, *(rows for rows in arrived if rows.txn == due.txn)]
            tagged += [(rows, (due.commit_lsn, due.commit_timestamp)) for rows in rows_of_txn]
        return Piece(TAGGED_SCHEMA.empty_table(), NO_OUTCOMES, tagged)

    def take_due(self, as_tagged: bool = False) -> Piece:
        """The next piece of the due transactions: a table, or with `as_tagged` possibly rows as they waited."""
        rows, transactions, aborts = self._reorder_buffer.take_due(self._most_rows, self._most_bytes)
        if as_tagged and not aborts and not any(due.lost for due in transactions):
            tagged = [
                (batch, (due.commit_lsn, due.commit_timestamp))
                for each, due in rows
                for batch in ([each] if isinstance(each, WaitingRows) else each.to_batches())
            ]
            return Piece(TAGGED_SCHEMA.empty_table(), NO_OUTCOMES, tagged)
        return Piece.of(
            [as_table(each) for each, _ in rows], TransactionOutcomes.of_due(transactions), aborts
        )

    def committed(self, arrived: pa.Table, outcomes: TransactionOutcomes) -> Iterator[pa.Table]:
        """Takes a long range of a stream and yields the rows of the transactions that commit in it, in commit order.

        After the last piece, call `keep_open` with the same rows.

        Args:
            arrived: all rows of transactions in the range.
            outcomes: outcomes of the transactions that end in it.

        Yields:
            Rows of committed transactions: slices of at most `most_rows` rows that are released at once, and pieces of
            due transactions.
        """
        chosen = outcomes.committed & np.isin(outcomes.txns, list(self._reorder_buffer.waiting))
        columns = (outcomes.at_seq, outcomes.txns, outcomes.commit_lsn, outcomes.commit_timestamp)
        begin, waiting = 0, np.zeros(2, np.int64)
        for at_seq, txn, lsn, timestamp in sorted(
            zip(*(each[chosen].tolist() for each in columns), strict=True)
        ):
            waiting += self._reorder_buffer.size([txn])
            if self._fits(waiting):
                continue
            yield from self._between(arrived, outcomes, begin, at_seq)
            self.keep(arrived, outcomes, [txn])
            yield from self._in_pieces(Due(txn, at_seq, lsn, timestamp))
            begin, waiting = at_seq + 1, np.zeros(2, np.int64)
        yield from self._between(arrived, outcomes, begin, _BEHIND)

    def keep(self, arrived: pa.Table, outcomes: TransactionOutcomes, wanted: list[int]) -> None:
        """Buffers rows of some transactions, and records their rolled-back subtransactions."""
        txns = values_of(arrived, "txn", -1)
        aborts = {txn: outcomes.aborts[txn] for txn in wanted if txn in outcomes.aborts}
        self._keep(arrived, txns, np.isin(txns, wanted), aborts)
        self.spill()

    def keep_open(self, arrived: pa.Table, outcomes: TransactionOutcomes, running: list[int]) -> None:
        """Keeps the rows of transactions that are open after a range, and drops all others.

        The others were rolled back, or are void.
        """
        self.keep(arrived, outcomes, running)
        for txn in self._reorder_buffer.waiting.keys() - set(running):
            self._reorder_buffer.drop(txn)

    def spill(self) -> None:
        """Spills rows to files if too many wait in memory. Call it after `take`, which does not spill."""
        if self._reorder_buffer.memory > self._memory_limit:
            self._reorder_buffer.spill(self._spiller, self._memory_limit // 2)

    def fits(self, txns: Iterable[int]) -> bool:
        """Whether all waiting rows of some transactions fit into one piece."""
        return self._fits(self._reorder_buffer.size(txns))

    def _keep(
        self,
        rows: pa.Table,
        txns: np.ndarray[Any, Any],
        wanted: np.ndarray[Any, Any],
        aborts: Mapping[int, Iterable[tuple[int, int]]],
    ) -> None:
        for txn, part in by_transaction(rows, txns, wanted):
            self._reorder_buffer.keep(txn, part)
        for txn, aborts_of_txn in aborts.items():
            self._reorder_buffer.roll_back(txn, aborts_of_txn)

    def _fits(self, size: Iterable[int]) -> bool:
        """Whether this size in (rows, bytes) fits into one piece."""
        rows, nbytes = size
        return rows <= self._most_rows and nbytes <= self._most_bytes

    def _at_once(self, ended: list[int], arrived: pa.Table, outcomes: TransactionOutcomes) -> Piece:
        """All waiting rows of some transactions, followed by arrived rows."""
        aborts = self._reorder_buffer.aborts(ended) + outcomes.rolled_back
        return Piece.of([*self._reorder_buffer.take(ended), arrived], outcomes, aborts)

    def _between(
        self, arrived: pa.Table, outcomes: TransactionOutcomes, begin: int, end: int
    ) -> Iterator[pa.Table]:
        """Rows of the transactions that commit between two messages, few of which waited."""
        txns = outcomes.txns[outcomes.committed & (outcomes.at_seq >= begin) & (outcomes.at_seq < end)]
        here = chosen_rows(arrived, np.isin(values_of(arrived, "txn", -1), txns))
        waiting = sorted(self._reorder_buffer.waiting.keys() & set(txns.tolist()))
        whole = self._at_once(waiting, here, outcomes).committed()
        for at in range(0, whole.num_rows, self._most_rows):
            yield whole.slice(at, self._most_rows)

    def _in_pieces(self, due: Due) -> Iterator[pa.Table]:
        """Rows of one waiting transaction, in pieces."""
        self._reorder_buffer.due = (due,)
        while self._reorder_buffer.due:
            rows = self.take_due().committed()
            if rows.num_rows:
                yield rows
