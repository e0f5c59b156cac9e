"""The first task: segments -> the changes of each table, divided by key, in files for the next tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.merge.keys import ambiguous_change, key_of
from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.segments.planner import ReadSpec
from pgoutput_fast.spark.tasks.current.batch_file import BatchFile, write_batches
from pgoutput_fast.spark.tasks.current.buckets import buckets_of
from pgoutput_fast.spark.tasks.rows import ChangesBetween, changes_of

__all__ = ["TRUNCATES", "DivideChanges", "ReadRange", "ShuffledChanges"]

#: The bucket of truncates, which every bucket needs.
TRUNCATES = -1
_METADATA = metadata_names("_")
_PREIMAGE = "update_preimage"
# Bytes of changes buffered in memory, approximately.
_MOST_WAITING = 64 << 20


@dataclass(frozen=True)
class ReadRange:
    """Which changes to read of a table.

    Attributes:
        position: changes committed up to this LSN are skipped; None for none.
        buckets: the number of buckets.
    """

    position: int | None
    buckets: int


@dataclass(frozen=True)
class ShuffledChanges:
    """Changes of one table under one relation version.

    Attributes:
        table: the table's qualified name.
        version: the relation version.
        file: the file; a batch per bucket.
        buckets: the bucket of each batch.
        schema: the columns of the changes.
        commits: the LSNs of the first and the last commit.
        links: pairs of buckets that must be reduced together.
    """

    table: str
    version: int
    file: BatchFile
    buckets: tuple[int, ...]
    schema: pa.Schema
    commits: tuple[int, int]
    links: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class DivideChanges:
    """Some row groups of segments -> files of changes.

    Attributes:
        scratch: the directory of the files: a path or a URI.
        tables: {qualified name: which changes to read}. Other tables are skipped.
        catalog: the relation versions and types, as JSON.
        options: how to decode.
        spec: the row groups, with outcomes.
        after: only changes that commit after this message are read.
        last: the ordinal of the last relevant message.
    """

    scratch: str
    tables: Mapping[str, ReadRange]
    catalog: str = field(repr=False)
    options: Options
    spec: ReadSpec = field(repr=False)
    after: int
    last: int

    def __call__(self) -> list[ShuffledChanges]:
        """Returns the files."""
        found: list[ShuffledChanges] = []
        waiting: dict[Relation, list[pa.Table]] = {}
        nbytes = 0
        for relation, rows in self._changes():
            waiting.setdefault(relation, []).append(rows)
            nbytes += rows.nbytes
            if nbytes > _MOST_WAITING:
                found += self._written(waiting)
                waiting, nbytes = {}, 0
        return found + self._written(waiting)

    def _changes(self) -> Iterator[tuple[Relation, pa.Table]]:
        catalog = Catalog.from_json(self.catalog)
        between = ChangesBetween(self.spec.outcomes, self.after + 1, self.last)
        for rows in changes_of(self.spec):
            for batch in between.of(rows).combine_chunks().to_batches():
                by_version: dict[Relation, list[pa.RecordBatch]] = {}
                decoded = decode_tagged(batch, catalog, self.options)
                rejects = pa.Table.from_batches([decoded.rejects])
                for each in decoded.changes:
                    by_version.setdefault(each.relation, []).append(each.batch)
                for relation, batches in by_version.items():
                    taken = self.tables.get(relation.qualified_name)
                    if taken is not None:
                        plain = _after(_plain(batches), taken.position)
                        unclear = ambiguous_change(plain, rejects, relation)
                        if unclear is not None:
                            raise ValueError(unclear[0])
                        yield relation, plain

    def _written(self, waiting: Mapping[Relation, list[pa.Table]]) -> list[ShuffledChanges]:
        return [
            self._divided(relation, pa.concat_tables(parts).combine_chunks())
            for relation, parts in waiting.items()
            if sum(each.num_rows for each in parts)
        ]

    def _divided(self, relation: Relation, rows: pa.Table) -> ShuffledChanges:
        taken = self.tables[relation.qualified_name]
        columns = key_of(relation) or [name for name in rows.column_names if name not in _METADATA]
        buckets = buckets_of(rows, columns, taken.buckets)
        rows, links = _with_split_updates(rows, buckets)
        buckets[pc.equal(rows["_change_type"], "truncate").to_numpy()] = TRUNCATES
        order = np.argsort(buckets, kind="stable")
        rows, buckets = rows.take(pa.array(order)).combine_chunks(), buckets[order]
        present, begins = np.unique(buckets, return_index=True)
        ends = [*begins[1:].tolist(), len(buckets)]
        (whole,) = rows.to_batches()
        batches = (whole.slice(begin, end - begin) for begin, end in zip(begins.tolist(), ends, strict=True))
        commits = rows["_commit_lsn"].to_numpy()
        return ShuffledChanges(
            relation.qualified_name,
            relation.version,
            write_batches(self.scratch, batches, rows.schema, None),
            tuple(present.tolist()),
            rows.schema,
            (int(commits.min()), int(commits.max())),
            frozenset(links),
        )


def _plain(batches: list[pa.RecordBatch]) -> pa.Table:
    rows = pa.Table.from_batches(batches)
    schema = stored_schema(rows.schema, "parquet")
    return to_types(rows, schema)


def _after(rows: pa.Table, position: int | None) -> pa.Table:
    return rows if position is None else rows.filter(pc.greater(rows["_commit_lsn"], position))


def _with_split_updates(
    rows: pa.Table, buckets: npt.NDArray[np.int32]
) -> tuple[pa.Table, set[tuple[int, int]]]:
    """Splits updates that move a row to another bucket into a delete and an insert.

    An update with an unchanged value needs the earlier states of its row, so its buckets must stay together.

    Returns:
        (the rows, the pairs of buckets that stay together).
    """
    kinds = rows["_change_type"]
    old = np.flatnonzero(pc.equal(kinds, _PREIMAGE).to_numpy())
    old = old[old + 1 < len(buckets)]
    old = old[buckets[old] != buckets[old + 1]]
    if not len(old):
        return rows, set()
    lengths = pc.fill_null(pc.list_value_length(rows["_unchanged"]), 0).to_numpy()
    unfilled = lengths[old + 1] > 0
    links = {
        (int(one), int(other))
        for one, other in zip(buckets[old[unfilled]], buckets[old[unfilled] + 1], strict=True)
    }
    split = old[~unfilled]
    names = np.array(kinds.to_pylist(), object)
    names[split], names[split + 1] = "delete", "insert"
    place = rows.column_names.index("_change_type")
    return rows.set_column(place, rows.field(place), pa.array(names, rows.field(place).type)), links
