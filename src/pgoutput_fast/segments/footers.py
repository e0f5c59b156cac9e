"""Opens many segments: their footers, and the outcomes of their transactions, on several threads if that is faster.

Threads overlap the latency of a store or a slow disk. In a store the listing contains the sizes of files, so a footer
takes one request.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.protocol.kinds import CHANGES
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA, TAGGED_SCHEMA, one_batch
from pgoutput_fast.segments.footer import place_of, segment_of
from pgoutput_fast.segments.outcomes import NEEDED, outcomes_of_rows, outcomes_of_texts
from pgoutput_fast.segments.read import MOST_READ, checked, damaged
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.storage.paths import FoundFile, redacted_uri

__all__ = ["Opened", "SegmentFiles", "open_segments", "read_changed", "read_outcomes"]

# Threads for local files, and for files in a store; the maximum number of files per task of a thread.
_THREADS_HERE, _THREADS_STORE = 4, 32
_MOST_AT_ONCE = 64
# Local files are read on several threads if the first ones spent at least this share of the time waiting.
_LEAST_WAITED = 0.5
# A local file of at most this many bytes is read at once.
_MOST_WHOLE = 1 << 16
# Outcomes of this many segments stay in memory: the next batch of a stream needs those of the last batch again.
_MOST_OUTCOMES = 4
_T = TypeVar("_T")


@dataclass(frozen=True)
class Opened:
    """A segment, and its outcomes (OUTCOMES_SCHEMA) if they were read."""

    segment: Segment
    outcomes: pa.RecordBatch | None


class SegmentFiles:
    """Segments by their files. Each is opened once, and again after its file was written again.

    Args:
        most: how many stay in memory; None for all.

    Attributes:
        opened: the segments in memory.
    """

    def __init__(self, most: int | None = None) -> None:
        self.opened: OrderedDict[FoundFile, Opened] = OrderedDict()
        self._most = most
        self._outcomes: OrderedDict[FoundFile, pa.RecordBatch] = OrderedDict()

    def open(
        self, files: Sequence[FoundFile], outcomes: Callable[[Segment], bool] | None = None
    ) -> list[Segment | None]:
        """The segments of files; None for a file that was removed since the listing.

        Args:
            files, outcomes: as for `open_segments`.

        Raises:
            DecodeError, ValueError: as `open_segments`.
        """
        unread = [file for file in files if file not in self.opened]
        new = dict(zip(unread, open_segments(unread, outcomes), strict=True))
        found = [new[file] if file in new else self.opened.pop(file) for file in files]
        # Of equal files, the newest knows its store.
        self.opened.update((file, each) for file, each in zip(files, found, strict=True) if each is not None)
        while self._most is not None and len(self.opened) > self._most:
            self.opened.popitem(last=False)
        return [None if each is None else each.segment for each in found]

    def keep(self, files: Sequence[FoundFile]) -> None:
        """Forgets all other files."""
        listed = set(files)
        for file in [each for each in self.opened if each not in listed]:
            del self.opened[file]

    def outcomes(self, files: Sequence[tuple[FoundFile, Segment]]) -> pa.RecordBatch:
        """The outcomes of the transactions that end in segments, with OUTCOMES_SCHEMA.

        Raises:
            FileNotFoundError: if a file was removed.
            DecodeError, ValueError: as `open_segments`.
        """
        opened = {file: each.outcomes for file, _ in files if (each := self.opened.get(file)) is not None}
        known = self._outcomes | {file: batch for file, batch in opened.items() if batch is not None}
        unread = [(file, segment) for file, segment in files if file not in known]
        known |= zip((file for file, _ in unread), read_outcomes(unread), strict=True)
        for file, _ in unread[-_MOST_OUTCOMES:]:
            self._outcomes[file] = known[file]
        while len(self._outcomes) > _MOST_OUTCOMES:
            self._outcomes.popitem(last=False)
        return one_batch(pa.Table.from_batches([known[file] for file, _ in files], OUTCOMES_SCHEMA))


def open_segments(
    files: Sequence[FoundFile], outcomes: Callable[[Segment], bool] | None = None
) -> list[Opened | None]:
    """Reads the footers of segments. Returns None for a file that was removed since the listing.

    Args:
        files: the files.
        outcomes: whether to read the outcomes of a segment, too, which needs no second opening. Default: none are read.

    Raises:
        ValueError: as `open_segment`.
        DecodeError: if a boundary message is malformed.
    """

    def opened(some: Sequence[FoundFile]) -> list[Opened | None]:
        found: list[Segment | None] = []
        outcomes_of: list[_Outcomes] = []
        for file in some:
            segment = outcome = None
            with suppress(FileNotFoundError), _opened(file) as parquet:
                segment = checked(segment_of(place_of(file.path), parquet.metadata))
                if outcomes is not None and outcomes(segment):
                    outcome = _in_footer(segment) or _control_rows(parquet, segment)
            found.append(segment)
            outcomes_of.append(outcome)
        both = zip(found, _decoded(outcomes_of), strict=True)
        return [None if segment is None else Opened(segment, batch) for segment, batch in both]

    return _in_parallel(opened, files)


def read_outcomes(files: Sequence[tuple[FoundFile, Segment]]) -> list[pa.RecordBatch]:
    """The outcomes of the transactions that end in segments, with OUTCOMES_SCHEMA.

    Raises:
        FileNotFoundError: if a file was removed.
        DecodeError, ValueError: as `open_segments`.
    """

    def read(some: Sequence[tuple[FoundFile, Segment]]) -> list[pa.RecordBatch]:
        outcomes_of: list[_Outcomes] = []
        for file, segment in some:
            if (inside := _in_footer(segment)) is not None:
                outcomes_of.append(inside)
                continue
            with _opened(file) as parquet:
                outcomes_of.append(_control_rows(parquet, segment))
        return [each for each in _decoded(outcomes_of) if each is not None]

    return _in_parallel(read, files, of_file=lambda each: each[0])


def read_changed(files: Sequence[tuple[FoundFile, Segment]]) -> list[frozenset[int]]:
    """The relations (oids) that have changes in segments. Reads two narrow columns.

    Raises:
        FileNotFoundError: if a file was removed.
        ValueError: if a file is damaged.
    """

    def read(some: Sequence[tuple[FoundFile, Segment]]) -> list[frozenset[int]]:
        found = []
        for file, segment in some:
            groups = [k for k, group in enumerate(segment.row_groups) if group.relations is not None]
            with _opened(file) as parquet:
                rows = parquet.read(groups, ["kind", "relation"])
            changes = rows.filter(pa.array(np.isin(rows["kind"].to_numpy(), CHANGES)))
            found.append(frozenset(changes["relation"].unique().to_pylist()))
        return found

    return _in_parallel(read, files, of_file=lambda each: each[0])


def _in_parallel(
    read: Callable[[Sequence[Any]], list[_T]],
    files: Sequence[Any],
    of_file: Callable[[Any], FoundFile] = lambda each: each,
) -> list[_T]:
    """The results for all files, in their order."""
    if len(files) < 2:
        return read(files)
    is_here = of_file(files[0]).files is None
    threads = _THREADS_HERE if is_here else _THREADS_STORE
    size = max(1, min(_MOST_AT_ONCE, len(files) // (2 * threads)))
    pieces = [files[at : at + size] for at in range(0, len(files), size)]
    done: list[_T] = []
    if is_here:
        begun, used = time.perf_counter(), time.thread_time()
        done += read(pieces[0])
        del pieces[0]
        waited = time.perf_counter() - begun - (time.thread_time() - used)
        if waited < _LEAST_WAITED * (time.perf_counter() - begun):
            # Threads would only wait for each other: half of this work holds the GIL.
            return [*done, *(each for some in pieces for each in read(some))]
    pool = ThreadPoolExecutor(min(threads, len(pieces)), "pgoutput_fast footers")
    try:
        return [*done, *(each for found in pool.map(read, pieces) for each in found)]
    finally:
        pool.shutdown(cancel_futures=True)


# ---- one file ----------------------------------------------------------------------------------------------------


class _Here:
    """A local file."""

    def __init__(self, file: FoundFile) -> None:
        # With a path instead of an open file, pyarrow makes two more calls to the file system.
        self._parquet = pq.ParquetFile(
            _small(file.path) if file.nbytes <= _MOST_WHOLE else pa.OSFile(file.path),
            pre_buffer=False,
            thrift_string_size_limit=MOST_READ,
        )
        self.metadata = self._parquet.metadata

    def read(self, row_groups: list[int], columns: Sequence[str]) -> pa.Table:
        # Threads do not pay off for a few rows.
        return self._parquet.read_row_groups(row_groups, columns=list(columns), use_threads=False)

    def close(self) -> None:
        self._parquet.close(force=True)


def _small(path: str) -> pa.BufferReader:
    """Reads a small file at once, instead of its footer and columns separately."""
    with open(path, "rb") as file:
        return pa.BufferReader(file.read())


class _There:
    """A file in a store. Its size is known, which saves a request to the store."""

    def __init__(self, file: FoundFile) -> None:
        self._fragment = _format().make_fragment(file.inside, file.files, file_size=file.nbytes)
        self.metadata = self._fragment.metadata

    def read(self, row_groups: list[int], columns: Sequence[str]) -> pa.Table:
        part = self._fragment.subset(row_group_ids=row_groups)
        return part.to_table(columns=list(columns), use_threads=False)

    def close(self) -> None:
        """Nothing stays open."""


@lru_cache
def _format() -> Any:
    from pyarrow import dataset

    options = dataset.ParquetFragmentScanOptions(thrift_string_size_limit=MOST_READ)
    return dataset.ParquetFileFormat(default_fragment_scan_options=options)


@contextmanager
def _opened(file: FoundFile) -> Iterator[_Here | _There]:
    parquet = None
    try:
        parquet = _Here(file) if file.files is None else _There(file)
        yield parquet
    except FileNotFoundError:
        raise FileNotFoundError(f"segment {redacted_uri(file.path)} does not exist") from None
    except pa.ArrowInvalid as problem:
        raise damaged(file.path, problem) from None
    except OSError:
        # Without the request for the size, stores report a missing file by various errors.
        if file.files is not None and not file.files.get_file_info(file.inside).is_file:
            raise FileNotFoundError(f"segment {redacted_uri(file.path)} does not exist") from None
        raise
    finally:
        if parquet is not None:
            parquet.close()


@dataclass(frozen=True)
class _InFooter:
    """The outcomes in the footer of a segment."""

    path: str
    text: str


# Where the outcomes of a segment are, if they are requested.
_Outcomes: TypeAlias = pa.Table | _InFooter | None


def _in_footer(segment: Segment) -> _InFooter | None:
    return None if segment.outcomes is None else _InFooter(str(segment.path), segment.outcomes)


def _control_rows(parquet: _Here | _There, segment: Segment) -> pa.Table:
    """The rows without a relation, and those that share row groups with them."""
    groups = [k for k, group in enumerate(segment.row_groups) if group.bare]
    return parquet.read(groups, NEEDED) if groups else TAGGED_SCHEMA.empty_table().select(NEEDED)


def _decoded(found: Sequence[_Outcomes]) -> list[pa.RecordBatch | None]:
    """Decodes the outcomes of segments; None stays None."""
    rows, texts = ([each for each in found if isinstance(each, kind)] for kind in (pa.Table, _InFooter))
    of_rows, of_texts = iter(outcomes_of_rows(rows)), iter(_of_footers(texts))
    return [
        None if each is None else next(of_rows if isinstance(each, pa.Table) else of_texts) for each in found
    ]


def _of_footers(texts: Sequence[_InFooter]) -> list[pa.RecordBatch]:
    try:
        return outcomes_of_texts([each.text for each in texts])
    except ValueError:
        for each in texts:
            try:
                outcomes_of_texts([each.text])
            except ValueError as problem:
                raise damaged(each.path, problem) from None
        raise
