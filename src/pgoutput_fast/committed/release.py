"""The rule by which rows are released: a transaction's rows wait until it ends, and come in the order of the commits.

A transaction is complete when the message that ends it has come. If that is a commit, its rows are released: all but
those that a rolled back subtransaction wrote before its abort. If the transaction was rolled back, its rows go. If a
transaction is lost, nobody knows how it ended: whoever asks gets its rows apart. Rows of no transaction are released
when they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast.committed.outcomes import (
    NO_FATES,
    Outcomes,
    by_transaction,
    committed_rows,
    values_of,
    without_rolled_back,
)
from pgoutput_fast.committed.reorder_buffer import Due, ReorderBuffer
from pgoutput_fast.committed.spill import Spiller
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

__all__ = ["Piece", "Releaser"]

_BEHIND = 1 << 62  # every message


@dataclass(frozen=True)
class Piece:
    """Rows that are released together.

    Attributes:
        rows: those of transactions that ended and those of none, without what subtransactions rolled back.
        fates: what became of their transactions.
    """

    rows: pa.Table
    fates: Outcomes

    @classmethod
    def of(cls, tables: list[pa.Table], fates: Outcomes, aborts: list[tuple[int, int, int]]) -> Piece:
        """All rows of some tables; `aborts` are (txn, subxid, at_seq) of the subtransactions that were rolled back."""
        rows = pa.concat_tables(tables) if tables else TAGGED_SCHEMA.empty_table()
        return cls(without_rolled_back(rows, aborts), fates)

    def committed(self) -> pa.Table:
        """The rows of committed transactions and of none, with their commit's position, in the order of the commits."""
        return committed_rows(self.rows, self.fates)

    def lost(self) -> pa.Table | None:
        """The rows of lost transactions; None if no transaction is lost."""
        if not self.fates.lost.any():
            return None
        lost = np.isin(values_of(self.rows, "txn", -1), self.fates.txns[self.fates.lost])
        return self.rows.filter(pa.array(lost))


