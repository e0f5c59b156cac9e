"""Tags untagged payloads in parallel, in two passes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StructField, StructType

from pgoutput_fast.base.arguments import expect_count, kind_of
from pgoutput_fast.base.errors import DecodeError
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.parallel_tag.summary import Summary
from pgoutput_fast.protocol.kinds import MSG_MESSAGE, ROW_CHANGES
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.spark.dataframes.tagged import (
    DumpRows,
    Ends,
    FrameRows,
    Rows,
    Untagged,
    expect_dataframe,
    with_ends,
)
from pgoutput_fast.spark.sessions import session_of
from pgoutput_fast.spark.tagging.columns import check_columns, check_one_order, find_payload
from pgoutput_fast.spark.tagging.dump import ordered_row_groups
from pgoutput_fast.spark.tagging.lsns import lsn_column
from pgoutput_fast.spark.tagging.order import (
    Pieces,
    Surveyed,
    bounds,
    pieces_of,
    quoted,
    slice_column,
    survey,
)
from pgoutput_fast.spark.tagging.quarantine import checked_starts
from pgoutput_fast.spark.tagging.shuffled import shuffled_once
from pgoutput_fast.spark.tagging.states import given_state
from pgoutput_fast.spark.tasks.dump import FileRows
from pgoutput_fast.spark.tasks.tag import (
    ERRORS_SCHEMA,
    LSN,
    PAYLOAD,
    RANGE,
    SESSION,
    SUMMARIES_SCHEMA,
    FindErrors,
    Start,
    Starts,
    Summarize,
    TagRanges,
    ends_names,
    gap,
)
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers
from pgoutput_fast.storage.paths import Paths, absolute

__all__ = ["tag", "tag_payloads"]

# Of messages that do not change the state, the first pass needs the relation of changes and the LSN of logical ones.
_LOGICAL_HEADER = 14  # with an xid
# To tag a change of a row, the xid, the relation, and the first tuple up to the kind of its first value are enough.
_ROW_HEADER = 13
# A range has at least this many rows, unless the caller sets the number of ranges. Even a task with few rows takes some
# 50 ms, and there are two for each range.
_LEAST_ROWS = 50_000


def tag(
    df: DataFrame | Paths,
    order_by: str | Sequence[str],
    *,
    payload: str | None = None,
    state: StreamState | str | None = None,
    lsn: str | None = None,
    session_starts: str | None = None,
    gaps: Literal["error", "allow"] = "error",
    on_error: Literal["raise", "quarantine"] = "raise",
    partitions: int | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Tags untagged payloads of any origin in parallel. The result equals that of `pgo.tag` for all payloads in order.

    If each file, or each byte range of one, is in order and no two overlap, the payloads are tagged in place, and read
    twice. The first pass runs at once: it sends to the driver how each range changes the stream's state, the relation
    versions, and which relations have changes. The second pass runs when the result is used; `changes` and
    `write_tables` of the result decode in the same pass. If they want committed changes, another pass over the headers
    of the payloads comes before it, which `write_raw` does not need. Otherwise the payloads are split into ranges,
    shuffled once, and sorted in each pass; the shuffled data stay on the executors' disks while the result is in use. A
    sample of each partition's rows decides between the two, and for paths the statistics of the files.

    A DataFrame of Kafka's columns that is ordered only by these must come from one partition of one topic. An aggregate
    of its columns `topic` and `partition` checks that: one more read of these two columns, or of Kafka itself.

    The input must not change while the result is in use, because Spark reads again what an executor loses. So do not
    overwrite the input with the result.

    Args:
        df: rows of payloads, in any order and partitioning, or paths of Parquet files with them (files, directories,
            globs, URIs, as `spark.read.parquet` takes them). If files are in order by one column of integers, the tasks
            read them themselves, so that no payload crosses from the JVM into Python. Executors must reach the same
            paths then.
        order_by: the column, or the columns, that determine the order in which the payloads arrived; no two rows may
            have the same values.
        payload: the column of payloads, binary. Default: the only binary column named `payload` or `value`.
        state: the state of the stream before the first payload, or its JSON text: from `state_after` of an earlier
            call, from `pgo.tag`, or from the segments of a capture. Default: the beginning of a stream.
        lsn: the column of their start LSNs, if any: integers, decimals or strings such as `16/B374D848`.
        session_starts: a boolean column, true for the first message of each decoding session (a connection, or a peek),
            if any.
        gaps: `"error"`: a single order column of integers must count up by one. `"allow"`: it may skip values.
        on_error: `"raise"`: a damaged message is an error. `"quarantine"`: it is rejected, with everything that depends
            on it, exactly as a `Decoder` with `Options(on_error="quarantine")` does that. A null counts as an empty
            message. Rejected messages have rows of their own, with a kind that is no message's, so the result can be
            stored: `rejects` gives them from its rows, and all other functions leave them out, or raise an error if
            their options do not say quarantine. This costs one more pass over the headers of the payloads, and mostly
            two more if there is damage.
        partitions: the number of ranges; the rows are then always shuffled. Default: ordered rows stay in place, and
            others are split into `spark.sql.shuffle.partitions` ranges, or fewer if there are few rows.
        spark: the session that reads paths. Default: the active one.

    Returns:
        A DataFrame with TAGGED_SCHEMA; `seq` counts over all rows, from the state's `next_seq` or otherwise from 0.
        Pass it to `state_after` for the state with which the stream continues.

    Raises:
        DecodeError: for a boundary, Relation, Type or Origin message that the state machine cannot accept, with its
            position in the order. An error in any other message fails the job that uses the result. Not in quarantine.
        ValueError: for two rows at the same position, a gap, a null in the order, or a wrong argument; without
            quarantine also for a null payload, and for a state after a damaged boundary or Type message; for no path;
            if the column of payloads is missing or ambiguous; for messages of several Kafka partitions ordered only by
            Kafka's columns; for a text that is not a state, and for a state from which only a decoder can continue.
        TypeError: for a column of another type; if `df` is neither a DataFrame nor paths.
        RuntimeError: if Spark's Python workers run another Python than this one.
    """
    return tag_payloads(df, order_by, payload, state, lsn, session_starts, gaps, on_error, partitions, spark)


