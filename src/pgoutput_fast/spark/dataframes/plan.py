"""Plans a query over tagged payloads: relation versions, schema, options."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.base.arguments import expect_kind
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.protocol.kinds import CHANGES
from pgoutput_fast.schema.options import Options, Transactions
from pgoutput_fast.schema.resolve import Resolved, SchemaMode, mode_of, resolve, resolves_alone
from pgoutput_fast.spark.dataframes.catalog import read_catalog

__all__ = ["SchemaMode", "Transactions", "expect_catalog", "known_catalog", "plan", "rows_of", "task_options"]


def task_options(options: Options | None, transactions: Transactions | None) -> tuple[Options, Transactions]:
    """Returns the options for executors, and the requested transactions.

    Executors decode everything as sent.

    Raises:
        TypeError: if the options are not `Options`.
        ValueError: for options that Spark does not support.
    """
    expect_kind("options", options, Options, "pgoutput_fast.Options(...)")
    options = options if options is not None else Options()
    if options.plain:
        raise ValueError("plain=True is for tables in Python: those of Spark have plain types anyway")
    # `replace` validates the value, so the error is that of Options.
    options = options if transactions is None else replace(options, transactions=transactions)
    return replace(options, transactions="as_sent", spill_directory=None), options.transactions


def expect_catalog(catalog: object) -> None:
    """Checks an argument.

    Raises:
        TypeError: if it is not a `Catalog`.
    """
    expect_kind("catalog", catalog, Catalog, "a pgoutput_fast.Catalog, such as Catalog.from_json(text),")


def known_catalog(
    wal: DataFrame, catalog: Catalog | None, schema_mode: SchemaMode, options: Options
) -> Catalog:
    """Returns the given catalog if it is sufficient, otherwise merged with the descriptions in the tagged payloads.

    Raises:
        TypeError: for a catalog that is not a `Catalog`.
    """
    expect_catalog(catalog)
    if catalog is not None and resolves_alone(catalog, schema_mode):
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
) -> Resolved:
    """Determines the schema of the decoded rows of `table`.

    Raises:
        KeyError: if there is no such relation.
        ValueError: if its versions do not fit into one schema, or if arguments contradict each other.
    """
    if schema is None:
        schema = options.pinned(table)
    mode = mode_of(schema_mode, schema is not None)
    known = known_catalog(wal, catalog, mode, options)
    if not known.relations and not isinstance(schema, Relation):
        raise KeyError(
            f"no relation {table!r} here: these rows have no Relation message. If they are a part of a stream, pass "
            "catalog=, for example segments.segment_catalog(directory)"
        )
    return resolve(known, table, options, schema)


def rows_of(resolved: Resolved) -> Column:
    """A filter for the tagged rows with its changes, by oid: Parquet can apply it, as row groups are split by oid."""
    rows = F.col("relation").isin(*resolved.oids) & F.col("kind").isin(*CHANGES)
    return rows & ~F.col("version").isin(*resolved.others) if resolved.others else rows
