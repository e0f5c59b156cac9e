"""Functions that check an order on the executors. This module imports no PySpark; the driver pickles the instances."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ascending", "runs_of", "text_at"]


def runs_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yields (number, its rows) for each run of equal numbers in the first column, an integer.

    Read all rows of a run before you request the next one.
    """
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
    """Splits batches where the number changes."""
    for batch in batches:
        at = 0
        for end in pc.run_end_encode(batch.column(0)).run_ends.to_pylist() if batch.num_rows else ():
            yield batch.slice(at, end - at)
            at = end


def text_at(columns: list[pa.Array], row: int) -> str:
    """Returns a row's position in the order as text."""
    values = [column[row].as_py() for column in columns]
    return str(values[0]) if len(values) == 1 else str(tuple(values))


def ascending(columns: list[pa.Array]) -> bool:
    """Whether each row is certainly after the previous one."""
    if any(column.null_count for column in columns):
        return False
    in_order = pa.array([False] * (len(columns[0]) - 1), pa.bool_())
    try:
        for column in reversed(columns):
            less, same = pc.less(column[:-1], column[1:]), pc.equal(column[:-1], column[1:])
            in_order = pc.or_(less, pc.and_(same, in_order))
    except pa.ArrowNotImplementedError:
        return False
    return bool(pc.all(in_order, min_count=0).as_py())