def tag_payloads(
    df: DataFrame | Paths,
    order_by: str | Sequence[str],
    payload: str | None,
    state: StreamState | str | None,
    lsn: str | None,
    session_starts: str | None,
    gaps: Literal["error", "allow"],
    on_error: Literal["raise", "quarantine"],
    partitions: int | None,
    spark: SparkSession | None,
    *,
    commits: bool = False,
) -> DataFrame:
    """`tag`, whose first pass can also get the commits of all transactions: some bytes each, in the driver.

    Without them, who needs the outcomes of transactions runs another pass.
    """
    if not isinstance(order_by, str | Iterable):
        raise TypeError(
            f"order_by must be the name of a column, or a list of names, not {kind_of(order_by)}: payloads have an "
            "order"
        )
    is_dump = not isinstance(df, DataFrame)
    df = _read_files(df, spark)
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    _check_arguments(order, gaps, partitions, on_error)
    payload = find_payload(df) if payload is None else payload
    check_columns(df, order, payload, lsn, session_starts)
    check_workers(df)
    check_one_order(df, order)
    quarantine = on_error == "quarantine"
    source = _Source(df, order, payload, lsn, session_starts, gaps, given_state(state), quarantine, commits)
    if is_dump and partitions is None and len(order) == 1 and lsn is None:
        columns = [payload, order[0], *([] if session_starts is None else [session_starts])]
        ranges = ordered_row_groups(df, order[0], columns)
        if ranges:
            rows = source.use_files(ranges)
            summaries = source.summaries(rows, in_order=True)
            if _are_in_order(summaries):
                return source.tagged(rows, summaries)
    pieces = pieces_of(df)
    surveyed = survey(df, order[0], pieces)
    if partitions is None and pieces.stable and surveyed.looks_ordered:
        rows = source.use_in_place(pieces)
        summaries = source.summaries(rows, in_order=True)
        # Rows that turn out to be unordered are split and sorted.
        if _are_in_order(summaries):
            return source.tagged(rows, summaries)
    count = partitions or _ranges(df, surveyed)
    rows = source.cut(bounds(surveyed.samples, count), count)
    return source.tagged(rows, source.summaries(rows))


def _read_files(source: DataFrame | Paths, spark: SparkSession | None) -> DataFrame:
    """The rows of a DataFrame, or of Parquet files.

    Raises:
        ValueError: if there is no path.
        TypeError: for anything else.
        RuntimeError: if there is no session to read files.
    """
    if not isinstance(source, DataFrame) and isinstance(source, str | os.PathLike | Iterable):
        paths = [source] if isinstance(source, str | os.PathLike) else list(source)
        if not all(isinstance(each, str | os.PathLike) for each in paths):
            raise TypeError("this takes a DataFrame of payloads, or paths of Parquet files with them")
        if not paths:
            raise ValueError("there is no path: name files, directories or globs of Parquet files")
        return session_of(spark).read.parquet(*(absolute(each) for each in paths))
    expect_dataframe(source)
    assert isinstance(source, DataFrame)
    return source


@dataclass(frozen=True)
class _RangeSummary:
    """The first pass's result for one range: SUMMARIES_SCHEMA, and the order columns of its first and last row."""

    range: int
    count: int
    ascending: bool
    first: str
    last: str
    problem: str | None
    damaged: bool
    summary: bytes
    survey: bytes | None
    begins: tuple[Any, ...]
    ends: tuple[Any, ...]


