"""A directory of segments as a stream, which grows at its end and is trimmed at its beginning.

The position of a segment comes from its name; footers are read only when needed.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pgoutput_fast.segments.footers import SegmentFiles
from pgoutput_fast.segments.names import Named, cover, entries_of_segments, name_of, overlap_error
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.storage.paths import FoundFile
from pgoutput_fast.storage.stores import Entry, open_store
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["SegmentStream", "SegmentsGoneError", "between", "check_whole", "first_gap"]

# Maximum number of footers in memory: those of a batch, and of the earlier segments that it needs.
_MOST_OPEN = 1024
# Footers read at once if the required number is still unknown.
_AT_ONCE = 64
# A listing is reused for this many seconds, or for this multiple of the time that it took, whichever is longer.
_LISTED_SECONDS, _LISTED_TIMES = 0.1, 5.0


# Attempts to read a list if segments in it are removed meanwhile.
_TRIES = 3


class SegmentsGoneError(ValueError):
    """The requested messages are in no segment, or no longer in one. The error text says which messages."""


class SegmentStream:
    """Reads the directory into which a capture writes. A nonexistent directory counts as empty.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.

    Raises:
        ValueError: for a URI that pyarrow does not know.
    """

    def __init__(self, directory: str) -> None:
        self._store = open_store(directory)
        self._listed: list[Named] = []
        self._entries: dict[Named, Entry] = {}
        self._covered: dict[Named, list[Named]] = {}
        self._next_listing = 0.0
        self._opened = SegmentFiles(_MOST_OPEN)

    def listed(self, *, fresh: bool = False) -> list[Named]:
        """The segments in stream order. Without `fresh` the listing may be slightly out of date.

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
        entries = entries_of_segments(self._store)
        found, covered = cover(entries)
        for before, after in pairwise(found):
            if after.first_seq <= before.last_seq:
                raise overlap_error(f"{self._store}: {before.name} and {after.name}", after.first_seq)
        self._entries, self._covered = entries, covered
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
            SegmentsGoneError: if one of these messages is in no segment.
        """
        found = self._overlapping(start, end)
        if first_gap(found, start, end) is not None:
            self.listed(fresh=True)
            found = self._overlapping(start, end)
        gap = first_gap(found, start, end)
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

    def waiting(self, start: int) -> tuple[int, int]:
        """(bytes of the segments with the messages from `start` on, seconds since the oldest of them was written).

        As of the last listing; the seconds are 0 if the store has no times.
        """
        waiting = [self._entries[each] for each in self._overlapping(start, self.end())]
        written = min((each.modified for each in waiting), default=0.0)
        return sum(each.nbytes for each in waiting), max(0, int(time.time() - written)) if written else 0

    def footers(self, start: int, end: int) -> list[Segment]:
        """The footers of the segments of `between`.

        Raises:
            SegmentsGoneError: if one of these messages is in no segment.
            ValueError: as `open`.
        """
        for _ in range(_TRIES - 1):
            try:
                return self.open(self.between(start, end))
            except SegmentsGoneError:
                # Another process may have joined segments, so that another one has these messages now.
                self.listed(fresh=True)
        return self.open(self.between(start, end))

    def each_footer(self, start: int, end: int) -> Iterator[Segment]:
        """The footers of `footers`, read lazily: at most some more than you consume.

        Raises:
            SegmentsGoneError, ValueError: as `footers`.
        """
        while start < end:
            some = self.between(start, end)[:_AT_ONCE]
            for segment in self.footers(start, min(end, some[-1].last_seq + 1)):
                start = segment.last_seq + 1
                yield segment

    def open(self, segments: Sequence[Named]) -> list[Segment]:
        """The footers of listed segments, cached until the file is rewritten.

        Raises:
            SegmentsGoneError: if a segment was removed since the listing.
            ValueError: as `open_segment`; if the ordinals in a footer differ from those in the name; and if another
                segment that was not joined into it has some of its messages.
        """
        found = []
        for named, segment in zip(segments, self._opened.open(self._files(segments)), strict=True):
            if segment is None:
                raise self._gone(named.first_seq, named.last_seq)
            self._check(named, segment)
            found.append(segment)
        return found

    def outcomes(self, segments: Sequence[Segment]) -> TransactionOutcomes:
        """The outcomes in opened segments.

        Raises:
            SegmentsGoneError: if one has been removed since.
            DecodeError: if a boundary message is malformed.
        """
        named = [
            Named(each.first_seq, each.last_seq, name_of(each.first_seq, each.last_seq)) for each in segments
        ]
        if any(each not in self._entries for each in named):
            raise self._gone_of(named)
        try:
            outcomes = self._opened.outcomes(list(zip(self._files(named), segments, strict=True)))
        except FileNotFoundError:
            raise self._gone_of(named) from None
        return TransactionOutcomes.of_batch(outcomes)

    def _files(self, segments: Sequence[Named]) -> list[FoundFile]:
        return [self._store.found(self._entries[each]) for each in segments]

    def _check(self, named: Named, segment: Segment) -> None:
        if (segment.first_seq, segment.last_seq) != (named.first_seq, named.last_seq):
            raise ValueError(
                f"{self._store}: {named.name} has messages {segment.first_seq} to {segment.last_seq}: "
                "somebody renamed it. Give it its old name"
            )
        for each in self._covered.get(named, ()):
            if not segment.replaces(each.first_seq, each.last_seq):
                raise overlap_error(f"{self._store}: {named.name} and {each.name}", each.first_seq)

    def _gone_of(self, segments: Sequence[Named]) -> SegmentsGoneError:
        """The error for the first of these segments that does not exist."""
        there = set(self._store.names())
        first = next((each for each in segments if each.name not in there), segments[0])
        return self._gone(first.first_seq, first.last_seq)


def between(segments: Sequence[Segment], start: int, end: int) -> list[Segment]:
    """Those of the segments with the messages from `start` (included) to `end` (excluded)."""
    return [each for each in segments if each.last_seq >= start and each.first_seq < end]


def first_gap(found: Sequence[Named] | Sequence[Segment], start: int, end: int) -> tuple[int, int] | None:
    """(first, last) ordinal of the first missing messages between `start` and `end`; None if none are missing.

    Args:
        found: segments, in stream order.
        start: ordinal of the first relevant message.
        end: ordinal after the last one.
    """
    at = start
    for each in found:
        if at >= end:
            return None
        if each.first_seq > at:
            return at, min(each.first_seq, end) - 1
        at = max(at, each.last_seq + 1)
    return (at, end - 1) if at < end else None


def check_whole(segments: Sequence[Segment], start: int | None = None) -> None:
    """Checks that no segment is missing between segments, from the message `start` on, or from the first one on.

    Raises:
        SegmentsGoneError: if one is.
    """
    if not segments:
        return
    begin = segments[0].first_seq if start is None else start
    gap = first_gap(segments, begin, segments[-1].last_seq + 1)
    if gap is not None:
        raise SegmentsGoneError(
            f"no segment has messages {gap[0]} to {gap[1]}: at least one is missing. Restore it, or pass the paths "
            "of the segments before the gap, or of those after it"
        )
