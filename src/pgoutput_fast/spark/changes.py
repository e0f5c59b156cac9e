"""Changes of one relation as a DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.catalog import Catalog
from pgoutput_fast.options import Options
from pgoutput_fast.schema import TAGGED_SCHEMA, relation_schema
from pgoutput_fast.spark.catalog import read_catalog
from pgoutput_fast.spark.tasks import DecodeChanges
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers
from pgoutput_fast.types import column_type_of
from pgoutput_fast.unify import unify_schemas

__all__ = ["changes"]


def changes(
    wal: DataFrame, table: str | int, *, options: Options | None = None, catalog: Catalog | None = None
) -> DataFrame:
    """All changes of one relation: metadata columns, then its own, a row per tuple, in no order (sort by `_seq`).

    Args:
        wal: tagged payloads (TAGGED_SCHEMA), whole or any part of them.
        table: the relation's qualified name, quoted as SQL quotes it, or its oid.
        options: how to decode; `Options()` if not given.
        catalog: the relation versions, and what a live server said of its types. Versions are read from `wal` if it has
            none, which runs a small Spark job.

    Raises:
        KeyError: if the catalog knows no such relation; the message names what there is.
        ValueError: if its versions differ so that no one schema can hold them.
        RuntimeError: if Spark's Python workers are not this Python.
    """
    options = options if options is not None else Options()
    if options.transactions != "as_sent":
        raise ValueError("Spark's changes give transactions as they were sent: pass transactions='as_sent'")
    check_workers(wal)
    known = catalog if catalog is not None else Catalog()
    if not len(known):
        known = read_catalog(wal).merged(known)
    versions, types = known.named(table), known.types
    schema = unify_schemas(
        [
            (r, relation_schema(r, [column_type_of(c, options, types) for c in r.columns], options))
            for r in versions
        ]
    )
    task = DecodeChanges(Catalog(versions, types).to_json(), options, schema, spark_arrow_schema(schema))
    tagged = wal.where(F.col("version").isin([r.version for r in versions]) & F.col("kind").isin(*b"IUDT"))
    return tagged.select(*TAGGED_SCHEMA.names).mapInArrow(task, spark_schema(schema))
