"""Checks that a DataFrame has tagged payloads, and attaches the states before and after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType

from pgoutput_fast.base.arguments import kind_of
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.parallel_tag.survey import RangeSurvey
from pgoutput_fast.protocol.kinds import OUTCOME_ROWS, REJECTED, UNKNOWN_OUTCOME
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.spark.shipping import parts_of, shipped
from pgoutput_fast.spark.tasks.dump import FileRows, ReadDump
from pgoutput_fast.spark.tasks.parts import Parts
from pgoutput_fast.spark.tasks.range_outcomes import RangeOutcomes
from pgoutput_fast.spark.tasks.survey import SURVEY_SCHEMA, Survey, Surveyor, SurveyTags
from pgoutput_fast.spark.tasks.tag import OTHER_COLUMNS, Start, TagRanges, TagThen
from pgoutput_fast.spark.types import spark_schema
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = [
    "DumpRows",
    "Ends",
    "FrameRows",
    "RangesOfTask",
    "Rows",
    "Untagged",
    "ends_of",
    "expect_dataframe",
    "expect_tagged",
    "has_rejected",
    "may_have_rejected",
    "state_after",
    "untagged_of",
    "with_ends",
]

# An attribute of a DataFrame. DataFrames derived from it have other rows, so they do not inherit the attribute.
_ENDS = "_pgoutput_fast_ends"


@dataclass
class RangesOfTask:
    """Consecutive ranges.

    Attributes:
        first, end: the number of the first one, and of the one after the last.
        nbytes: their size in bytes, before compression.
    """

    first: int
    end: int
    nbytes: int = 0


class Rows(Protocol):
    """Untagged rows, in ranges, that tasks get."""

    def mapped(self, task: Callable[..., Any], schema: StructType) -> DataFrame:
        """The result of a task for the rows."""

    def joined(self, first: int, most: int, least_bytes: float) -> tuple[Rows, list[RangesOfTask]]:
        """The rows of some ranges. Each task gets consecutive ones, in stream order; the list names them.

        If the sizes of the ranges are not known, one task gets all rows, and the list is empty.

        Args:
            first: the number of the first range.
            most: the largest number of tasks.
            least_bytes: a task gets at least so many.
        """

    def shared(self, parts: Iterable[bytes]) -> Parts:
        """Bytes for such tasks."""


@dataclass(frozen=True)
class FrameRows:
    """The rows of a DataFrame, which the JVM sends to the tasks."""

    frame: DataFrame

    def mapped(self, task: Callable[..., Any], schema: StructType) -> DataFrame:
        """As in Rows."""
        return self.frame.mapInArrow(shipped(task), schema)

    def joined(self, first: int, most: int, least_bytes: float) -> tuple[FrameRows, list[RangesOfTask]]:
        """As in Rows. Spark sorts them, on disk if they do not fit into memory."""
        order = [name for name in self.frame.columns if name not in OTHER_COLUMNS]
        return FrameRows(self.frame.repartition(1).sortWithinPartitions(*order)), []

    def shared(self, parts: Iterable[bytes]) -> Parts:
        """As in Rows."""
        return parts_of(self.frame.sparkSession, parts)


@dataclass(frozen=True)
class DumpRows:
    """The rows of Parquet files, which the tasks read themselves. The attributes are those of ReadDump."""

    spark: SparkSession
    ranges: tuple[tuple[FileRows, ...], ...]
    columns: tuple[tuple[str, str], ...]
    numbered: bool = False

    def mapped(self, task: Callable[..., Any], schema: StructType) -> DataFrame:
        """As in Rows."""
        numbers = self.spark.range(0, len(self.ranges), 1, len(self.ranges))
        job = ReadDump(task, self.ranges, self.columns, self.numbered)
        return numbers.mapInArrow(shipped(job), schema)

    def joined(self, first: int, most: int, least_bytes: float) -> tuple[DumpRows, list[RangesOfTask]]:
        """As in Rows."""
        ranges: list[tuple[FileRows, ...]] = []
        tasks: list[RangesOfTask] = []
        for number, some in enumerate(self.ranges[first:], first):
            if not tasks or tasks[-1].nbytes >= least_bytes:
                if len(tasks) == most:
                    break
                ranges.append(())
                tasks.append(RangesOfTask(number, number))
            ranges[-1] += some
            tasks[-1].end = number + 1
            tasks[-1].nbytes += sum(each.nbytes for each in some)
        return replace(self, ranges=tuple(ranges)), tasks

    def shared(self, parts: Iterable[bytes]) -> Parts:
        """As in Rows."""
        return parts_of(self.spark, parts)


@dataclass(frozen=True)
class Untagged:
    """The payloads before `tag` has tagged them. A task that tags them itself needs no tagged payloads from the JVM.

    Attributes:
        payloads: the rows that `tag` tags.
        headers: the same rows without the tuples of changes, enough to tag them.
        task: tags the rows of both.
        ranges: the starts of all ranges, in stream order.
        commits: whether the surveys have the outcomes of all transactions.
        surveys: first row of a range -> its RangeSurvey, as bytes, from the first pass; empty in quarantine.
        checked: in quarantine, the survey of all ranges, from the pass that checked them.
    """

    payloads: Rows
    headers: Rows
    task: TagRanges
    ranges: Sequence[Start]
    commits: bool
    surveys: Mapping[str, bytes]
    checked: Survey | None = None

    def decoded(self, then: Callable[..., Any], schema: StructType, **chosen: Any) -> DataFrame:
        """Runs a task on the tagged payloads. Each payload crosses into Python once, and none goes back.

        Args:
            then: the task.
            schema: the schema of its result.
            chosen: the payloads that it gets: `kinds`, `relations` and `others` of TagThen.
        """
        return self.payloads.mapped(TagThen(self.task, then, **chosen), schema)

    def outcomes(self, then: Callable[..., Any], schema: StructType) -> DataFrame:
        """The result of a task for the messages that end transactions."""
        return self.headers.mapped(TagThen(self.task, then, kinds=OUTCOME_ROWS), schema)

    @property
    def survey(self) -> Survey:
        """What a decoding needs to know of all payloads; it may lack the outcomes. Runs no job."""
        return self.full_survey if "full_survey" in vars(self) or self.commits else self._bare_survey

    @cached_property
    def full_survey(self) -> Survey:
        """The survey with the outcomes of transactions: some 40 bytes each in the driver. May run a job."""
        if self.commits:
            return self._known(outcomes=True)
        task = TagThen(self.task, SurveyTags())
        rows = self.headers.mapped(task, spark_schema(SURVEY_SCHEMA)).toArrow()
        return Survey.joined(map(Survey.of_row, rows.to_pylist()))

    @cached_property
    def range_outcomes(self) -> RangeOutcomes:
        """The outcomes for a task of `decoded`: it gets those of the transactions that have rows in its ranges."""
        return RangeOutcomes.of(self.full_survey.outcomes, self.ranges, self.payloads.shared)

    @cached_property
    def _bare_survey(self) -> Survey:
        return self._known(outcomes=False)

    def _known(self, *, outcomes: bool) -> Survey:
        return Survey.joined(self._completed(outcomes=outcomes)) if self.checked is None else self.checked

    def _completed(self, *, outcomes: bool) -> Iterator[Survey]:
        """The surveys of the first pass, completed from the states at the starts of their ranges."""
        catalog = Catalog.from_json(self.task.starts.catalog)
        for start in self.ranges:
            state, known = start.state_of(catalog), RangeSurvey.from_bytes(self.surveys[start.first])
            assert state is not None
            messages, committed = known.tagged_after(state)
            surveyor = Surveyor(outcomes=outcomes)
            for batch in messages:
                surveyor.add(batch)
            survey = surveyor.survey()
            yield Survey(
                survey.descriptions,
                frozenset(known.relations_after(state)),
                TransactionOutcomes.joined([survey.outcomes, committed]),
            )


@dataclass(frozen=True)
class Ends:
    """The stream at both ends of a DataFrame of tagged payloads.

    Attributes:
        before: the state before the first payload.
        after: the state after the last payload.
        first, last: the order columns of the first and the last payload; empty without payloads.
        untagged: the payloads before they were tagged.
        rejected: whether some of them were rejected.
    """

    before: StreamState
    after: StreamState
    first: tuple[Any, ...] = ()
    last: tuple[Any, ...] = ()
    untagged: Untagged | None = None
    rejected: bool = False


def with_ends(tagged: DataFrame, ends: Ends) -> DataFrame:
    """Attaches its ends to the DataFrame, and returns it."""
    setattr(tagged, _ENDS, ends)
    return tagged


def ends_of(tagged: DataFrame) -> Ends | None:
    """Returns the ends of a DataFrame that `tag` returned; None for any other."""
    found = vars(tagged).get(_ENDS)
    return found if isinstance(found, Ends) else None


def untagged_of(tagged: DataFrame) -> Untagged | None:
    """Returns the untagged payloads of a DataFrame that `tag` returned; None for any other, and for a cached one."""
    ends = ends_of(tagged)
    level = tagged.storageLevel if ends is not None else None
    return None if ends is None or level is None or level.useMemory or level.useDisk else ends.untagged


def may_have_rejected(tagged: DataFrame) -> bool:
    """Whether tagged payloads may have rows of rejected messages. Runs no job."""
    ends = ends_of(tagged)
    return ends is None or ends.rejected


def has_rejected(tagged: DataFrame) -> bool:
    """Whether tagged payloads have rows of rejected messages, or of unknown outcomes.

    Runs a job, unless `tag` returned this DataFrame.
    """
    ends = ends_of(tagged)
    if ends is not None:
        return ends.rejected
    return bool(tagged.where(F.col("kind").isin(REJECTED, UNKNOWN_OUTCOME)).limit(1).collect())


def state_after(tagged: DataFrame) -> StreamState:
    """Returns the state of the stream after tagged payloads. The next call of `tag` continues with it.

    `tag` has computed it, so this runs no Spark job. Use or write the rows before you store the state, because errors
    in changes appear only then.

    `state_after(tagged).to_json()` is text that you can store beside the rows; `tag(..., state=text)` accepts it. Its
    size grows with the number of relations and open transactions: some hundred bytes per relation.

    Args:
        tagged: the DataFrame returned by `tag`, not one derived from it.

    Raises:
        ValueError: for any other DataFrame.

    Example:
        first = pgspark.tag(monday, order_by="offset")
        first.write.parquet("tagged/monday")
        Path("state.json").write_text(pgspark.state_after(first).to_json())

        then = pgspark.tag(tuesday, order_by="offset", state=Path("state.json").read_text())
    """
    ends = ends_of(tagged)
    if ends is None:
        raise ValueError(
            "the state after this DataFrame is not known: pass the DataFrame that pgspark.tag(...) returned itself, "
            "before any where, select or read"
        )
    return ends.after


def expect_dataframe(wal: object) -> None:
    """Checks that an argument is a DataFrame, of either kind of session.

    Raises:
        TypeError: if it is not; the message says how to read segments.
    """
    if not isinstance(wal, DataFrame):
        raise TypeError(
            f"this takes a DataFrame of payloads, not {kind_of(wal)}: read segments with spark.read.parquet(...), or "
            'their changes with spark.read.format("pgoutput").load(...)'
        )


def expect_tagged(wal: DataFrame, names: Sequence[str] = TAGGED_SCHEMA.names) -> None:
    """Checks that a DataFrame has these columns of tagged payloads.

    Raises:
        TypeError: if it is not a DataFrame, or if its payloads are not bytes.
        ValueError: if it lacks one; the message says how to tag it.
    """
    expect_dataframe(wal)
    there = {name.lower() for name in wal.columns}
    missing = [name for name in names if name not in there]
    if not missing:
        kind = next((field.dataType for field in wal.schema if field.name.lower() == "payload"), BinaryType())
        if not isinstance(kind, BinaryType):
            raise TypeError(
                f"column payload must be binary, not {kind.simpleString()}: payloads are bytes, so read them without "
                "spark.sql.parquet.binaryAsString"
            )
        return
    binary = [field.name for field in wal.schema if isinstance(field.dataType, BinaryType)]
    payload = "payload" if "payload" in binary or not binary else binary[0]
    more = f", payload={payload!r}" if payload != "payload" else ""
    raise ValueError(
        f"these payloads are not tagged: there is no column {', '.join(missing)}; there is {', '.join(wal.columns)}. "
        f"Tag them with pgspark.tag(df, order_by=...{more}), and pass the result. order_by is the column, or the "
        "columns, that give the order in which the payloads arrived"
    )
