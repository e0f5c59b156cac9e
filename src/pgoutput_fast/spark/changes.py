"""Changes of one relation as a DataFrame."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from pgoutput_fast.catalog import Catalog, Relation
from pgoutput_fast.options import Options
from pgoutput_fast.schema import TAGGED_SCHEMA
from pgoutput_fast.spark.outcomes import released
from pgoutput_fast.spark.plan import SchemaMode, Transactions, plan, rows_of, task_options
from pgoutput_fast.spark.settle import Settled
from pgoutput_fast.spark.tagged import expect_tagged
from pgoutput_fast.spark.tasks import SENT, DecodeChanges
from pgoutput_fast.spark.types import Time, check_time, spark_arrow_schema, spark_schema
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
) -> DataFrame:
    """All changes of one relation: metadata columns, then its own, a row per tuple, in no order.

    Sort by (`_commit_lsn`, `_seq`) where transactions are committed, by `_seq` otherwise: so they are to be applied.

    The schema is settled here, and does not change with what is read later. The metadata of the first column,
    `_change_type`, name the relation and, as `pg.catalog`, the fingerprint of the catalog; those of the others their
    PostgreSQL types.

    Args:
        wal: tagged payloads (TAGGED_SCHEMA), whole or any part of them.
        table: the relation's qualified name, quoted as SQL quotes it, or its oid.
        options: how to decode; `Options()` if not given.
        transactions: `"as_sent"` or `"committed"`: only rows of transactions whose commit `outcomes` have, without what
            savepoints rolled back, with the commit's position and time. As the options say if not given.
        schema_mode: `"latest"`: the versions that the catalog knows, unified by name with the newest leading; a
            newer one fails the query. `"union"`: these and all that `wal` describes. `"pinned"`: `schema`, whatever
            versions come, as long as they fit. If not given, pinned where there is a schema, else latest.
        schema: the pinned schema, or a relation version that has it; as `Options(schemas=...)` say if not given.
        catalog: the relation versions, and what a live server said of its types. Without versions in it, and for union
            and pinned always, `wal` is read for its descriptions: a small Spark job.
        outcomes: what became of transactions, for instance of more than `wal`, or cached; `outcomes(wal)` if not given.
        time: what a time becomes: a string, or on Spark 4.1 and later a `"TIME"`.

    Raises:
        KeyError: if the catalog knows no such relation; the message names what there is.
        ValueError: if its versions differ so that no one schema can hold them, or do not fit the pinned one; if `wal`
            is not tagged; and if `Options(columns=...)` names a column that no version has.
        RuntimeError: if Spark's Python workers are not this Python.
    """
    decoding, which = task_options(options, transactions)
    check_time(time)
    expect_tagged(wal)
    check_workers(wal)
    settled = plan(wal, table, decoding, catalog, schema_mode, schema)
    rows = wal.where(rows_of(settled)).select(*TAGGED_SCHEMA.names)
    if which == "committed":
        rows = released(rows, wal, outcomes, decoding)
    task = DecodeChanges(
        settled.catalog.to_json(),
        decoding,
        settled.schema,
        spark_arrow_schema(settled.schema, time),
        settled.table,
        settled.fingerprint,
    )
    return rows.selectExpr(*SENT).mapInArrow(task, _described(settled, time))


def _described(settled: Settled, time: Time) -> StructType:
    """The schema as Spark has it, with what PostgreSQL calls things."""
    fields: list[StructField] = []
    for field, given in zip(spark_schema(settled.schema, time), settled.schema, strict=True):
        metadata = _texts(given.metadata)
        if not fields:
            metadata |= _texts(settled.schema.metadata) | {"pg.catalog": settled.fingerprint}
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields)


def _texts(metadata: dict[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items() if key.startswith(b"pg.")}
