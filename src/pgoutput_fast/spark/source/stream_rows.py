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
from pgoutput_fast.spark.source.read import Bounds, ManyRows, SegmentRows, fates_of, may_have, ranges

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
            found = self._committed(inside, start, end, oids)
        else:
            found = [
                (segment, SegmentRows(str(segment.path), taken, None, _bounds(segment, start, end)))
                for segment in inside
                for taken in ranges(segment, oids, self._plan.partition_bytes)
            ]
        return _together(found, tables, self._plan.partition_bytes)

    def segments(self, start: int, end: int) -> list[Segment]:
        """Returns the segments between two positions.

        Raises:
            SegmentsGoneError: if a segment is gone.
        """
        return [self._stream.footer(named) for named in self._stream.between(start, end)]

    def before(self, inside: Sequence[Segment], start: int, end: int) -> list[Segment]:
        """Returns the earlier segments that may also contain rows of the range.

        Raises:
            SegmentsGoneError: if a segment is gone.
        """
        if not (inside and self._plan.committed):
            return []
        self._most_outcomes = _MOST_OUTCOMES + len(inside)  # `partitions` needs them again
        told = one_batch([self._told(segment) for segment in inside], OUTCOMES_SCHEMA)
        return self._before(_older(_commits(told, start, end), inside), inside[0].first_seq)

    def _committed(
        self, inside: Sequence[Segment], start: int, end: int, oids: Sequence[int]
    ) -> list[tuple[Segment, SegmentRows]]:
        if not inside:
            return []
        told = one_batch([self._told(segment) for segment in inside], OUTCOMES_SCHEMA)
        commits = _commits(told, start, end)
        aborts = [_aborts(told)]
        txns = np.sort(commits.column("txn").to_numpy())
        older = _older(commits, inside)
        before = self._before(older, inside[0].first_seq)
        aborts += [_aborts(self._told(each)) for each in before if _ends_parts_of(each, older)]
        fates = one_batch([commits, *aborts], OUTCOMES_SCHEMA).sort_by("txn")
        of_older = fates.filter(pc.is_in(fates.column("txn"), pa.array(older)))
        found = []
        for segments, known, wanted in ((before, of_older, older), (inside, fates, txns.tolist())):
            for segment in segments:
                for taken in ranges(segment, oids, self._plan.partition_bytes, wanted):
                    few = fates_of(segment, taken, known)
                    found.append((segment, SegmentRows(str(segment.path), taken, few)))
        return found

    def _before(self, txns: Sequence[int], end: int) -> list[Segment]:
        """Returns the segments before a position that may contain rows of these transactions. `txns` is ascending."""
        if not txns:
            return []
        try:
            found = self.segments(txns[0], end)
        except SegmentsGoneError as problem:
            raise SegmentsGoneError(
                f"{problem}. They are needed, for a transaction that began at message {txns[0]} commits only now"
            ) from None
        return found

    def _told(self, segment: Segment) -> pa.RecordBatch:
        path = str(segment.path)
        if path not in self._outcomes:
            self._outcomes[path] = outcomes_of(segment)
            while len(self._outcomes) > self._most_outcomes:
                self._outcomes.popitem(last=False)
        self._outcomes.move_to_end(path)
        return self._outcomes[path]


def _together(
    found: Sequence[tuple[Segment, SegmentRows]], tables: tuple[TablePlan, ...] | None, most_bytes: int
) -> list[ManyRows]:
    """Joins small partitions, because each task has a cost.

    Segments of a live capture have only some kilobytes each.
    """
    sizes = [sum(segment.row_groups[k].nbytes for k in rows.row_groups) for segment, rows in found]
    enough = min(most_bytes, max(_TASK_BYTES, sum(sizes) // _TASKS))
    together: list[list[SegmentRows]] = []
    taken = enough
    for (_, rows), size in zip(found, sizes, strict=True):
        if taken + size > enough:
            together.append([])
            taken = 0
        together[-1].append(rows)
        taken += size
    return [ManyRows(tuple(each), tables) for each in together]


def _commits(told: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Returns the commits between two positions."""
    at = told.column("at_seq").to_numpy()
    whole = told.column("subxid").is_null().to_numpy(zero_copy_only=False)
    committed = pc.equal(told.column("outcome"), "committed").to_numpy(zero_copy_only=False)
    return told.filter(pa.array(whole & committed & (at >= start) & (at < end)))


def _older(commits: pa.RecordBatch, inside: Sequence[Segment]) -> list[int]:
    """Returns the transactions whose first rows lie before the range.

    They were streamed or prepared, or a segment boundary cuts them.
    """
    return sorted(txn for txn in commits.column("txn").to_pylist() if txn < inside[0].first_seq)


def _aborts(told: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rollbacks of subtransactions."""
    return told.filter(pc.is_valid(told.column("subxid")))


def _ends_parts_of(segment: Segment, txns: Sequence[int]) -> bool:
    """Whether the segment may contain an outcome of these transactions."""
    return any(group.bare and may_have(group, txns) for group in segment.row_groups)


def _bounds(segment: Segment, start: int, end: int) -> Bounds:
    """Returns which rows of the segment are in the range; empty if all are."""
    if segment.first_seq >= start and segment.last_seq < end:
        return {}
    return {"seq": (start, end - 1)}
