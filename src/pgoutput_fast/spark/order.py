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
    DataType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pgoutput_fast.spark.order_tasks import Sample

__all__ = ["Pieces", "bounds", "looks_ordered", "pieces_of", "quoted", "sampled", "slice_column"]


def quoted(name: str) -> str:
    """A column's name as Spark's expressions want it."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Pieces:
    """What Spark reads in one go: a stretch of a file, or a partition.

    Attributes:
        column: the number of the piece that a row lies in.
        stable: whether pieces are the same whenever the rows are read, as far as the plan tells.
    """

    column: Column
    stable: bool


def looks_ordered(df: DataFrame, order: str, pieces: Pieces) -> bool:
    """Whether each piece may be in order, and none lie within another: by a few rows of each partition, of which
    nothing but the order's first column is read. No is for sure, unless there are nulls."""
    at = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))
    # The first, the second, the third, the fifth, the ninth row, and so on.
    some = df.select(pieces.column.alias("piece"), F.col(quoted(order)).alias("value"), at.alias("at"))
    rows = some.where(F.bit_count("at") <= 1).select("piece", "value").toArrow().to_pydict()
    ends: dict[int, tuple[Any, Any]] = {}
    for piece, value in zip(rows["piece"], rows["value"], strict=True):
        first, last = ends.get(piece, (value, value))
        if value is None or value < last:
            return False
        ends[piece] = first, value
    return all(a[1] <= b[0] for a, b in pairwise(sorted(ends.values())))


def sampled(df: DataFrame, order: str) -> list[tuple[Any, int]]:
    """(value of the order's first column, how many rows it stands for), in order. Nothing else is read."""
    kind = df.schema[order].dataType
    schema = StructType([StructField("rows", LongType()), StructField("value", kind)])
    found = (
        df.select(F.col(quoted(order))).mapInArrow(Sample(("rows", "value")), schema).toArrow().to_pydict()
    )
    pairs = zip(found["value"], found["rows"], strict=True)
    return sorted(
        (pair for pair in pairs if pair[0] is not None and pair[0] == pair[0]), key=lambda pair: pair[0]
    )


def bounds(samples: Sequence[tuple[Any, int]], count: int) -> list[Any]:
    """Values at which to cut into `count` ranges of about the same size, ascending."""
    total = sum(weight for _, weight in samples)
    found: list[Any] = []
    seen = 0
    for value, weight in samples:
        if seen * count >= total * (len(found) + 1) and (not found or found[-1] < value):
            found.append(value)
        seen += weight
    return found[: count - 1]


def pieces_of(df: DataFrame) -> Pieces:
    """The pieces of a DataFrame, and how they are known.

    Behind a shuffle it may not be: partitions are joined as they turn out, and cut by new samples. Files are cut into
    the same stretches, which partitions hold in any order; but which file is read is not known behind Python's workers,
    for which rows are read ahead.
    """
    plan = df._jdf.queryExecution().executedPlan().toString()
    partition = F.spark_partition_id().cast("long")
    stable = "Exchange" not in plan
    if any(word in plan for word in ("Python", "InArrow", "InPandas")):
        return Pieces(partition, stable)
    path = F.input_file_name()
    both = F.when(path == F.lit(""), partition).otherwise(F.xxhash64(path, F.input_file_block_start()))
    try:
        df.select(both)
    except AnalysisException:  # of several files joined
        return Pieces(partition, stable)
    return Pieces(both, stable)


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
