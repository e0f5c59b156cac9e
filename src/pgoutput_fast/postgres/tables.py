"""The published tables for a snapshot: their Relation messages, and the location of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pgoutput_fast.base.display import no_such_name
from pgoutput_fast.catalog.builtin_types import FIRST_USER_OID
from pgoutput_fast.catalog.encodings import NAME_BYTES, read_name
from pgoutput_fast.catalog.identifiers import quote_qualified_name
from pgoutput_fast.catalog.read_types import read_types
from pgoutput_fast.catalog.relations import Catalog, Column, Relation, version_of
from pgoutput_fast.postgres.locks import LOCKED, unlocked_rows
from pgoutput_fast.postgres.names import expect_sendable_names
from pgoutput_fast.postgres.plugin import expect_publications
from pgoutput_fast.postgres.publications import partitions_below
from pgoutput_fast.postgres.published import published
from pgoutput_fast.schema.column_types import column_types_of
from pgoutput_fast.schema.options import Options

__all__ = ["LeafTable", "SnapshotTable", "describe_tables", "text_columns"]


@dataclass(frozen=True)
class LeafTable:
    """A heap with rows of a table: the table itself, or a partition of it.

    Attributes:
        oid, name: of the heap; the name is qualified and quoted.
        filenode: its file at the time of the snapshot; a rewrite changes it.
        nbytes: size of its pages in bytes.
        has_pages: whether the server can read it by page ranges.
    """

    oid: int
    name: str
    filenode: int
    nbytes: int
    has_pages: bool


@dataclass(frozen=True)
class SnapshotTable:
    """A table as the publications publish it.

    Attributes:
        relation: the table as its Relation message describes it.
        parts: the heaps with its rows.
        filters: the catalog entries of the row filters; a row must match one of them. Empty for all rows.
        unsendable: columns whose type, or a part of it, has no binary form.
        consistent_lsn: the snapshot lacks commits at this LSN or later.
    """

    relation: Relation
    parts: tuple[LeafTable, ...]
    filters: tuple[int, ...]
    unsendable: frozenset[str]
    consistent_lsn: int

    @property
    def name(self) -> str:
        """The qualified and quoted name."""
        return self.relation.qualified_name

    @property
    def nbytes(self) -> int:
        """Size of all pages in bytes."""
        return sum(part.nbytes for part in self.parts)


_PUBLICATIONS = f"""
SELECT pg_catalog.getdatabaseencoding()::pg_catalog.text, {NAME_BYTES.format("pubname::pg_catalog.text")}
FROM pg_catalog.pg_publication
"""

_TABLES = """
SELECT t.pubname::pg_catalog.text, c.oid::pg_catalog.int8, t.nspname::pg_catalog.text, t.relname::pg_catalog.text,
       c.relreplident::pg_catalog.text, c.relkind::pg_catalog.text, t.attnames, t.filter
FROM published t JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.oid
ORDER BY t.nspname, t.relname, t.pubname
"""

# The same for named tables, as if a publication published all of their rows and publishable columns.
_NAMED = """
SELECT '', c.oid::pg_catalog.int8, n.nspname::pg_catalog.text, c.relname::pg_catalog.text,
       c.relreplident::pg_catalog.text, c.relkind::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p'])
  AND EXISTS (SELECT 1
              FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]), pg_catalog.unnest(%s::pg_catalog.text[]))
                   AS w (schema, name)
              WHERE n.nspname OPERATOR(pg_catalog.=) w.schema AND c.relname OPERATOR(pg_catalog.=) w.name)
"""

# Columns of later versions are read as JSON: attgenerated of 12, indnkeyatts of 11.
_COLUMNS = """
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text, a.atttypid::pg_catalog.int8,
       a.atttypmod::pg_catalog.int8,
       coalesce(pg_catalog.to_json(a) OPERATOR(pg_catalog.->>) 'attgenerated', '') OPERATOR(pg_catalog.<>) '',
       c.relreplident OPERATOR(pg_catalog.=) 'f' OR EXISTS (
           SELECT 1 FROM pg_catalog.pg_index i
           WHERE i.indrelid OPERATOR(pg_catalog.=) a.attrelid
             AND a.attnum OPERATOR(pg_catalog.=) ANY ((i.indkey::pg_catalog.int2[])[
                 0:coalesce((pg_catalog.to_json(i) OPERATOR(pg_catalog.->>) 'indnkeyatts')::pg_catalog.int4, i.indnatts)
                   OPERATOR(pg_catalog.-) 1])
             AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
             AND CASE WHEN c.relreplident OPERATOR(pg_catalog.=) 'd' THEN i.indisprimary
                      WHEN c.relreplident OPERATOR(pg_catalog.=) 'i' THEN i.indisreplident ELSE false END)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid
