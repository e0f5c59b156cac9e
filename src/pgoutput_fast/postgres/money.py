"""The number of fractional digits of type money, which is not in the bytes of a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from pgoutput_fast.catalog.identifiers import quote_qualified_name
from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.postgres.findings import Finding
from pgoutput_fast.postgres.publications import PublishedTable
from pgoutput_fast.postgres.published import published
from pgoutput_fast.postgres.session import connect
from pgoutput_fast.schema.column_types import column_type_of
from pgoutput_fast.schema.options import Options

__all__ = ["expect_cents", "of_money"]

# The number of digits that the package decodes.
_DIGITS = 2
_ADVICE = "Use the type numeric in place of money, or leave it out with a column list of the publication"

# Columns of type money, and of types that contain it: domains, arrays, composites, ranges and multiranges.
_COLUMNS = """
, money AS (
    SELECT 790::pg_catalog.oid AS oid
    UNION
    SELECT p.whole FROM money m JOIN (
        SELECT t.typbasetype AS part, t.oid AS whole FROM pg_catalog.pg_type t
        UNION ALL
        SELECT t.typelem, t.oid FROM pg_catalog.pg_type t
        UNION ALL
        SELECT a.atttypid, t.oid FROM pg_catalog.pg_type t
        JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) t.typrelid
         AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
        UNION ALL
        SELECT r.rngsubtype, r.rngtypid FROM pg_catalog.pg_range r
        UNION ALL
        -- Servers before 14 have no multiranges, and no such column.
        SELECT r.rngtypid, (pg_catalog.to_jsonb(r) OPERATOR(pg_catalog.->>) 'rngmultitypid')::pg_catalog.oid
        FROM pg_catalog.pg_range r
    ) p ON p.part OPERATOR(pg_catalog.=) m.oid)
SELECT DISTINCT t.nspname::pg_catalog.text, t.relname::pg_catalog.text, a.attname::pg_catalog.text
FROM published t
JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) t.oid AND NOT a.attisdropped
JOIN money m ON m.oid OPERATOR(pg_catalog.=) a.atttypid
ORDER BY 1, 2, 3
"""


def digits_of_money(dsn: str) -> int:
    """The number of fractional digits of money, by `lc_monetary` in this user's sessions with this database.

    Raises:
        psycopg2.Error: if a query fails.
    """
    # The pinned settings would hide it.
    with closing(connect(dsn, pinned=False)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.cash_send(1::pg_catalog.int4::pg_catalog.money)")
        return len(str(int.from_bytes(bytes(cursor.fetchone()[0])))) - 1


def expect_cents(dsn: str, relations: Sequence[Relation], types: UserTypes, options: Options) -> None:
    """Checks that selected columns with money have the number of digits that the package decodes.

    Raises:
        ValueError: if not: all values would be wrong by a power of ten.
        psycopg2.Error: if a query fails.
    """
    found = [
        (relation.qualified_name, column.name)
        for relation in relations
        for column in relation.columns
        if (chosen := options.columns_of(relation)) is None or column.name in chosen
        if column_type_of(column, options, types).has("money")
    ]
    if found and (digits := digits_of_money(dsn)) != _DIGITS:
        table, column = found[0]
        raise ValueError(f"{table}: {_problem(column, digits)}. {_ADVICE}")


def of_money(
    cursor: Any, dsn: str, publications: Sequence[str], tables: Sequence[PublishedTable]
) -> Iterator[Finding]:
    """Findings about columns of type money."""
    cursor.execute(published(cursor.connection.server_version // 10000) + _COLUMNS, (list(publications),))
    found = cursor.fetchall()
    known = {table.name: table for table in tables}
    if found and (digits := digits_of_money(dsn)) != _DIGITS:
        for schema, table, column in found:
            name = quote_qualified_name(schema, table)
            sent = known[name]
            if column not in sent.generated and (sent.columns is None or column in sent.columns):
                yield Finding("error", name, _problem(column, digits), _ADVICE)


def _problem(column: str, digits: int) -> str:
    return (
        f"column {column!r} has values of type money, and lc_monetary gives money {digits} digits after the point "
        f"in this database. The package decodes {_DIGITS}, so each value would be wrong by a power of ten"
    )
