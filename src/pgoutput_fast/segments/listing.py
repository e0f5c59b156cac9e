"""Lists of segments: directories, globs and files, in stream order; their catalog and their outcomes."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.segments.catalog import UNREAD
from pgoutput_fast.segments.footers import Opened, SegmentFiles, read_changed
from pgoutput_fast.segments.names import overlap_error
from pgoutput_fast.segments.segment import Segment, check_source
from pgoutput_fast.segments.tail import SegmentsGoneError, check_whole
from pgoutput_fast.storage.paths import FoundFile, Paths, find_files, redacted_uri
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = [
    "SegmentList",
    "catalog_of",
    "list_segments",
    "segment_catalog",
    "segment_outcomes",
]

# Attempts to read a list if segments in it are removed meanwhile.
_TRIES = 3
_T = TypeVar("_T")


def list_segments(paths: Paths) -> list[Segment]:
    """The segments at some paths, in stream order.

    If `compact` joined segments, and the small ones still exist, the list has only the joined one.

    Args:
        paths: a file, a directory or a glob, or several of them; local, or a URI that `pyarrow.fs` knows, such as
            `s3://bucket/segments`.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: if the segments come from several sources, or if two of them have the same ordinal; and as
            `open_segment`.
    """
    return SegmentList(paths).segments()


def segment_catalog(paths: Paths) -> Catalog:
    """The relation versions and types in the footers of segments, from the oldest to the newest.

    Raises:
        ValueError: as `list_segments`.
    """
    return SegmentList(paths).read(catalog_of)


def segment_outcomes(paths: Paths) -> pa.RecordBatch:
    """The outcomes of transactions in segments, as `Decoded.outcomes`. Reads footers and control rows.

    Raises:
        DecodeError: if a boundary message is malformed.
        ValueError: as `list_segments`.
    """
    return SegmentList(paths).with_outcomes()[1]


def catalog_of(segments: Iterable[Segment]) -> Catalog:
    """The relation versions and types of segments, from the oldest to the newest.

    Raises:
        ValueError: if a part file of a catalog is damaged or missing.
    """
    catalogs: list[Catalog] = []
    before: Segment | None = None
    for each in segments:
        # Most segments have the same catalog as the previous one.
        if before is None or not each.known.is_same_catalog(before.known):
            catalogs.append(each.catalog)
        before = each
    return Catalog.of_all(catalogs)


class SegmentList:
    """The segments at some paths. Later readings open only new and rewritten files.

    Args:
        paths: as in `list_segments`.
        whole: whether a missing segment between others is an error (`check_whole`).
    """

    def __init__(self, paths: Paths, *, whole: bool = False) -> None:
        self._whole = whole
        self._paths: Sequence[str | os.PathLike[str]] = (
            [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        )
        self._opened = SegmentFiles()
        self._files: dict[str, FoundFile] = {}
        # The relations that have changes in a segment, for segments read so far.
        self._changed: dict[FoundFile, frozenset[int]] = {}

    def pack(self, outcomes: bool = False) -> bytes:
        """The row groups read so far, for another process. Does not contain catalogs.

        Args:
            outcomes: whether to include the outcomes in footers.
        """
        without: dict[str, Any] = {"known": UNREAD, **({} if outcomes else {"outcomes": None})}
        rows = [
            (file.path, file.nbytes, file.modified, replace(each.segment, **without))
            for file, each in self._opened.opened.items()
        ]
        return zlib.compress(pickle.dumps(rows), 1)

    def unpack(self, packed: bytes) -> None:
        """Takes over the result of `pack`: only row groups, without catalogs and states."""
        for path, nbytes, modified, segment in pickle.loads(zlib.decompress(packed)):
            self._opened.opened[FoundFile(path, nbytes, modified)] = Opened(segment, None)

    def segments(self) -> list[Segment]:
        """The current segments, in stream order.

        Raises:
            FileNotFoundError, ValueError: as `list_segments`.
        """
        return self.read(lambda segments: segments)

    def read(self, read: Callable[[list[Segment]], _T]) -> _T:
        """Calls `read` with the segments. If one of them is removed meanwhile, lists and reads again.

        Raises:
            FileNotFoundError, ValueError: as `list_segments`.
        """
        return self._again(lambda: read(self._listed()))

    def with_outcomes(
        self, wanted: Callable[[Segment], bool] = lambda segment: True
    ) -> tuple[list[Segment], pa.RecordBatch]:
        """(the segments, the requested outcomes). Files are opened once for both.

        Raises:
            DecodeError: if a boundary message is malformed.
            FileNotFoundError, ValueError: as `list_segments`.
        """

        def both() -> tuple[list[Segment], pa.RecordBatch]:
            segments = self._listed(wanted)
            return segments, self._outcomes(list(filter(wanted, segments)))

        return self._again(both)

    def outcomes(self, segments: Sequence[Segment]) -> TransactionOutcomes:
        """The outcomes of some of the segments.

        Raises:
            DecodeError: if a boundary message is malformed.
            FileNotFoundError: if a segment was removed.
        """
        return TransactionOutcomes.of_batch(self._outcomes(segments))

    def _outcomes(self, segments: Sequence[Segment]) -> pa.RecordBatch:
        return self._opened.outcomes([(self._files[os.fspath(each.path)], each) for each in segments])

    def changed(self, segments: Sequence[Segment], relations: Collection[int]) -> set[int]:
        """The subset of these relations (oids) with changes in the segments. A server also describes other relations.

        Raises:
            FileNotFoundError: if a segment was removed.
        """
        left, count, done = set(relations), 1, 0
        while left and done < len(segments):
            # Most relations have changes in the first segments, so the number read at a time grows.
            some = [each for each in segments[done : done + count] if each.row_groups_of(left)]
            files = {self._files[os.fspath(each.path)]: each for each in some}
            unread = [(file, each) for file, each in files.items() if file not in self._changed]
            self._changed |= zip((file for file, _ in unread), read_changed(unread), strict=True)
            left.difference_update(*(self._changed[file] for file in files))
            done, count = done + count, 2 * count
        return set(relations) - left

    def _again(self, read: Callable[[], _T]) -> _T:
        for _ in range(_TRIES - 1):
            # A segment that was just joined into another one may be removed at any time. A listing may lack both.
            with suppress(FileNotFoundError, SegmentsGoneError):
                return read()
        return read()

    def _listed(self, outcomes: Callable[[Segment], bool] | None = None) -> list[Segment]:
        files = find_files(self._paths)
        opened = self._opened.open(files, outcomes)
        self._opened.keep(files)
        self._changed = {file: each for file, each in self._changed.items() if file in self._opened.opened}
        self._files, found = {}, []
        for file, segment in zip(files, opened, strict=True):
            if segment is None:
                # The opened files are kept, so a second attempt is short.
                raise FileNotFoundError(f"segment {redacted_uri(file.path)} does not exist")
            self._files[os.fspath(segment.path)] = file
            found.append(segment)
        segments = _in_order(found)
        if self._whole:
            check_whole(segments)
        return segments


def _in_order(found: Sequence[Segment]) -> list[Segment]:
    """The segments in stream order, without those joined into others.

    Raises:
        ValueError: as `list_segments`.
    """
    segments: list[Segment] = []
    before: Segment | None = None
    for each in sorted(found, key=lambda each: (each.first_seq, -each.last_seq)):
        if before is not None:
            check_source(each.path, each.source, before.source)
        before = each
        last = segments[-1] if segments else None
        if last is None or last.last_seq < each.first_seq:
            segments.append(each)
        elif not last.replaces(each.first_seq, each.last_seq):
            raise overlap_error(
                f"segments {redacted_uri(last.path)} and {redacted_uri(each.path)}", each.first_seq
            )
    return segments
