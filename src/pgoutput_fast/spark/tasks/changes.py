"""Tasks for the executors. This module imports no PySpark; the driver pickles the instances."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.decoding.rejected_rows import (
    error_of,
    has_marks,
    rejects_of,
    rows_of,
    without_rejected,
)
from pgoutput_fast.decoding.result import Decoded, fit
from pgoutput_fast.protocol.reasons import Reason
from pgoutput_fast.schema.evolution import check_nulls
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.spark.tasks.range_outcomes import RangeOutcomes, with_outcomes
from pgoutput_fast.transactions.lost import rejected
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = [
    "COMMITTED_MARK",
    "ORIGINS_SCHEMA",
    "ROLLED_BACK_MARK",
    "UNKNOWN_MARK",
    "DecodeChanges",
    "DecodeOrigins",
    "DecodeRecords",
    "ReleaseRows",
    "sent",
]

_BITS = 48
_KIND_XID = "kind_xid"
# Columns that are not sent to tasks: they follow from other columns.
_FOLLOWING = ("kind", "relation", "xid", "in_stream")
# Tags used only for the metadata column of the same name. Errors name `seq` and `lsn`.
_FOR_METADATA = ("txn", "xid", "subxid", "commit_lsn", "commit_timestamp")

# Kinds of rows that are outcomes of transactions, not messages: they are shuffled with the payloads.
COMMITTED_MARK, ROLLED_BACK_MARK, UNKNOWN_MARK = -1, -2, -3

ORIGINS_SCHEMA = pa.schema(
    [("txn", pa.int64()), ("origin", pa.string()), ("origin_lsn", pa.int64()), ("seq", pa.int64())]
)
_COMMIT_DATE = "commit_date"


def sent(unused: Collection[str]) -> list[str]:
    """Returns the columns of tagged changes that are sent to tasks, as SQL.

    Each field costs the JVM about 60 ns per row. So columns that follow from others are omitted: the version determines
    the relation, a change has its own xid only if it was streamed, and the xid's column has spare bits for the kind.
    Unused tags are omitted, too, except `subxid`: it shows whether a change was streamed.

    Args:
        unused: `DecodeChanges.unused` of the task.
    """
    left_out = {*_FOLLOWING, *unused} - {"subxid"}
    return [
        *(name for name in TAGGED_SCHEMA.names if name not in left_out),
        f"CASE WHEN xid IS NULL THEN shiftleft(bigint(kind), {_BITS}) WHEN xid BETWEEN 0 AND {(1 << _BITS) - 2} "
        f"THEN shiftleft(bigint(kind), {_BITS}) + xid + 1 END AS {_KIND_XID}",
    ]


@dataclass(frozen=True)
class DecodeChanges:
    """Tagged payloads of one relation -> its changes, in the planned schema.

    The payloads have all columns, or the columns of `sent`.

    Attributes:
        catalog: the relation versions, as JSON.
        options: how to decode.
        schema: the unified schema of the versions. It may lack metadata columns; they are then omitted.
        target: the same schema in Spark's types. It may end with `with_commit_date`'s column.
        table: the relation's name, for errors.
        fingerprint: fingerprint of the catalog that planned the query.
    """

    catalog: str
    options: Options
    schema: pa.Schema
    target: pa.Schema
    table: str
    fingerprint: str

    @property
    def unused(self) -> tuple[str, ...]:
        """The tags that no column of the result needs."""
        prefix, there = self.options.metadata_prefix, self.schema.names
        return tuple(name for name in _FOR_METADATA if f"{prefix}{name}" not in there)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        catalog = Catalog.from_json(self.catalog)
        for batch in batches:
            yield from self.rows_of(self.decoded(batch, catalog))

    def rows_of(self, decoded: Decoded) -> Iterator[pa.RecordBatch]:
        """Yields the changes with the columns and types of `target`."""
        names = self.schema.names
        dated = len(self.target) > len(names)
        as_decoded = [(field.name, field.type) for field in self.target][: len(names)]
        for each in decoded.changes:
            rows = each.batch
            if set(names) <= set(rows.schema.names):
                rows = rows.select(names)
            fits = [(field.name, field.type) for field in rows.schema] == as_decoded
            if not fits:
                rows = fit(rows, self.schema)
            check_nulls(rows, self.schema, self.table)
            if dated:
                times = rows.column(f"{self.options.metadata_prefix}commit_timestamp")
                rows = rows.append_column(_COMMIT_DATE, times.cast(pa.date32(), safe=False))
            if fits:
                yield pa.RecordBatch.from_arrays(rows.columns, schema=self.target)
            else:
                yield from to_types(rows, self.target).to_batches()

    def decoded(self, batch: pa.RecordBatch, catalog: Catalog) -> Decoded:
        """Decodes tagged payloads. `catalog` is the catalog of the task.

        Raises:
            DecodeError: for a malformed payload, and for a rejected message that may be of this relation.
        """
        rows = _whole(batch, self.unused)
        if has_marks(rows):
            names = {each.qualified_name for each in catalog.relations}
            rows = without_rejected(rows, {*names, None})
            rejects = rejects_of(pa.Table.from_batches([rows]))
            if rejects.num_rows and self.options.on_error == "raise":
                raise error_of(rejects)
        try:
            return decode_tagged(rows, catalog, self.options)
        except DecodeError as problem:
            reason = problem.reason
            if reason == reason_text(Reason.UNKNOWN_VERSION):
                reason = (
                    "the catalog with which the query was planned does not know this version of the relation (catalog "
                    f"{self.fingerprint}): plan the query again, without catalog= or with the current catalog"
                )
            raise _without_traceback(problem, reason, problem.relation or self.table) from None


def with_commit_date(schema: pa.Schema, wanted: Collection[str], prefix: str) -> pa.Schema:
    """The columns of a table, and at the end `commit_date` with the prefix, if that is wanted and the table lacks it.

    It is the day of the commit in UTC, by which tables can be partitioned.
    """
    name = f"{prefix}{_COMMIT_DATE}"
    if name not in wanted or name in schema.names:
        return schema
    return schema.append(pa.field(name, pa.date32()))


def _whole(batch: pa.RecordBatch, unused: Collection[str]) -> pa.RecordBatch:
    """Restores all columns of tagged payloads. Unused tags become null, so the decoder makes no values of them."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if batch.schema.names != TAGGED_SCHEMA.names:
        columns["kind"], columns["xid"] = _parted(columns[_KIND_XID])
        columns["relation"] = pa.nulls(batch.num_rows, pa.int64())
        columns["in_stream"] = columns["subxid"].is_valid()
    elif not unused:
        return batch
    columns.update((name, pa.nulls(batch.num_rows, TAGGED_SCHEMA.field(name).type)) for name in unused)
    return pa.RecordBatch.from_arrays([columns[name] for name in TAGGED_SCHEMA.names], TAGGED_SCHEMA.names)


