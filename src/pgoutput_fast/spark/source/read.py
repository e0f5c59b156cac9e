"""The tasks of `format("pgoutput")`, batch and stream: row groups of a segment -> record batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.segments.planner import ReadSpec, Span, bytes_per_partition, plan_read
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.spark.shipping import Shipped
from pgoutput_fast.spark.source.plan import SourcePlan, TablePlan, arrow_schema
from pgoutput_fast.spark.tasks.rows import changes_of, rows_among, rows_of_relations
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["RowsPartition", "RowsReader"]

# The outcomes of transactions have these columns.
_OF_COMMITS = ("commit_lsn", "commit_timestamp")


@dataclass
class RowsPartition(InputPartition):
    """A partition.

    Attributes:
        spec: what its task reads.
        tables: the tables that decode the rows, if they differ from the plan's, otherwise None.
    """

    spec: ReadSpec
    tables: tuple[TablePlan, ...] | None = None


class RowsReader(Shipped):
    """Reads the rows of a plan.

    Args:
        plan: the plan.
        schema: the schema that Spark expects.
    """

    def __init__(self, plan: SourcePlan, schema: StructType) -> None:
        self._plan = plan
        self._target = arrow_schema(schema)

    def specs_of(
        self,
        segments: Sequence[Segment],
        span: Span,
        oids: Collection[int],
        outcomes: TransactionOutcomes | None,
    ) -> list[ReadSpec]:
        """Plans the tasks that read some relations, as `plan_read`."""
        bounds = self._plan.where.bounds
        if outcomes is not None:
            # Rows get these values when they are released.
            commits = {name: limits for name, limits in bounds.items() if name in _OF_COMMITS}
            bounds = {name: limits for name, limits in bounds.items() if name not in _OF_COMMITS}
            outcomes = outcomes.commits_within(commits) if commits else outcomes
        sizes = bytes_per_partition(self._plan.partition_bytes)
        relations = dict.fromkeys(oids, 0)
        return plan_read(segments, span, relations, outcomes, bounds, sizes, self._plan.on_error)

    def rows_of(self, partition: RowsPartition) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a partition, with one row group in memory at a time."""
        tables = self._plan.tables if partition.tables is None else partition.tables
        outcomes = partition.spec.outcomes
        for rows in changes_of(partition.spec):
            released = rows if outcomes is None else outcomes.released(rows)
            released = rows_among(released, self._plan.where.members)
            for table in tables:
                for batch in rows_of_relations(released, table.oids, table.others).to_batches():
                    decoded: Iterator[pa.RecordBatch] = map(self._filtered, table.decode(iter([batch])))
                    if self._plan.upserts is not None:
                        decoded = self._plan.upserts(decoded)
                    yield from map(self._finished(table), decoded)

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leaves out the one image of updates if only the other one is requested."""
        if self._plan.where.change_types is None:
            return batch
        types = batch.column(f"{self._plan.prefix}change_type")
        return batch.filter(pc.is_in(types, pa.array(self._plan.where.change_types, types.type)))

    def _finished(self, table: TablePlan) -> Any:
        """Returns the function that converts a table's decoded rows to rows of the source."""
        metadata = metadata_names(self._plan.prefix)

        def finished(batch: pa.RecordBatch) -> pa.RecordBatch:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            if self._plan.several:
                names = batch.schema.names
                count = sum(name in metadata for name in names)
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
