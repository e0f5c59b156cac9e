"""Splits a range of positions into partitions. These depend only on the range and its segments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA
from pgoutput_fast.segments.footers import one_batch
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.segments.tail import SegmentsGoneError, SegmentStream
from pgoutput_fast.spark.source.plan import SourcePlan, TablePlan
from pgoutput_fast.spark.source.read import (
    ManyRows,
    Piece,
    SegmentRows,
    join_small,
    may_end,
    ranges,
    relevant_outcomes,
    rollbacks,
)
from pgoutput_fast.spark.tasks.rows import Bounds

__all__ = ["RangeRows"]

# Outcomes of this many segments stay in memory, in addition to those of the range. The next batch needs those of the
# last batch again.
_MOST_OUTCOMES = 4


class RangeRows:
    """Splits ranges of positions into partitions.

    With transactions as sent, a range contains the changes with ordinals in the range. With committed transactions, it
    contains the transactions whose commit is in the range; their rows may be before it.

    Args:
        stream: the segments.
        plan: the plan of the query.
    """

    def __init__(self, stream: SegmentStream, plan: SourcePlan) -> None:
        self._stream = stream
        self._plan = plan
        self._outcomes: OrderedDict[str, pa.RecordBatch] = OrderedDict()
        self._most_outcomes = _MOST_OUTCOMES

    def partitions(
        self, inside: Sequence[Segment], start: int, end: int, tables: tuple[TablePlan, ...] | None = None
    ) -> list[ManyRows]:
        """Returns the partitions with the rows between two positions.

        Args:
            inside: the result of `segments` for these positions.
            start: ordinal of the first message.
            end: ordinal after the last message.
            tables: the tables that decode the rows, if they differ from the plan's.

        Raises:
            SegmentsGoneError: if needed messages are no longer in any segment.
        """
        if not inside:
            return []
        read = self._plan.tables if tables is None else tables
        oids = sorted({oid for table in read for oid in table.oids})
        outcomes = None
        if self._plan.committed:
            pieces, outcomes = self._committed(inside, start, end, oids)
        else:
            pieces = [
                (segment, SegmentRows(str(segment.path), taken, _bounds(segment, start, end)))
                for segment in inside
                for taken in ranges(segment, oids, self._plan.partition_bytes)
            ]
        partitions = []
        for task in join_small(pieces, self._plan.partition_bytes):
            taken_rows = [(segment, rows.row_groups) for segment, rows in task]
            relevant = None if outcomes is None else relevant_outcomes(taken_rows, outcomes)
            partitions.append(ManyRows(tuple(rows for _, rows in task), relevant, tables))
        return partitions

    def segments(self, start: int, end: int) -> list[Segment]:
        """Returns the segments between two positions.

        Raises:
            SegmentsGoneError: if a segment was removed.
        """
        return self._stream.footers(start, end)

    def before(self, inside: Sequence[Segment], start: int, end: int) -> list[Segment]:
        """Returns the earlier segments that may also contain rows of the range.

        Raises:
            SegmentsGoneError: if a segment was removed.
        """
        if not (inside and self._plan.committed):
            return []
        self._most_outcomes = _MOST_OUTCOMES + len(inside)  # `partitions` needs them again
        outcomes = self._read_outcomes(inside)
        return self._before(_older(_commits(outcomes, start, end), inside), inside[0].first_seq)

    def _committed(
        self, inside: Sequence[Segment], start: int, end: int, oids: Sequence[int]
    ) -> tuple[list[Piece], pa.RecordBatch]:
        """Returns the row groups, and the outcomes that apply to their rows."""
        outcomes = self._read_outcomes(inside)
        commits = _commits(outcomes, start, end)
        aborts = [rollbacks(outcomes)]
        txns = np.sort(commits.column("txn").to_numpy())
        older = _older(commits, inside)
        before = self._before(older, inside[0].first_seq)
        aborts.append(rollbacks(self._read_outcomes([each for each in before if may_end(each, older)])))
        ends = one_batch([commits, *aborts], OUTCOMES_SCHEMA).sort_by("txn")
        pieces = []
        for segments, wanted in ((before, older), (inside, txns.tolist())):
            for segment in segments:
                for taken in ranges(segment, oids, self._plan.partition_bytes, wanted):
                    pieces.append((segment, SegmentRows(str(segment.path), taken)))
        return pieces, ends

    def _before(self, txns: Sequence[int], end: int) -> list[Segment]:
        """Returns the segments before a position that may contain rows of these transactions. `txns` is ascending."""
        if not txns:
            return []
        try:
            return self.segments(txns[0], end)
        except SegmentsGoneError as problem:
            raise SegmentsGoneError(
                f"{problem}. The query needs them: a transaction that began at message {txns[0]} commits only now"
            ) from None

    def _read_outcomes(self, segments: Sequence[Segment]) -> pa.RecordBatch:
        """Returns the outcomes of segments, and caches those that the next call may need again."""
        unread = [each for each in segments if str(each.path) not in self._outcomes]
        new = dict(zip((str(each.path) for each in unread), self._stream.outcomes(unread), strict=True))
        found = [
            new[path] if path in new else self._outcomes[path]
            for path in (str(each.path) for each in segments)
        ]
        for segment, batch in zip(segments, found, strict=True):
            self._outcomes[str(segment.path)] = batch
            self._outcomes.move_to_end(str(segment.path))
        while len(self._outcomes) > self._most_outcomes:
            self._outcomes.popitem(last=False)
        return one_batch(found, OUTCOMES_SCHEMA)


def _commits(outcomes: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Returns the commits between two positions."""
    at = outcomes.column("at_seq").to_numpy()
    whole = outcomes.column("subxid").is_null().to_numpy(zero_copy_only=False)
    committed = pc.equal(outcomes.column("outcome"), "committed").to_numpy(zero_copy_only=False)
    return outcomes.filter(pa.array(whole & committed & (at >= start) & (at < end)))


def _older(commits: pa.RecordBatch, inside: Sequence[Segment]) -> list[int]:
    """Returns the transactions whose first rows are before the range.

    They were streamed or prepared, or a segment boundary splits them.
    """
    return sorted(txn for txn in commits.column("txn").to_pylist() if txn < inside[0].first_seq)


def _bounds(segment: Segment, start: int, end: int) -> Bounds:
    """Returns the bounds of the segment's rows in the range; empty if all are."""
    if segment.first_seq >= start and segment.last_seq < end:
        return {}
    return {"seq": (start, end - 1)}