def _parted(packed: pa.Int64Array) -> tuple[pa.Array, pa.Array]:
    """Returns (kind, xid).

    A null came from an invalid xid. The row gets a nonexistent kind, which is an error.
    """
    values = packed.fill_null(-1).to_numpy()
    xids = (values & ((1 << _BITS) - 1)) - 1
    return pa.array((values >> _BITS).astype(np.int8)), pa.array(xids, mask=xids < 0)


def _without_traceback(problem: DecodeError, reason: str, relation: str | None) -> DecodeError:
    """Returns the same error without the tracebacks of inner layers, which the driver would print one by one."""
    return DecodeError(
        reason,
        seq=problem.seq,
        lsn=problem.lsn,
        byte_offset=problem.byte_offset,
        relation=relation,
        column=problem.column,
        kind=problem.kind,
    )


@dataclass(frozen=True)
class DecodeRecords:
    """Tagged payloads -> rows of one of the other tables, without the values from other rows.

    Attributes:
        what: name of the table.
        options: how to decode.
        target: the table's schema in Spark's types.
        catalog: the relation versions, as JSON; only `rejects` need them.
        names: names of the relations whose rejected messages are requested, and None for unknown relations; None for
            all of them.
    """

    what: Literal["transactions", "outcomes", "messages", "rejects"]
    options: Options
    target: pa.Schema
    catalog: str | None = None
    names: tuple[str | None, ...] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        catalog = Catalog.from_json(self.catalog) if self.catalog is not None else Catalog()
        for batch in batches:
            if self.names is not None:
                batch = without_rejected(batch, self.names)
            try:
                decoded = decode_tagged(batch, catalog, self.options)
            except DecodeError as problem:
                raise _without_traceback(problem, problem.reason, problem.relation) from None
            yield getattr(decoded, self.what).cast(self.target)


@dataclass(frozen=True)
class ReleaseRows:
    """Tagged payloads, in the columns of `sent` or all -> the result of another task for those that are committed.

    Attributes:
        task: the other task.
        left_out: tags that were not sent.
        outcomes: the outcomes of transactions. None: each partition begins with the outcomes of its transactions.

    The task for `rejects` also gets the rows of transactions whose outcome is unknown, as rejected ones.
    """

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    left_out: tuple[str, ...]
    outcomes: RangeOutcomes | TransactionOutcomes | None = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(self._released(batches))

    def _released(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marks = [TAGGED_SCHEMA.empty_table()]
        given = self.task.catalog if isinstance(self.task, DecodeRecords) else None
        catalog = None if given is None else Catalog.from_json(given)
        of_marks: TransactionOutcomes | None = None
        tables = (
            pa.Table.from_batches([_whole(each, self.left_out)]).cast(TAGGED_SCHEMA) for each in batches
        )
        for rows, outcomes in with_outcomes(tables, self.outcomes):
            if self.outcomes is None and of_marks is None:
                is_mark = pc.less(rows["kind"], 0)
                marks.append(rows.filter(is_mark))
                rows = rows.filter(pc.invert(is_mark))
                if rows.num_rows:
                    of_marks = _of_marks(pa.concat_tables(marks))
            outcomes = of_marks if outcomes is None else outcomes
            if outcomes is not None and rows.num_rows:
                yield from outcomes.released(rows).to_batches()
                if catalog is not None and outcomes.lost.any():
                    yield from rows_of(rejected(outcomes.lost_rows(rows), catalog)).to_batches()


def _of_marks(marks: pa.Table) -> TransactionOutcomes:
    kinds = marks["kind"]
    outcome = pc.if_else(pc.equal(kinds, UNKNOWN_MARK), "unknown", "aborted")
    outcome = pc.if_else(pc.equal(kinds, COMMITTED_MARK), "committed", outcome)
    ended = marks.select(["txn", "subxid", "seq", "commit_lsn", "commit_timestamp"])
    ended = ended.rename_columns(["txn", "subxid", "at_seq", "commit_lsn", "commit_timestamp"])
    return TransactionOutcomes.of_batch(ended.append_column("outcome", outcome))


@dataclass(frozen=True)
class DecodeOrigins:
    """Tagged Origin messages -> (txn, origin, origin_lsn, seq)."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payloads = batch.column("payload").to_pylist()
            yield pa.RecordBatch.from_arrays(
                [
                    batch.column("txn"),
                    pa.array([payload[9:-1].decode() for payload in payloads], pa.string()),
                    pa.array([struct.unpack_from(">q", payload, 1)[0] for payload in payloads], pa.int64()),
                    batch.column("seq"),
                ],
                schema=ORIGINS_SCHEMA,
            )
