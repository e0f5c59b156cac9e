"""The position of a table at a time: exact, or an error that tells which positions can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.merge.effect.effect import COMMIT_LSN
from pgoutput_fast.mirror.state.points import Point, end_of, expect_until, microseconds_of, point_before
from pgoutput_fast.mirror.state.table_record import Gap, TableRecord
from pgoutput_fast.mirror.view.changes import Changes
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.storage.paths import open_file

__all__ = ["position_at"]


def position_at(
    time: datetime,
    record: TableRecord,
    known: list[Point],
    changes_after: Callable[[int], Changes],
    place: str,
) -> int:
    """The LSN up to which a table has all commits until a time, and no later ones.

    The order of commits is that of their LSNs. Their times may differ from it a little, because a transaction gets its
    time before its place in the WAL.

    Args:
        time: with a time zone.
        record: the state of the table in the mirror.
        known: the points, the oldest first.
        changes_after: returns the changes of the history after an LSN.
        place: names the target, for errors.

    Raises:
        LookupError: if the points are all newer or older than that, if the table was loaded about then, or if
            transactions of that time committed in another order; the message tells which positions can be read.
        ValueError: if `time` has no time zone.
    """
    time_us = microseconds_of(time)
    point = point_before(known, time, place)
    last = _last(changes_after(point.position), time_us)
    later = _first_later(changes_after(-1), time_us)
    if later is None:
        expect_until(known, time, place)
    loads = [gap.end for gap in record.gaps if gap.time is not None and gap.time <= time_us]
    found = max(point.position, *loads, -1 if last is None else last)
    if later is not None and later <= found:
        raise LookupError(
            f"transactions of {record.table} committed in another order than their times say, about "
            f"{time.isoformat()}: take an LSN, such as {format_lsn(found)}"
        )
    for gap in record.gaps:
        if not _is_before(gap, last, time_us) and not _is_after(gap, found, later, known, time_us):
            raise LookupError(
                f"{record.table} was loaded or repaired at {format_lsn(gap.end)}, and its rows are unknown at "
                f"{time.isoformat()}: take {format_lsn(gap.end)} or a later time"
            )
    return found


def _is_before(gap: Gap, last: int | None, time_us: int) -> bool:
    """Whether a gap ends before a time.

    Args:
        gap: of the table.
        last: the LSN of the last commit of the history until that time.
        time_us: the time.
    """
    return (gap.time is not None and gap.time <= time_us) or (last is not None and last > gap.end)


def _is_after(gap: Gap, found: int, later: int | None, known: Sequence[Point], time_us: int) -> bool:
    """Whether a gap begins after a time, so that the earlier history covers that time."""
    if found > gap.begin:
        return False
    before = [each for each in known if each.position <= gap.begin]
    return (later is not None and later <= gap.begin) or (bool(before) and end_of(before) >= time_us)


def _last(changes: Changes, time_us: int) -> int | None:
    """The LSN of the last commit until a time."""
    until = pc.field("_commit_timestamp") <= _timestamp(time_us)
    for part in reversed(changes.parts):
        if (found := pc.max(_commits(changes, part, until)).as_py()) is not None:
            return int(found)
    return None


def _first_later(changes: Changes, time_us: int) -> int | None:
    """The LSN of the first commit after a time."""
    after = pc.field("_commit_timestamp") > _timestamp(time_us)
    for part in changes.parts:
        if (found := pc.min(_commits(changes, part, after)).as_py()) is not None:
            return int(found)
    return None


def _commits(changes: Changes, files: Iterable[str], condition: pc.Expression) -> pa.ChunkedArray:
    """The LSNs of the commits for which a condition is true. Statistics select the row groups."""
    commits = pc.field(COMMIT_LSN)
    within = (commits > changes.after) & (commits <= changes.through)
    return pa.chunked_array(
        [
            chunk
            for file in files
            for chunk in pq.read_table(
                open_file(file), columns=[COMMIT_LSN], filters=within & condition, partitioning=None
            )
            .column(COMMIT_LSN)
            .chunks
        ],
        pa.int64(),
    )


def _timestamp(time_us: int) -> pa.Scalar:
    return pa.scalar(time_us, pa.timestamp("us", "UTC"))