def _ranges(df: DataFrame, surveyed: Surveyed) -> int:
    """Returns Spark's number of shuffle partitions, or fewer if a range would have fewer than _LEAST_ROWS rows."""
    most = int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    return max(1, min(most, sum(weight for _, weight in surveyed.samples) // _LEAST_ROWS))


def _are_in_order(summaries: list[_RangeSummary]) -> bool:
    """Whether each piece is in order and no two overlap."""
    return (
        all(each.ascending for each in summaries)
        and len({each.range for each in summaries}) == len(summaries)
        and all(a.ends < b.begins for a, b in pairwise(summaries))
    )


@dataclass(frozen=True)
class _Rows:
    """The rows of all ranges: for the first pass, with shortened payloads, for the second pass, and without tuples."""

    first: Rows
    second: Rows
    headers: Rows


def _shorten_payloads() -> Column:
    """Returns the payloads for the first pass, shortened to what it needs.

    These are the headers of changes, tag and LSN of logical messages, and all other messages whole.
    """
    payload = F.col(PAYLOAD)
    return (
        F.when(_is_one_of(ROW_CHANGES), F.substring(payload, 1, _ROW_HEADER))
        .when(_is_one_of((MSG_MESSAGE,)), F.substring(payload, 1, _LOGICAL_HEADER))
        .otherwise(payload)
    )


def _is_one_of(kinds: Sequence[int]) -> Column:
    """Returns whether a payload is a message of one of these kinds."""
    return F.substring(F.col(PAYLOAD), 1, 1).isin([F.lit(bytearray((kind,))) for kind in kinds])


def _without_tuples() -> Column:
    """Returns the payloads with the headers alone of changes: what is needed to tag them."""
    payload = F.col(PAYLOAD)
    return F.when(_is_one_of(ROW_CHANGES), F.substring(payload, 1, _ROW_HEADER)).otherwise(payload)


def _number_rows(rows: DataFrame, number: Column) -> DataFrame:
    """Returns the rows of the first pass: with the number of their range, and without the contents of changes."""
    more = [F.col(name) for name in rows.columns if name != PAYLOAD]
    return rows.select(number.cast("long").alias(RANGE), _shorten_payloads().alias(PAYLOAD), *more)


@dataclass(frozen=True)
class _Source:
    """The input of `tag`."""

    df: DataFrame
    order: tuple[str, ...]
    payload: str
    lsn: str | None
    session_starts: str | None
    gaps: str
    state: StreamState
    quarantine: bool
    commits: bool

    def _bare(self) -> DataFrame:
        """Returns only the columns that tasks need."""
        columns = [F.col(quoted(self.payload)).alias(PAYLOAD)]
        columns += [F.col(quoted(name)).alias(f"order{k}") for k, name in enumerate(self.order)]
        if self.lsn is not None:
            columns.append(
                lsn_column(F.col(quoted(self.lsn)), self.lsn, self.df.schema[self.lsn].dataType).alias(LSN)
            )
        if self.session_starts is not None:
            columns.append(F.col(quoted(self.session_starts)).cast("boolean").alias(SESSION))
        return self.df.select(columns)

    def use_in_place(self, pieces: Pieces) -> _Rows:
        """Uses each piece as a range."""
        return self._rows(_number_rows(self._bare(), pieces.column), self._bare())

    def use_files(self, ranges: tuple[tuple[FileRows, ...], ...]) -> _Rows:
        """Lets the tasks read the rows of files."""
        names = [(self.payload, PAYLOAD), *((name, f"order{k}") for k, name in enumerate(self.order))]
        if self.session_starts is not None:
            names.append((self.session_starts, SESSION))
        # What a task reads itself need not be shortened.
        rows = DumpRows(self.df.sparkSession, ranges, tuple(names))
        return _Rows(replace(rows, numbered=True), rows, rows)

    def _rows(self, first: DataFrame, second: DataFrame) -> _Rows:
        headers = second.withColumn(PAYLOAD, _without_tuples())
        return _Rows(FrameRows(first), FrameRows(second), FrameRows(headers))

    def cut(self, bounds: list[Any], count: int) -> _Rows:
        """Splits the rows into ranges, each in one partition."""
        bare = self._bare()
        number = slice_column(bare, "order0", bounds)
        # Tasks separate ranges within a partition, so their distribution over partitions affects only speed. From Spark
        # 4.1 on. Looked up in the type: in a frame of Spark Connect, any other name is a column.
        by_id: Any = getattr(type(bare), "repartitionById", None) or type(bare).repartition
        ranges = shuffled_once(by_id(bare, count, number))
        # This sort also puts ranges in order. Spark compares the first of several keys without reading rows. No select
        # is between the shuffle and the second pass: a select would copy each row once more.
        keys = [f"order{k}" for k in range(len(self.order))]
        return self._rows(
            *(each.sortWithinPartitions(*keys) for each in (_number_rows(ranges, number), ranges))
        )

    def summaries(self, rows: _Rows, *, in_order: bool = False) -> list[_RangeSummary]:
        """Runs the first pass. Returns the result for each range, in stream order."""
        task = Summarize(
            self.gaps == "allow", (self.payload, *self.order), in_order, self.quarantine, self.commits
        )
        kinds = [self.df.schema[name].dataType for name in self.order]
        ends = [StructField(name, kind) for name, kind in zip(ends_names(len(kinds)), kinds * 2, strict=True)]
        schema = StructType([*spark_schema(SUMMARIES_SCHEMA), *ends])
        table = rows.first.mapped(task, schema).toArrow()
        head, many = len(SUMMARIES_SCHEMA), len(kinds)
        summaries: list[_RangeSummary] = []
        for row in zip(*table.to_pydict().values(), strict=True):
            values = dict(zip(SUMMARIES_SCHEMA.names, row[:head], strict=True))
            summaries.append(_RangeSummary(**values, begins=row[head : head + many], ends=row[head + many :]))
        if not in_order:
            return sorted(summaries, key=lambda each: each.range)
        return (
            sorted(summaries, key=lambda each: each.begins)
            if all(each.ascending for each in summaries)
            else summaries
        )

    def tagged(self, rows: _Rows, summaries: list[_RangeSummary]) -> DataFrame:
        """Returns the second pass over the ranges, in stream order."""
        before: str | None = None
        for each in summaries:
            if each.problem is not None:
                raise ValueError(each.problem)
            if before is not None and self._gap(before, each.first):
                raise ValueError(gap(self.order[0], int(before), int(each.first)))
            before = each.last
        rejected, survey = False, None
        if self.quarantine:
            checked = checked_starts(rows.headers, summaries, self.order, self.state, commits=self.commits)
            starts, ranges, state = checked.starts, checked.ranges, checked.state
            rejected, survey = checked.rejected, checked.survey
        else:
            ranges, state, error = _starts(summaries, self.state)
            starts = Starts.of(ranges, state.catalog.to_json(), rows.second.shared)
            if error is not None:
                raise _first_error(rows.second, starts, self.order, error)
        task = TagRanges(starts, self.order, spark_arrow_schema(TAGGED_SCHEMA), self.quarantine)
        places = (summaries[0].begins, summaries[-1].ends) if summaries else ((), ())
        surveys = {each.first: each.survey for each in summaries if each.survey is not None}
        untagged = Untagged(rows.second, rows.headers, task, ranges, self.commits, surveys, survey)
        ends = Ends(self.state, state, *places, untagged=untagged, rejected=rejected)
        return with_ends(rows.second.mapped(task, spark_schema(TAGGED_SCHEMA)), ends)

    def _gap(self, before: str, first: str) -> bool:
        counted = len(self.order) == 1 and isinstance(self.df.schema[self.order[0]].dataType, IntegralType)
        return self.gaps == "error" and counted and int(before) + 1 != int(first)


def _check_arguments(order: tuple[str, ...], gaps: str, partitions: int | None, on_error: str) -> None:
    if not order:
        raise ValueError("order_by must name a column")
    if gaps not in ("error", "allow"):
        raise ValueError(f"gaps must be 'error' or 'allow', not {gaps!r}")
    if on_error not in ("raise", "quarantine"):
        raise ValueError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")
    if partitions is not None:
        expect_count("partitions", partitions)


def _starts(
    summaries: list[_RangeSummary], state: StreamState
) -> tuple[tuple[Start, ...], StreamState, DecodeError | None]:
    """Returns the start of each range, the state after the last, and the stream's first error, if any."""
    starts: list[Start] = []
    problem: DecodeError | None = None
    for each in summaries:
        before = state if problem is None else None
        starts.append(Start.of(before, each.count, each.first, each.last))
        try:
            state = state if problem else Summary.from_bytes(each.summary).apply(state)
        except DecodeError as error:
            problem = error
    return tuple(starts), state, problem


def _first_error(rows: Rows, starts: Starts, order: tuple[str, ...], known: DecodeError) -> DecodeError:
    """Returns the stream's first error.

    Summaries do not detect errors in changes, so an earlier error than `known` may exist.
    """
    errors = rows.mapped(FindErrors(starts, order), spark_schema(ERRORS_SCHEMA)).collect()
    if not errors:
        return known
    first = min(errors, key=lambda row: row["seq"])
    return DecodeError(**first.asDict())
