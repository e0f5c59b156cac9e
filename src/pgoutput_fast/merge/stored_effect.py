"""Effects with the columns of their table, whose rows are in memory or in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.take import take
from pgoutput_fast.merge.match import is_ascending
from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.tables.columns import in_schema

__all__ = [
    "Batches",
    "MemoryBatches",
    "StoredEffect",
    "in_key_order",
    "is_ordered",
    "rows_at",
    "rows_between",
    "store_effect",
]

# How many values are a sample of a column.
_SAMPLES = 64


class Batches(Protocol):
    """Rows in batches that can be read separately. A row has a number, from 0 up."""

    @property
    def counts(self) -> Sequence[int]:
        """The number of rows of each batch."""

    @property
    def nbytes(self) -> int:
        """The size of the rows in memory."""

    @property
    def bounds(self) -> tuple[pa.Array, pa.Array]:
        """For each batch the minimum and the maximum of the first column that identifies a row.

        Null if unknown, or if the column has nulls.
        """

    def read(
        self, columns: Sequence[str] | None = None, numbers: Iterable[int] | None = None
    ) -> Iterator[pa.Table]:
        """Yields batches.

        Args:
            columns: the columns to read, which need not exist; None for all.
            numbers: which batches; None for all.
        """


@dataclass(frozen=True)
class MemoryBatches:
    """Rows in memory: one batch.

    Attributes:
        rows: the rows.
    """

    rows: pa.Table

    @property
    def counts(self) -> Sequence[int]:
        return (self.rows.num_rows,)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    @cached_property
    def bounds(self) -> tuple[pa.Array, pa.Array]:
        return pa.nulls(1), pa.nulls(1)

    def read(
        self, columns: Sequence[str] | None = None, numbers: Iterable[int] | None = None
    ) -> Iterator[pa.Table]:
        names = self.rows.schema.names
        yield self.rows.select(names if columns is None else [name for name in columns if name in names])


@dataclass(frozen=True)
class StoredEffect:
    """The net effect on some keys of a table. The columns are those of the table.

    Attributes:
        truncated: whether all existing rows are removed.
        gone: the rows to remove.
        rows: the rows to add, in the order of the first column of the key.
        sample: some values of the first column that identifies a row, at equal distances in `rows`.
    """

    truncated: bool
    gone: Batches
    rows: Batches
    sample: pa.Array

    @property
    def count(self) -> int:
        """The number of rows to add."""
        return sum(self.rows.counts)


def store_effect(
    effect: Effect,
    identity: Sequence[str],
    schema: pa.Schema,
    store: Callable[[pa.Table], Batches] = MemoryBatches,
) -> StoredEffect:
    """Stores an effect.

    Args:
        effect: the effect, without unfilled values.
        identity: the columns that identify a row.
        schema: the columns of the table.
        store: stores rows; by default in memory.
    """
    key, truncated = effect.key, effect.truncated
    gone, rows = in_schema(effect.gone, pa.schema([schema.field(name) for name in identity])), effect.rows
    del effect  # which may free a column when it is in order
    held = [in_schema(rows, schema)]
    del rows
    rows = in_key_order(held, key)
    step = max(1, rows.num_rows // _SAMPLES)
    sample = rows.column(identity[0]).take(pa.array(np.arange(0, rows.num_rows, step))).combine_chunks()
    return StoredEffect(truncated, store(in_key_order([gone], key)), store(rows), sample)


def in_key_order(held: list[pa.Table], key: Sequence[str]) -> pa.Table:
    """Rows sorted by the first column of the key, so that the rows of few keys are in few files.

    Args:
        held: the rows, which this removes from the list: if nothing else refers to them, only one column is in memory
            twice.
        key: the key.
    """
    rows = held.pop()
    types = [rows.schema.field(name).type for name in key[:1]]
    if not types or pa.types.is_nested(types[0]) or pa.types.is_boolean(types[0]):
        return rows
    order = pc.sort_indices(rows.column(key[0])).to_numpy()
    # New keys of a sequence are already sorted. Taking rows costs more than sorting one column.
    if is_ascending(order):
        return rows
    columns, schema, taken = rows.columns, rows.schema, list[pa.ChunkedArray]()
    del rows
    while columns:
        taken.append(take(columns.pop(0), order))
    return pa.Table.from_arrays(taken, schema=schema)


def is_ordered(kind: pa.DataType) -> bool:
    """Whether values of a type can be compared with bounds."""
    tests = pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_decimal128
    return any(test(kind) for test in (*tests, pa.types.is_date32, pa.types.is_timestamp))


def rows_at(batches: Batches, numbers: Numbers, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows with these numbers.

    Args:
        batches: the rows.
        numbers: ascending.
        schema: the columns of the result. Missing columns are null.
    """
    begin = 0
    for k, count in enumerate(batches.counts):
        first, last = np.searchsorted(numbers, [begin, begin + count])
        if last > first:
            (rows,) = batches.read(numbers=[k])
            if last - first < count:  # all of them need no copy
                rows = rows.take(pa.array(numbers[first:last] - begin))
            yield in_schema(rows, schema)
        begin += count


def rows_between(
    batches: Batches, schema: pa.Schema, column: str, low: pa.Scalar | None, high: pa.Scalar | None
) -> Iterator[tuple[Numbers, pa.Table]]:
    """Yields (numbers of rows, rows) of each batch with rows within bounds.

    Args:
        batches: the rows.
        schema: the columns to read. Missing ones are null.
        column: the first column that identifies a row.
        low, high: its minimum and its maximum value, both included; None for no limit.
    """
    begin = 0
    for k, count in enumerate(batches.counts):
        least, most = batches.bounds[0][k], batches.bounds[1][k]
        above = high is not None and least.is_valid and pc.greater(least, high).as_py()
        below = low is not None and most.is_valid and pc.less(most, low).as_py()
        if count and not above and not below:
            (rows,) = batches.read(schema.names, [k])
            rows, numbers = in_schema(rows, schema), np.arange(begin, begin + count)
            if least.is_valid and (low is not None or high is not None):
                mask = _within(rows.column(column), low, high)
                rows, numbers = rows.filter(mask), numbers[mask.to_numpy(zero_copy_only=False)]
            if rows.num_rows:
                yield numbers, rows
        begin += count


def _within(values: pa.ChunkedArray, low: pa.Scalar | None, high: pa.Scalar | None) -> pa.ChunkedArray:
    if low is None:
        return pc.less_equal(values, high)
    above = pc.greater_equal(values, low)
    return above if high is None else pc.and_(above, pc.less_equal(values, high))
