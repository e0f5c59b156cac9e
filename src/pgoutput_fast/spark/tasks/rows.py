"""Selects rows of tagged payloads on the executors. Imports no PySpark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.protocol.kinds import CHANGES
from pgoutput_fast.schema.foreign import checked_table
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.storage.paths import open_file, shown
from pgoutput_fast.transactions.view import CommittedView

__all__ = ["Bounds", "chosen_rows", "pack_batch", "rows_of_relations", "rows_of_segment", "unpack_batch"]

# Tagged columns -> the smallest and the largest requested value.
Bounds = Mapping[str, tuple[int, int]]


def rows_of_segment(path: str, row_groups: Iterable[int]) -> Iterator[pa.Table]:
    """Yields the row groups of a segment, with TAGGED_SCHEMA, with one row group in memory at a time.

    Raises:
        FileNotFoundError: if the segment does not exist; the message explains possible reasons.
        OSError: if it is damaged, or cannot be read. The message names it.
    """
    try:
        with pq.ParquetFile(open_file(path), page_checksum_verification=True) as file:
            for k in row_groups:
                yield file.read_row_group(k, columns=TAGGED_SCHEMA.names).cast(TAGGED_SCHEMA)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"segment {shown(path)} was removed while the query ran, by retention or by compact. Run the query again. "
            "Let segments stay longer than a query takes: older_than= of retain, grace= of compact"
        ) from None
    except (OSError, pa.ArrowException) as problem:
        raise OSError(
            f"segment {shown(path)} cannot be read: {problem}. If the file is damaged, put a good copy in its place"
        ) from None


def chosen_rows(rows: pa.Table, bounds: Bounds, outcomes: pa.RecordBatch | None) -> pa.Table:
    """The changes within the bounds that, if there are outcomes, are committed."""
    kept = np.isin(rows.column("kind").to_numpy(), CHANGES)
    for name, (first, last) in bounds.items():
        values = rows.column(name)
        numbers = values.fill_null(0).to_numpy()
        kept &= (numbers >= first) & (numbers <= last) & values.is_valid().to_numpy()
    rows = _filter_rows(rows, kept)
    if outcomes is None:
        return rows
    batches = [CommittedView.released(batch, outcomes) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, TAGGED_SCHEMA)


def rows_of_relations(rows: pa.Table, oids: Collection[int], others: Collection[int]) -> pa.Table:
    """The rows of these relations, without those of the versions `others`."""
    ours = np.isin(rows.column("relation").fill_null(-1).to_numpy(), tuple(oids))
    if others:
        ours &= ~np.isin(rows.column("version").fill_null(0).to_numpy(), tuple(others))
    return _filter_rows(rows, ours)


def _filter_rows(rows: pa.Table, kept: np.ndarray[Any, Any]) -> pa.Table:
    """Filters rows. Row groups are split by relation, so usually all rows are selected, and nothing is copied."""
    return rows if bool(kept.all()) else rows.filter(pa.array(kept))


def pack_batch(batch: pa.RecordBatch) -> bytes:
    """Packs a batch to send it to a task."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack_batch(packed: bytes) -> pa.RecordBatch:
    """Unpacks the result of `pack_batch`."""
    with pa.ipc.open_stream(packed) as reader:
        return checked_table(reader.read_next_batch(), "rows of another process")
