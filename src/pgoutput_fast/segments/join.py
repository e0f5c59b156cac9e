"""Joins the rows of consecutive segments in the layout of one, without holding all of them in memory.

The rows are read twice. The first pass counts the rows and bytes of each key (section, relation, version), which
determines the row groups. The second pass writes: it collects the rows of as many keys as fit into memory from all
parts, and sorts them. The rows of a key that is too large are copied from the row groups one by one: the parts are
consecutive in the stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.layout import cut_at_relations, keys_of, segment_writer, sizes_of
from pgoutput_fast.segments.read import damaged, open_parquet
from pgoutput_fast.segments.segment import Source
from pgoutput_fast.storage.paths import redacted_uri

__all__ = ["Counted", "Member", "count_rows", "opened", "write_joined"]

_AS_BEFORE = "Nothing was changed: compact left it, and the segments beside it, as they were"

# (section, relation, version), as returned by `keys_of`.
_Key = tuple[int, int, int]


@dataclass(frozen=True)
class Member:
    """A segment to be joined with others, without its catalog, which may be large.

    Attributes:
        name: name of its file.
        path: path or URI of its file.
        source, first_seq, last_seq, start_lsn, end_lsn: as in its footer.
        nbytes: size of its file in bytes.
        memory: approximate size of its rows in memory, in bytes.
        written: when its rows became durable, in seconds since 1970.
        outcomes: as in its footer.
    """

    name: str
    path: Path | str
    source: Source
    first_seq: int
    last_seq: int
    start_lsn: int | None
    end_lsn: int | None
    nbytes: int
    memory: int
    written: float
    outcomes: str | None = None


@dataclass(frozen=True)
class _Group:
    """A row group of a part, and the smallest and largest key of its rows."""

    part: int
    number: int
    first: _Key
    last: _Key

    def may_hold(self, first: _Key, last: _Key) -> bool:
        """Whether it can have a row with a key from `first` to `last`, inclusive."""
        return self.first <= last and self.last >= first


@dataclass(frozen=True)
class Counted:
    """The rows of the parts, counted.

    Attributes:
        parts: the segments, in stream order.
        rows: the number of rows of each key.
        sizes: the bytes in memory of each key's rows.
        groups: the row groups of all parts, in stream order.
    """

    parts: Sequence[Member]
    rows: dict[_Key, int]
    sizes: dict[_Key, int]
    groups: list[_Group]

    @property
    def total(self) -> int:
        """The total number of rows."""
        return sum(self.rows.values())

    @property
    def versions(self) -> set[int]:
        """Ids of the relation versions of the rows; 0 stands for none."""
        return {version for _, _, version in self.rows}


@contextmanager
def opened(path: Path | str) -> Iterator[pq.ParquetFile]:
    """Opens a segment to read it during the block.

    Raises:
        ValueError: if it is damaged.
        FileNotFoundError: if it was removed.
        OSError: if it cannot be read, or if the checksum of a page is wrong.
    """
    try:
        with open_parquet(path) as file:
            yield file
    except pa.ArrowException as problem:
        raise ValueError(f"{damaged(path, problem)}. {_AS_BEFORE}") from None
    except ValueError as problem:
        raise ValueError(f"{problem}. {_AS_BEFORE}") from None
    except OSError as problem:
        if problem.errno is not None:
            raise
        raise OSError(f"segment {redacted_uri(path)} cannot be read: {problem}. {_AS_BEFORE}") from None


def count_rows(parts: Sequence[Member]) -> Counted:
    """Counts the rows of the segments by key, with one row group in memory at a time.

    Raises:
        ValueError: if a segment is damaged, or contains a row that does not belong there.
        FileNotFoundError: if a segment was removed.
        OSError: as `opened`.
    """
    counted = Counted(parts, {}, {}, [])
    for at, part in enumerate(parts):
        with opened(part.path) as file:
            for number in range(file.metadata.num_row_groups):
                rows = _read(file, number)
                if not rows.num_rows:
                    continue
                seqs = rows.column("seq").to_numpy()
                if seqs.min() < part.first_seq or seqs.max() > part.last_seq:
                    raise ValueError(
                        f"segment {redacted_uri(part.path)} has rows outside of its messages: it is damaged"
                    )
                found = _keys(rows)
                sizes = sizes_of(rows)
                for (begin, end), key in _runs(found):
                    counted.rows[key] = counted.rows.get(key, 0) + end - begin
                    counted.sizes[key] = counted.sizes.get(key, 0) + int(sizes[begin:end].sum())
                keys = [key for _, key in _runs(found)]
                counted.groups.append(_Group(at, number, min(keys), max(keys)))
    return counted


def write_joined(
    file: Any, counted: Counted, footer: dict[str, str], relation_bytes: int, row_group_bytes: int
) -> None:
    """Writes the rows of the segments as `write_rows` would if it had all of them.

    About two row groups are in memory at a time.

    Args:
        file: a binary file, open for writing.
        counted: the result of `count_rows`.
        footer: the file's key-value metadata.
        relation_bytes: a relation of at least this size has its own row groups.
        row_group_bytes: a larger row group is split.

    Raises:
        ValueError: if a segment is damaged.
        FileNotFoundError: if a segment was removed.
        OSError: as `opened`.
    """
    keys = sorted(counted.rows)
    section, relations = (np.array([key[k] for key in keys]) for k in (0, 1))
    sizes = np.array([counted.sizes[key] for key in keys])
    # The number of rows in the file at the end of each group, before groups are split by size.
    ends = np.cumsum([counted.rows[key] for key in keys])
    bounds = [int(ends[end - 1]) for _, end in cut_at_relations(section, relations, sizes, relation_bytes)]
    with segment_writer(file) as writer:
        cutter = _Cutter(writer, bounds, row_group_bytes)
        for first, last in _portions(keys, sizes, row_group_bytes):
            for rows in _rows_between(counted, first, last):
                cutter.add(rows)
        cutter.finish()
        writer.add_key_value_metadata(footer)


class _Cutter:
    """Takes all rows of a file in order, and writes them as row groups.

    Args:
        writer: writes the file.
        bounds: numbers of rows after which a row group ends, ascending; the last is the total number of rows.
        most_bytes: a larger row group is split. A larger row is its own row group.
    """

    def __init__(self, writer: pq.ParquetWriter, bounds: Sequence[int], most_bytes: int) -> None:
        self._writer, self._bounds, self._most = writer, bounds, most_bytes
        self._waiting: list[pa.Table] = []
        self._nbytes = self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Adds the next rows."""
        before = np.concatenate([[0], np.cumsum(sizes_of(rows))])
        begin = 0
        while begin < rows.num_rows:
            bound = self._bounds[bisect_right(self._bounds, self._rows)]
            fits = int(np.searchsorted(before, before[begin] + self._most - self._nbytes, side="right")) - 1
            if fits <= begin and self._waiting:
                self._flush()
                continue
            end = min(max(fits, begin + 1), begin + bound - self._rows, rows.num_rows)
            self._waiting.append(rows.slice(begin, end - begin))
            self._nbytes += int(before[end] - before[begin])
            self._rows += end - begin
            begin = end
            if self._rows == bound:
                self._flush()

    def finish(self) -> None:
        """Checks that the rows are complete.

        Raises:
            ValueError: if rows are missing.
        """
        if self._rows != self._bounds[-1]:
            raise ValueError(
                f"{self._bounds[-1]} rows were counted, but {self._rows} were read: run compact again"
            )

    def _flush(self) -> None:
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting, self._nbytes = [], 0


