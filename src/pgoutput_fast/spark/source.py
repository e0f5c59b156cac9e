"""The batch side of `format("pgoutput")`: executors read segments and decode in place. Options: `source_plan`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.schema import TAGGED_SCHEMA, metadata_fields
from pgoutput_fast.segment_paths import open_file
from pgoutput_fast.segments import Segment, list_segments, segment_outcomes
from pgoutput_fast.spark.source_plan import SourcePlan, TablePlan, arrow_schema

__all__ = ["SegmentReader", "SegmentRows", "make_reader"]

# The part of Spark that hands filters over.
_PUSHES = "pyspark.sql.worker.data_source_pushdown_filters"
# Tagged columns on which changes can be told apart before they are decoded.
_PUSHED = ("seq", "lsn", "txn", "xid")


@dataclass
class SegmentRows(InputPartition):
    """Row groups of one segment.

    Attributes:
        path: the segment.
        row_groups: which.
        outcomes: what became of their transactions, if only committed ones are wanted.
    """

    path: str
    row_groups: tuple[int, ...]
    outcomes: pa.RecordBatch | None = None


class SegmentReader(DataSourceReader):
    """Reads what was planned.

    Args:
        plan: what was planned.
        schema: as Spark wants it.
    """

    def __init__(self, plan: SourcePlan, schema: StructType) -> None:
        self._plan = plan
        self._target = arrow_schema(schema)
        self.bounds: dict[str, tuple[int, int]] = {}

    def partitions(self) -> Sequence[InputPartition]:
        """A partition per range of row groups that can hold rows of the tables."""
        plan = self._plan
        outcomes = segment_outcomes(plan.paths) if plan.committed else None
        found: list[InputPartition] = []
        for segment in list_segments(plan.paths):
            first, last = self.bounds.get("seq", (segment.first_seq, segment.last_seq))
            if last < segment.first_seq or first > segment.last_seq:
                continue
            for taken in _ranges(segment, plan.oids, plan.partition_bytes):
                fates = _fates_of(segment, taken, outcomes) if outcomes is not None else None
                found.append(SegmentRows(str(segment.path), taken, fates))
        return found or [SegmentRows("", ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of a partition; one row group is in memory at a time."""
        assert isinstance(partition, SegmentRows)
        if not partition.row_groups:
            return
        with pq.ParquetFile(open_file(partition.path)) as file:
            for k in partition.row_groups:
                rows = file.read_row_group(k, columns=TAGGED_SCHEMA.names).cast(TAGGED_SCHEMA)
                rows = self._chosen(rows, partition.outcomes)
                for table in self._plan.tables:
                    for batch in self._of(table, rows).to_batches():
                        yield from map(self._finished(table), table.decode(iter([batch])))

    def _chosen(self, rows: pa.Table, outcomes: pa.RecordBatch | None) -> pa.Table:
        """The changes that the filters that were pushed leave, and that are committed."""
        kept = np.isin(rows.column("kind").to_numpy(), list(b"IUDT"))
        for name, (first, last) in self.bounds.items():
            values = rows.column(name)
            numbers = values.fill_null(0).to_numpy()
            kept &= (numbers >= first) & (numbers <= last) & values.is_valid().to_numpy()
        rows = _where(rows, kept)
        if outcomes is None:
            return rows
        from pgoutput_fast.transactions import CommittedView

        batches = [CommittedView.released(batch, outcomes) for batch in rows.to_batches()]
        return pa.Table.from_batches(batches, TAGGED_SCHEMA)

    def _of(self, table: TablePlan, rows: pa.Table) -> pa.Table:
        ours = np.isin(rows.column("relation").fill_null(-1).to_numpy(), table.oids)
        if table.others:
            ours &= ~np.isin(rows.column("version").fill_null(0).to_numpy(), table.others)
        return _where(rows, ours)

    def _finished(self, table: TablePlan) -> Any:
        """What makes a table's decoded rows those of the source."""
        count = len(metadata_fields(self._plan.prefix))

        def finished(batch: pa.RecordBatch) -> pa.RecordBatch:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            if self._plan.several:
                names = batch.schema.names
                columns = {name: columns[name] for name in names[:count]}
                columns[f"{self._plan.prefix}relation"] = pa.repeat(pa.scalar(table.name), batch.num_rows)
                columns[table.name] = pa.StructArray.from_arrays(batch.columns[count:], names=names[count:])
            return pa.RecordBatch.from_arrays(
                [
                    columns[field.name].cast(field.type)
                    if field.name in columns
                    else pa.nulls(batch.num_rows, field.type)
                    for field in self._target
                ],
                schema=self._target,
            )

        return finished


def _where(rows: pa.Table, kept: np.ndarray[Any, Any]) -> pa.Table:
    """Mostly all rows are wanted, for row groups are cut at relations: then nothing is copied."""
    return rows if bool(kept.all()) else rows.filter(pa.array(kept))


def _ranges(segment: Segment, oids: Sequence[int], most_bytes: int) -> list[tuple[int, ...]]:
    """The row groups that can have rows of these relations, cut where they become more than so many bytes."""
    found: list[list[int]] = []
    size = 0
    for k in segment.row_groups_of(oids):
        nbytes = segment.row_groups[k].nbytes
        if not found or size + nbytes > most_bytes:
            found.append([])
            size = 0
        found[-1].append(k)
        size += nbytes
    return [tuple(each) for each in found]


def _fates_of(segment: Segment, row_groups: Sequence[int], outcomes: pa.RecordBatch) -> pa.RecordBatch:
    """Those outcomes that can concern rows of the row groups: so many fates a task need not be sent."""
    with pq.ParquetFile(open_file(str(segment.path))) as file:
        column = TAGGED_SCHEMA.get_field_index("txn")
        found = [file.metadata.row_group(k).column(column).statistics for k in row_groups]
    known = [each for each in found if each is not None and each.has_min_max]
    if len(known) < len(found) or not known:
        return outcomes
    txns = outcomes.column("txn").fill_null(-1).to_numpy()
    first, last = min(each.min for each in known), max(each.max for each in known)
    return outcomes.filter(pa.array((txns >= first) & (txns <= last)))


class PushingReader(SegmentReader):
    """The same, where Spark says which rows it wants. Spark looks at all rows again: here they are only left out."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        names = {self._plan.prefix + name: name for name in _PUSHED}
        for each in filters:
            name = names.get(each.attribute[0]) if len(getattr(each, "attribute", ())) == 1 else None
            found = _range(each)
            if name is not None and found is not None:
                first, last = self.bounds.get(name, found)
                self.bounds[name] = max(first, found[0]), min(last, found[1])
            yield each


def _range(condition: Any) -> tuple[int, int] | None:
    """The numbers that a filter allows, at most; None for one that says nothing of a range."""
    lowest, highest = -(1 << 63), (1 << 63) - 1
    value = getattr(condition, "value", None)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    kind = type(condition).__name__
    if kind in ("EqualTo", "EqualNullSafe"):
        return value, value
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return value, highest
    if kind in ("LessThan", "LessThanOrEqual"):
        return lowest, value
    return None


def make_reader(plan: SourcePlan, schema: StructType) -> SegmentReader:
    """The reader for what Spark is doing.

    A reader with pushFilters makes Spark fail while pushing is off. Where it is called by what pushes, it is on.
    """
    return (PushingReader if _is_pushing() else SegmentReader)(plan, schema)


def _is_pushing() -> bool:
    frame = inspect.currentframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHES:
            return True
        frame = frame.f_back
    return False
