"""Reads segments: their footers, and their rows."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.footer import no_segment, place_of, segment_of
from pgoutput_fast.segments.names import newest_named
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.storage.paths import open_file, redacted_uri
from pgoutput_fast.storage.stores import Store, open_store

__all__ = [
    "MOST_READ",
    "checked",
    "damaged",
    "in_stream_order",
    "newest_segment",
    "open_parquet",
    "open_segment",
    "open_unchecked",
    "read_as_filed",
    "read_segment",
]

# By default Arrow's readers refuse a footer with a value of 100 MB. Earlier versions wrote such footers, so this
# module reads with a higher limit.
MOST_READ = 1 << 30
# Rows that `read_as_filed` reads at a time, so that Arrow needs no large short-lived allocations.
_BATCH_ROWS = 1 << 14


def open_segment(path: str | os.PathLike[str]) -> Segment:
    """Reads a segment's footer.

    Raises:
        ValueError: if the file is damaged, is not a segment, or has a format unknown to this version.
        FileNotFoundError: if the file does not exist.
    """
    return checked(open_unchecked(path))


def checked(segment: Segment) -> Segment:
    """Returns the segment, if catalog and state of its footer can be parsed.

    Raises:
        ValueError: if they cannot.
    """
    try:
        segment.known.check()
    except (KeyError, TypeError, ValueError) as problem:
        raise no_segment(segment.path, problem) from None
    return segment


def read_segment(
    path: str | os.PathLike[str],
    *,
    relations: Collection[int] | None = None,
    row_groups: Sequence[int] | None = None,
) -> pa.Table:
    """Reads the tagged rows of a segment, in stream order.

    Args:
        path: path or URI of the file.
        relations: only rows of these relations (oids), including their Relation and Truncate messages. Row groups that
            cannot have these rows are not read.
        row_groups: only rows of these row groups (ordinals).

    Returns:
        A table with TAGGED_SCHEMA.

    Raises:
        ValueError: as `open_segment`; also for a nonexistent row group.
        OSError: if it cannot be read, or if a page is corrupt.
    """
    expect_list("relations", relations, "oids")
    expect_list("row_groups", row_groups, "ordinals")
    rows, _ = _as_filed(path, relations, row_groups)
    if relations is not None:
        found = np.isin(rows.column("relation").fill_null(-1).to_numpy(), list(relations))
        rows = rows.filter(pa.array(found))
    return in_stream_order(rows)


def read_as_filed(path: str | os.PathLike[str]) -> tuple[pa.Table, Segment]:
    """Reads a segment once: its tagged rows in file order, which saves a copy, and its footer.

    One thread reads, some thousand rows at a time, with less CPU time and memory than `read_segment`.

    Raises:
        ValueError, OSError: as `read_segment` and `open_segment`.
    """
    with _explained(path), open_parquet(path) as file:
        segment = segment_of(place_of(path), file.metadata)
        batches = file.iter_batches(_BATCH_ROWS, columns=TAGGED_SCHEMA.names, use_threads=False)
        rows = pa.Table.from_batches(list(batches), TAGGED_SCHEMA)
    return rows, checked(segment)


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Explains an error of Arrow, of the disk, of a store, or of a wrong page checksum."""
    try:
        yield
    except pa.ArrowException as problem:
        raise damaged(path, problem) from None
    except FileNotFoundError:
        raise
    except OSError as problem:
        problem.add_note(f"segment {redacted_uri(path)} cannot be read")
        raise


def _as_filed(
    path: str | os.PathLike[str], relations: Collection[int] | None, row_groups: Sequence[int] | None
) -> tuple[pa.Table, Segment]:
    """The rows of the row groups that can have rows of these relations, and the footer."""
    with _explained(path), open_parquet(path) as file:
        segment = segment_of(place_of(path), file.metadata)
        there = range(len(segment.row_groups))
        chosen = there if row_groups is None else row_groups
        if wrong := [k for k in chosen if k not in there]:
            raise ValueError(
                f"{redacted_uri(path)}: the number of row groups is {len(there)}, so there is no {wrong[0]}"
            )
        if relations is not None:
            chosen = [k for k in chosen if segment.row_groups[k].may_hold(relations)]
        # Old versions of Arrow cannot read an empty list of row groups.
        rows = (
            file.read_row_groups(list(chosen), columns=TAGGED_SCHEMA.names)
            if chosen
            else TAGGED_SCHEMA.empty_table()
        )
    return rows.cast(TAGGED_SCHEMA), segment


def in_stream_order(rows: pa.Table) -> pa.Table:
    """Tagged rows in stream order. Rows already in order share their memory with the result."""
    seqs = rows.column("seq").to_numpy()
    if bool(np.all(seqs[1:] >= seqs[:-1])):
        return rows
    return rows.take(pa.array(np.argsort(seqs, kind="stable")))


def newest_segment(directory: str | os.PathLike[str]) -> Segment | None:
    """The last segment of a capture's directory, None if there is none. Of the other segments only names are read.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.

    Raises:
        ValueError: for a Parquet file that is not named as `write_segment` names it; and as `open_segment`.
    """
    return _newest(open_store(directory))


def open_unchecked(path: str | os.PathLike[str]) -> Segment:
    """As `open_segment`, but without the check that catalog and state can be parsed."""
    try:
        with open_parquet(path) as file:
            return segment_of(place_of(path), file.metadata)
    except pa.ArrowInvalid as problem:
        raise damaged(path, problem) from None


def open_parquet(path: str | os.PathLike[str]) -> pq.ParquetFile:
    """Opens the file of a segment with a footer of any size. Page checksums are verified on reading."""
    return pq.ParquetFile(
        open_file(os.fspath(path)), thrift_string_size_limit=MOST_READ, page_checksum_verification=True
    )


def damaged(path: str | os.PathLike[str], problem: Exception) -> ValueError:
    """The error for a file that Arrow cannot read."""
    return ValueError(f"segment {redacted_uri(path)} is damaged: {problem}")


def _newest(store: Store) -> Segment | None:
    named = newest_named(store)
    return None if named is None else open_segment(store.at(named.name))
