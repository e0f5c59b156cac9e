"""The published tables from the catalogs, in the snapshot of the transaction, without locking a table.

The view pg_publication_tables opens all tables (from PostgreSQL 16 on) or those with a row filter (15). So a lock on
one table would block the query for all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pgoutput_fast.postgres.locks import LOCKED, unlocked_rows

__all__ = ["published", "row_filters", "unlocked_filters"]

# A publication names tables, schemas (from 15 on), or all tables.
_NAMED = """
SELECT p.oid AS publication, p.via_root, c.oid, c.relkind AS kind
FROM pub p JOIN pg_catalog.pg_publication_rel r ON r.prpubid OPERATOR(pg_catalog.=) p.oid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.prrelid
WHERE NOT p.all_tables AND c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p']::pg_catalog."char"[])
UNION
SELECT p.oid, p.via_root, c.oid, c.relkind
FROM pub p JOIN publishable c ON p.all_tables
 AND CASE WHEN p.via_root THEN NOT c.relispartition
          ELSE c.relkind OPERATOR(pg_catalog.=) 'r' END
WHERE NOT EXISTS (SELECT 1 FROM excepted e WHERE e.publication OPERATOR(pg_catalog.=) p.oid
                  AND e.oid OPERATOR(pg_catalog.=) c.oid)
"""
_IN_SCHEMAS = """
UNION
SELECT p.oid, p.via_root, c.oid, c.relkind
FROM pub p JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid OPERATOR(pg_catalog.=) p.oid
JOIN publishable c ON c.relnamespace OPERATOR(pg_catalog.=) s.pnnspid
"""

# A publication via roots does not publish a partition in addition to its root.
_WITHIN = """
SELECT m.publication, m.oid AS leaf, m.oid FROM named m WHERE m.via_root
UNION
SELECT w.publication, w.leaf, i.inhparent
FROM within w JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) w.oid AND c.relispartition
JOIN pg_catalog.pg_inherits i ON i.inhrelid OPERATOR(pg_catalog.=) w.oid
"""
_NO_ROOTS = "SELECT 0::pg_catalog.oid AS publication, 0::pg_catalog.oid AS leaf, 0::pg_catalog.oid AS oid"

# Only the entry of a table has a column list and a filter. A schema or FOR ALL TABLES overrides both.
_ENTRY = """
SELECT r.prattrs::pg_catalog.int2[] AS list, CASE WHEN r.prqual IS NOT NULL THEN r.oid::pg_catalog.int8 END AS filter
FROM pg_catalog.pg_publication_rel r
WHERE r.prpubid OPERATOR(pg_catalog.=) p.oid AND r.prrelid OPERATOR(pg_catalog.=) c.oid AND NOT p.all_tables
  AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_publication_namespace s
                  WHERE s.pnpubid OPERATOR(pg_catalog.=) p.oid AND s.pnnspid OPERATOR(pg_catalog.=) c.relnamespace)
"""
_NO_ENTRY = "SELECT NULL::pg_catalog.int2[] AS list, NULL::pg_catalog.int8 AS filter"

_PUBLISHED = """
WITH RECURSIVE pub AS (
    SELECT p.oid, p.pubname, p.puballtables AS all_tables,
           coalesce((pg_catalog.to_json(p) OPERATOR(pg_catalog.->>) 'pubviaroot')::pg_catalog.bool, false) AS via_root,
           coalesce(pg_catalog.to_json(p) OPERATOR(pg_catalog.->>) 'pubgencols', 'n') AS generated
    FROM pg_catalog.pg_publication p WHERE p.pubname OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.name[])),
publishable AS (
    SELECT c.oid, c.relkind, c.relnamespace, c.relispartition FROM pg_catalog.pg_class c
    WHERE c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY[{kinds}]::pg_catalog."char"[])
      AND c.relpersistence OPERATOR(pg_catalog.=) 'p' AND c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid),
-- From 19 on, the entries of a publication of all tables are those that it leaves out, with all of their partitions.
excepted AS (
    SELECT p.oid AS publication, r.prrelid AS oid
    FROM pub p JOIN pg_catalog.pg_publication_rel r ON r.prpubid OPERATOR(pg_catalog.=) p.oid WHERE p.all_tables
    UNION
    SELECT e.publication, i.inhrelid
    FROM excepted e JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) e.oid
     AND c.relkind OPERATOR(pg_catalog.=) 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) e.oid),
