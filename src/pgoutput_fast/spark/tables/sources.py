"""The source of a run: segments, or a DataFrame of tagged payloads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.protocol.kinds import CHANGES
from pgoutput_fast.schema.options import Options, Transactions
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.listing import SegmentList, catalog_of
from pgoutput_fast.segments.planner import ReadSpec, Span, bytes_per_core, outcomes_of_span, plan_read
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.segments.tail import SegmentsGoneError, between, check_whole, first_gap
from pgoutput_fast.spark.dataframes.catalog import read_catalog
from pgoutput_fast.spark.dataframes.outcomes import outcomes as decode_outcomes
from pgoutput_fast.spark.dataframes.tagged import ends_of, expect_tagged, has_rejected, untagged_of
from pgoutput_fast.spark.sessions import cores_of
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.source.stream_files import Emitted
from pgoutput_fast.spark.tables.streams import StreamCheck, stream_at
from pgoutput_fast.spark.tasks.tables import (
    FILES_SCHEMA,
    TablePart,
    WriteSegmentTables,
    WriteTables,
    rejects_of,
)
from pgoutput_fast.spark.types import spark_schema
from pgoutput_fast.spark.workers import check_workers
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.transactions.outcomes import NO_OUTCOMES, TransactionOutcomes

__all__ = ["SegmentSource", "Source", "TaggedSource"]


class Written(NamedTuple):
    """What tasks wrote.

    Attributes:
        files: the files.
        failed: directory -> why the rows of a table could not be written. Its files are left out.
    """

    files: list[WrittenFile]
    failed: dict[str, str]


class SegmentSource:
    """Segments, planned like those of the data source.

    `batch` is the current batch of a query; None for all segments. `last_seq` is the ordinal of the last message to
    write, and `end_seq` that of the last existing one. `stream` is the resulting stream of tables, and `streams` checks
    their previous one. `knows_begun` says whether it knows what was open before its first message, and `rejected`
    whether it has rejected messages.
    """

    knows_begun = True
    rejected = False

    def __init__(
        self,
        listed: SegmentList,
        spark: SparkSession,
        transactions: Transactions,
        catalog: Catalog | None,
        batch: Emitted | None = None,
    ) -> None:
        found, stored = listed.read(lambda segments: (segments, catalog_of(segments)))
        self.catalog = _merged(catalog, stored)
        if not found:
            raise ValueError("the source has no segments")
        self._found, self._listed = found, listed
        self._begun: dict[int, int | None] = {}
        self._spark = spark
        self.transactions = transactions
        self.batch = batch
        self.first_seq = found[0].first_seq
        # A segment may extend beyond the batch, if small segments were joined.
        self.end_seq = found[-1].last_seq
        self.last_seq = self.end_seq if batch is None else batch.last
        self.stream: Stream | None = stream_at(found, self.last_seq)
        self.streams: StreamCheck | None = StreamCheck(found)

    def write(self, task: WriteTables) -> Written:
        specs = self._listed.read(lambda segments: self._specs(segments, task.tables))
        if not specs:
            return Written([], {})
        numbers = self._spark.range(0, len(specs), 1, len(specs))
        check_workers(numbers)
        job = shipped(WriteSegmentTables.of(task, specs))
        return _written(numbers.mapInArrow(job, spark_schema(FILES_SCHEMA)))

    def gap(self, after: int | None, end: int | None = None) -> tuple[int, int] | None:
        """(first, last) ordinal of the first messages after a position that are in no segment; None if all are.

        Ignores messages from `end` on; the default is the end of the run.
        """
        stop = self.last_seq + 1 if end is None else end

        def look() -> tuple[int, int] | None:
            begin = self._found[0].first_seq if after is None else after + 1
            return first_gap(self._found, begin, stop)

        if look() is not None:
            # Another process may have joined segments during the listing, so that it lacks both the parts and the
            # whole.
            self._found = self._listed.segments()
        return look()

    def has_before(self, seq: int, oids: Collection[int]) -> bool:
        """Whether segments may have changes of relations before a message."""
        before = (each for each in self._found if each.first_seq < seq)
        return any(each.row_groups_of(oids) for each in before)

    def changed(self, oids: Collection[int], first: int | None = None) -> Collection[int]:
        """The relations that have changes from a message on up to the last one to write, or slightly beyond them.

        Args:
            oids: the relations.
            first: ordinal of the message, which is in a segment; None: from the first segment on.
        """

        def look(segments: Sequence[Segment]) -> set[int]:
            inside = self._inside(segments, first or 0)
            if first is not None:
                self._expect_whole(inside, first)
            return self._listed.changed(inside, oids)

        return self._listed.read(look)

    def begun_before(self, after: int) -> int | None:
        """Ordinal of the first message of the oldest transaction that is open at a position and commits after it.

        None if there is none.
        """
        if after not in self._begun:
            self._begun[after] = self._listed.read(lambda segments: self._oldest(segments, after))
        return self._begun[after]

    def _oldest(self, segments: Sequence[Segment], after: int) -> int | None:
        inside = self._inside(segments, after + 1)
        self._expect_whole(inside, after + 1)
        return self._listed.outcomes(inside).first_open(after, self.last_seq)

    def _inside(self, segments: Sequence[Segment], first: int) -> list[Segment]:
        return [each for each in segments if each.last_seq >= first and each.first_seq <= self.last_seq]

    def _expect_whole(self, inside: Sequence[Segment], first: int) -> None:
        """Checks that a listing has all messages: while segments are joined, one may lack the parts and the whole.

        Raises:
            SegmentsGoneError: if it has not, so that the directory is listed again.
        """
        gap = first_gap(inside, first, self.last_seq + 1)
        if gap is not None:
            raise SegmentsGoneError(f"the segments lack messages {gap[0]} to {gap[1]}")

    def _specs(self, found: Sequence[Segment], tables: Sequence[TablePart]) -> list[ReadSpec]:
        relations: dict[int, int] = {}
        for table in tables:
            first = 0 if table.after is None else table.after + 1
            relations |= {oid: min(first, relations.get(oid, first)) for oid in table.oids}
        span = Span(min(relations.values()), self.last_seq)
        check_whole(found, None if any(table.after is None for table in tables) else span.first)
        outcomes = None
        if self.transactions == "committed":
            inside = [each for each in found if each.last_seq >= span.first and each.first_seq <= span.last]
            _, outcomes = outcomes_of_span(inside, span, self._listed.outcomes, partial(between, found))
        task_bytes = bytes_per_core(cores_of(self._spark))
        on_error = tables[0].decode.options.on_error
        return plan_read(found, span, relations, outcomes, {}, task_bytes, on_error)


class TaggedSource:
    """A DataFrame of tagged payloads: they are sent to Python once, and only a row per file returns."""

    batch: Emitted | None = None
    # Tagged payloads do not identify their stream.
    stream: Stream | None = None
    streams: StreamCheck | None = None

    def __init__(
        self, wal: DataFrame, options: Options, transactions: Transactions, catalog: Catalog | None
    ) -> None:
        expect_tagged(wal)
        check_workers(wal)
        self._wal = wal
        self._untagged = untagged_of(wal)
        self.knows_begun = ends_of(wal) is not None
        # First: on Spark Connect each query lists the files again. Newer files are left for the next run.
        self.first_seq, self.last_seq = _ends(wal)
        self.rejected = has_rejected(wal)
        self.end_seq = self.last_seq
        self.transactions = transactions
        self._outcomes: TransactionOutcomes | None = None
        if transactions == "committed":
            if self._untagged is not None:
                known = self._untagged.full_survey.outcomes
            else:
                ended = decode_outcomes(wal, options=options).where(f"at_seq <= {self.last_seq}").toArrow()
                known = TransactionOutcomes.of_batch(ended)
            self._outcomes = known if len(known.txns) else None
        # After the outcomes, whose survey has the descriptions, too.
        self.catalog = _merged(catalog, read_catalog(wal, on_error=options.on_error))

    def gap(self, after: int | None) -> tuple[int, int] | None:
        """As for segments. The rows may be a part of a stream, so only the beginning is checked."""
        return None if after is None or after + 1 >= self.first_seq else (after + 1, self.first_seq - 1)

    def changed(self, oids: Collection[int], first: int | None = None) -> Collection[int]:
        """As for segments."""
        if self._untagged is not None:
            return self._untagged.survey.relations.intersection(oids)
        changes = self._wal.where(
            F.col("kind").isin(*CHANGES) & F.col("relation").isin(*oids) & (F.col("seq") >= (first or 0))
        )
        return {row["relation"] for row in changes.select("relation").distinct().collect()}

    def begun_before(self, after: int) -> int | None:
        """As for segments."""
        return None if self._outcomes is None else self._outcomes.first_open(after, self.last_seq)

    def write(self, task: WriteTables) -> Written:
        committed = self.transactions == "committed"
        if committed and self._outcomes is None and not self.rejected:
            return Written([], {})
        if self._untagged is not None:
            job = replace(task, outcomes=self._untagged.range_outcomes if committed else None)
            return _written(self._untagged.decoded(job, spark_schema(FILES_SCHEMA)))
        job = replace(task, outcomes=self._outcomes or NO_OUTCOMES if committed else None)
        rows = self._wal.select(*TAGGED_SCHEMA.names)
        return _written(rows.mapInArrow(shipped(job), spark_schema(FILES_SCHEMA)))


Source = SegmentSource | TaggedSource


def _ends(wal: DataFrame) -> tuple[int, int]:
    """The ordinals of the first and of the last payload."""
    ends = ends_of(wal)
    if ends is not None:
        first, last = ends.before.next_seq, ends.after.next_seq - 1
    else:
        found: Any = wal.selectExpr("min(seq) AS first", "max(seq) AS last").first()
        first, last = (0, -1) if found["last"] is None else (int(found["first"]), int(found["last"]))
    if last < first:
        raise ValueError("the source has no payloads")
    return first, last


def _merged(given: Catalog | None, stored: Catalog) -> Catalog:
    return stored if given is None else given.merged(stored)


def _written(written: DataFrame) -> Written:
    """Runs the job."""
    files, failed = [], dict[str, str]()
    for row in written.toArrow().to_pylist():
        problem = row.pop("problem")
        if problem is None:
            files.append(WrittenFile(**row))
        else:
            failed[row["directory"].removeprefix(rejects_of(""))] = problem
    # Another task may have written files of a table that failed.
    left_out = failed.keys() | {rejects_of(directory) for directory in failed}
    return Written([each for each in files if each.directory not in left_out], failed)
