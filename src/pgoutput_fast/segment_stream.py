"""A directory of segments as a stream that grows at its end and is cut at its beginning: by names, not footers."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from itertools import pairwise

from pgoutput_fast.segment_names import Named, named_segments
from pgoutput_fast.segment_stores import open_store
from pgoutput_fast.segments import Segment, open_segment

__all__ = ["SegmentStream", "SegmentsGoneError"]

# So many footers are kept: those of a batch, and of what it looks back at.
_MOST_OPEN = 256
# A listing is believed for so long, and for so many times what it took.
_LISTED_SECONDS, _LISTED_TIMES = 0.1, 5.0


class SegmentsGoneError(ValueError):
    """Messages that are wanted are in no segment (any more); the message says which."""


class SegmentStream:
    """Looks at a directory into which a capture writes. As long as it is not there it is empty.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.

    Raises:
        ValueError: for a URI that pyarrow does not know.
    """

    def __init__(self, directory: str) -> None:
        self._store = open_store(directory)
        self._listed: list[Named] = []
        self._next_listing = 0.0
        self._open: OrderedDict[Named, Segment] = OrderedDict()

    def listed(self, *, fresh: bool = False) -> list[Named]:
        """The segments in stream order; as of now if `fresh`, else perhaps of a moment ago.

        Raises:
            ValueError: for a file that no capture named, and for messages that are in two segments.
        """
        begun = time.monotonic()
        if fresh or begun >= self._next_listing:
            self._listed = self._look()
            ended = time.monotonic()
            self._next_listing = ended + max(_LISTED_SECONDS, _LISTED_TIMES * (ended - begun))
        return self._listed

    def _look(self) -> list[Named]:
        found = named_segments(self._store)
        for before, after in pairwise(found):
            if after.first_seq <= before.last_seq:
                raise ValueError(
                    f"{self._store}: {before.name} and {after.name} both have message {after.first_seq}: "
                    "they are not of one capture"
                )
        return found

    def begin(self) -> int:
        """Ordinal of the oldest message that is there; 0 where there is none."""
        found = self.listed()
        return found[0].first_seq if found else 0

    def end(self) -> int:
        """Ordinal behind the newest message that is there; 0 where there is none."""
        found = self.listed()
        return found[-1].last_seq + 1 if found else 0

    def between(self, start: int, end: int) -> list[Named]:
        """The segments that have the messages from `start` up to, but without, `end`.

        Raises:
            SegmentsGoneError: if one of these messages is in none of them.
        """
        found = self._overlapping(start, end)
        if _gap(found, start, end) is not None:
            self.listed(fresh=True)
            found = self._overlapping(start, end)
        gap = _gap(found, start, end)
        if gap is not None:
            raise SegmentsGoneError(
                f"{self._store} lacks messages {gap[0]} to {gap[1]}: their segments were removed"
            )
        return found

    def _overlapping(self, start: int, end: int) -> list[Named]:
        found = self.listed()
        first = bisect_left(found, start, key=lambda each: each.last_seq)
        return found[first : bisect_left(found, end, key=lambda each: each.first_seq)] if start < end else []

    def footer(self, named: Named) -> Segment:
        """What a segment's footer says; remembered, for a segment is never changed.

        Raises:
            ValueError: as `open_segment`, and if its ordinals are not those of its name.
        """
        segment = self._open.get(named)
        if segment is None:
            segment = open_segment(self._store.at(named.name))
            if (segment.first_seq, segment.last_seq) != (named.first_seq, named.last_seq):
                raise ValueError(
                    f"{self._store}: {named.name} has messages {segment.first_seq} to {segment.last_seq}: "
                    "it was renamed"
                )
            self._open[named] = segment
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(named)
        return segment


def _gap(found: list[Named], start: int, end: int) -> tuple[int, int] | None:
    """The first messages between `start` and `end` that are in none of these; None if all are there."""
    at = start
    for each in found:
        if each.first_seq > at:
            return at, each.first_seq - 1
        at = each.last_seq + 1
    return (at, end - 1) if at < end else None