WHERE a.attrelid OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.oid[])
  AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

# A table without partitions is its own part. 10 and 11 have no table access methods.
_PARTS = """
WITH RECURSIVE below (root, oid) AS (
    SELECT oid, oid FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS u (oid)
    UNION ALL
    SELECT b.root, i.inhrelid FROM below b
    JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) b.oid AND p.relkind OPERATOR(pg_catalog.=) 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) b.oid)
SELECT b.root::pg_catalog.int8, c.oid::pg_catalog.int8, n.nspname::pg_catalog.text, c.relname::pg_catalog.text,
       c.relkind::pg_catalog.text, c.relfilenode::pg_catalog.int8,
       c.relpages::pg_catalog.int8 OPERATOR(pg_catalog.*) pg_catalog.current_setting('block_size')::pg_catalog.int8,
       coalesce((pg_catalog.to_json(c) OPERATOR(pg_catalog.->>) 'relam')::pg_catalog.int8, 0)
           OPERATOR(pg_catalog.=) ANY (ARRAY[0, 2]::pg_catalog.int8[])
FROM below b JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) b.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
ORDER BY n.nspname, c.relname
"""

# Reading the size opens a table. For a locked table it is the page count of the last VACUUM or ANALYZE.
_SIZES = f"""
SELECT u.oid::pg_catalog.int8, coalesce(pg_catalog.pg_relation_size(u.oid), 0)
FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS u (oid) WHERE u.oid OPERATOR(pg_catalog.<>) ALL ({LOCKED})
"""

# The names in Type messages. A domain has the name of its base type.
_TYPE_NAMES = """
WITH RECURSIVE base (root, oid) AS (
    SELECT oid, oid FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS u (oid)
    UNION ALL
    SELECT b.root, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) b.oid
    WHERE t.typtype OPERATOR(pg_catalog.=) 'd')
SELECT b.root::pg_catalog.int8, n.nspname::pg_catalog.text, t.typname::pg_catalog.text
FROM base b JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) b.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
WHERE t.typtype OPERATOR(pg_catalog.<>) 'd'
"""

# The send function of a type that consists of other types fails if theirs fail.
_UNSENDABLE = """
WITH RECURSIVE within (root, oid) AS (
    SELECT oid, oid FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS u (oid)
    UNION
    SELECT w.root, x.oid FROM within w JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) w.oid
    CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typtype OPERATOR(pg_catalog.=) 'd'
        UNION ALL SELECT t.typelem WHERE t.typelem OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
                    AND t.typlen OPERATOR(pg_catalog.=) -1
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                  WHERE t.typtype OPERATOR(pg_catalog.=) 'c' AND a.attrelid OPERATOR(pg_catalog.=) t.typrelid
                    AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid OPERATOR(pg_catalog.=) t.oid
        UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r
                  WHERE (pg_catalog.to_json(r) OPERATOR(pg_catalog.->>) 'rngmultitypid')::pg_catalog.oid
                        OPERATOR(pg_catalog.=) t.oid
    ) x (oid))
SELECT DISTINCT w.root::pg_catalog.int8 FROM within w JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) w.oid
WHERE t.typsend::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
"""


def describe_tables(
    cursor: Any,
    publications: Sequence[str],
    major: int,
    consistent_lsn: int,
    *,
    user_types: bool,
    named: Sequence[tuple[str, str]] = (),
) -> tuple[tuple[SnapshotTable, ...], Catalog]:
    """The published tables as of the cursor's transaction, and a catalog of them.

    Args:
        cursor: of a pinned session whose transaction sees the snapshot.
        publications: names of the publications, without SQL quotes.
        major: the server's major version.
        consistent_lsn: the consistent point of the snapshot.
        user_types: whether to add the server's types that are not built in to the catalog.
        named: (schema, name) of tables, instead of the tables of publications.

    Raises:
        ValueError: for a publication that does not exist, and for column lists that the server cannot combine.
        CaptureError: if the server cannot send a name.
        psycopg2.Error: if a query fails.
    """
    expect_sendable_names(cursor, publications, named)
    found: dict[int, list[Any]] = {}
    for row in _published(cursor, publications, named):
        found.setdefault(row[1], []).append(row)
    within = partitions_below(cursor, list(found))
    chosen = [oid for oid in found if oid not in within]
    parts = _parts_of(cursor, chosen)
    columns = _columns_of(cursor, chosen)
    oids = sorted({column.type_oid for each in columns.values() for column, _ in each})
    cursor.execute(_UNSENDABLE, (oids,))
    unsendable = {oid for (oid,) in cursor.fetchall()}
    cursor.execute(_TYPE_NAMES, ([oid for oid in oids if oid >= FIRST_USER_OID],))
    type_names = {oid: (schema, name) for oid, schema, name in cursor.fetchall()}
    tables = tuple(
        _table(
            found[oid],
            columns[oid],
            parts[oid],
            major,
            unsendable,
            type_names,
            consistent_lsn,
        )
        for oid in chosen
    )
    relations = [table.relation for table in tables]
    if not user_types:
        return tables, Catalog(relations)
    return tables, Catalog(relations, read_types(cursor.connection))


