"""The outcomes of transactions for the tasks of ranges of a stream. Imports no PySpark; the driver pickles them."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from pgoutput_fast.spark.tasks.parts import Parts
from pgoutput_fast.spark.tasks.tag import Start
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["RangeOutcomes", "with_outcomes"]


@dataclass(frozen=True)
class RangeOutcomes:
    """The outcomes of the transactions that have rows in a range: those that begin there, or are open at its start.

    Attributes:
        first_seqs: ordinals of the first messages of the ranges, ascending.
        packed: the outcomes, pickled, by range.
    """

    first_seqs: Sequence[int]
    packed: Parts

    @classmethod
    def of(
        cls,
        outcomes: TransactionOutcomes,
        starts: Sequence[Start],
        share: Callable[[Iterable[bytes]], Parts],
    ) -> RangeOutcomes:
        """Divides the outcomes of all transactions among ranges in stream order."""
        packed = share(
            pickle.dumps(
                outcomes.of_transactions(each.next_seq, each.next_seq + each.count - 1, each.open_txns)
            )
            for each in starts
        )
        return cls([each.next_seq for each in starts], packed)

    def number_of(self, rows: pa.Table) -> int:
        """The number of the range of rows, all of which are of one."""
        return bisect_right(self.first_seqs, rows.column("seq")[0].as_py()) - 1

    def at(self, number: int) -> TransactionOutcomes:
        """The outcomes for a range."""
        outcomes: TransactionOutcomes = pickle.loads(self.packed[number])
        return outcomes


def with_outcomes(
    batches: Iterable[pa.Table], outcomes: RangeOutcomes | TransactionOutcomes | None
) -> Iterator[tuple[pa.Table, TransactionOutcomes | None]]:
    """Yields batches of tagged payloads, each with rows of one range, and the outcomes of their transactions."""
    if not isinstance(outcomes, RangeOutcomes):
        yield from ((rows, outcomes) for rows in batches)
        return
    for number, same in groupby(batches, key=outcomes.number_of):
        of_range = outcomes.at(number)
        yield from ((rows, of_range) for rows in same)
