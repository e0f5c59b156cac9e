"""Decodes the changes of one relation into a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.protocol.kinds import CHANGES, REJECTED
from pgoutput_fast.schema.metadata_columns import choose_metadata
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.resolve import with_metadata
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.spark.dataframes.outcomes import released
from pgoutput_fast.spark.dataframes.plan import SchemaMode, Transactions, plan, rows_of, task_options
from pgoutput_fast.spark.dataframes.tagged import expect_tagged, may_have_rejected, untagged_of
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tasks.changes import DecodeChanges, ReleaseRows, sent
from pgoutput_fast.spark.types import Time, check_time, described_schema, spark_arrow_schema
from pgoutput_fast.spark.workers import check_workers

__all__ = ["changes"]


def changes(
    wal: DataFrame,
    table: str | int,
    *,
    options: Options | None = None,
    transactions: Transactions | None = None,
    schema_mode: SchemaMode | None = None,
    schema: pa.Schema | Relation | None = None,
    catalog: Catalog | None = None,
    outcomes: DataFrame | None = None,
    time: Time = "string",
    metadata: Literal["all"] | Sequence[str] = "all",
) -> DataFrame:
    """Returns all changes of one relation, one row per tuple, in no order.

    Metadata columns come first, then the relation's columns.

    To apply the changes, sort the rows: by (`_commit_lsn`, `_seq`) if transactions are `"committed"`, otherwise by
    `_seq`. Then `metadata` must include these columns, and `_change_type`.

    Spark does not tell the executors which columns a query uses: they decode all columns of the result. So limit them
    with `metadata` and `Options(columns=...)`.

    This call fixes the schema; data read later does not change it. The field metadata of the first column, usually
    `_change_type`, contain the relation's name and the fingerprint of the catalog as `pg.catalog`. The field metadata
    of the relation's columns contain their PostgreSQL types.

    Args:
        wal: tagged payloads (TAGGED_SCHEMA), all of them or any part.
        table: the relation's qualified name, quoted as in SQL, or its oid.
        options: how to decode; default `Options()`.
        transactions: `"as_sent"` returns all rows. `"committed"` returns only rows of transactions whose commit is in
            `outcomes`, without rows undone by a rollback to a savepoint; the rows then have the commit's LSN and time.
            The call reads the outcomes. Default: as in `options`.
        schema_mode: `"latest"` unifies the versions in the catalog by column name, and the newest version decides; a
            newer version fails the query. `"union"` unifies these and all versions described in `wal`. `"pinned"` uses
            `schema` for every version that fits. Default: pinned if there is a schema, otherwise latest.
        schema: the pinned schema, or a relation version with it. Default: as in `Options(schemas=...)`.
        catalog: the relation versions, and a live server's description of its types. If it has no versions, and always
            for union and pinned, a small Spark job reads the descriptions from `wal`.
        outcomes: the outcomes of transactions, for instance of more than `wal`, or cached. Default: `outcomes(wal)`.
        time: the type of a time of day: a string, or `"TIME"` on Spark 4.1 and later.
        metadata: the metadata columns of the result: `"all"`, or a list of them, in the order of the list; none with
            `()`. Write the names as they appear in the result, such as `_lsn`, or without the prefix, such as `lsn`. A
            name that matches a column with its prefix means that column. The executors omit all others, so include the
            columns that later steps need: `_seq` to sort by it, and those used in filters.

    Raises:
        DecodeError: when the query runs, as Spark's error, for a malformed message, and for one that `tag` rejected and
            that may have been a change of the relation, unless the options say quarantine.
        KeyError: if the catalog has no such relation, or there is no such metadata column; the message lists those that
            exist.
        TypeError: if `wal` is not a DataFrame; if `metadata` is a text other than `"all"`.
        ValueError: if the versions do not fit into a single schema, if a version does not fit the pinned schema, if
            `wal` is not tagged, or if `Options(columns=...)` names a column that no version has.
        RuntimeError: if Spark's Python workers run another Python than this one.
    """
    decoding, which = task_options(options, transactions)
    chosen = choose_metadata(metadata, decoding.metadata_prefix)
    check_time(time)
    expect_tagged(wal)
    check_workers(wal)
    untagged = untagged_of(wal)
    if untagged is not None and which == "committed" and outcomes is None:
        _ = untagged.full_survey  # it has the descriptions for the plan, too
    resolved = plan(wal, table, decoding, catalog, schema_mode, schema)
    resolved = with_metadata(resolved, chosen, decoding.metadata_prefix)
    if not resolved.schema.names:
        raise ValueError("the result would have no column: name one in metadata= or in Options(columns=...)")
    task = DecodeChanges(
        resolved.catalog.to_json(),
        decoding,
        resolved.schema,
        spark_arrow_schema(resolved.schema, time),
        resolved.table,
        resolved.fingerprint,
    )
    described = described_schema(resolved.schema, time, {"pg.catalog": resolved.fingerprint})
    # Not in quarantine: a rejected message may have been a change of this relation.
    rejected = decoding.on_error == "raise" and may_have_rejected(wal)
    wanted = rows_of(resolved) | (F.col("kind") == REJECTED) if rejected else rows_of(resolved)
    rows = wal.where(wanted).select(*TAGGED_SCHEMA.names)
    ours = {
        "kinds": CHANGES, "relations": resolved.oids, "others": resolved.others, "rejected": rejected
    }  # fmt: skip
    if which == "committed":
        if untagged is not None and outcomes is None:
            return untagged.decoded(ReleaseRows(task, (), untagged.range_outcomes), described, **ours)
        rows, release = released(rows, wal, outcomes, decoding, task)
        if untagged is not None and release.outcomes is not None:
            return untagged.decoded(replace(release, left_out=()), described, **ours)
        return rows.mapInArrow(shipped(release), described)
    if untagged is not None:
        return untagged.decoded(task, described, **ours)
    return rows.selectExpr(*sent(task.unused)).mapInArrow(shipped(task), described)
