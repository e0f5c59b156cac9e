"""Where a capture writes: segments first, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from pgoutput_fast.capture.errors import CaptureError, MovedOnError
from pgoutput_fast.capture.ownership import Owner, owned
from pgoutput_fast.capture.retention import Retention, retain
from pgoutput_fast.segment_names import named_segments
from pgoutput_fast.segment_stores import open_store
from pgoutput_fast.segments import Segment, Source, newest_segment, write_segment
from pgoutput_fast.state import StreamState

__all__ = ["Sink"]


class Sink:
    """A directory of segments that one capture at a time writes into.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.
        retention: what is kept when a segment has been written; None for everything.
    """

    def __init__(self, directory: str | os.PathLike[str], retention: Retention | None = None) -> None:
        self._directory = directory
        self._store = open_store(directory)
        self._retention = retention
        self._owner: Owner | None = None
        self._last_seq: int | None = None

    def __str__(self) -> str:
        return str(self._store)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """The right to write, for the time of the block. The directory is created.

        Raises:
            CaptureError: if another process has it.
        """
        self._store.make()
        with owned(self._store) as owner:
            self._owner = owner
            yield

    def newest(self) -> Segment | None:
        """The segment behind which a capture goes on; None if there is none."""
        newest = newest_segment(self._directory)
        self._last_seq = None if newest is None else newest.last_seq
        return newest

    def claim(self) -> None:
        """To be called once the slot is ours: nobody else writes from now on.

        Raises:
            MovedOnError: if the segment that `newest` gave is not the newest any more.
        """
        assert self._owner is not None
        self._owner.claim()
        if self._newest_seq() != self._last_seq:
            raise MovedOnError(f"another capture wrote into {self} meanwhile")

    def write(self, rows: pa.Table, state: StreamState, source: Source, end_lsn: int) -> None:
        """Makes rows durable as a segment.

        Raises:
            CaptureError: if another process has claimed the directory.
            MovedOnError: if another process wrote into it before it lost the slot.
            OSError, ValueError: as `write_segment`; in a store also where another process wrote at the same time.
        """
        assert self._owner is not None
        self._owner.check()
        if self._newest_seq() != self._last_seq:
            raise MovedOnError(f"another capture wrote into {self} meanwhile")
        write_segment(self._directory, rows, state, source=source, end_lsn=end_lsn)
        self._owner.check()
        self._last_seq = self._newest_seq()

    def _newest_seq(self) -> int | None:
        names = named_segments(self._store)
        return names[-1].last_seq if names else None

    def follow(self) -> None:
        """What is to be done behind a segment that is durable.

        Raises:
            CaptureError: if it cannot be done; the segments are good.
        """
        kept = self._retention
        if kept is None or (kept.older_than is None and not kept.consumed):
            return
        try:
            retain(self._directory, older_than=kept.older_than, consumed=kept.consumed)
        except (OSError, ValueError) as problem:
            raise CaptureError(
                f"the segments in {self} are good, but those that are not needed any more cannot be removed: {problem}"
            ) from problem
