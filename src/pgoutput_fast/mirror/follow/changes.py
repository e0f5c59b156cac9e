"""Decoded changes for the tables of a mirror: runs of one relation version, in commit order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.decoding.result import RelationBatch
from pgoutput_fast.encode import encode_insert
from pgoutput_fast.merge.keys import ambiguous_change, check_key
from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.own_memory import in_own_memory
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.schema.types import stored_schema

__all__ = [
    "ChangeRun",
    "Rejected",
    "commits_of",
    "committed_after",
    "decodable",
    "decoded_row",
    "decoded_runs",
]

_METADATA = metadata_names("_")


@dataclass(frozen=True)
class ChangeRun:
    """Consecutive changes of one table under one relation version.

    Attributes:
        relation: the version.
        rows: metadata columns, then the relation's columns, in plain types; in commit order.
        row_of: decodes a row of this version, as the rows; None if a value has no Arrow form. Its argument has the
            values that are not null, as the server prints them.
        unclear: why the key of some changes may name another row, and the LSN of their last commit.
    """

    relation: Relation
    rows: pa.Table
    row_of: Callable[[Mapping[str, str]], pa.Table | None]
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
    by_oid: dict[int, list[RelationBatch]] = {}  # a table may have had several names
    for each in decoded.changes:
        by_oid.setdefault(each.relation.oid, []).append(each)
    rejects = pa.Table.from_batches([decoded.rejects])
    runs = [
        replace(run, unclear=_unclear(run, rejects, catalog.types))
        for batches in by_oid.values()
        for run in _runs(batches, partial(decoded_row, catalog=catalog, options=options))
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


def _runs(batches: Sequence[RelationBatch], row_of: Callable[..., pa.Table | None]) -> Iterator[ChangeRun]:
    """The runs of one table."""
    by_version: dict[Relation, list[pa.RecordBatch]] = {}
    for each in batches:
        by_version.setdefault(each.relation, []).append(each.batch)
    versions = [(relation, _plain(found)) for relation, found in by_version.items()]
    if len(versions) == 1:
        yield ChangeRun(*versions[0], partial(row_of, versions[0][0]))
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
        yield ChangeRun(relation, rows.slice(taken[k], end - begin), partial(row_of, relation))
        taken[k] += end - begin


def decoded_row(
    relation: Relation, values: Mapping[str, str], *, catalog: Catalog, options: Options
) -> pa.Table | None:
    """A row of a relation from the values that are not null, as `ChangeRun.row_of`. It is decoded as an insert."""
    message = encode_insert(relation.oid, [values.get(each.name) for each in relation.columns])
    facts = {"kind": message[0], "relation": relation.oid, "version": relation.version, "payload": message}
    tagged = {"seq": 0, "txn": 0, "in_stream": False, "commit_lsn": 0, **facts}
    batch = pa.RecordBatch.from_pylist([tagged], TAGGED_SCHEMA)
    try:
        decoded = decode_tagged(batch, catalog, options)
    except ValueError:  # with `on_error="raise"`
        return None
    if decoded.rejects.num_rows or len(decoded.changes) != 1:
        return None
    return _plain([decoded.changes[0].batch])


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
