"""Tagging of payloads that somebody stored untagged: in parallel, in two passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegralType

from pgoutput_fast.errors import DecodeError
from pgoutput_fast.schema import TAGGED_SCHEMA
from pgoutput_fast.spark.tag_tasks import (
    ERRORS_SCHEMA,
    SUMMARIES_SCHEMA,
    FindErrors,
    Start,
    Summarize,
    TagSlices,
    gap,
)
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers
from pgoutput_fast.state import StreamState
from pgoutput_fast.summary import Summary

__all__ = ["tag"]

# Of messages that do not move the state the first pass needs nothing but their tag; of logical ones their LSN.
_NO_CONTROLS = tuple(bytes([kind]) for kind in b"IUDT")
_LOGICAL_HEADER = 14  # with an xid
_SAMPLES_PER_SLICE = 100
_MOST_SAMPLES = 50_000


def tag(
    df: DataFrame,
    order_by: str | Sequence[str],
    *,
    payload: str = "payload",
    lsn: str | None = None,
    gaps: Literal["error", "allow"] = "error",
    partitions: int | None = None,
) -> DataFrame:
    """Tags untagged payloads of any origin: what `pgo.tag` gives for all of them in order, in parallel.

    Reads the order column for the ranges, then the payloads twice: the first pass runs at once, and brings to the
    driver what each range of them does to the stream's state; the second runs when the result is used. Between the two
    the input must stay as it is.

    Args:
        df: rows of payloads, in any order and partitioning.
        order_by: the column, or the columns, that order them as they came; no two rows may have the same place.
        payload: the column of payloads, binary.
        lsn: the column of their start LSNs, an integer, if there is one.
        gaps: whether one order column of integers must count up by one ("error") or may leave values out ("allow").
        partitions: into how many ranges to cut; `spark.sql.shuffle.partitions` if not given.

    Returns:
        A DataFrame with TAGGED_SCHEMA; `seq` counts from 0 over the whole.

    Raises:
        DecodeError: for a boundary, Relation, Type or Origin message that no state machine can take. What is wrong with
            others fails the job that uses the result.
        ValueError: for two rows at the same place, a gap, a null, or an argument that is none of the above.
        TypeError: for a column of another type.
        RuntimeError: if Spark's Python workers are not this Python.
    """
    order = [order_by] if isinstance(order_by, str) else list(order_by)
    _check(df, order, payload, lsn, gaps, partitions)
    check_workers(df)
    count = partitions or int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    slices = _slice_of(df, order[0], count)
    one_integer = len(order) == 1 and isinstance(df.schema[order[0]].dataType, IntegralType)
    whole = F.col(_quoted(payload))
    kind = F.substring(whole, 1, 1)
    bare = (
        F.when(kind.isin([F.lit(bytearray(kind)) for kind in _NO_CONTROLS]), kind)
        .when(kind == F.lit(bytearray(b"M")), F.substring(whole, 1, _LOGICAL_HEADER))
        .otherwise(whole)
    )
    found = (
        _sliced(df, slices, bare, lsn, order, count)
        .mapInArrow(Summarize(gaps == "allow", (payload, *order)), spark_schema(SUMMARIES_SCHEMA))
        .collect()
    )
    found.sort(key=lambda row: row["slice"])
    for before, row in zip([None, *found], found, strict=False):
        if row["problem"] is not None:
            raise ValueError(row["problem"])
        if (
            before is not None
            and gaps == "error"
            and one_integer
            and int(before["last"]) + 1 != int(row["first"])
        ):
            raise ValueError(gap(order[0], int(before["last"]), int(row["first"])))
    starts, error = _starts(found)
    rows = _sliced(df, slices, whole, lsn, order, count)
    if error is not None:
        raise _first_error(rows, starts, error)
    task = TagSlices(starts, spark_arrow_schema(TAGGED_SCHEMA))
    return rows.mapInArrow(task, spark_schema(TAGGED_SCHEMA))


def _check(
    df: DataFrame, order: list[str], payload: str, lsn: str | None, gaps: str, partitions: int | None
) -> None:
    if not order:
        raise ValueError("order_by must name a column")
    if gaps not in ("error", "allow"):
        raise ValueError(f"gaps must be 'error' or 'allow', not {gaps!r}")
    if partitions is not None and partitions < 1:
        raise ValueError(f"partitions must be positive, not {partitions}")
    for name in [*order, payload, *([lsn] if lsn is not None else [])]:
        if name not in df.columns:
            raise ValueError(f"there is no column {name!r}; there is {', '.join(df.columns)}")
    if not isinstance(df.schema[payload].dataType, BinaryType):
        raise TypeError(
            f"column {payload} must be binary, not {df.schema[payload].dataType.simpleString()}: of text such as "
            r"'\x42...' take unhex(substring(column, 3))"
        )
    if lsn is not None and not isinstance(df.schema[lsn].dataType, IntegralType):
        raise TypeError(f"column {lsn} must be an integer, not {df.schema[lsn].dataType.simpleString()}")


def _slice_of(df: DataFrame, first: str, count: int) -> Column:
    """The number of the range that a row lies in, as an expression with its bounds in it.

    The bounds are values of a sample. They are read once, so that whatever runs later cuts at the same places.
    """
    if count == 1:
        return F.lit(0)
    column = F.col(_quoted(first))
    wanted = min(count * _SAMPLES_PER_SLICE, _MOST_SAMPLES)
    sample = (
        df.select(column.alias("value"))
        .where(F.col("value").isNotNull())
        .orderBy(F.rand(0))
        .limit(wanted)
        .orderBy("value")
        .collect()
    )
    values = [row["value"] for row in sample]
    bounds = list(dict.fromkeys(values[len(values) * k // count] for k in range(1, count) if values))
    kind = df.schema[first].dataType

    def between(low: int, high: int) -> Column:
        """The range among those from `low` to `high`: a decision tree, for there may be many."""
        if low == high:
            return F.lit(low)
        middle = (low + high) // 2
        return F.when(column < F.lit(bounds[middle]).cast(kind), between(low, middle)).otherwise(
            between(middle + 1, high)
        )

    return between(0, len(bounds))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _sliced(
    df: DataFrame, slices: Column, payload: Column, lsn: str | None, order: list[str], count: int
) -> DataFrame:
    """slice, payload, lsn and the order columns; each slice in one partition, in order."""
    rows = df.select(
        slices.cast("int").alias("slice"),
        payload.alias("payload"),
        (F.lit(None) if lsn is None else F.col(_quoted(lsn))).cast("long").alias("lsn"),
        *[F.col(_quoted(name)).alias(f"order{k}") for k, name in enumerate(order)],
    )
    # Slices are told apart within a partition: how they are spread over partitions is a matter of speed only.
    by_id: Any = getattr(rows, "repartitionById", None)  # from Spark 4.1 on
    placed = by_id(count, F.col("slice")) if by_id is not None else rows.repartition(count, "slice")
    ordered: DataFrame = placed.sortWithinPartitions("slice", *[f"order{k}" for k in range(len(order))])
    return ordered


def _starts(found: list[Any]) -> tuple[dict[int, Start], DecodeError | None]:
    """The start of each slice, from the first to the last or to that with an error."""
    starts: dict[int, Start] = {}
    state = StreamState()
    for row in found:
        starts[row["slice"]] = Start(state.to_json(), row["count"], row["first"], row["last"])
        try:
            state = Summary.from_bytes(bytes(row["summary"])).apply(state)
        except DecodeError as problem:
            return starts, problem
    return starts, None


def _first_error(rows: DataFrame, starts: dict[int, Start], known: DecodeError) -> DecodeError:
    """The stream's first error, where there is one: summaries do not see what is wrong with changes."""
    concerned = rows.where(F.col("slice").isin(list(starts)))
    found = concerned.mapInArrow(FindErrors(starts), spark_schema(ERRORS_SCHEMA)).collect()
    if not found:
        return known
    first = min(found, key=lambda row: row["seq"])
    return DecodeError(first["reason"], seq=first["seq"], lsn=first["lsn"], byte_offset=first["byte_offset"])
