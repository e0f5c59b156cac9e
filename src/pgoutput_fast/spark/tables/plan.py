"""Plans a run: the tables, and which task reads which row groups of which segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.mirror.tables.partitions import Partitioning, check_partition_columns
from pgoutput_fast.protocol.limits import SPARK_PARTITION_BYTES
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.plain import plain_schema
from pgoutput_fast.schema.resolve import resolve
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.spark.source.read import ranges, relevant_outcomes
from pgoutput_fast.spark.tables.run import Run
from pgoutput_fast.spark.tasks.changes import DecodeChanges
from pgoutput_fast.spark.tasks.rows import pack_batch
from pgoutput_fast.spark.tasks.tables import SegmentPiece, TablePart
from pgoutput_fast.spark.types import spark_arrow_schema
from pgoutput_fast.storage.paths import absolute

__all__ = ["PartitionBy", "partition_columns", "plan_tables", "plan_work"]

# Columns of all tables, or qualified name -> columns.
PartitionBy = Sequence[str] | Mapping[str, Sequence[str]]

# Tasks of each core: so no core waits long for the last one.
_TASKS_PER_CORE = 2


def plan_tables(
    known: Catalog,
    names: Sequence[str] | None,
    options: Options,
    run: Run,
    partition_by: PartitionBy,
    *,
    whole: bool,
    start: int | None,
) -> list[TablePart]:
    """Plans the tables of the catalog, or those with these names.

    Args:
        known: all relation versions.
        names: qualified names, quoted as in SQL. None: all.
        options: how to decode.
        run: its targets say how far their tables go.
        partition_by: the partition columns of all tables, or of some by name.
        whole: whether everything is written, however far the tables go.
        start: the position of a table that has none. None: it gets everything.

    Raises:
        KeyError: if there is no such table.
        ValueError: if the versions of a table fit into no single schema, or if a table lacks a partition column.
    """
    if names is None:
        names = sorted({relation.qualified_name for relation in known.relations})
    parts = []
    for name in names:
        resolved = resolve(known, name, options, None)
        newest = resolved.versions[-1]
        directory = run.directory_of(newest.namespace, newest.name)
        schema = plain_schema(spark_arrow_schema(resolved.schema))
        bare = pa.schema([pa.field(field.name, field.type) for field in schema])
        decode = DecodeChanges(
            resolved.catalog.to_json(), options, resolved.schema, bare, resolved.table, resolved.fingerprint
        )
        table = run.table(directory)
        after = None if whole else table.position()
        if after is None:
            after = start
        columns = partition_columns(partition_by, name)
        check_partition_columns(bare, columns, name)
        partitioning = Partitioning(columns, table.partition_directories, table.partition_columns_stored)
        parts.append(TablePart(directory, resolved.oids, resolved.others, decode, after, partitioning))
    if not parts:
        raise KeyError("the source describes no table")
    if start is None and isinstance(partition_by, Mapping):  # a stream may describe the others later
        _check_names(partition_by, names)
    return parts


def _check_names(partition_by: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    known = {parse_qualified_name(name) for name in names}
    unknown = [name for name in partition_by if parse_qualified_name(name) not in known]
    if unknown:
        raise KeyError(
            f"partition_by names {unknown[0]}, which is not written; these tables are: {', '.join(names)}"
        )


def partition_columns(partition_by: PartitionBy, table: str) -> tuple[str, ...]:
    """The partition columns of a table. In a mapping, names of tables may be quoted in any way that SQL allows."""
    if not isinstance(partition_by, Mapping):
        return tuple(partition_by)
    found = {parse_qualified_name(name): columns for name, columns in partition_by.items()}
    return tuple(found.get(parse_qualified_name(table), ()))


def plan_work(
    segments: Sequence[Segment],
    tables: Sequence[TablePart],
    outcomes: pa.RecordBatch | None,
    cores: int,
) -> tuple[tuple[SegmentPiece, ...], ...]:
    """Divides the row groups among tasks: consecutive ones, of about the same size.

    Args:
        segments: the segments, in the order of the stream.
        tables: the tables.
        outcomes: the outcomes of transactions, if only committed rows are wanted.
        cores: how many tasks can run at once.
    """
    oids = sorted({oid for table in tables for oid in table.oids})
    positions = [table.after for table in tables]
    after = None if None in positions else min(each for each in positions if each is not None)
    total = sum(segment.row_groups[k].nbytes for segment in segments for k in segment.row_groups_of(oids))
    most = min(SPARK_PARTITION_BYTES, max(1, total // (_TASKS_PER_CORE * max(cores, 1))))
    work: list[list[SegmentPiece]] = []
    size = most
    for piece, nbytes in _pieces(segments, oids, outcomes, after, most):
        if size + nbytes > most:
            work.append([])
            size = 0
        work[-1].append(piece)
        size += nbytes
    return tuple(map(tuple, work))


def _pieces(
    segments: Sequence[Segment],
    oids: Sequence[int],
    outcomes: pa.RecordBatch | None,
    after: int | None,
    most: int,
) -> Iterator[tuple[SegmentPiece, int]]:
    """Yields the row groups that may have rows behind `after`, in pieces of limited size, with their size."""
    txns = None
    if outcomes is not None and after is not None:
        commits = outcomes.filter(pa.array(outcomes.column("at_seq").to_numpy() > after))
        txns = np.unique(commits.column("txn").to_numpy()).tolist()
    for segment in segments:
        if outcomes is None and after is not None and segment.last_seq <= after:
            continue
        for taken in ranges(segment, oids, most, txns):
            packed = None
            if outcomes is not None:
                packed = pack_batch(relevant_outcomes(segment, taken, outcomes))
            nbytes = sum(segment.row_groups[k].nbytes for k in taken)
            yield SegmentPiece(absolute(segment.path), taken, packed), nbytes
