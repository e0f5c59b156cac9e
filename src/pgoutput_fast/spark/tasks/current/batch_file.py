"""Files between two jobs: rows in batches that can be read separately."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.stored_effect import is_ordered
from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import open_store

__all__ = ["BatchFile", "write_batches"]


@dataclass(frozen=True)
class BatchFile:
    """A file of rows, as `Batches`.

    Attributes:
        path: its path or URI.
        counts: the number of rows of each batch.
        nbytes: size of the rows in memory, in bytes.
        bounds: for each batch the minimum and the maximum of a column; null if unknown, or if the column has nulls.
    """

    path: str
    counts: tuple[int, ...]
    nbytes: int
    bounds: tuple[pa.Array, pa.Array]

    def read(
        self, columns: Sequence[str] | None = None, numbers: Iterable[int] | None = None
    ) -> Iterator[pa.Table]:
        """Yields batches, as `Batches.read`."""
        with self._opened() as file:
            fields = None
            if columns is not None:
                with pa.ipc.open_file(file) as reader:
                    existing = set(reader.schema.names)
                    columns = [name for name in columns if name in existing]
                    fields = [reader.schema.get_field_index(name) for name in columns]
                file.seek(0)
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            with pa.ipc.open_file(file, options=options) as reader:
                for number in range(len(self.counts)) if numbers is None else numbers:
                    rows = pa.Table.from_batches([reader.get_batch(number)])
                    yield rows if columns is None else rows.select(columns)

    def _opened(self) -> Any:
        """
        Raises:
            RuntimeError: if the file is gone. A FileNotFoundError would mean a file of the table.
        """
        try:
            place = open_file(self.path)
            return pa.OSFile(place) if isinstance(place, str) else place
        except FileNotFoundError as problem:
            raise RuntimeError(
                f"the temporary file {self.path} of this batch is gone: another process may have taken over the "
                "target, or the executors may not share its directory with the driver. Run one query into a target, "
                "and put it where all of them can reach it"
            ) from problem


def write_batches(
    directory: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, column: str | None
) -> BatchFile:
    """Writes batches into a new file.

    Args:
        directory: a path or a URI. Each attempt of a task writes files with different names.
        batches: the rows.
        schema: their columns.
        column: record the bounds of this column; None for none.
    """
    name, counts, nbytes = f"{secrets.token_hex(8)}.arrow", [], 0
    kind = pa.null() if column is None else schema.field(column).type
    # Scalars of Arrow: Python lacks some dates and times of a server.
    lows: list[pa.Scalar | None] = []
    highs: list[pa.Scalar | None] = []
    store = open_store(directory)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with store.write(name) as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            counts.append(batch.num_rows)
            nbytes += batch.nbytes
            is_bounded = is_ordered(kind) and not batch.column(column).null_count
            bounds = pc.min_max(batch.column(column)) if is_bounded else {"min": None, "max": None}
            lows.append(bounds["min"])
            highs.append(bounds["max"])
    return BatchFile(
        str(store.at(name)), tuple(counts), nbytes, (pa.array(lows, kind), pa.array(highs, kind))
    )
