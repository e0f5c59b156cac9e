"""Cuts a range of positions into partitions. These depend only on the range and its segments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA
from pgoutput_fast.segments.segment import Segment, one_batch, outcomes_of
from pgoutput_fast.segments.tail import SegmentsGoneError, SegmentStream
from pgoutput_fast.spark.source.plan import SourcePlan, TablePlan
from pgoutput_fast.spark.source.read import ManyRows, SegmentRows, may_have, ranges, relevant_outcomes
from pgoutput_fast.spark.tasks.rows import Bounds

__all__ = ["RangeRows"]

# Outcomes of this many segments stay in memory, in addition to those of the range. The next batch needs those of the
# last batch again.
_MOST_OUTCOMES = 4
# Small partitions are joined until they have this many bytes in the file, or the bytes of the batch divided by this
# number of tasks if that is more.
_TASK_BYTES, _TASKS = 1 << 20, 64


class RangeRows:
    """Cuts ranges of positions into partitions.

    With transactions as sent, a range contains the changes whose ordinals lie in it. With committed transactions, it
    contains the transactions whose commit lies in it; their rows may lie before it.

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
        read = self._plan.tables if tables is None else tables
        oids = sorted({oid for table in read for oid in table.oids})
        if self._plan.committed:
            partitions = self._committed(inside, start, end, oids)
        else:
            partitions = [
                (segment, SegmentRows(str(segment.path), taken, None, _bounds(segment, start, end)))
                for segment in inside
                for taken in ranges(segment, oids, self._plan.partition_bytes)
            ]
        return _join_small(partitions, tables, self._plan.partition_bytes)

    def segments(self, start: int, end: int) -> list[Segment]:
        """Returns the segments between two positions.

        Raises:
            SegmentsGoneError: if a segment is gone.
        """
        return self._stream.footers(start, end)

    def before(self, inside: Sequence[Segment], start: int, end: int) -> list[Segment]:
        """Returns the earlier segments that may also contain rows of the range.

        Raises:
            SegmentsGoneError: if a segment is gone.
        """
        if not (inside and self._plan.committed):
            return []
        self._most_outcomes = _MOST_OUTCOMES + len(inside)  # `partitions` needs them again
        outcomes = one_batch([self._read_outcomes(segment) for segment in inside], OUTCOMES_SCHEMA)
        return self._before(_older(_commits(outcomes, start, end), inside), inside[0].first_seq)

    def _committed(
        self, inside: Sequence[Segment], start: int, end: int, oids: Sequence[int]
    ) -> list[tuple[Segment, SegmentRows]]:
        if not inside:
            return []
        outcomes = one_batch([self._read_outcomes(segment) for segment in inside], OUTCOMES_SCHEMA)
        commits = _commits(outcomes, start, end)
        aborts = [_aborts(outcomes)]
        txns = np.sort(commits.column("txn").to_numpy())
        older = _older(commits, inside)
        before = self._before(older, inside[0].first_seq)
        aborts += [_aborts(self._read_outcomes(each)) for each in before if _ends_parts_of(each, older)]
        ends = one_batch([commits, *aborts], OUTCOMES_SCHEMA).sort_by("txn")
        of_older = ends.filter(pc.is_in(ends.column("txn"), pa.array(older)))
        partitions = []
        for segments, known, wanted in ((before, of_older, older), (inside, ends, txns.tolist())):
            for segment in segments:
                for taken in ranges(segment, oids, self._plan.partition_bytes, wanted):
                    few = relevant_outcomes(segment, taken, known)
                    partitions.append((segment, SegmentRows(str(segment.path), taken, few)))
        return partitions

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

    def _read_outcomes(self, segment: Segment) -> pa.RecordBatch:
        path = str(segment.path)
        if path not in self._outcomes:
            self._outcomes[path] = outcomes_of(segment)
            while len(self._outcomes) > self._most_outcomes:
                self._outcomes.popitem(last=False)
        self._outcomes.move_to_end(path)
        return self._outcomes[path]


def _join_small(
    partitions: Sequence[tuple[Segment, SegmentRows]], tables: tuple[TablePlan, ...] | None, most_bytes: int
) -> list[ManyRows]:
    """Joins small partitions, because each task has a cost.

    Segments of a live capture have only some kilobytes each.
    """
    sizes = [sum(segment.row_groups[k].nbytes for k in rows.row_groups) for segment, rows in partitions]
    enough = min(most_bytes, max(_TASK_BYTES, sum(sizes) // _TASKS))
    joined: list[list[SegmentRows]] = []
    taken = enough
    for (_, rows), size in zip(partitions, sizes, strict=True):
        if taken + size > enough:
            joined.append([])
            taken = 0
        joined[-1].append(rows)
        taken += size
    return [ManyRows(tuple(each), tables) for each in joined]


def _commits(outcomes: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Returns the commits between two positions."""
    at = outcomes.column("at_seq").to_numpy()
    whole = outcomes.column("subxid").is_null().to_numpy(zero_copy_only=False)
    committed = pc.equal(outcomes.column("outcome"), "committed").to_numpy(zero_copy_only=False)
    return outcomes.filter(pa.array(whole & committed & (at >= start) & (at < end)))


def _older(commits: pa.RecordBatch, inside: Sequence[Segment]) -> list[int]:
    """Returns the transactions whose first rows lie before the range.

    They were streamed or prepared, or a segment boundary cuts them.
    """
    return sorted(txn for txn in commits.column("txn").to_pylist() if txn < inside[0].first_seq)


def _aborts(outcomes: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rollbacks of subtransactions."""
    return outcomes.filter(pc.is_valid(outcomes.column("subxid")))


def _ends_parts_of(segment: Segment, txns: Sequence[int]) -> bool:
    """Whether the segment may contain an outcome of these transactions."""
    return any(group.bare and may_have(group, txns) for group in segment.row_groups)


def _bounds(segment: Segment, start: int, end: int) -> Bounds:
    """Returns which rows of the segment are in the range; empty if all are."""
    if segment.first_seq >= start and segment.last_seq < end:
        return {}
    return {"seq": (start, end - 1)}
