"""A directory of segments as a stream. It grows at its end and is cut at its beginning.

The position of a segment comes from its name; footers are read only when needed.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from itertools import pairwise

from pgoutput_fast.segments.names import Named, cover, dated_segments, overlap_error
from pgoutput_fast.segments.segment import Segment, open_segment
from pgoutput_fast.storage.stores import open_store

__all__ = ["SegmentStream", "SegmentsGoneError"]

# Most footers in memory: those of a batch, and of the earlier segments that it needs.
_MOST_OPEN = 256
# A listing is reused for this many seconds, or for this many times the time that it took, whichever is longer.
_LISTED_SECONDS, _LISTED_TIMES = 0.1, 5.0


# So often a list is read when segments in it are removed meanwhile.
_TRIES = 3


class SegmentsGoneError(ValueError):
    """No segment has the requested messages, or no segment has them any more. The error text says which messages."""


class SegmentStream:
    """Reads the directory into which a capture writes. A directory that does not exist yet counts as empty.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.

    Raises:
        ValueError: for a URI that pyarrow does not know.
    """

    def __init__(self, directory: str) -> None:
        self._store = open_store(directory)
        self._listed: list[Named] = []
        self._dated: dict[Named, float] = {}
        self._covered: dict[Named, list[Named]] = {}
        self._next_listing = 0.0
        self._open: OrderedDict[Named, Segment] = OrderedDict()

    def listed(self, *, fresh: bool = False) -> list[Named]:
        """The segments in stream order. Without `fresh` the listing may be a moment old.

        Raises:
            ValueError: for a Parquet file whose name is not that of a segment, and if two segments have the same
                message.
        """
        begun = time.monotonic()
        if fresh or begun >= self._next_listing:
            self._listed = self._look()
            ended = time.monotonic()
            self._next_listing = ended + max(_LISTED_SECONDS, _LISTED_TIMES * (ended - begun))
        return self._listed

    def _look(self) -> list[Named]:
        dated = dated_segments(self._store)
        found, covered = cover(dated)
        for before, after in pairwise(found):
            if after.first_seq <= before.last_seq:
                raise overlap_error(f"{self._store}: {before.name} and {after.name}", after.first_seq)
        # Somebody may have removed the directory and captured again: then a file has the name of an older one.
        for named in [each for each in self._open if dated.get(each) != self._dated.get(each)]:
            del self._open[named]
        self._dated, self._covered = dated, covered
        return found

    def begin(self) -> int:
        """Ordinal of the oldest message in the directory; 0 if there is none."""
        found = self.listed()
        return found[0].first_seq if found else 0

    def end(self) -> int:
        """Ordinal of the newest message in the directory, plus 1; 0 if there is none."""
        found = self.listed()
        return found[-1].last_seq + 1 if found else 0

    def between(self, start: int, end: int) -> list[Named]:
        """The segments with the messages from `start` (included) to `end` (excluded).

        Raises:
            SegmentsGoneError: if no segment has one of these messages.
        """
        found = self._overlapping(start, end)
        if _gap(found, start, end) is not None:
            self.listed(fresh=True)
            found = self._overlapping(start, end)
        gap = _gap(found, start, end)
        if gap is not None:
            raise self._gone(*gap)
        return found

    def _gone(self, first: int, last: int) -> SegmentsGoneError:
        return SegmentsGoneError(
            f"{self._store} lacks messages {first} to {last}: their segments were removed"
        )

    def _overlapping(self, start: int, end: int) -> list[Named]:
        found = self.listed()
        first = bisect_left(found, start, key=lambda each: each.last_seq)
        return found[first : bisect_left(found, end, key=lambda each: each.first_seq)] if start < end else []

    def footers(self, start: int, end: int) -> list[Segment]:
        """The footers of the segments of `between`.

        Raises:
            SegmentsGoneError: if no segment has one of these messages.
            ValueError: as `footer`.
        """
        for _ in range(_TRIES - 1):
            try:
                return [self.footer(named) for named in self.between(start, end)]
            except SegmentsGoneError:
                # Another process may have joined segments, so that another one has these messages now.
                self.listed(fresh=True)
        return [self.footer(named) for named in self.between(start, end)]

    def footer(self, named: Named) -> Segment:
        """The footer of a segment. It is cached until the file is written again.

        Raises:
            SegmentsGoneError: if the segment was removed since the listing.
            ValueError: as `open_segment`; if the ordinals in the footer are not those in the name; and if another
                segment has some of its messages, which was not joined into it.
        """
        segment = self._open.get(named)
        if segment is None:
            try:
                segment = open_segment(self._store.at(named.name))
            except FileNotFoundError:
                raise self._gone(named.first_seq, named.last_seq) from None
            if (segment.first_seq, segment.last_seq) != (named.first_seq, named.last_seq):
                raise ValueError(
                    f"{self._store}: {named.name} has messages {segment.first_seq} to {segment.last_seq}: "
                    "somebody renamed it. Give it its old name"
                )
            for each in self._covered.get(named, ()):
                if not segment.replaces(each.first_seq, each.last_seq):
                    raise overlap_error(f"{self._store}: {named.name} and {each.name}", each.first_seq)
            self._open[named] = segment
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(named)
        return segment


def _gap(found: list[Named], start: int, end: int) -> tuple[int, int] | None:
    """(first, last) ordinal of the first missing messages between `start` and `end`; None if none are missing."""
    at = start
    for each in found:
        if each.first_seq > at:
            return at, each.first_seq - 1
        at = each.last_seq + 1
    return (at, end - 1) if at < end else None
