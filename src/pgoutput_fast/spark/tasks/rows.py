"""Selects rows of tagged payloads on the executors. Imports no PySpark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.protocol.kinds import BOUNDARIES, CHANGES
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.planner import Bounds, ReadSpec
from pgoutput_fast.storage.paths import open_file, redacted_uri
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = [
    "BATCH_BYTES",
    "ChangesBetween",
    "changes_of",
    "changes_within",
    "joined",
    "rows_among",
    "rows_of_kinds",
    "rows_of_relations",
    "rows_of_segment",
]

# A batch of short payloads has many, because a batch costs the same work for every table. A file may have equal
# payloads once, so only what was read shows its size.
_BATCH_ROWS, BATCH_BYTES = 100_000, 4 << 20

_NO_BOUNDS: Bounds = MappingProxyType({})


def changes_of(spec: ReadSpec) -> Iterator[pa.Table]:
    """Yields the changes of a task, row group by row group, still with those of uncommitted transactions."""
    for part in spec.parts:
        for rows in rows_of_segment(part.path, part.row_groups, part.bounds):
            yield changes_within(rows, part.bounds)


def rows_of_segment(path: str, row_groups: Iterable[int], bounds: Bounds = _NO_BOUNDS) -> Iterator[pa.Table]:
    """Yields the row groups of a segment, with TAGGED_SCHEMA, with one row group in memory at a time.

    Args:
        path: the segment.
        row_groups: numbers of the row groups.
        bounds: row groups whose statistics exclude such rows are not read.

    Raises:
        FileNotFoundError: if the segment does not exist; the message explains possible reasons.
        OSError: if it is damaged, or cannot be read. The message names it.
    """
    try:
        with pq.ParquetFile(open_file(path), page_checksum_verification=True) as file:
            for k in row_groups:
                if not _may_hold(file.metadata.row_group(k), bounds):
                    continue
                yield file.read_row_group(k, columns=TAGGED_SCHEMA.names).cast(TAGGED_SCHEMA)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"segment {redacted_uri(path)} was removed while the query ran, by retention or by compact. Run the query "
            "again. Let segments stay longer than a query takes: older_than= of retain, grace= of compact"
        ) from None
    except (OSError, pa.ArrowException) as problem:
        raise OSError(
            f"segment {redacted_uri(path)} cannot be read: {problem}. If the file is damaged, put a good copy in its "
            "place"
        ) from None


def _may_hold(group: pq.RowGroupMetaData, bounds: Bounds) -> bool:
    for name, (first, last) in bounds.items():
        column = group.column(TAGGED_SCHEMA.get_field_index(name))
        statistics = column.statistics
        if column.path_in_schema != name or statistics is None or not statistics.has_min_max:
            continue
        if statistics.max_raw < first or statistics.min_raw > last:
            return False
    return True


def changes_within(rows: pa.Table, bounds: Bounds) -> pa.Table:
    """The changes within the bounds."""
    kept = _is_of(rows, CHANGES)
    for name, (first, last) in bounds.items():
        values = rows.column(name).cast(pa.int64())
        numbers = values.fill_null(0).to_numpy()
        kept &= (numbers >= first) & (numbers <= last) & values.is_valid().to_numpy()
    return _filter_rows(rows, kept)


class ChangesBetween:
    """The changes from one message to another, by the commits of their transactions or by the changes themselves.

    If only a few boundaries of transactions are among the rows, they stay: decoding ignores them, and to leave them out
    would copy all payloads.

    Args:
        outcomes: the outcomes of transactions; None if the changes themselves count.
        first, last: ordinals of the messages.
    """

    def __init__(self, outcomes: TransactionOutcomes | None, first: int, last: int) -> None:
        self._bounds = {"seq": (first, last)}
        self._outcomes = None if outcomes is None else outcomes.between(first, last)

    def of(self, rows: pa.Table) -> pa.Table:
        """Those among tagged rows."""
        if self._outcomes is None:
            return changes_within(rows, self._bounds)
        few = _has_few_boundaries(rows)
        return self._outcomes.committed_part(rows if few else changes_within(rows, {}))


def rows_among(rows: pa.Table, members: Mapping[str, Collection[int]]) -> pa.Table:
    """The rows whose columns have one of these values; times in microseconds since 1970."""
    kept = np.ones(rows.num_rows, np.bool_)
    for name, wanted in members.items():
        values = rows.column(name).cast(pa.int64())
        kept &= np.isin(values.fill_null(0).to_numpy(), tuple(wanted)) & values.is_valid().to_numpy()
    return _filter_rows(rows, kept)


def rows_of_kinds(rows: pa.Table, kinds: Collection[int]) -> pa.Table:
    """The rows of messages of these kinds."""
    return _filter_rows(rows, _is_of(rows, kinds))


def _is_of(rows: pa.Table, kinds: Collection[int]) -> np.ndarray[Any, Any]:
    """Whether each row is a message of one of these kinds."""
    chosen = np.zeros(256, np.bool_)
    chosen[list(kinds)] = True
    found: np.ndarray[Any, Any] = chosen[rows.column("kind").to_numpy().view(np.uint8)]
    return found


def _has_few_boundaries(rows: pa.Table) -> bool:
    """Whether the rows are changes, but for a few boundaries of transactions."""
    changes = int(_is_of(rows, CHANGES).sum())
    others = rows.num_rows - changes
    return bool(others <= changes // 8 and others == int(_is_of(rows, BOUNDARIES).sum()))


def rows_of_relations(rows: pa.Table, oids: Collection[int], others: Collection[int]) -> pa.Table:
    """The changes of these relations, without those of the versions `others`. A few boundaries may be among them."""
    ours = np.isin(rows.column("relation").fill_null(-1).to_numpy(), tuple(oids))
    if others:
        ours &= ~np.isin(rows.column("version").fill_null(0).to_numpy(), tuple(others))
    if not ours.all() and _has_few_boundaries(rows) and (ours | _is_of(rows, BOUNDARIES)).all():
        return rows
    return _filter_rows(rows, ours)


def _filter_rows(rows: pa.Table, kept: np.ndarray[Any, Any]) -> pa.Table:
    """Filters rows. Row groups are split by relation, so usually all rows are selected, and nothing is copied."""
    return rows if bool(kept.all()) else rows.filter(pa.array(kept))


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins small batches: those of Spark have 10,000 rows, those of a file at most a row group."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        if held and (rows + batch.num_rows > _BATCH_ROWS or nbytes + batch.nbytes > BATCH_BYTES):
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows, nbytes = [], 0, 0
        held.append(batch)
        rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()
