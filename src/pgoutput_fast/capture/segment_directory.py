"""The directory into which a capture writes its segments, and from which retention removes old ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from pgoutput_fast.capture.confirmed_position import ConfirmedPosition
from pgoutput_fast.capture.errors import CaptureBusyError, CaptureError, MovedOnError
from pgoutput_fast.capture.retention import Retention, expect_no_typed_files, retain
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.segments.catalog import CATALOG_DIRECTORY, CatalogLog, sweep_orphans
from pgoutput_fast.segments.compaction import unfinished_of_compact
from pgoutput_fast.segments.names import Named, newest_named, ordinals_of
from pgoutput_fast.segments.read import newest_segment
from pgoutput_fast.segments.segment import Segment, Source
from pgoutput_fast.segments.write import write_segment
from pgoutput_fast.storage.lease import Role, WriterLease
from pgoutput_fast.storage.paths import redacted_uri
from pgoutput_fast.storage.stores import (
    is_unfinished,
    make_target,
    missing_directories,
    open_store,
    remove_directories,
)
from pgoutput_fast.storage.table_directories import MIRROR

__all__ = ["SegmentDirectory"]

_log = logging.getLogger("pgoutput_fast.capture")

# In a store, the slot is the lock: a server streams it to one client at a time. So the capture that has the slot puts
# its mark without asking, and needs no heartbeat. An earlier capture, whose connection is lost, finds this mark.
_ROLE = Role(
    "captures into",
    "stop it first, or capture into another directory",
    "start the capture again",
    CaptureBusyError,
    lock=".lock",
    mark="_writer.json",
    heartbeats="",
)


class SegmentDirectory:
    """A directory of segments into which one capture at a time writes.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.
        retention: what to keep after a segment is written; None for everything.
        file_mode: the most permissions of files; None leaves them to the umask.
        compressed: whether segments are compressed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        retention: Retention | None = None,
        file_mode: int | None = None,
        *,
        compressed: bool = True,
    ) -> None:
        self._directory = directory
        self._store = open_store(directory)
        self._store.limit(file_mode)
        self._file_mode, self._compressed = file_mode, compressed
        self._retention = retention
        self._known = CatalogLog(self._store)
        self._outgrown = False
        self._lease: WriterLease | None = None
        self._confirmed: ConfirmedPosition | None = None
        self._last_seq: int | None = None
        # The newest segment when `durable_lsn` last read it, and its end.
        self._read: tuple[Named, int] | None = None

    def __str__(self) -> str:
        return str(self._store)

    @property
    def local(self) -> bool:
        """Whether it is a local directory and not an object store."""
        return self._store.local

    @property
    def outgrown(self) -> bool:
        """Whether the relation versions no longer fit into a footer. A new session may then forget them."""
        return self._outgrown

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Holds the right to write during the block.

        Creates the directory, and removes unfinished files of a killed process. After an error, a directory created for
        the block is removed if it is empty.

        Raises:
            CaptureError: if another process has the right, or an earlier version wrote typed files here.
        """
        missing = missing_directories(self._store)
        make_target(self._store)
        lease = WriterLease(self._store, _ROLE)
        if self._store.local:
            lease.acquire()
        self._lease = lease
        try:
            with self._removed_after_error(missing):
                try:
                    expect_no_typed_files(self._store)
                except ValueError as problem:
                    raise CaptureError(str(problem)) from None
                # The capture continues after the existing files, so they must be durable.
                self._store.harden()
                self._sweep()
                yield
        finally:
            lease.release()

    @contextmanager
    def _removed_after_error(self, missing: Sequence[Path]) -> Iterator[None]:
        """After an error in the block, removes directories that did not exist, if they contain only the lock.

        Args:
            missing: these directories, deepest first.
        """
        try:
            yield
        except BaseException:
            if missing and os.listdir(missing[0]) == [_ROLE.lock]:
                os.unlink(missing[0] / _ROLE.lock)
                remove_directories(missing)
            raise

    def expect_no_mirror(self) -> None:
        """Checks that this is not the target of a mirror, which keeps its segments in a subdirectory.

        Raises:
            CaptureError: if it is.
        """
        if self._store.names(MIRROR):
            raise CaptureError(
                f"{self} is the target of a mirror, which captures for itself. Capture into another directory, from a "
                "slot of its own"
            )

    @property
    def confirmed(self) -> ConfirmedPosition:
        """The confirmed position of an idle slot, which lies after the segments.

        Raises:
            CaptureError: if its file is damaged.
        """
        if self._confirmed is None:
            try:
                self._confirmed = ConfirmedPosition(self._store)
            except ValueError as problem:
                raise CaptureError(
                    f"{problem}. Restore the file, or capture into another directory"
                ) from None
        return self._confirmed

    def newest(self) -> Segment | None:
        """Returns the newest segment, after which a capture continues; None if there is none."""
        if self._lease is not None:
            # The capture confirms the existing segments at once. An fsync by an earlier process may have failed.
            self._store.harden()
        newest = newest_segment(self._directory)
        self._confirmed = None  # another capture may have written to the store in the meantime
        self._last_seq = None if newest is None else newest.last_seq
        self._outgrown = newest is not None and bool(newest.known.parts)
        return newest

    def durable_lsn(self) -> int:
        """Returns the LSN up to which all commits are durable here or confirmed; 0 if nothing was captured.

        Cheap to call: it reads a segment only if that is new.

        Raises:
            CaptureError: as `confirmed`.
        """
        named = newest_named(self._store)
        if named is None or self._read is None or self._read[0] != named:
            newest = self.newest()
            if named is None or newest is None:
                return self.durable_lsn_with(newest)
            # A later segment is equally valid.
            self._read = named, newest.end_lsn or 0
        self._confirmed = None  # another process may have written it
        return max(self._read[1], self.confirmed.lsn or 0)

    def durable_lsn_with(self, newest: Segment | None) -> int:
        """As `durable_lsn`, given the result of `newest`."""
        return max((newest.end_lsn if newest is not None else None) or 0, self.confirmed.lsn or 0)

    def claim(self) -> None:
        """Claims the directory. Call it once the slot is acquired: from then on nobody else writes.

        Raises:
            MovedOnError: if the segment that `newest` returned is no longer the newest.
        """
        assert self._lease is not None
        self._lease.acquire(takeover=True)
        self._expect_newest()

    def write(self, rows: pa.Table, state: StreamState, source: Source, end_lsn: int) -> None:
        """Makes rows durable as a segment.

        Raises:
            CaptureError: if another process has claimed the directory.
            MovedOnError: if another process wrote into the directory before it lost the slot.
            OSError, ValueError: as `write_segment`; in a store also if another process wrote at the same time.
        """
        assert self._lease is not None
        if not self._store.local:
            self._lease.check()
            self._expect_newest()
        path = write_segment(
            self._directory,
            rows,
            state,
            source=source,
            end_lsn=end_lsn,
            log=self._known,
            file_mode=self._file_mode,
            compressed=self._compressed,
        )
        self._outgrown = self._known.outgrown
        self._lease.check()
        self._last_seq = ordinals_of(redacted_uri(path).rpartition("/")[2])[1]

    def apply_retention(self) -> None:
        """Removes segments that are no longer needed."""
        if self._retention is not None:
            try:
                retain(
                    self._directory, older_than=self._retention.older_than, consumed=self._retention.consumed
                )
            except (OSError, ValueError) as problem:
                # Retention is retried later. Too many segments are better than no capture.
                _log.warning(
                    "the capture cannot remove old segments in %s, and tries again later: %s", self, problem
                )

    def _sweep(self) -> None:
        """Removes unfinished files of a killed process. There are no other writers, but segments may be joined now."""
        found = [*self._store.entries(), *self._store.entries(CATALOG_DIRECTORY)]
        unfinished = [each for each in found if is_unfinished(each.name.rpartition("/")[2])]
        joining = unfinished_of_compact(self._store, unfinished)
        unfinished = [each for each in unfinished if each.name not in joining]
        for entry in unfinished:
            with suppress(OSError):
                self._store.remove(entry.name)
        newest = newest_named(self._store)
        sweep_orphans(self._store, -1 if newest is None else newest.last_seq)

    def _expect_newest(self) -> None:
        newest = newest_named(self._store)
        if (None if newest is None else newest.last_seq) != self._last_seq:
            raise MovedOnError(f"another capture wrote a segment into {self}")
