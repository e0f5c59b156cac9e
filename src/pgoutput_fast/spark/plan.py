"""What is settled when a query is planned: relation versions, schema, options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.catalog import Catalog, Relation
from pgoutput_fast.options import Options
from pgoutput_fast.schema import metadata_fields, relation_schema
from pgoutput_fast.spark.catalog import read_catalog
from pgoutput_fast.types import column_type_of
from pgoutput_fast.unify import pin_schema, unify_schemas

__all__ = ["Plan", "SchemaMode", "Transactions", "known_catalog", "plan", "task_options"]

SchemaMode = Literal["latest", "union", "pinned"]
Transactions = Literal["as_sent", "committed"]


@dataclass(frozen=True)
class Plan:
    """What one relation's rows are decoded into.

    Attributes:
        table: what it is called.
        versions: its versions, in the order in which they were described.
        catalog: these, and the types.
        fingerprint: of the whole catalog with which the query was planned.
        schema: of the decoded rows.
        rows: which tagged rows are its changes, as a filter that Parquet can take.
    """

    table: str
    versions: tuple[Relation, ...]
    catalog: Catalog
    fingerprint: str
    schema: pa.Schema
    rows: Column


def task_options(options: Options | None, transactions: Transactions | None) -> tuple[Options, Transactions]:
    """How executors decode, and which transactions they are given: which they decode as they were sent."""
    options = options if options is not None else Options()
    # So that what is wrong is said as Options says it.
    options = options if transactions is None else replace(options, transactions=transactions)
    return replace(options, transactions="as_sent", spill_directory=None), options.transactions


def known_catalog(
    wal: DataFrame, catalog: Catalog | None, schema_mode: SchemaMode, options: Options
) -> Catalog:
    """The given catalog if it is to be the last word; else what the tagged payloads describe comes to it."""
    if catalog is not None and len(catalog) and schema_mode == "latest":
        return catalog
    found = read_catalog(wal, on_error=options.on_error)
    return found if catalog is None else catalog.merged(found)


def plan(
    wal: DataFrame,
    table: str | int,
    options: Options,
    catalog: Catalog | None,
    schema_mode: SchemaMode | None,
    schema: pa.Schema | Relation | None,
) -> Plan:
    """Settles what `table` is.

    Raises:
        KeyError: if there is no such relation.
        ValueError: if its versions do not fit into one schema, or arguments contradict each other.
    """
    if schema is None:
        schema = options.pinned(table)
    if schema_mode is None:
        schema_mode = "latest" if schema is None else "pinned"
    if schema_mode not in ("latest", "union", "pinned"):
        raise ValueError(f"schema_mode must be 'latest', 'union' or 'pinned', not {schema_mode!r}")
    if (schema_mode == "pinned") != (schema is not None):
        raise ValueError(
            "schema_mode='pinned' and a schema (schema= or Options(schemas=...)) need each other"
        )
    known = known_catalog(wal, catalog, schema_mode, options)
    versions, types = known.named(table), known.types

    def schema_of(relation: Relation) -> pa.Schema:
        return relation_schema(
            relation, [column_type_of(c, options, types) for c in relation.columns], options
        )

    decoded = [(relation, schema_of(relation)) for relation in versions]
    if schema is None:
        whole = unify_schemas(decoded)
    else:
        metadata = [field.name for field in metadata_fields(options.metadata_prefix)]
        pinned = schema_of(schema) if isinstance(schema, Relation) else schema
        whole = pin_schema(decoded, pinned, metadata, options.extra_columns)
    # By oid, on which row groups are cut; a version that nobody knew then comes along, and fails.
    oids = sorted({relation.oid for relation in versions})
    chosen = {relation.version for relation in versions}
    others = [r.version for r in known.relations if r.oid in oids and r.version not in chosen]
    rows = F.col("relation").isin(oids) & F.col("kind").isin(*b"IUDT")
    if others:
        rows &= ~F.col("version").isin(others)
    return Plan(
        versions[-1].qualified_name, versions, Catalog(versions, types), known.fingerprint(), whole, rows
    )
