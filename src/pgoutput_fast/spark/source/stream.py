"""Streaming reads of `format("pgoutput")`: offsets, batches and their limits. `stream_plan.py` lists the options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.segments.listing import catalog_of
from pgoutput_fast.segments.names import Named
from pgoutput_fast.segments.planner import Span, bytes_per_partition, outcomes_of_span, plan_read
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.segments.tail import SegmentsGoneError, SegmentStream
from pgoutput_fast.spark.source.plan import TablePlan
from pgoutput_fast.spark.source.read import RowsPartition, RowsReader
from pgoutput_fast.spark.source.stream_plan import StreamPlan, new_versions, plan_with_versions

if TYPE_CHECKING:
    from pgoutput_fast.spark.source.stream_capture import OwnCapture

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the class of Spark 4.2. Older versions do not use it."""

    NEW_SOURCES = False
else:
    NEW_SOURCES = True

__all__ = ["NEW_SOURCES", "StreamReader", "SupportsTriggerAvailableNow"]


class StreamReader(RowsReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the segments that a capture writes.

    An offset is `{"seq": n, "began": m}`: Spark has read the messages before ordinal n, and the query began at m. If a
    query is killed in its first batch, Spark asks for its beginning again, and `latest` has moved by then. So the end
    of that batch records the beginning. Before 4.2, Spark asks a new query for the end of its first batch before its
    beginning: that offset has `first` in place of `began`. A resumed query is first told its position. The offsets of
    earlier versions of this package have neither.

    Args:
        plan: the plan.
        schema: the schema that Spark expects.
    """

    def __init__(self, plan: StreamPlan, schema: StructType) -> None:
        super().__init__(plan.source, schema)
        self._resolved = plan
        self._segments = SegmentStream(plan.directory)
        self._new_tables: tuple[Any, tuple[TablePlan, ...]] | None = None
        # _at: Spark's position, for Spark versions that do not pass it. _until: the limit of an AvailableNow query.
        self._at: dict[str, Any] | None = None
        self._began: int | None = None
        self._until: int | None = None
        self._capture: OwnCapture | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need only these.
        return {"_plan": self._plan, "_target": self._target}

    # ---- positions -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns where a query without a checkpoint begins."""
        self._keep_capturing()
        self._segments.listed(fresh=True)
        began = self._beginning()
        self._at, self._began = {"seq": began, "began": began}, began
        self._hold(began)
        return self._at

    def _beginning(self) -> int:
        begin, end = self._segments.begin(), self._segments.end()
        starting = self._resolved.starting
        if starting == "earliest":
            return begin
        if starting == "latest":
            return end
        if begin <= int(starting) <= end:
            return int(starting)
        raise ValueError(
            f"option starting is {starting}, but the segments have messages {begin} to {end - 1}"
        )

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next batch."""
        self._keep_capturing()
        at = self._at if start is None else start
        self._learn(at)
        end = self._segments.end() if self._until is None else self._until
        if at is None:  # a new query, before Spark 4.2
            return {"seq": end, "first": self._candidate()}
        self._at = at
        if self._segments.end() < at["seq"]:
            self._segments.listed(fresh=True)
            if self._segments.end() < at["seq"]:
                raise ValueError(
                    f"the query has taken messages up to {at['seq'] - 1}, but the segments end at "
                    f"{self._segments.end() - 1}: these are not the segments that the query began with"
                )
        seq = self._limited(at["seq"], end, limit)
        # Spark compares offsets as text: without new messages the offset must stay the same.
        return at if seq <= at["seq"] else self._offset(seq)

    def _candidate(self) -> int | None:
        """Where the query begins; None for an invalid option, reported when Spark asks for the beginning."""
        try:
            return self._beginning()
        except ValueError:
            return None

    def _offset(self, seq: int) -> dict[str, Any]:
        return {"seq": seq} if self._began is None else {"seq": seq, "began": self._began}

    def _learn(self, offset: dict[str, Any] | None) -> None:
        if offset is not None and (began := offset.get("began", offset.get("first"))) is not None:
            self._began = began

    def _taken(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[int, int]:
        """The ordinals of the first message of a batch, and of the one after its last one."""
        self._at = end
        self._learn(start)
        if start["seq"] != start.get("began"):
            return start["seq"], end["seq"]
        # The query's first batch, possibly repeated.
        known = end.get("began", end.get("first"))
        self._began = min(start["seq"], end["seq"]) if known is None else known
        return start["seq"] if known is None else known, end["seq"]

    def _limited(self, start: int, end: int, limit: Any) -> int:
        """Returns the end of a batch that begins at `start`: at most `end`, and at least one segment."""
        segments = nbytes = None
        if limit is None or type(limit).__name__ not in ("ReadAllAvailable", "ReadMaxFiles", "ReadMaxBytes"):
            segments, nbytes = self._resolved.max_segments, self._resolved.max_bytes
        elif type(limit).__name__ == "ReadMaxFiles":
            # Spark accepts only one limit, so the other one is applied here.
            segments, nbytes = limit.max_files, self._resolved.max_bytes
        elif type(limit).__name__ == "ReadMaxBytes":
            segments, nbytes = None, limit.max_bytes
        if start >= end or (segments is None and nbytes is None):
            return end
        at, size = start, 0
        # A backlog may have very many segments, so this reads only the footers that a batch needs.
        found: Iterable[Named | Segment] = (
            self._segments.between(start, end) if nbytes is None else self._segments.each_footer(start, end)
        )
        for count, named in enumerate(found):
            if isinstance(named, Segment):
                size += sum(group.nbytes for group in named.row_groups)
            full = (segments is not None and count >= segments) or (nbytes is not None and size > nbytes)
            if count and full:
                break
            at = named.last_seq + 1
        return min(at, end)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Returns the batch limit set by the options."""
        if self._resolved.max_segments is not None:
            return ReadMaxFiles(self._resolved.max_segments)
        if self._resolved.max_bytes is not None:
            return ReadMaxBytes(self._resolved.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns the position of the capture, for the query's progress."""
        return {"seq": self._segments.end()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Sets the end of the query: all messages that exist now.

        If the query captures, this includes everything that the server has now.
        """
        capture = self._own_capture()
        if capture is not None:
            capture.catch_up()
        self._segments.listed(fresh=True)
        self._until = self._segments.end()

    def _own_capture(self) -> OwnCapture | None:
        if self._capture is None and "dsn" in self._resolved.given:
            from pgoutput_fast.spark.source.stream_capture import OwnCapture

            self._capture = OwnCapture(self._resolved.given)
        return self._capture

    def _keep_capturing(self) -> None:
        capture = self._own_capture()
        if capture is not None and self._until is None:
            capture.keep()

    # ---- batches -------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the rows between two positions. Segments added or removed later do not change the result."""
        begin, stop = self._taken(start, end)
        if begin >= stop:
            return []
        plan, span = self._plan, Span(begin, stop - 1)
        inside = self._segments.footers(begin, stop)
        earlier: Sequence[Segment] = []
        outcomes = None
        if plan.committed:
            earlier, outcomes = outcomes_of_span(inside, span, self._segments.outcomes, self._earlier)
        # A segment does not repeat all descriptions of older segments, and the range may contain rows of these.
        segments = [*earlier, *inside]
        tables = self._tables(segments)
        oids = {oid for table in tables or plan.tables for oid in table.oids}
        task_bytes = bytes_per_partition(plan.partition_bytes)
        relations = dict.fromkeys(oids, 0)
        specs = plan_read(segments, span, relations, outcomes, {}, task_bytes, plan.on_error)
        return [RowsPartition(spec, tables) for spec in specs]

    def _earlier(self, start: int, end: int) -> list[Segment]:
        try:
            return self._segments.footers(start, end)
        except SegmentsGoneError as problem:
            raise SegmentsGoneError(
                f"{problem}. The query needs them: a transaction that began at message {start} commits only now"
            ) from None

    def _tables(self, segments: Sequence[Segment]) -> tuple[TablePlan, ...] | None:
        """Returns new plans of the tables if relation versions appeared after the query was planned, otherwise None."""
        wanted = self._resolved.given.get("slot")
        other = next((each.source.slot for each in segments if wanted not in (None, each.source.slot)), None)
        if other is not None:
            raise ValueError(
                f"the directory has segments of slot {other}, not of slot {wanted}: use another directory"
            )
        found = catalog_of(segments)
        new = new_versions(self._resolved, found)
        if not new:
            return None
        came = f"{', '.join(new)}: the relation has a newer version than the query was planned with"
        if self._resolved.mode == "latest":
            raise ValueError(
                f"{came} (catalog {self._plan.tables[0].decode.fingerprint}). Restart the query to continue with the "
                "new schema, or set a schema with schema(...)"
            )
        known = tuple(relation.version for relation in found.relations)
        if self._new_tables is None or self._new_tables[0] != known:
            try:
                self._new_tables = known, plan_with_versions(self._resolved, found)
            except ValueError as problem:
                raise ValueError(
                    f"{came}, and it does not fit into the query's schema: {problem}. Restart the query with a schema "
                    "that it fits into"
                ) from None
        return self._new_tables[1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a partition, with one row group in memory at a time."""
        assert isinstance(partition, RowsPartition)
        return self.rows_of(partition)

    def _hold(self, begin: int) -> None:
        """Tells retention that the messages from `begin` on are needed.

        The consumer's position does not advance: if the query was killed in its first batch, Spark reads that again.
        """
        if self._resolved.consumer is not None:
            from pgoutput_fast.capture.retention import Consumers

            consumers, before = Consumers(self._resolved.directory), None
            with suppress(
                ValueError
            ):  # a file of another consumer is damaged: then retention removes nothing
                before = consumers.positions().get(self._resolved.consumer)
            if before is None or before > begin - 1:
                consumers.set(self._resolved.consumer, begin - 1)

    def commit(self, end: dict[str, Any]) -> None:
        """Tells retention that Spark will not read the messages before `end` again."""
        if self._resolved.consumer is not None:
            from pgoutput_fast.capture.retention import Consumers

            Consumers(self._resolved.directory).set(self._resolved.consumer, end["seq"] - 1)

    def stop(self) -> None:
        """Stops the query's own capture when the query ends."""
        if self._capture is not None:
            self._capture.stop()
