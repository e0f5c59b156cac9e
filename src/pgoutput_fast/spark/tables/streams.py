"""The stream of segments, and whether a table can continue with it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import Ordinal, Table

__all__ = ["StreamCheck", "stream_at"]

_ADVICE = (
    "A table has the changes of one stream: write to another target, or replace the table by "
    "write_tables(..., mode='overwrite')"
)


def stream_at(segments: Sequence[Segment], seq: int) -> Stream:
    """The stream of segments, for a table that ends at a message.

    Args:
        segments: the segments, in stream order.
        seq: ordinal of the message.
    """
    source = segments[0].source
    names = (source.system_identifier, source.database, source.slot)
    before = _up_to(segments, seq)
    known = [lsn for each in before for lsn in _lsns(each)]
    return Stream.of(
        names, seq, min(_lsns(before[-1]), default=None) if before else None, max(known, default=None)
    )


class StreamCheck:
    """Checks whether tables have changes of the same stream as segments.

    Names of server, database and slot distinguish most streams. A slot that is created again, for instance by a repair
    of a mirror, has the same names, and counts its messages from 0 again. But these have later LSNs than all messages
    of the previous slot. `compact` changes none of that: a joined segment has the LSNs of all its parts.

    Args:
        segments: the segments, in stream order.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._stream = stream_at(segments, segments[-1].last_seq)
        self._checked: set[Stream] = set()

    def check(self, table: Table, position: Ordinal | None) -> None:
        """Checks a table. A table without a stream accepts any.

        Args:
            table: the table of changes.
            position: its position.

        Raises:
            ValueError: if it has changes of another stream.
        """
        there = None if position is None else position.stream
        if there is None or there in self._checked:
            return
        place = f"{table.store}/{table.directory}"
        if there.digest != self._stream.digest:
            raise ValueError(
                f"{place} belongs to another stream: it has changes of {table.named(there)}, and the segments are of "
                f"{self._stream}. {_ADVICE}"
            )
        other = self._contradicting(there)
        if other is not None:
            raise ValueError(
                f"{place} belongs to another stream of {self._stream}: the table has message {there.seq} at LSN "
                f"{format_lsn(there.high_lsn or 0)}, and these segments have message {other.first_seq} at LSN "
                f"{format_lsn(min(_lsns(other)))}. The slot was made again, as by a repair of a mirror, or it was "
                f"captured into another directory. Then messages are counted from 0 again. {_ADVICE}"
            )
        self._checked.add(there)

    def _contradicting(self, there: Stream) -> Segment | None:
        """A segment whose LSNs prove a different stream; None if there is none."""
        before = _up_to(self._segments, there.seq)
        if there.high_lsn is not None:
            for each in before:
                # Messages after the table's last one may have later LSNs.
                lsns = _lsns(each) if each.last_seq <= there.seq else _known(each.start_lsn)
                if any(lsn > there.high_lsn for lsn in lsns):
                    return each
        last = before[-1] if before else self._segments[0]
        if there.low_lsn is not None and last.last_seq >= there.seq:
            lsns = _lsns(last)
            if lsns and max(lsns) < there.low_lsn:
                return last
        return None


def _up_to(segments: Sequence[Segment], seq: int) -> Sequence[Segment]:
    """The segments with messages up to this one."""
    return segments[: bisect_right(segments, seq, key=lambda each: each.first_seq)]


def _lsns(segment: Segment) -> list[int]:
    return _known(segment.start_lsn, segment.end_lsn)


def _known(*lsns: int | None) -> list[int]:
    return [lsn for lsn in lsns if lsn is not None]
