"""What looking at an order runs on the executors. Imports no PySpark; instances are pickled by the driver.

Rows come as a piece's number, which is the same for neighbours, and the order columns. Pieces are what Spark reads in
one go: a stretch of a file, or a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["FIRST", "LAST", "SAMPLE", "Survey", "ascending", "runs_of", "text_at"]

# What a row of a survey is: the first row of a piece, its last, or one of its rows.
FIRST, LAST, SAMPLE = range(3)
# So many, up to twice, are sampled of a piece.
_SAMPLES = 64


def runs_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """(number, its rows) for runs of the first column, an integer; the rows are to be taken before the next is asked
    for."""
    parts = _parts(batches)
    ahead: list[pa.RecordBatch] = [part for part in [next(parts, None)] if part is not None]

    def of(number: int) -> Iterator[pa.RecordBatch]:
        while ahead and ahead[0].column(0)[0].as_py() == number:
            yield ahead.pop()
            ahead.extend(part for part in [next(parts, None)] if part is not None)

    while ahead:
        number = ahead[0].column(0)[0].as_py()
        yield number, of(number)


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches cut where the number changes."""
    for batch in batches:
        at = 0
        for end in pc.run_end_encode(batch.column(0)).run_ends.to_pylist() if batch.num_rows else ():
            yield batch.slice(at, end - at)
            at = end


def text_at(columns: list[pa.Array], row: int) -> str:
    """A row's place in the order, as it is told."""
    values = [column[row].as_py() for column in columns]
    return str(values[0]) if len(values) == 1 else str(tuple(values))


def ascending(columns: list[pa.Array]) -> bool:
    """Whether each row is behind the one before it, for sure."""
    if any(column.null_count for column in columns):
        return False
    behind = pa.array([False] * (len(columns[0]) - 1), pa.bool_())
    try:
        for column in reversed(columns):
            less, same = pc.less(column[:-1], column[1:]), pc.equal(column[:-1], column[1:])
            behind = pc.or_(less, pc.and_(same, behind))
    except pa.ArrowNotImplementedError:
        return False
    return bool(pc.all(behind, min_count=0).as_py())


@dataclass(frozen=True)
class Survey:
    """Pieces -> some rows of each: its first, its last and a sample.

    Attributes:
        schema: piece, what, rows (how many the piece has; of a sample, how many it stands for), ascending, text, and
            the order columns.
    """

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, parts in runs_of(batches):
            count, stride, in_order = 0, 1, True
            first: pa.RecordBatch | None = None
            last: pa.RecordBatch | None = None
            sample = pa.table({})
            for part in parts:
                rows = part.select(range(1, part.num_columns))
                around = pa.Table.from_batches([rows] if last is None else [last, rows]).combine_chunks()
                in_order = in_order and ascending([column.combine_chunks() for column in around.columns])
                first = rows.slice(0, 1) if first is None else first
                last = rows.slice(rows.num_rows - 1)
                picked = range(-count % stride, rows.num_rows, stride)
                taken = pa.Table.from_batches([rows.take(pa.array(picked, pa.int64()))])
                sample = pa.concat_tables([sample, taken]) if sample.num_rows else taken
                count += rows.num_rows
                while sample.num_rows > 2 * _SAMPLES:
                    sample, stride = (
                        sample.take(pa.array(range(0, sample.num_rows, 2), pa.int64())),
                        2 * stride,
                    )
            assert first is not None
            assert last is not None
            texts = [text_at(each.columns, 0) for each in (first, last)]
            told = pa.Table.from_batches([first, last])
            many = sample.num_rows
            yield from self._rows(told, number, [FIRST, LAST], [count] * 2, in_order, texts)
            yield from self._rows(sample, number, [SAMPLE] * many, [stride] * many, in_order, [None] * many)

    def _rows(
        self,
        rows: pa.Table,
        number: int,
        what: list[int],
        counts: list[int],
        in_order: bool,
        texts: list[Any],
    ) -> Iterator[pa.RecordBatch]:
        values = [[number] * len(what), what, counts, [in_order] * len(what), texts]
        head = [pa.array(value, field.type) for value, field in zip(values, self.schema, strict=False)]
        columns = [column.combine_chunks() for column in rows.columns]
        for column in columns:
            if isinstance(column, pa.ChunkedArray):
                raise TypeError(f"too many bytes of {column.type}")
        yield pa.RecordBatch.from_arrays([*head, *columns], names=self.schema.names)
