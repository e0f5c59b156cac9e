"""Determines the order of rows, and where to split them into ranges."""

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
    DataType,
    IntegerType,
    TimestampNTZType,
    TimestampType,
)

from pgoutput_fast.spark.sessions import plan_of

__all__ = ["Pieces", "Surveyed", "bounds", "pieces_of", "quoted", "slice_column", "survey"]

# A row id of Spark has the partition in its high bits and the row's number in its low bits.
_ROW_BITS = 33
_NUMBER = f"(row & {(1 << _ROW_BITS) - 1})"
_PICKED = f"{_NUMBER} = 0 OR {_NUMBER} & (shiftleft(1L, greatest(int(log2({_NUMBER})) - 3, 0)) - 1) = 0"


def quoted(name: str) -> str:
    """Returns a column's name quoted for Spark's expressions."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Pieces:
    """The units in which Spark reads rows: byte ranges of files, or partitions.

    Attributes:
        column: the number of the piece that contains the row.
        stable: whether each read has the same pieces, as far as the plan tells.
    """

    column: Column
    stable: bool


@dataclass(frozen=True)
class Surveyed:
    """Conclusions from a sample of the rows.

    Attributes:
        looks_ordered: whether each piece may be in order without overlapping others. False is certain, unless there are
            nulls.
        samples: (value of the first order column, number of rows that it represents), in ascending order.
    """

    looks_ordered: bool
    samples: list[tuple[Any, int]]


def survey(df: DataFrame, order: str, pieces: Pieces) -> Surveyed:
    """Samples one order column. The JVM selects the rows: eight between each power of two and the next."""
    row = F.monotonically_increasing_id()
    picked = df.select(row.alias("row"), F.col(quoted(order)).alias("value")).where(_PICKED)
    table = picked.select(pieces.column.alias("piece"), "row", "value").toArrow().sort_by("row")
    pieces_, rows, values = (table.column(name).to_pylist() for name in ("piece", "row", "value"))
    is_ordered = None not in values
    ends: dict[int, tuple[Any, Any]] = {}
    for piece, value in zip(pieces_, values, strict=True) if is_ordered else ():
        first, last = ends.get(piece, (value, value))
        is_ordered = is_ordered and not value < last
        ends[piece] = first, value
    is_ordered = is_ordered and all(a[1] <= b[0] for a, b in pairwise(sorted(ends.values())))
    weights = [b - a if a >> _ROW_BITS == b >> _ROW_BITS else 1 for a, b in pairwise([*rows, -1])]
    known = (each for each in zip(values, weights, strict=True) if each[0] is not None and each[0] == each[0])
    return Surveyed(is_ordered, sorted(known, key=lambda each: each[0]))


def bounds(samples: Sequence[tuple[Any, int]], count: int) -> list[Any]:
    """Returns the values, ascending, that split the rows into `count` ranges of about the same size."""
    total = sum(weight for _, weight in samples)
    found: list[Any] = []
    seen = 0
    for value, weight in samples:
        if seen * count >= total * (len(found) + 1) and (not found or found[-1] < value):
            found.append(value)
        seen += weight
    return found[: count - 1]


def pieces_of(df: DataFrame) -> Pieces:
    """Returns the pieces of a DataFrame.

    After a shuffle, pieces are not stable: Spark joins partitions by their actual size and splits ranges by new
    samples. Spark splits files into the same byte ranges on each read, and assigns them to partitions in any order.
    After a Python worker the file of a row is unknown, because Spark reads rows ahead for the worker. The plan of an
    RDD, such as that of a micro-batch, does not show whether there is a Python worker.
    """
    plan = plan_of(df)
    partition = F.spark_partition_id().cast("long")
    if plan is None:
        return Pieces(partition, False)
    stable = "Exchange" not in plan
    if any(word in plan for word in ("Python", "InArrow", "InPandas", "ExistingRDD")):
        return Pieces(partition, stable)
    path = F.input_file_name()
    both = F.when(path == F.lit(""), partition).otherwise(F.xxhash64(path, F.input_file_block_start()))
    try:
        _ = df.select(both).schema  # Spark Connect checks a column only on access
    except AnalysisException:  # a join of several files
        return Pieces(partition, stable)
    return Pieces(both, stable)


def slice_column(df: DataFrame, name: str, bounds: list[Any]) -> Column:
    """Returns the number, from 0, of a row's range: how many bounds are less than or equal to the row's value.

    The expression contains the bounds, so every later query splits at the same places.
    """
    column, kind = F.col(quoted(name)), df.schema[name].dataType

    def between(low: int, high: int) -> Column:
        """Returns the range among `low` to `high`, as a decision tree, because there may be many ranges."""
        if low == high:
            return F.lit(low)
        middle = (low + high) // 2
        return F.when(column < _literal(bounds[middle], kind), between(low, middle)).otherwise(
            between(middle + 1, high)
        )

    # Spark sorts nulls first.
    return F.when(column.isNull(), F.lit(0)).otherwise(between(0, len(bounds))).cast(IntegerType())


def _literal(value: Any, kind: DataType) -> Column:
    """Returns a literal of an Arrow value.

    A timestamp must not pass through local time, which repeats an hour when clocks go back.
    """
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(F.lit(pa.scalar(value, pa.timestamp("us", "UTC")).value))
    if isinstance(kind, TimestampNTZType):
        return F.lit(value.isoformat(sep=" ")).cast(kind)
    return F.lit(bytearray(value) if isinstance(value, bytes) else value).cast(kind)
