"""The layout of a segment: the order of its rows, its row groups and its encodings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.protocol.kinds import ROW_CHANGES
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

__all__ = ["Keys", "cut_at_relations", "keys_of", "segment_writer", "sizes_of", "write_rows"]

# (section, relation, version) of rows: a segment is sorted by these, and in stream order within them.
Keys = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]

_ROW_BYTES = 80  # size of a tagged row without its payload
# Rows are copied if runs of the same relation are shorter on average.
_LONG_RUN = 64
_DELTAS = ("seq", "lsn")
_DICTIONARIES = [name for name in TAGGED_SCHEMA.names if name not in (*_DELTAS, "payload", "in_stream")]
_STATISTICS = [name for name in TAGGED_SCHEMA.names if name != "payload"]


def write_rows(
    file: Any,
    rows: pa.Table,
    footer: dict[str, str],
    relation_bytes: int,
    row_group_bytes: int,
    *,
    compressed: bool = True,
) -> None:
    """Writes tagged rows as a Parquet file in the layout of a segment.

    Args:
        file: a binary file, open for writing.
        rows: rows with TAGGED_SCHEMA.
        footer: the file's key-value metadata.
        relation_bytes: a relation of at least this size has its own row groups.
        row_group_bytes: a larger row group is split.
        compressed: whether the pages are compressed.
    """
    section, relations, versions = keys_of(rows)
    order = _file_order(rows.column("seq").to_numpy(), versions, relations, section)
    sizes = sizes_of(rows)[order]
    before = np.concatenate([[0], np.cumsum(sizes)])
    groups = cut_at_relations(section[order], relations[order], sizes, relation_bytes)
    rows_in = _reader(rows, order)
    with segment_writer(file, compressed=compressed) as writer:
        for group in groups:
            for begin, end in _parts(*group, before, row_group_bytes):
                writer.write_table(rows_in(begin, end), row_group_size=end - begin)
        writer.add_key_value_metadata(footer)


def _file_order(seqs: np.ndarray[Any, Any], *keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The indices of rows, sorted by the last key, then the others, then in stream order."""
    if not bool(np.all(seqs[1:] >= seqs[:-1])):
        return np.lexsort((seqs, *keys))
    # Most rows have the keys of the previous row, so only runs of rows are sorted.
    differs = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    begins = np.concatenate([[0], np.flatnonzero(differs) + 1])
    lengths = np.diff(begins, append=len(seqs))
    runs = np.lexsort([key[begins] for key in keys])
    begins, lengths = begins[runs], lengths[runs]
    places: np.ndarray[Any, Any] = np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
    return places + np.arange(len(seqs))


def _reader(rows: pa.Table, order: np.ndarray[Any, Any]) -> Callable[[int, int], pa.Table]:
    """Returns a function that reads a range of rows in this order. Long runs of rows are not copied."""
    cuts = np.flatnonzero(np.diff(order) != 1) + 1
    if len(cuts) * _LONG_RUN > len(order):
        rows = rows.combine_chunks()
        return lambda begin, end: rows.take(pa.array(order[begin:end]))

    def slices(begin: int, end: int) -> pa.Table:
        bounds = [begin, *cuts[(cuts > begin) & (cuts < end)].tolist(), end]
        return pa.concat_tables([rows.slice(order[a], b - a) for a, b in pairwise(bounds)])

    return slices


def segment_writer(file: Any, *, compressed: bool = True) -> pq.ParquetWriter:
    """Opens a file for rows with TAGGED_SCHEMA, with the encodings of a segment."""
    return pq.ParquetWriter(
        file,
        TAGGED_SCHEMA,
        compression="zstd" if compressed else "none",
        use_dictionary=_DICTIONARIES,
        column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        write_statistics=_STATISTICS,
        # Otherwise a byte changed by a disk or a copy would be read as another value.
        write_page_checksum=True,
    )


def keys_of(rows: pa.RecordBatch | pa.Table) -> Keys:
    """The sort keys of these rows in a segment."""
    kinds = rows.column("kind").to_numpy()
    relations = rows.column("relation").fill_null(-1).to_numpy()
    versions = rows.column("version").fill_null(0).to_numpy()
    # Control rows without a relation have their own group. It has no relation statistics, so a reader of one relation
    # skips it.
    section = np.where(np.isin(kinds, ROW_CHANGES), 2, np.where(relations >= 0, 1, 0))
    return section, relations, versions


def sizes_of(rows: pa.RecordBatch | pa.Table) -> np.ndarray[Any, Any]:
    """The size of each row in memory, in bytes."""
    sizes: np.ndarray[Any, Any] = pc.binary_length(rows.column("payload")).to_numpy() + np.int64(_ROW_BYTES)
    return sizes


def cut_at_relations(
    section: np.ndarray[Any, Any],
    relations: np.ndarray[Any, Any],
    sizes: np.ndarray[Any, Any],
    relation_bytes: int,
) -> list[tuple[int, int]]:
    """(begin, end) of each group of sorted rows, or of sorted runs of rows with the same key.

    Args:
        section, relations: the keys of the rows or runs.
        sizes: their sizes in bytes.
        relation_bytes: a relation of at least this size has its own group.
    """
    # Control rows of all relations stay in one group: few of them are large.
    cuts = (section[1:] != section[:-1]) | ((section[1:] == 2) & (relations[1:] != relations[:-1]))
    bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(sizes)]
    before = np.concatenate([[0], np.cumsum(sizes)])
    groups: list[tuple[int, int]] = []
    start = 0
    for begin, end in pairwise(bounds):
        here, waiting = before[end] - before[begin], before[begin] - before[start]
        if begin > start and (here >= relation_bytes or waiting >= relation_bytes):
            groups.append((start, begin))
            start = begin
    groups.append((start, len(sizes)))
    return groups


def _parts(begin: int, end: int, before: np.ndarray[Any, Any], most: int) -> Iterable[tuple[int, int]]:
    """Splits a range of rows into parts of at most `most` bytes. A larger row is its own part."""
    while begin < end:
        fits = int(np.searchsorted(before, before[begin] + most, side="right")) - 1
        at = min(max(fits, begin + 1), end)
        yield begin, at
        begin = at
