"""Plans what each task reads of segments. The same arguments always give the same list."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from pgoutput_fast.protocol.limits import SPARK_PARTITION_BYTES
from pgoutput_fast.segments.segment import RowGroup, Segment
from pgoutput_fast.storage.paths import absolute, redacted_uri
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = [
    "Bounds",
    "ReadSpec",
    "SegmentPart",
    "Span",
    "TaskBytes",
    "bytes_per_core",
    "bytes_per_partition",
    "outcomes_of_span",
    "plan_read",
    "rejected_in",
]

# Tagged columns -> the smallest and the largest requested value.
Bounds: TypeAlias = Mapping[str, tuple[int, int]]
# Total bytes of the row groups -> (the size at which the row groups of a segment are divided, the size up to which
# parts of segments are joined).
TaskBytes: TypeAlias = Callable[[int], tuple[int, int]]

# Segments of a live capture have only some kilobytes each. They are joined up to this size, or up to the total size
# divided by this number of tasks if that is more.
_JOINED_BYTES, _JOINED_TASKS = 1 << 20, 64
# Tasks per core, so that no core waits long for the last one.
_TASKS_PER_CORE = 2


class Span(NamedTuple):
    """The messages from `first` to `last`, inclusive."""

    first: int
    last: int


@dataclass(frozen=True)
class SegmentPart:
    """Row groups of one segment.

    Attributes:
        path: absolute path or URI of the segment.
        row_groups: numbers of the row groups.
        bounds: ranges of tagged columns; empty for all rows.
    """

    path: str
    row_groups: tuple[int, ...]
    bounds: Bounds


@dataclass(frozen=True)
class ReadSpec:
    """What one task reads.

    Attributes:
        parts: the row groups, in stream order.
        outcomes: the outcomes of their transactions, if only committed rows are requested, otherwise None.
    """

    parts: tuple[SegmentPart, ...]
    outcomes: TransactionOutcomes | None = None


def bytes_per_partition(most: int) -> TaskBytes:
    """Tasks of at most this size, of which there may be many more than cores: segments are only joined if small."""
    return lambda total: (most, min(most, max(_JOINED_BYTES, total // _JOINED_TASKS)))


def bytes_per_core(cores: int) -> TaskBytes:
    """Tasks of about the same size, a few for each of the cores."""

    def sizes(total: int) -> tuple[int, int]:
        size = min(SPARK_PARTITION_BYTES, max(1, total // (_TASKS_PER_CORE * max(cores, 1))))
        return size, size

    return sizes


def plan_read(
    segments: Sequence[Segment],
    span: Span,
    relations: Mapping[int, int],
    outcomes: TransactionOutcomes | None,
    bounds: Bounds,
    task_bytes: TaskBytes,
    on_error: Literal["raise", "quarantine"] = "raise",
) -> list[ReadSpec]:
    """Divides the row groups that can have requested rows among tasks, in stream order.

    As sent, the rows with ordinals in the span are requested. With outcomes, the rows of the transactions that commit
    in the span are, wherever they are. Tasks still filter rows: a row group may have others, too.

    Args:
        segments: the segments, in stream order.
        span: the messages.
        relations: {oid of a relation: ordinal of the first message of the span that matters to it}.
        outcomes: the outcomes of transactions (`outcomes_of_span`), if only committed rows are requested.
        bounds: limits of tagged columns that all rows must meet.
        task_bytes: the size of a task, in bytes of the files. A larger row group is its own task.
        on_error: whether rejected messages in the span are an error.

    Raises:
        ValueError: for segments in the span with rejected messages, with `on_error="raise"`.
    """
    damaged = rejected_in(segments, span) if on_error == "raise" else None
    if damaged is not None:
        raise ValueError(
            f"{redacted_uri(damaged.path)} has messages that were rejected when they were tagged, and changes may be "
            "among them: pass on_error='quarantine' to leave them out. rejects(spark.read.parquet(...)) returns them"
        )
    chosen = list(_chosen(segments, span, relations, outcomes, bounds))
    most, joined = task_bytes(sum(segment.row_groups[k].nbytes for segment, groups in chosen for k in groups))
    tasks: list[list[tuple[Segment, tuple[int, ...]]]] = []
    size = joined
    for segment, row_groups in chosen:
        for part, nbytes in _divided(segment, row_groups, most):
            if size + nbytes > joined:
                tasks.append([])
                size = 0
            tasks[-1].append((segment, part))
            size += nbytes
    within = span if outcomes is None else None
    return [
        ReadSpec(
            tuple(
                SegmentPart(absolute(segment.path), part, _bounds_in(segment, within, bounds))
                for segment, part in task
            ),
            None if outcomes is None else _relevant(task, outcomes),
        )
        for task in tasks
    ]


def rejected_in(segments: Sequence[Segment], span: Span) -> Segment | None:
    """The first segment of the span that has messages that were rejected when they were tagged; None without any."""
    for each in segments:
        inside = each.first_seq <= span.last and each.last_seq >= span.first
        if inside and any(group.rejected for group in each.row_groups):
            return each
    return None


def outcomes_of_span(
    inside: Sequence[Segment],
    span: Span,
    read: Callable[[Sequence[Segment]], TransactionOutcomes],
    before: Callable[[int, int], Sequence[Segment]],
) -> tuple[Sequence[Segment], TransactionOutcomes]:
    """(earlier segments that may have rows of the span's transactions, the outcomes that decide about these rows).

    Reads only the earlier segments that such a transaction needs: it was streamed or prepared, or the end of a segment
    divides it.

    Args:
        inside: the segments with the messages of the span, in stream order.
        span: the transactions that commit in it are requested.
        read: reads the outcomes in segments.
        before: returns the segments with the messages from an ordinal (included) to another (excluded).
    """
    if not inside:
        return [], read(inside)
    outcomes = read(inside).between(*span)
    begin = inside[0].first_seq
    older = outcomes.committed_before(begin)
    if not older:
        return [], outcomes
    earlier = before(older[0], begin)
    return earlier, outcomes.with_rollbacks_of(read([each for each in earlier if _may_end(each, older)]))


def _chosen(
    segments: Sequence[Segment],
    span: Span,
    relations: Mapping[int, int],
    outcomes: TransactionOutcomes | None,
    bounds: Bounds,
) -> Iterator[tuple[Segment, list[int]]]:
    """The segments with requested rows, and the row groups that can have them."""
    oids_from: dict[int, list[int]] = {}
    for oid, first in sorted(relations.items()):
        oids_from.setdefault(max(first, span.first), []).append(oid)
    chosen: dict[int, set[int]] = {}
    for first, oids in oids_from.items():
        txns = None if outcomes is None else outcomes.between(first, span.last).txns.tolist()
        if txns == []:
            continue
        begin = first if txns is None else min(first, txns[0])
        for n in range(bisect_left(segments, begin, key=lambda each: each.last_seq), len(segments)):
            if segments[n].first_seq > span.last:
                break
            groups = [k for k, group in enumerate(segments[n].row_groups) if _may_hold(group, oids, txns)]
            chosen.setdefault(n, set()).update(groups)
    least, most = bounds.get("seq", (0, span.last))
    for n in sorted(chosen):
        if chosen[n] and segments[n].first_seq <= most and segments[n].last_seq >= least:
            yield segments[n], sorted(chosen[n])


def _may_hold(group: RowGroup, oids: Sequence[int], txns: Sequence[int] | None) -> bool:
    """Whether a row group can have a row of one of these relations, and of one of these transactions."""
    if group.relations is None or not _any_between(oids, *group.relations):
        return False
    return txns is None or group.txns is None or _any_between(txns, *group.txns)


def _may_end(segment: Segment, txns: Sequence[int]) -> bool:
    """Whether a segment can have an outcome of one of these transactions."""
    return any(
        group.bare and (group.txns is None or _any_between(txns, *group.txns)) for group in segment.row_groups
    )


def _any_between(ascending: Sequence[int], first: int, last: int) -> bool:
    at = bisect_left(ascending, first)
    return at < len(ascending) and ascending[at] <= last


def _divided(segment: Segment, row_groups: Sequence[int], most: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields (consecutive row groups of limited size, their size)."""
    part: list[int] = []
    size = 0
    for k in row_groups:
        nbytes = segment.row_groups[k].nbytes
        if part and size + nbytes > most:
            yield tuple(part), size
            part, size = [], 0
        part.append(k)
        size += nbytes
    if part:
        yield tuple(part), size


def _bounds_in(segment: Segment, span: Span | None, bounds: Bounds) -> Bounds:
    """The bounds of the segment's rows, without those that all of its rows meet."""
    if span is None or (segment.first_seq >= span.first and segment.last_seq <= span.last):
        return bounds
    first, last = bounds.get("seq", span)
    return {**bounds, "seq": (max(first, span.first), min(last, span.last))}


def _relevant(
    parts: Sequence[tuple[Segment, Sequence[int]]], outcomes: TransactionOutcomes
) -> TransactionOutcomes:
    """Only the outcomes that can affect rows of the row groups: fewer are sent to a task."""
    ranges = [segment.row_groups[k].txns for segment, groups in parts for k in groups]
    known = [txns for txns in ranges if txns is not None]
    if len(known) < len(ranges):
        return outcomes
    return outcomes.of_transactions(min(first for first, _ in known), max(last for _, last in known))