named AS ({named}),
below AS (
    SELECT m.publication, m.via_root, m.oid, m.kind FROM named m
    UNION
    SELECT b.publication, b.via_root, i.inhrelid, c.relkind
    FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) b.oid
    JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid
    WHERE b.kind OPERATOR(pg_catalog.=) 'p' AND NOT b.via_root
      AND NOT coalesce((pg_catalog.to_json(i) OPERATOR(pg_catalog.->>) 'inhdetachpending')::pg_catalog.bool, false)),
within AS ({within}),
published AS (
    SELECT p.pubname, p.oid AS publication, n.nspname, c.relname, c.oid,
           CASE WHEN e.list IS NOT NULL OR p.generated OPERATOR(pg_catalog.=) 's' THEN ARRAY(
               SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
               WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0
                 AND NOT a.attisdropped
                 AND CASE WHEN e.list IS NOT NULL
                          THEN a.attnum OPERATOR(pg_catalog.=) ANY (e.list)
                          ELSE (pg_catalog.to_json(a) OPERATOR(pg_catalog.->>) 'attgenerated')
                               OPERATOR(pg_catalog.<>) 'v' END
               ORDER BY a.attnum) END AS attnames,
           e.list IS NOT NULL AS is_listed, e.filter
    FROM (SELECT DISTINCT b.publication, b.oid FROM below b
          WHERE (b.kind OPERATOR(pg_catalog.<>) 'p' OR b.via_root)
            AND NOT EXISTS (SELECT 1 FROM within w JOIN named m
                            ON m.publication OPERATOR(pg_catalog.=) w.publication
                           AND m.oid OPERATOR(pg_catalog.=) w.oid
                            WHERE w.publication OPERATOR(pg_catalog.=) b.publication
                              AND w.leaf OPERATOR(pg_catalog.=) b.oid AND w.oid OPERATOR(pg_catalog.<>) b.oid)) l
    JOIN pub p ON p.oid OPERATOR(pg_catalog.=) l.publication
    JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) l.oid
    JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
    LEFT JOIN LATERAL ({entry}) e ON true)
"""

_FILTERS = """
SELECT r.oid::pg_catalog.int8, pg_catalog.pg_get_expr(r.prqual, r.prrelid) FROM pg_catalog.pg_publication_rel r
WHERE r.oid OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.oid[])
"""
_UNLOCKED = f" AND r.prrelid OPERATOR(pg_catalog.<>) ALL ({LOCKED})"


def published(major: int) -> str:
    """The beginning of a query: `WITH RECURSIVE ... published`, with a row per publication and table.

    The first parameter is the list of the publications' names. The columns of `published`: `pubname`; `publication`
    (its oid); `nspname`, `relname` and `oid` of the table; `attnames` (the published columns, null for all that are not
    generated); `is_listed` (whether there is a column list); `filter` (the entry with the row filter, null for none).

    Args:
        major: the server's major version. With it, the rows are those of pg_publication_tables.
    """
    return _PUBLISHED.format(
        # Before 13 no publication has a table with partitions.
        kinds="'r', 'p'" if major >= 13 else "'r'",
        named=_NAMED + (_IN_SCHEMAS if major >= 15 else ""),
        within=_WITHIN if major >= 13 else _NO_ROOTS,
        entry=_ENTRY if major >= 15 else _NO_ENTRY,
    )


def row_filters(cursor: Any, entries: Iterable[int]) -> dict[int, str]:
    """{entry: row filter as SQL} for values of `filter`. Waits for locks on their tables.

    Raises:
        psycopg2.Error: if a query fails.
    """
    requested = list(entries)
    if not requested:
        return {}
    cursor.execute(_FILTERS, (requested,))
    return dict(cursor.fetchall())


def unlocked_filters(cursor: Any, entries: Iterable[int]) -> dict[int, str]:
    """As `row_filters`, but skips tables that are locked now.

    Raises:
        psycopg2.Error: if a query fails.
    """
    requested = list(entries)
    return dict(unlocked_rows(cursor, _FILTERS + _UNLOCKED, (requested,))) if requested else {}
