"""Relation versions before they come: what the server would say of published tables, had they changed now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from pgoutput_fast.capture.session import connect
from pgoutput_fast.catalog import Catalog, Column, Relation, version_of
from pgoutput_fast.enrich import read_types
from pgoutput_fast.names import parse_qualified_name, quote_qualified_name

__all__ = ["describe_tables"]

# Columns in their order, with what Relation and Type messages say of them: of a domain's type, what it is made of.
_COLUMNS = """
SELECT a.attname::text, a.atttypid::int8, a.atttypmod::int4,
       c.relreplident = 'f' OR EXISTS (
           SELECT 1 FROM pg_catalog.pg_index i
           WHERE i.indrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:{parts} - 1])
             AND i.indisvalid AND i.indislive
             AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
       coalesce(to_json(a) ->> 'attgenerated', ''), b.namespace, b.name
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN LATERAL (
    WITH RECURSIVE below (oid, base) AS (
        SELECT t.oid, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
        UNION ALL SELECT t.oid, t.typbasetype FROM below JOIN pg_catalog.pg_type t ON t.oid = below.base)
    SELECT n.nspname::text AS namespace, t.typname::text AS name
    FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid
         JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    WHERE below.base = 0) b ON true
WHERE c.oid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

# Of every publication that has it; None where it publishes all columns.
_PUBLISHED = """
SELECT n.nspname::text, c.relname::text, c.oid::int8, c.relreplident::text,
       CASE WHEN (to_json(t) ->> 'attnames') IS NULL THEN NULL
            ELSE ARRAY(SELECT json_array_elements_text(to_json(t) -> 'attnames')) END,
       EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel r
               WHERE r.prpubid = p.oid AND r.prrelid = c.oid AND (to_json(r) ->> 'prattrs') IS NOT NULL),
       coalesce(to_json(p) ->> 'pubgencols', 'n')
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE p.pubname = ANY(%s)
ORDER BY 1, 2
"""


# Types of lower oids are the same everywhere: no Type message tells of them.
_FIRST_NAMED = 10000


def describe_tables(
    dsn: str, publications: Sequence[str], tables: Collection[str | int], known: Catalog | None = None
) -> Catalog:
    """The catalog with the server's types and, of tables that it lacks, the versions that a change now would have.

    Args:
        dsn: of the database.
        publications: by which the tables are published.
        tables: qualified names or oids.
        known: what is known already.

    Raises:
        KeyError: for a table that is not known and not published; the message names what is.
        psycopg2.Error: if the server cannot be asked.
    """
    connection = connect(dsn)
    try:
        with connection.cursor() as cursor:
            found = _missing(cursor, publications, tables, known if known is not None else Catalog())
        return Catalog(found.relations, found.types.merged(read_types(connection)))
    finally:
        connection.close()


def _missing(
    cursor: Any, publications: Sequence[str], tables: Collection[str | int], known: Catalog
) -> Catalog:
    lacking = [table for table in tables if not _is_known(known, table)]
    if not lacking:
        return known
    cursor.execute(_PUBLISHED, (list(publications),))
    rows = cursor.fetchall()
    relations = []
    for table in lacking:
        wanted = parse_qualified_name(table) if isinstance(table, str) else None
        ours = [row for row in rows if (row[2] == table if wanted is None else tuple(row[:2]) == wanted)]
        if not ours:
            names = sorted({quote_qualified_name(*row[:2]) for row in rows})
            raise KeyError(
                f"table {table!r} is in none of the publications {', '.join(publications)}; "
                f"there is {', '.join(names) if names else 'no table'}"
            )
        relations.append(_described(cursor, ours))
    return known.merged(Catalog(relations))


def _is_known(known: Catalog, table: str | int) -> bool:
    try:
        return bool(known.named(table))
    except KeyError:
        return False


def _described(cursor: Any, published: Sequence[Any]) -> Relation:
    namespace, name, oid, identity = published[0][:4]
    cursor.execute("SELECT pg_catalog.current_setting('server_version_num')::int >= 110000")
    # From 11 on an index can have columns beside its key.
    parts = "i.indnkeyatts" if cursor.fetchone()[0] else "i.indnatts"
    cursor.execute(_COLUMNS.format(parts=parts), (oid,))
    columns = [
        Column(column, type_oid, typmod, key, *(type_names if type_oid >= _FIRST_NAMED else ()))
        for column, type_oid, typmod, key, generated, *type_names in cursor.fetchall()
        if _is_sent(column, generated, published)
    ]
    relation = Relation(oid, 0, namespace, name, identity, tuple(columns))
    return replace(relation, version=version_of(relation.wire_body()))


def _is_sent(column: str, generated: str, published: Sequence[Any]) -> bool:
    """Whether one of the publications has the column; generated ones since 18 only, and stored ones."""
    for _, _, _, _, names, listed, sends_generated in published:
        if listed and names is not None:
            if column in names:
                return True
        elif not generated or (sends_generated == "s" and generated == "s"):
            return True
    return False