class Releaser:
    """Takes tagged rows in stream order, lets them wait, and gives pieces of what is released.

    Args:
        reorder_buffer: the changes that wait. A transaction with too many of them for one piece becomes due there, and
            is given piece by piece.
        spiller, memory_limit: beyond so many bytes in memory, half of that goes to files.
        most_rows, most_bytes: about so much of what waits is in a piece.
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

    def take(self, arrived: pa.Table, fates: Outcomes) -> Piece | None:
        """Takes the next rows of a stream, and says what they release at once.

        What waits of the transactions that end here may be too much for one piece: then all that they release is due
        in the order of the ends, and the piece has only the rows of no transaction.

        Args:
            arrived: the rows; few enough to be in one piece.
            fates: what became of transactions, as far as the messages say that these rows are of.
        """
        txns = values_of(arrived, "txn", -1)
        ends = txns < 0
        if len(fates.txns):
            ends |= np.isin(txns, fates.txns)
        self._keep(arrived, txns, ~ends, fates.aborts)
        if not ends.any() and not len(fates.txns):
            return None
        known = [txn for txn in fates.txns.tolist() if txn in self._reorder_buffer.waiting]
        dropped = set(fates.txns[~fates.committed & ~fates.lost].tolist())
        for txn in known:
            if txn in dropped:
                self._reorder_buffer.drop(txn)
        known = [txn for txn in known if txn not in dropped]
        if self.fits(known):
            return self._at_once(known, arrived.filter(pa.array(ends)), fates)
        self._keep(arrived, txns, ends & (txns >= 0) & ~np.isin(txns, list(dropped)), fates.aborts)
        self._reorder_buffer.due += fates.due(self._reorder_buffer.waiting)
        return Piece(arrived.filter(pa.array(ends & (txns < 0))), NO_FATES)

    def take_due(self) -> Piece:
        """The next piece of what is due."""
        tables, whose, aborts = self._reorder_buffer.take_due(self._most_rows, self._most_bytes)
        return Piece.of(tables, Outcomes.of_due(whose), aborts)

    def committed(self, arrived: pa.Table, fates: Outcomes) -> Iterator[pa.Table]:
        """Takes a long stretch of a stream: rows of the transactions that commit in it, in the order of the commits.

        When all is taken, call `keep_open` with the same rows.

        Args:
            arrived: all rows of transactions in the stretch.
            fates: what became of transactions in it.

        Yields:
            Rows of committed transactions: slices of at most `most_rows` of what comes at once, and what is due.
        """
        chosen = fates.committed & np.isin(fates.txns, list(self._reorder_buffer.waiting))
        columns = (fates.at_seq, fates.txns, fates.commit_lsn, fates.commit_timestamp)
        begin, waiting = 0, np.zeros(2, np.int64)
        for at_seq, txn, lsn, timestamp in sorted(
            zip(*(each[chosen].tolist() for each in columns), strict=True)
        ):
            waiting += self._reorder_buffer.size([txn])
            if self._fits(waiting):
                continue
            yield from self._between(arrived, fates, begin, at_seq)
            self.keep(arrived, fates, [txn])
            yield from self._bit_by_bit(Due(txn, at_seq, lsn, timestamp))
            begin, waiting = at_seq + 1, np.zeros(2, np.int64)
        yield from self._between(arrived, fates, begin, _BEHIND)

    def keep(self, arrived: pa.Table, fates: Outcomes, wanted: list[int]) -> None:
        """Lets rows of some transactions wait, with what was rolled back of them."""
        txns = values_of(arrived, "txn", -1)
        aborts = {txn: fates.aborts[txn] for txn in wanted if txn in fates.aborts}
        self._keep(arrived, txns, np.isin(txns, wanted), aborts)
        self.spill()

    def keep_open(self, arrived: pa.Table, fates: Outcomes, running: list[int]) -> None:
        """Lets rows of the transactions wait that are open behind a stretch; rows of all others go: those were rolled
        back, or are void."""
        self.keep(arrived, fates, running)
        for txn in self._reorder_buffer.waiting.keys() - set(running):
            self._reorder_buffer.drop(txn)

    def spill(self) -> None:
        """Moves rows to files, if too many wait in memory. `take` does not: call it behind what `take` gave."""
        if self._reorder_buffer.memory > self._memory_limit:
            self._reorder_buffer.spill(self._spiller, self._memory_limit // 2)

    def fits(self, txns: Iterable[int]) -> bool:
        """Whether all that waits of some transactions may be given in one piece."""
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
        for txn, found in aborts.items():
            self._reorder_buffer.roll_back(txn, found)

    def _fits(self, size: Iterable[int]) -> bool:
        """Whether so many (rows, bytes) that wait may be given in one piece."""
        rows, nbytes = size
        return rows <= self._most_rows and nbytes <= self._most_bytes

    def _at_once(self, ended: list[int], arrived: pa.Table, fates: Outcomes) -> Piece:
        """All that waits of some transactions, and rows that came."""
        aborts = self._reorder_buffer.aborts(ended) + fates.rolled_back
        return Piece.of([*self._reorder_buffer.take(ended), arrived], fates, aborts)

    def _between(self, arrived: pa.Table, fates: Outcomes, begin: int, end: int) -> Iterator[pa.Table]:
        """Transactions whose commits lie between two messages, and of which little waits."""
        txns = fates.txns[fates.committed & (fates.at_seq >= begin) & (fates.at_seq < end)]
        here = arrived.filter(pa.array(np.isin(values_of(arrived, "txn", -1), txns)))
        waiting = sorted(self._reorder_buffer.waiting.keys() & set(txns.tolist()))
        whole = self._at_once(waiting, here, fates).committed()
        for at in range(0, whole.num_rows, self._most_rows):
            yield whole.slice(at, self._most_rows)

    def _bit_by_bit(self, due: Due) -> Iterator[pa.Table]:
        """A transaction that waits."""
        self._reorder_buffer.due = (due,)
        while self._reorder_buffer.due:
            rows = self.take_due().committed()
            if rows.num_rows:
                yield rows
