"""The layout of a segment: the order of its rows, its row groups and its encodings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.protocol.kinds import ROW_CHANGES
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

__all__ = ["write_rows"]

_ROW_BYTES = 80  # size of a tagged row without its payload
_DELTAS = ("seq", "lsn")
_DICTIONARIES = [name for name in TAGGED_SCHEMA.names if name not in (*_DELTAS, "payload", "in_stream")]
_STATISTICS = [name for name in TAGGED_SCHEMA.names if name != "payload"]


def write_rows(
    file: Any, batch: pa.RecordBatch, footer: dict[str, str], relation_bytes: int, row_group_bytes: int
) -> None:
    """Writes tagged rows as a Parquet file in the layout of a segment.

    Args:
        file: a binary file, open for writing.
        batch: rows with TAGGED_SCHEMA.
        footer: the file's key-value metadata.
        relation_bytes: from this size on, a relation has row groups of its own.
        row_group_bytes: a larger row group is cut.
    """
    order, groups = _layout(batch, relation_bytes, row_group_bytes)
    with pq.ParquetWriter(
        file,
        TAGGED_SCHEMA,
        compression="zstd",
        use_dictionary=_DICTIONARIES,
        column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        write_statistics=_STATISTICS,
    ) as writer:
        for begin, end in groups:
            rows = batch.take(pa.array(order[begin:end]))
            writer.write_table(pa.Table.from_batches([rows]), row_group_size=end - begin)
        writer.add_key_value_metadata(footer)


def _layout(
    batch: pa.RecordBatch, relation_bytes: int, row_group_bytes: int
) -> tuple[np.ndarray[Any, Any], list[tuple[int, int]]]:
    """(order of the rows, (begin, end) of each row group in this order)."""
    kinds = batch.column("kind").to_numpy()
    relations = batch.column("relation").fill_null(-1).to_numpy()
    versions = batch.column("version").fill_null(0).to_numpy()
    # Control rows that concern no relation have a group of their own. It has no relation statistics, so a reader
    # of one relation skips it.
    section = np.where(np.isin(kinds, ROW_CHANGES), 2, np.where(relations >= 0, 1, 0))
    order = np.lexsort((batch.column("seq").to_numpy(), versions, relations, section))
    section, relations = section[order], relations[order]
    # Control rows of all relations stay in one group: few of them are large.
    cuts = (section[1:] != section[:-1]) | ((section[1:] == 2) & (relations[1:] != relations[:-1]))
    bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(order)]
    lengths = pc.binary_length(batch.column("payload")).to_numpy()
    before = np.concatenate([[0], np.cumsum(lengths[order] + np.int64(_ROW_BYTES))])
    groups: list[tuple[int, int]] = []
    start = 0
    for begin, end in pairwise(bounds):
        here, waiting = before[end] - before[begin], before[begin] - before[start]
        if begin > start and (here >= relation_bytes or waiting >= relation_bytes):
            groups.append((start, begin))
            start = begin
    groups.append((start, len(order)))
    return order, [part for group in groups for part in _parts(*group, before, row_group_bytes)]


def _parts(begin: int, end: int, before: np.ndarray[Any, Any], most: int) -> Iterable[tuple[int, int]]:
    """Cuts a range of rows into parts of at most `most` bytes. A larger row is a part of its own."""
    while begin < end:
        fits = int(np.searchsorted(before, before[begin] + most, side="right")) - 1
        at = min(max(fits, begin + 1), end)
        yield begin, at
        begin = at
