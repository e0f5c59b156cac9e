"""The tasks of `format("pgoutput")`, batch and stream: row groups of a segment -> record batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.segments.segment import RowGroup, Segment
from pgoutput_fast.spark.shipping import Shipped
from pgoutput_fast.spark.source.plan import SourcePlan, TablePlan, arrow_schema
from pgoutput_fast.spark.tasks.rows import (
    Bounds,
    chosen_rows,
    pack_batch,
    rows_of_relations,
    rows_of_segment,
    unpack_batch,
)

__all__ = [
    "ManyRows",
    "Piece",
    "RowsReader",
    "SegmentRows",
    "cut",
    "groups_with",
    "join_small",
    "may_end",
    "may_have",
    "ranges",
    "relevant_outcomes",
    "rollbacks",
]

# Small pieces are joined up to this size, in bytes of the file, or up to the total size divided by this number of tasks
# if that is more.
_TASK_BYTES, _TASKS = 1 << 20, 64


@dataclass
class SegmentRows:
    """Row groups of one segment.

    Attributes:
        path: path of the segment.
        row_groups: numbers of the row groups.
        bounds: ranges of tagged columns; empty for all rows.
    """

    path: str
    row_groups: tuple[int, ...]
    bounds: Bounds = field(default_factory=dict)


@dataclass
class ManyRows(InputPartition):
    """A partition: row groups of one segment, or of several small ones.

    Attributes:
        pieces: the row groups of each segment.
        outcomes: outcomes of their transactions, if only committed rows are requested, otherwise None.
        tables: the tables that decode them, if they differ from the plan's, otherwise None.
    """

    pieces: tuple[SegmentRows, ...]
    outcomes: pa.RecordBatch | None = None
    tables: tuple[TablePlan, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Segments of small transactions have many outcomes. They are sent to each task, and they compress well.
        return {**self.__dict__, "outcomes": None if self.outcomes is None else pack_batch(self.outcomes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state["outcomes"]
        self.__dict__.update(state, outcomes=None if packed is None else unpack_batch(packed))


# A segment, and which of its rows to read.
Piece = tuple[Segment, SegmentRows]


class RowsReader(Shipped):
    """Reads the rows of a plan.

    Args:
        plan: the plan.
        schema: the schema that Spark expects.
    """

    def __init__(self, plan: SourcePlan, schema: StructType) -> None:
        self._plan = plan
        self._target = arrow_schema(schema)

    def rows_of(self, partition: ManyRows) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a partition, with one row group in memory at a time."""
        tables = self._plan.tables if partition.tables is None else partition.tables
        for piece in partition.pieces:
            for rows in rows_of_segment(piece.path, piece.row_groups):
                rows = chosen_rows(rows, piece.bounds, partition.outcomes)
                for table in tables:
                    for batch in rows_of_relations(rows, table.oids, table.others).to_batches():
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


def ranges(
    segment: Segment, oids: Sequence[int], most_bytes: int, txns: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Returns the row groups that may contain rows of these relations, in groups of limited size.

    Args:
        segment: the segment.
        oids: oids of the relations.
        most_bytes: size limit of a group, in bytes of the file.
        txns: transactions, ascending; limits the result to row groups that may contain their rows. Default: all.
    """
    return cut(segment, groups_with(segment, oids, txns), most_bytes)


def groups_with(segment: Segment, oids: Sequence[int], txns: Sequence[int] | None = None) -> list[int]:
    """Returns the row groups that may contain rows of these relations, and of these transactions (ascending)."""
    found = segment.row_groups_of(oids)
    return found if txns is None else [k for k in found if may_have(segment.row_groups[k], txns)]


def cut(segment: Segment, row_groups: Iterable[int], most_bytes: int) -> list[tuple[int, ...]]:
    """Divides row groups into groups of limited size."""
    groups: list[list[int]] = []
    size = 0
    for k in row_groups:
        nbytes = segment.row_groups[k].nbytes
        if not groups or size + nbytes > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(k)
        size += nbytes
    return [tuple(each) for each in groups]


def may_have(group: RowGroup, txns: Sequence[int]) -> bool:
    """Whether a row group may contain a row of one of these transactions. `txns` is ascending."""
    if group.txns is None:
        return True
    first, last = group.txns
    at = bisect_left(txns, first)
    return at < len(txns) and txns[at] <= last


def may_end(segment: Segment, txns: Sequence[int]) -> bool:
    """Whether the segment may contain an outcome of these transactions. `txns` is ascending."""
    return any(group.bare and may_have(group, txns) for group in segment.row_groups)


def rollbacks(outcomes: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rollbacks of subtransactions."""
    return outcomes.filter(pc.is_valid(outcomes.column("subxid")))


def join_small(pieces: Sequence[Piece], most_bytes: int) -> list[list[Piece]]:
    """Joins small pieces to reduce the number of tasks: segments of a live capture have only some kilobytes each.

    Args:
        pieces: consecutive pieces.
        most_bytes: size limit of a task, in bytes of the file.
    """
    sizes = [sum(segment.row_groups[k].nbytes for k in rows.row_groups) for segment, rows in pieces]
    enough = min(most_bytes, max(_TASK_BYTES, sum(sizes) // _TASKS))
    joined: list[list[Piece]] = []
    taken = enough
    for piece, size in zip(pieces, sizes, strict=True):
        if taken + size > enough:
            joined.append([])
            taken = 0
        joined[-1].append(piece)
        taken += size
    return joined


def relevant_outcomes(
    pieces: Sequence[tuple[Segment, Sequence[int]]], outcomes: pa.RecordBatch
) -> pa.RecordBatch:
    """Returns only the outcomes that can affect rows of the row groups, to send fewer of them to a task.

    Args:
        pieces: segments with numbers of row groups.
        outcomes: all outcomes.
    """
    found = [segment.row_groups[k].txns for segment, taken in pieces for k in taken]
    known = [txns for txns in found if txns is not None]
    if len(known) < len(found):
        return outcomes
    first, last = min(each[0] for each in known), max(each[1] for each in known)
    ended = outcomes.column("txn").fill_null(-1).to_numpy()
    return outcomes.filter(pa.array((ended >= first) & (ended <= last)))
