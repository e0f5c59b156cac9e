"""The tasks of `format("pgoutput")`, batch and stream: row groups of a segment -> record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.segments.planner import ReadSpec
from pgoutput_fast.spark.shipping import Shipped
from pgoutput_fast.spark.source.plan import SourcePlan, TablePlan, arrow_schema
from pgoutput_fast.spark.tasks.rows import changes_of, rows_of_relations

__all__ = ["RowsPartition", "RowsReader"]


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

    def rows_of(self, partition: RowsPartition) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a partition, with one row group in memory at a time."""
        tables = self._plan.tables if partition.tables is None else partition.tables
        outcomes = partition.spec.outcomes
        for rows in changes_of(partition.spec):
            released = rows if outcomes is None else outcomes.released(rows)
            for table in tables:
                for batch in rows_of_relations(released, table.oids, table.others).to_batches():
                    yield from map(self._finished(table), table.decode(iter([batch])))

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
