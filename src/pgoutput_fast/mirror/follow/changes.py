"""Decoded changes for the tables of a mirror: runs of one relation version, in commit order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.decoding.result import RelationBatch
from pgoutput_fast.protocol.reasons import Reason
from pgoutput_fast.schema.column_types import column_type_of
from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.own_memory import in_own_memory
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import has_lists, stored_schema

__all__ = [
    "ChangeRun",
    "Rejected",
    "ambiguous_change",
    "ambiguous_key",
    "check_key",
    "commits_of",
    "committed_after",
    "decodable",
    "decoded_runs",
    "key_of",
    "unchecked_array",
    "without_bound",
]

_METADATA = metadata_names("_")


@dataclass(frozen=True)
class ChangeRun:
    """Consecutive changes of one table under one relation version.

    Attributes:
        relation: the version.
        rows: metadata columns, then the relation's columns, in plain types; in commit order.
        unclear: why the key of some changes may name another row, and the LSN of their last commit.
    """

    relation: Relation
    rows: pa.Table
    unclear: tuple[str, int] | None = None


@dataclass(frozen=True)
class Rejected:
    """Changes or values that could not be decoded or have no Arrow form.

    Attributes:
        table: qualified name; None if unknown.
        rows: REJECTS_SCHEMA.
        lost: whether a change is lost, and not only a value that has no Arrow form.
    """

    table: str | None
    rows: pa.Table
    lost: bool


def decodable(batch: pa.RecordBatch, catalog: Catalog) -> tuple[pa.RecordBatch, list[Relation]]:
    """(the tagged rows that can be decoded, the relation versions of the others).

    Rows cannot be decoded if a column of their relation has the name of a metadata column.
    """
    taken = [each for each in catalog.relations if any(column.name in _METADATA for column in each.columns)]
    if not taken:
        return batch, []
    versions = batch.column("version").to_numpy(zero_copy_only=False)
    wrong = [each for each in taken if (versions == each.version).any()]
    kept = ~np.isin(versions, [each.version for each in wrong])
    return batch.filter(pa.array(kept)), wrong


def decoded_runs(
    batch: pa.RecordBatch, catalog: Catalog, options: Options
) -> tuple[list[ChangeRun], list[Rejected]]:
    """Decodes tagged rows of committed transactions, in commit order.

    Args:
        batch: the rows.
        catalog: the relation versions and types.
        options: how to decode; with the default prefix of metadata columns.
    """
    decoded = decode_tagged(batch, catalog, options)
    by_table: dict[tuple[str, str], list[RelationBatch]] = {}
    for each in decoded.changes:
        by_table.setdefault((each.relation.namespace, each.relation.name), []).append(each)
    rejects = pa.Table.from_batches([decoded.rejects])
    runs = [
        replace(run, unclear=_unclear(run, rejects, catalog.types))
        for batches in by_table.values()
        for run in _runs(batches)
    ]
    return runs, list(_rejected(rejects, runs)) if rejects.num_rows else []


def _unclear(run: ChangeRun, rejects: pa.Table, types: UserTypes) -> tuple[str, int] | None:
    """Why keys of a run may name other rows, and the LSN of the last commit with such a key."""
    if not run.rows.num_rows:
        return None
    try:
        check_key(run.relation, types)
    except ValueError as problem:
        return str(problem), int(commits_of(run.rows)[-1])
    return ambiguous_change(run.rows, rejects, run.relation)


def _runs(batches: Sequence[RelationBatch]) -> Iterator[ChangeRun]:
    """The runs of one table."""
    by_version: dict[Relation, list[pa.RecordBatch]] = {}
    for each in batches:
        by_version.setdefault(each.relation, []).append(each.batch)
    versions = [(relation, _plain(found)) for relation, found in by_version.items()]
    if len(versions) == 1:
        yield ChangeRun(*versions[0])
        return
    # The rows of a version are in order, so every run is a slice of them.
    numbers = np.concatenate([np.full(rows.num_rows, k) for k, (_, rows) in enumerate(versions)])
    commits = np.concatenate([commits_of(rows) for _, rows in versions])
    seqs = np.concatenate([rows.column("_seq").to_numpy() for _, rows in versions])
    numbers = numbers[np.lexsort((seqs, commits))]
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    taken = [0] * len(versions)
    for begin, end in pairwise([0, *cuts.tolist(), len(numbers)]):
        k = int(numbers[begin])
        relation, rows = versions[k]
        yield ChangeRun(relation, rows.slice(taken[k], end - begin))
        taken[k] += end - begin


def _plain(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    rows = pa.Table.from_batches(batches)
    schema = stored_schema(rows.schema, "parquet")
    plain = to_types(rows, pa.schema([pa.field(field.name, field.type) for field in schema]))
    # The decoder reuses the memory of its arrays. If waiting changes stayed in it, the decoder would keep their peak
    # size for ever.
    return in_own_memory(plain)


def _rejected(rejects: pa.Table, runs: Sequence[ChangeRun]) -> Iterator[Rejected]:
    kept = [run.rows.column("_seq").to_numpy() for run in runs]
    lost = ~np.isin(rejects.column("seq").to_numpy(), np.concatenate(kept) if kept else [])
    tables = np.array(rejects.column("relation").to_pylist(), object)
    for table in dict.fromkeys(tables.tolist()):
        own = tables == table
        rows = rejects.filter(pa.array(own))
        yield Rejected(table, rows, bool(lost[own].any()))


def commits_of(rows: pa.Table) -> np.ndarray:
    """The LSNs of the commits of changes."""
    found: np.ndarray = rows.column("_commit_lsn").to_numpy()
    return found


def committed_after(rows: pa.Table, position: int) -> pa.Table:
    """The changes, in commit order, that committed after a position."""
    return rows.slice(int(np.searchsorted(commits_of(rows), position, side="right")))


def key_of(relation: Relation) -> tuple[str, ...]:
    """The columns that identify a row; empty if only the whole row does."""
    if relation.replica_identity not in ("d", "i"):
        return ()
    return tuple(column.name for column in relation.columns if column.key)


def without_bound(rejects: pa.Table | pa.RecordBatch, key: Collection[str]) -> pa.Table:
    """The rejects for arrays in key columns that lost their lower bound, as REJECTS_SCHEMA."""
    found = pa.Table.from_batches([rejects]) if isinstance(rejects, pa.RecordBatch) else rejects
    dropped = pc.equal(found.column("reason"), Reason.LOWER_BOUND.sentence)
    in_key = pc.is_in(found.column("column"), pa.array(list(key), pa.string()))
    return found.filter(pc.and_(dropped, in_key))


def ambiguous_change(
    rows: pa.Table | pa.RecordBatch, rejects: pa.Table, relation: Relation
) -> tuple[str, int] | None:
    """(message, LSN of the last commit) of changes whose key has an array that lost its lower bound.

    None if there are none.

    Args:
        rows: changes under one relation version.
        rejects: of these changes, and perhaps of others.
        relation: the version.
    """
    key = key_of(relation)
    if not rejects.num_rows or not key:
        return None
    dropped = without_bound(rejects, key)
    if not dropped.num_rows:
        return None
    found = rows.filter(pc.is_in(rows["_seq"], dropped["seq"].combine_chunks()))
    if not found.num_rows:
        return None
    of_these = dropped.filter(pc.is_in(dropped["seq"], pa.array(found["_seq"].to_numpy())))
    column = of_these["column"][0].as_py()
    return ambiguous_key(relation.qualified_name, column), int(pc.max(found["_commit_lsn"]).as_py())


def ambiguous_key(table: str, column: str) -> str:
    """The message for a table whose key has an array that lost its lower bound."""
    return (
        f"column {column!r} of the key of {table} has an array whose lower bound is not 1. Arrow drops the bound, so "
        "two rows may have the same key here. Change the value on the server, or give the table REPLICA IDENTITY FULL"
    )


def check_key(relation: Relation, types: UserTypes) -> None:
    """Checks that a change can name a row by the key, now and later.

    Raises:
        ValueError: for a column that refers to an object of the server: its text changes with the object's name.
    """
    key = key_of(relation)
    for column in relation.columns:
        if column.name in key and column_type_of(column, Options(), types).has("reg"):
            raise ValueError(
                f"column {column.name!r} of the key of {relation.qualified_name} names objects of the server. Its text "
                "becomes another one when an object is renamed, or with another search_path, and then its row cannot "
                "be found. Give the column the type oid, or take another key"
            )


def unchecked_array(schema: pa.Schema, key: Collection[str], before: Collection[str]) -> str | None:
    """The message if an array column is new in the key, so that lower bounds were dropped unchecked; else None.

    Args:
        schema: has the columns.
        key: the columns of the key now.
        before: those of the key before.
    """
    for name in key:
        if name not in before and name in schema.names and has_lists(schema.field(name).type):
            return f"its key has the column {name!r} now, whose arrays may not have been checked before"
    return None
