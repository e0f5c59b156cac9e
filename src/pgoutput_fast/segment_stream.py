"""A directory of segments as a stream that grows at its end and is cut at its beginning: by names, not footers."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from pgoutput_fast.segment_paths import find_files, shown
from pgoutput_fast.segments import Segment, open_segment

__all__ = ["SegmentStream", "SegmentsGoneError", "Stretch"]

_NAME = re.compile(r"(?:^|/)(\d{20})-(\d{20})\.parquet(?:\?|$)")
# So many footers are kept: those of a batch, and of what it looks back at.
_MOST_OPEN = 256
# A listing is believed for so long, and for so many times what it took.
_LISTED_SECONDS, _LISTED_TIMES = 0.1, 5.0


class SegmentsGoneError(ValueError):
    """Messages that are wanted are in no segment (any more); the message says which."""


@dataclass(frozen=True)
class Stretch:
    """A segment as its name tells it.

    Attributes:
        path: the file, or its URI.
        first_seq, last_seq: ordinals of its first and last message.
    """

    path: str
    first_seq: int
    last_seq: int


class SegmentStream:
    """Looks at a directory into which a capture writes.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.
        may_be_missing: whether it is empty as long as it is not there.
    """

    def __init__(self, directory: str, *, may_be_missing: bool = False) -> None:
        self._directory = directory
        self._may_be_missing = may_be_missing
        self._listed: list[Stretch] = []
        self._next_listing = 0.0
        self._open: OrderedDict[str, Segment] = OrderedDict()

    def listed(self, *, fresh: bool = False) -> list[Stretch]:
        """The segments in stream order; as of now if `fresh`, else perhaps of a moment ago.

        Raises:
            FileNotFoundError: if there is no such directory.
            ValueError: for a file that no capture named, and for messages that are in two segments or in none.
        """
        begun = time.monotonic()
        if fresh or begun >= self._next_listing:
            self._listed = self._look()
            ended = time.monotonic()
            self._next_listing = ended + max(_LISTED_SECONDS, _LISTED_TIMES * (ended - begun))
        return self._listed

    def _look(self) -> list[Stretch]:
        try:
            files = find_files(self._directory)
        except FileNotFoundError:
            if self._may_be_missing:
                return []
            raise
        found = sorted((_stretch(file) for file in files), key=lambda each: each.first_seq)
        for before, after in pairwise(found):
            if after.first_seq <= before.last_seq:
                raise ValueError(
                    f"segments {shown(before.path)} and {shown(after.path)} both have message {after.first_seq}: "
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

    def between(self, start: int, end: int) -> list[Stretch]:
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
                f"{shown(self._directory)} lacks messages {gap[0]} to {gap[1]}: their segments were removed"
            )
        return found

    def _overlapping(self, start: int, end: int) -> list[Stretch]:
        return [each for each in self.listed() if each.last_seq >= start and each.first_seq < end]

    def footer(self, stretch: Stretch) -> Segment:
        """What a segment's footer says; remembered, for a segment is never changed.

        Raises:
            ValueError: as `open_segment`, and if its ordinals are not those of its name.
        """
        segment = self._open.get(stretch.path)
        if segment is None:
            segment = open_segment(stretch.path)
            if (segment.first_seq, segment.last_seq) != (stretch.first_seq, stretch.last_seq):
                raise ValueError(
                    f"{shown(stretch.path)} has messages {segment.first_seq} to {segment.last_seq}: it was renamed"
                )
            self._open[stretch.path] = segment
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(stretch.path)
        return segment


def _stretch(path: str) -> Stretch:
    match = _NAME.search(path)
    if match is None:
        raise ValueError(
            f"{shown(path)} has no name that a capture gives: a stream reads the directory of one capture"
        )
    return Stretch(path, int(match[1]), int(match[2]))


def _gap(found: list[Stretch], start: int, end: int) -> tuple[int, int] | None:
    """The first messages between `start` and `end` that are in none of these; None if all are there."""
    at = start
    for each in found:
        if each.first_seq > at:
            return at, each.first_seq - 1
        at = each.last_seq + 1
    return (at, end - 1) if at < end else None