def _published(cursor: Any, publications: Sequence[str], named: Sequence[tuple[str, str]]) -> list[Any]:
    """Rows of `_TABLES`."""
    if named:
        cursor.execute(_NAMED, tuple(map(list, zip(*named, strict=True))))
        return list(cursor.fetchall())
    expect_publications(publications)
    cursor.execute(_PUBLICATIONS)
    known = {read_name(name, encoding) for encoding, name in cursor.fetchall()}
    for each in publications:
        if each not in known:
            raise ValueError(f"{no_such_name('publication', each, known)}. Create the publication first")
    cursor.execute(published(cursor.connection.server_version // 10000) + _TABLES, (list(publications),))
    return list(cursor.fetchall())


def _parts_of(cursor: Any, oids: Sequence[int]) -> dict[int, list[LeafTable]]:
    """Returns the heaps with rows of a table, by table."""
    cursor.execute(_PARTS, (list(oids),))
    found: dict[int, list[LeafTable]] = {oid: [] for oid in oids}
    rows = [row for row in cursor.fetchall() if row[4] == "r"]
    sizes = dict(unlocked_rows(cursor, _SIZES, ([row[1] for row in rows],)))
    for root, oid, schema, name, _, filenode, nbytes, is_heap in rows:
        name = quote_qualified_name(schema, name)
        found[root].append(LeafTable(oid, name, filenode, sizes.get(oid, nbytes), is_heap))
    return found


def _columns_of(cursor: Any, oids: Sequence[int]) -> dict[int, list[tuple[Column, bool]]]:
    """Returns the columns as (column, whether it is generated), by table."""
    cursor.execute(_COLUMNS, (list(oids),))
    found: dict[int, list[tuple[Column, bool]]] = {oid: [] for oid in oids}
    for oid, name, type_oid, typmod, generated, key in cursor.fetchall():
        found[oid].append((Column(name, type_oid, typmod, key), generated))
    return found


def _table(
    rows: Sequence[Any],
    columns: Sequence[tuple[Column, bool]],
    parts: Sequence[LeafTable],
    major: int,
    unsendable: set[int],
    type_names: dict[int, tuple[str, str]],
    consistent_lsn: int,
) -> SnapshotTable:
    _, oid, schema, name, identity, *_ = rows[0]
    lists = {frozenset(_sent(columns, row[6], major)) for row in rows}
    if len(lists) > 1:
        raise ValueError(
            f"the publications have different columns of {quote_qualified_name(schema, name)}. The server does not "
            "stream this table, so a snapshot cannot load it. Use one publication, or publish the same columns in all"
        )
    (sent,) = lists
    described = tuple(
        Column(c.name, c.type_oid, c.typmod, c.key, *type_names.get(c.type_oid, (None, None)))
        for c, _ in columns
        if c.name in sent
    )
    bare = Relation(oid, 0, schema, name, identity, described)
    relation = Relation(oid, version_of(bare.wire_body()), schema, name, identity, described)
    filters = [row[7] for row in rows]
    return SnapshotTable(
        relation,
        tuple(parts),
        () if None in filters else tuple(dict.fromkeys(filters)),
        frozenset(column.name for column in described if column.type_oid in unsendable),
        consistent_lsn,
    )


def _sent(columns: Sequence[tuple[Column, bool]], listed: Sequence[str] | None, major: int) -> Iterator[str]:
    """Yields the columns that a publication sends: before 18 no generated ones, even if the view lists them."""
    for column, generated in columns:
        in_list = listed is None or column.name in listed
        may_be_sent = not generated or (listed is not None and major >= 18)
        if in_list and may_be_sent:
            yield column.name


def text_columns(table: SnapshotTable, catalog: Catalog, options: Options, major: int) -> frozenset[str]:
    """Returns the columns that a snapshot reads as text.

    These are columns without a binary form, and columns whose binary values would be decoded differently from changes,
    which arrive as text by default.
    """
    columns = table.relation.columns
    types = column_types_of(columns, options, catalog.types)
    return table.unsendable | {
        column.name for column, kind in zip(columns, types, strict=True) if not kind.binary_agrees(major)
    }
