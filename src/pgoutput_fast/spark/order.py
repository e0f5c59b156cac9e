"""In which order rows lie, and where to cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pgoutput_fast.spark.order_tasks import SAMPLE, Survey

__all__ = ["Piece", "Surveyed", "quoted", "slice_column", "survey"]


def quoted(name: str) -> str:
    """A column's name as Spark's expressions want it."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Piece:
    """What Spark reads in one go.

    Attributes:
        number: by which its rows are known.
        rows: how many it has.
        ascending: whether each row is behind the one before it.
        first, last: the order columns' values of its first and its last row.
        texts: the same, as they are told.
    """

    number: int
    rows: int
    ascending: bool
    first: tuple[Any, ...]
    last: tuple[Any, ...]
    texts: tuple[str, str]


@dataclass(frozen=True)
class Surveyed:
    """How the rows of a DataFrame lie.

    Attributes:
        column: the number of the piece that a row lies in.
        stable: whether pieces are the same whenever the rows are read, as far as the plan tells.
        pieces: all of them, in the order of their first rows if they are in order.
        samples: (value of the first order column, how many rows it stands for), in order.
    """

    column: Column
    stable: bool
    pieces: list[Piece]
    samples: list[tuple[Any, int]]

    @property
    def in_order(self) -> bool:
        """Whether each piece is in order, and none lies within another."""
        pieces = self.pieces
        return (
            self.stable
            and all(piece.ascending for piece in pieces)
            and len({piece.number for piece in pieces}) == len(pieces)
            and all(a.last < b.first for a, b in pairwise(pieces))
        )

    def bounds(self, count: int) -> list[Any]:
        """Values of the first order column at which to cut into `count` ranges of about the same size, ascending."""
        total = sum(weight for _, weight in self.samples)
        found: list[Any] = []
        seen = 0
        for value, weight in self.samples:
            if seen * count >= total * (len(found) + 1) and (not found or found[-1] < value):
                found.append(value)
            seen += weight
        return found[: count - 1]


def survey(df: DataFrame, order: Sequence[str]) -> Surveyed:
    """Reads the order columns, and nothing else."""
    piece, stable = _pieces(df)
    fields = [StructField(f"order{k}", df.schema[name].dataType) for k, name in enumerate(order)]
    head: list[tuple[str, pa.DataType, DataType]] = [
        ("piece", pa.int64(), LongType()),
        ("what", pa.int8(), ByteType()),
        ("rows", pa.int64(), LongType()),
        ("ascending", pa.bool_(), BooleanType()),
        ("text", pa.string(), StringType()),
    ]
    names = [*(name for name, _, _ in head), *(field.name for field in fields)]
    arrow = pa.schema(
        [(name, kind) for name, kind, _ in head] + [(field.name, pa.null()) for field in fields]
    )
    schema = StructType([*(StructField(name, kind) for name, _, kind in head), *fields])
    columns = [F.col(quoted(name)).alias(f"order{k}") for k, name in enumerate(order)]
    rows = df.select(piece.alias("piece"), *columns).mapInArrow(Survey(arrow), schema).toArrow()
    values = rows.to_pydict()
    found: dict[int, list[list[tuple[Any, ...]]]] = {}
    samples: list[tuple[Any, int]] = []
    for row in zip(*(values[name] for name in names), strict=True):
        if row[1] == SAMPLE:
            samples += [(row[5], row[2])] if row[5] is not None and row[5] == row[5] else []
        else:
            found.setdefault(row[0], [[], []])[row[1]].append(row)
    pieces = [
        Piece(first[0], first[2], first[3], first[5:], last[5:], (first[4], last[4]))
        for firsts, lasts in found.values()
        for first, last in zip(firsts, lasts, strict=True)
    ]
    if all(piece.ascending for piece in pieces):
        pieces.sort(key=lambda each: each.first)
    return Surveyed(piece, stable, pieces, sorted(samples, key=lambda each: each[0]))


def _pieces(df: DataFrame) -> tuple[Column, bool]:
    """The number of the piece that a row lies in, and whether that is the same whenever rows are read.

    Behind a shuffle it may not be: partitions are joined as they turn out, and cut by new samples. Files are cut into
    the same stretches, which partitions hold in any order; but which file is read is not known behind Python's workers,
    for which rows are read ahead.
    """
    plan = df._jdf.queryExecution().executedPlan().toString()
    partition = F.spark_partition_id().cast("long")
    stable = "Exchange" not in plan
    if any(word in plan for word in ("Python", "InArrow", "InPandas")):
        return partition, stable
    path = F.input_file_name()
    both = F.when(path == F.lit(""), partition).otherwise(F.xxhash64(path, F.input_file_block_start()))
    try:
        df.select(both)
    except AnalysisException:  # of several files joined
        return partition, stable
    return both, stable


def slice_column(df: DataFrame, name: str, bounds: list[Any]) -> Column:
    """The number of the range that a row lies in, from 0: how many bounds are not above its value of a column.

    The bounds stand in the expression, so that whatever runs later cuts at the same places.
    """
    column, kind = F.col(quoted(name)), df.schema[name].dataType

    def between(low: int, high: int) -> Column:
        """The range among those from `low` to `high`: a decision tree, for there may be many."""
        if low == high:
            return F.lit(low)
        middle = (low + high) // 2
        return F.when(column < _literal(bounds[middle], kind), between(low, middle)).otherwise(
            between(middle + 1, high)
        )

    # Nulls are sorted before everything else.
    return F.when(column.isNull(), F.lit(0)).otherwise(between(0, len(bounds))).cast(IntegerType())


def _literal(value: Any, kind: DataType) -> Column:
    """A value as Arrow gives it. A time of day must not take the way over a clock that is put back."""
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(F.lit(pa.scalar(value, pa.timestamp("us", "UTC")).value))
    if isinstance(kind, TimestampNTZType):
        return F.lit(value.isoformat(sep=" ")).cast(kind)
    return F.lit(bytearray(value) if isinstance(value, bytes) else value).cast(kind)
