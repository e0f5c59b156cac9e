"""Plans a run: the tables, and the row groups read by each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.protocol.limits import SPARK_PARTITION_BYTES
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.resolve import Resolved, resolve
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.segments.footers import one_batch
from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.spark.source.read import cut, groups_with, may_end, relevant_outcomes, rollbacks
from pgoutput_fast.spark.tables.run import Run
from pgoutput_fast.spark.tasks.changes import DecodeChanges
from pgoutput_fast.spark.tasks.rows import pack_batch
from pgoutput_fast.spark.tasks.tables import SegmentPiece, SegmentTask, TablePart, rejects_of
from pgoutput_fast.spark.types import spark_arrow_schema
from pgoutput_fast.storage.paths import absolute
from pgoutput_fast.tables.partitions import Partitioning, check_partition_columns
from pgoutput_fast.tables.target import Mode

__all__ = [
    "PartitionBy",
    "described_tables",
    "last_of_all",
    "oldest_behind",
    "outcomes_behind",
    "partition_columns",
    "plan_tables",
    "plan_work",
]

# Columns of all tables, or qualified name -> columns.
PartitionBy = Sequence[str] | Mapping[str, Sequence[str]]

# Tasks per core, so that no core waits long for the last one.
_TASKS_PER_CORE = 2


@dataclass(frozen=True)
class DescribedTable:
    """A table as described by the source.

    Attributes:
        resolved: its versions, and the schema of its rows.
        schema: its columns in plain types.
        partition_columns: the columns by which its files are partitioned.
    """

    resolved: Resolved
    schema: pa.Schema
    partition_columns: tuple[str, ...]


def described_tables(
    known: Catalog,
    names: Sequence[str | int] | None,
    options: Options,
    partition_by: PartitionBy,
    *,
    more: bool,
) -> list[DescribedTable]:
    """The tables of the catalog, or those with these names, without duplicates. Does not access a target.

    Args:
        known: all relation versions.
        names: qualified names, quoted as in SQL, or oids. None: all.
        options: how to decode.
        partition_by: the partition columns of all tables, or of some by name.
        more: whether the source may describe other tables later.

    Raises:
        KeyError: if there is no such table.
        ValueError: if the versions of a table do not fit into a single schema, or if a table lacks a partition column.
    """
    if names is None:
        names = sorted({relation.qualified_name for relation in known.relations})
    found: dict[str, DescribedTable] = {}
    for name in names:
        resolved = resolve(known, name, options, _pinned(known, name, options))
        if resolved.table in found:  # another spelling of its name, or its oid
            continue
        schema = stored_schema(spark_arrow_schema(resolved.schema), "parquet")
        bare = pa.schema([pa.field(field.name, field.type) for field in schema])
        columns = partition_columns(partition_by, resolved.table)
        check_partition_columns(bare, columns, resolved.table)
        found[resolved.table] = DescribedTable(resolved, bare, columns)
    if not found:
        raise KeyError("the source describes no table")
    if not more and isinstance(partition_by, Mapping):
        _check_names(partition_by, list(found))
    return list(found.values())


def plan_tables(tables: Sequence[DescribedTable], options: Options, run: Run, mode: Mode) -> list[TablePart]:
    """Plans tables. A table without a position gets everything.

    Args:
        tables: the tables.
        options: how to decode.
        run: its targets have the positions of their tables.
        mode: with a mode other than `"append"`, everything is written, regardless of positions.
    """
    parts = []
    for each in tables:
        resolved, bare = each.resolved, each.schema
        newest = resolved.versions[-1]
        directory = run.directory_of(newest.namespace, newest.name)
        decode = DecodeChanges(
            resolved.catalog.to_json(), options, resolved.schema, bare, resolved.table, resolved.fingerprint
        )
        table = run.table(directory)
        after = table.position() if mode == "append" else None
        rejects_after = None if mode == "overwrite" else run.table(rejects_of(directory)).position()
        partitioning = Partitioning(
            each.partition_columns, table.partition_directories, table.partition_columns_stored
        )
        parts.append(
            TablePart(directory, resolved.oids, resolved.others, decode, after, rejects_after, partitioning)
        )
    return parts


def _pinned(known: Catalog, name: str | int, options: Options) -> pa.Schema | Relation | None:
    """The schema that the options pin for a table, by its name, by another spelling of it, or by an oid."""
    versions = known.named(name)
    keys = [name, versions[-1].qualified_name, *(each.oid for each in versions[::-1])]
    return next((pinned for pinned in map(options.pinned, keys) if pinned is not None), None)


def _check_names(partition_by: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    known = {parse_qualified_name(name) for name in names}
    unknown = [name for name in partition_by if parse_qualified_name(name) not in known]
    if unknown:
        raise KeyError(
            f"partition_by names {unknown[0]}, which is not written; these tables are: {', '.join(names)}"
        )


def partition_columns(partition_by: PartitionBy, table: str) -> tuple[str, ...]:
    """The partition columns of a table. In a mapping, names of tables may be quoted in any valid SQL form."""
    if not isinstance(partition_by, Mapping):
        return tuple(partition_by)
    found = {parse_qualified_name(name): columns for name, columns in partition_by.items()}
    return tuple(found.get(parse_qualified_name(table), ()))


def last_of_all(tables: Sequence[TablePart]) -> int | None:
    """The position that all tables have reached; None if one of them begins."""
    positions = [table.after for table in tables]
    return None if None in positions else min(each for each in positions if each is not None)


def oldest_behind(outcomes: pa.RecordBatch, after: int, last: int) -> int | None:
    """Ordinal of the first message of the oldest transaction that commits after a position, up to `last`.

    None if all of them begin after the position.

    Args:
        outcomes: the outcomes of the messages after the position, and perhaps others.
        after: the position.
        last: ordinal of the last relevant message.
    """
    at, txns = outcomes.column("at_seq").to_numpy(), outcomes.column("txn").to_numpy()
    committed = pc.equal(outcomes.column("outcome"), "committed").to_numpy(zero_copy_only=False)
    older = txns[committed & (at > after) & (at <= last) & (txns <= after)]
    return int(older.min()) if len(older) else None


def outcomes_behind(
    listed: SegmentList, segments: Sequence[Segment], after: int | None, last: int
) -> pa.RecordBatch:
    """The outcomes that decide about the transactions that commit after a position, up to `last`.

    Segments before the position are read only if such a transaction began there.

    Args:
        listed: reads them.
        segments: the segments, in stream order.
        after: the position. None: all outcomes are relevant.
        last: ordinal of the last relevant message.
    """
    behind = [each for each in segments if after is None or each.last_seq > after]
    outcomes = listed.outcomes(behind)
    outcomes = outcomes.filter(pa.array(outcomes.column("at_seq").to_numpy() <= last))
    if after is None or not behind:
        return outcomes
    older = [txn for txn in _txns_behind(outcomes, after) if txn < behind[0].first_seq]
    before = [each for each in segments if older and each.last_seq <= after and may_end(each, older)]
    return one_batch([rollbacks(listed.outcomes(before)), outcomes], OUTCOMES_SCHEMA)


def plan_work(
    segments: Sequence[Segment],
    wanted: Mapping[int | None, Sequence[int]],
    outcomes: pa.RecordBatch | None,
    cores: int,
) -> tuple[SegmentTask, ...]:
    """Divides the row groups among tasks: consecutive ones, of about the same size.

    Args:
        segments: the segments, in stream order.
        wanted: {a position: the relations whose tables have reached it}. None: a table that gets everything.
        outcomes: the outcomes of transactions, if only committed rows are requested.
        cores: how many tasks can run at once.
    """
    chosen: dict[int, set[int]] = {}
    for after, oids in wanted.items():
        txns = None if after is None or outcomes is None else _txns_behind(outcomes, after)
        for n, segment in enumerate(segments):
            # A transaction that commits after a position may have rows before it.
            if after is None or outcomes is not None or segment.last_seq > after:
                chosen.setdefault(n, set()).update(groups_with(segment, oids, txns))
    total = sum(segments[n].row_groups[k].nbytes for n, groups in chosen.items() for k in groups)
    most = min(SPARK_PARTITION_BYTES, max(1, total // (_TASKS_PER_CORE * max(cores, 1))))
    work: list[list[tuple[Segment, tuple[int, ...]]]] = []
    size = most
    for n in sorted(chosen):
        for taken in cut(segments[n], sorted(chosen[n]), most):
            nbytes = sum(segments[n].row_groups[k].nbytes for k in taken)
            if size + nbytes > most:
                work.append([])
                size = 0
            work[-1].append((segments[n], taken))
            size += nbytes
    return tuple(_task(each, outcomes) for each in work)


def _txns_behind(outcomes: pa.RecordBatch, after: int) -> list[int]:
    """The transactions that end after a position, ascending."""
    ends = outcomes.filter(pa.array(outcomes.column("at_seq").to_numpy() > after))
    found: list[int] = np.unique(ends.column("txn").to_numpy()).tolist()
    return found


def _task(taken: Sequence[tuple[Segment, tuple[int, ...]]], outcomes: pa.RecordBatch | None) -> SegmentTask:
    pieces = tuple(SegmentPiece(absolute(segment.path), groups) for segment, groups in taken)
    return SegmentTask(pieces, None if outcomes is None else pack_batch(relevant_outcomes(taken, outcomes)))