def _portions(keys: Sequence[_Key], sizes: Any, most_bytes: int) -> Iterator[tuple[_Key, _Key]]:
    """Yields (first, last) key of each portion: at most `most_bytes`, or one key."""
    begin, size = 0, 0
    for at in range(len(keys)):
        if at > begin and size + sizes[at] > most_bytes:
            yield keys[begin], keys[at - 1]
            begin, size = at, 0
        size += int(sizes[at])
    yield keys[begin], keys[-1]


def _rows_between(counted: Counted, first: _Key, last: _Key) -> Iterator[pa.Table]:
    """The rows with keys from `first` to `last`, sorted as in a segment."""
    pieces = _pieces(counted, first, last)
    if first == last:
        yield from _in_stream_order(pieces)
        return
    rows = pa.concat_tables(list(pieces))
    section, relations, versions = keys_of(rows)
    yield rows.take(pa.array(np.lexsort((rows.column("seq").to_numpy(), versions, relations, section))))


def _in_stream_order(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows of one key, sorted within each row group.

    Raises:
        ValueError: if the row groups are not consecutive: `write_segment` did not write them.
    """
    before = -1
    for rows in pieces:
        seqs = rows.column("seq").to_numpy()
        if bool(np.any(seqs[1:] < seqs[:-1])):
            order = np.argsort(seqs, kind="stable")
            rows, seqs = rows.take(pa.array(order)), seqs[order]
        if int(seqs[0]) < before:
            raise ValueError(f"the row groups with message {seqs[0]} are not in the order of a segment")
        before = int(seqs[-1])
        yield rows


def _pieces(counted: Counted, first: _Key, last: _Key) -> Iterator[pa.Table]:
    """The rows with keys from `first` to `last`, row group by row group."""
    wanted: dict[int, list[int]] = {}
    for group in counted.groups:
        if group.may_hold(first, last):
            wanted.setdefault(group.part, []).append(group.number)
    for part, numbers in wanted.items():
        with opened(counted.parts[part].path) as file:
            for number in numbers:
                rows = _read(file, number)
                kept = [range(begin, end) for (begin, end), key in _runs(_keys(rows)) if first <= key <= last]
                count = sum(map(len, kept))
                if count < rows.num_rows:
                    places = [np.arange(each.start, each.stop) for each in kept]
                    rows = rows.take(pa.array(np.concatenate(places))) if kept else rows.slice(0, 0)
                if rows.num_rows:
                    yield rows


def _read(file: pq.ParquetFile, number: int) -> pa.Table:
    rows = file.read_row_group(number, columns=TAGGED_SCHEMA.names).cast(TAGGED_SCHEMA)
    # Without the file's key-value metadata.
    return rows.replace_schema_metadata(None)


def _keys(rows: pa.Table) -> Any:
    """The keys of rows as an array with three columns."""
    return np.column_stack(keys_of(rows))


def _runs(keys: Any) -> list[tuple[tuple[int, int], _Key]]:
    """((begin, end), key) of each run of rows with the same key."""
    cuts = np.flatnonzero(np.any(keys[1:] != keys[:-1], axis=1)) + 1
    starts = [0, *cuts.tolist()]
    return [
        ((begin, end), tuple(keys[begin].tolist()))
        for begin, end in zip(starts, [*starts[1:], len(keys)], strict=True)
    ]
