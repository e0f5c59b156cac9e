"""The task that reads payloads from Parquet files itself: none crosses from the JVM into Python.

Imports no PySpark; the driver pickles the instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.spark.tasks.rows import BATCH_BYTES
from pgoutput_fast.spark.tasks.tag import RANGE, ChangedInputError
from pgoutput_fast.storage.paths import open_file, redacted_uri

__all__ = ["FileRows", "ReadDump"]

_BUFFER_BYTES = 4 << 20
_READ_ROWS = 10_000
_OTHERWISE = "if the executors cannot reach it under this path, pass spark.read.parquet(...) instead of paths"


@dataclass(frozen=True)
class FileRows:
    """Row groups of one file.

    Attributes:
        path: absolute path or URI of the file.
        row_groups: numbers of the row groups.
        nbytes: their size in bytes, before compression.
    """

    path: str
    row_groups: tuple[int, ...]
    nbytes: int = 0


@dataclass(frozen=True)
class ReadDump:
    """Numbers of ranges -> the result of another task for the rows of these ranges.

    Attributes:
        task: gets the rows.
        ranges: the row groups of each range, in stream order.
        columns: (name in the files, name that the task expects) of the columns that it gets.
        numbered: whether it gets the number of the range, too, as the first column.
    """

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    ranges: tuple[tuple[FileRows, ...], ...]
    columns: tuple[tuple[str, str], ...]
    numbered: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in self.ranges[number]:
                    for rows in _read(part, [name for name, _ in self.columns]):
                        yield self._named(number, rows)

    def _named(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns: dict[str, Any] = {new: rows.column(name) for name, new in self.columns}
        if self.numbered:
            columns = {RANGE: pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows), **columns}
        return pa.RecordBatch.from_pydict(columns)


def _read(part: FileRows, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of row groups.

    Raises:
        ChangedInputError: if the file is gone, or has other row groups.
        OSError: if it cannot be read. The message names it.
    """
    try:
        # With pre_buffer, a whole column of a row group would be in memory.
        with pq.ParquetFile(open_file(part.path), buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            if max(part.row_groups) >= file.num_row_groups:
                raise ChangedInputError(f"{redacted_uri(part.path)} has changed since tag() read it")
            for number in part.row_groups:
                group = file.metadata.row_group(number)
                rows = BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
                size = max(1, min(rows, _READ_ROWS))
                yield from file.iter_batches(size, row_groups=[number], columns=names)
    except FileNotFoundError:
        raise ChangedInputError(
            f"{redacted_uri(part.path)} was removed since tag() listed it, or is not on this machine: {_OTHERWISE}"
        ) from None
    except (OSError, pa.ArrowException) as problem:
        raise OSError(f"{redacted_uri(part.path)} cannot be read: {problem}. {_OTHERWISE}") from None
