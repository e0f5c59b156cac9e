"""Reads the fingerprints of all published tables from the server's catalogs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pgoutput_fast.catalog.builtin_types import FIRST_USER_OID
from pgoutput_fast.catalog.identifiers import quote_qualified_name
from pgoutput_fast.catalog.read_types import read_types
from pgoutput_fast.catalog.user_types import NO_TYPES, UserTypes
from pgoutput_fast.mirror.schema_changes.fingerprint import NAMED, CatalogColumn, Fingerprint, Leaf
from pgoutput_fast.mirror.schema_changes.unseen import Marker
from pgoutput_fast.postgres.names import expect_sendable_names
from pgoutput_fast.postgres.publications import OPERATIONS, partitions_below
from pgoutput_fast.postgres.published import published, unlocked_filters

__all__ = ["EXCEPT_SINCE", "read_columns", "read_fingerprints"]

EXCEPT_SINCE = 190000
"""From this version on, a publication of all tables can exclude some (EXCEPT)."""

_TABLES = """
SELECT t.pubname::pg_catalog.text, t.nspname::pg_catalog.text, t.relname::pg_catalog.text, c.oid::pg_catalog.int8,
       c.relnamespace::pg_catalog.int8, c.relfilenode::pg_catalog.int8, c.reltoastrelid::pg_catalog.int8,
       t.attnames, t.filter, c.xmin::pg_catalog.text::pg_catalog.int8, c.relnatts::pg_catalog.int4
FROM published t JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.oid
ORDER BY t.nspname, t.relname, t.pubname
"""

# pubtruncate came with 11: it is read as JSON.

_PUBLICATIONS = """
SELECT p.pubname::pg_catalog.text, p.oid::pg_catalog.int8, p.xmin::pg_catalog.text,
       pubinsert, pubupdate, pubdelete,
       coalesce((pg_catalog.to_json(p) OPERATOR(pg_catalog.->>) 'pubtruncate')::pg_catalog.bool, true), puballtables
FROM pg_catalog.pg_publication p WHERE pubname OPERATOR(pg_catalog.=) ANY (%s)
"""

# The tables, and those of which they are partitions. Only SET SCHEMA changes the dependency of a table on its schema.
_ABOVE = """
WITH RECURSIVE above (leaf, oid, links) AS (
    SELECT oid, oid, ''::pg_catalog.text FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS u (oid)
    UNION ALL
    SELECT a.leaf, i.inhparent, pg_catalog.concat(a.links, ' ', i.xmin::pg_catalog.text)
    FROM above a JOIN pg_catalog.pg_inherits i ON i.inhrelid OPERATOR(pg_catalog.=) a.oid
    JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhparent
     AND c.relkind OPERATOR(pg_catalog.=) 'p')
SELECT a.leaf::pg_catalog.int8, a.oid::pg_catalog.int8, c.relnamespace::pg_catalog.int8,
       d.xmin::pg_catalog.text, a.links
FROM above a JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.oid
LEFT JOIN pg_catalog.pg_depend d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
 AND d.objid OPERATOR(pg_catalog.=) c.oid AND d.objsubid OPERATOR(pg_catalog.=) 0
 AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
"""

# Why a table is published: itself, or, from 15 on, its schema.
_MEMBERS = """
SELECT r.prrelid::pg_catalog.int8, r.oid::pg_catalog.int8, r.xmin::pg_catalog.text,
       NOT coalesce((pg_catalog.to_json(r) OPERATOR(pg_catalog.->>) 'prexcept')::pg_catalog.bool, false)
FROM pg_catalog.pg_publication_rel r WHERE r.prpubid OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.oid[])
"""
_SCHEMAS = """
SELECT s.pnnspid::pg_catalog.int8, s.oid::pg_catalog.int8, s.xmin::pg_catalog.text, false
FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.oid[])
"""

# From 11 on: the value of old rows, as bytes in hexadecimal, because a client may not get it as text. Arrays of a type
# with another delimiter than a comma have another text form. A long value is read with a load.
_MISSING = """
LEFT JOIN LATERAL (
    SELECT CASE WHEN t.typdelim OPERATOR(pg_catalog.=) ','
                THEN a.attmissingval::pg_catalog.text::pg_catalog.text[] END
    FROM pg_catalog.pg_type t WHERE t.oid OPERATOR(pg_catalog.=) a.atttypid) AS m (v) ON a.atthasmissing
"""
_MISSING_HEX = """
CASE WHEN pg_catalog.cardinality(m.v) OPERATOR(pg_catalog.=) 1
      AND pg_catalog.octet_length(m.v[1]) OPERATOR(pg_catalog.<) 8192
     THEN pg_catalog.encode(pg_catalog.convert_to(m.v[1], pg_catalog.getdatabaseencoding()), 'hex') END
"""

# atthasmissing came with 11, attidentity with 10, attgenerated with 12.
_COLUMNS = """
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text, a.attnum::pg_catalog.int4,
       a.atttypid::pg_catalog.int8, a.atttypmod::pg_catalog.int8,
       a.atthasdef OR a.attidentity::pg_catalog.text OPERATOR(pg_catalog.<>) '',
       coalesce((pg_catalog.to_json(a) OPERATOR(pg_catalog.->>) 'atthasmissing')::pg_catalog.bool, false),
       a.xmin::pg_catalog.text::pg_catalog.int8,
       coalesce(pg_catalog.to_json(a) OPERATOR(pg_catalog.->>) 'attgenerated', '') OPERATOR(pg_catalog.<>) '',
       {missing_hex}
FROM pg_catalog.pg_attribute a {missing}
WHERE a.attrelid OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.oid[])
  AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

# From 11 on. A partitioned table has no rows itself: the values of old rows are in the catalog entries of its
# partitions.
_MISSING_BELOW = """
WITH RECURSIVE below (root, oid) AS (
    SELECT oid, oid FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS u (oid)
    UNION ALL
    SELECT b.root, i.inhrelid
    FROM below b JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) b.oid
     AND p.relkind OPERATOR(pg_catalog.=) 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) b.oid)
SELECT DISTINCT b.root::pg_catalog.int8, a.attname::pg_catalog.text
FROM below b JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) b.oid
WHERE b.root OPERATOR(pg_catalog.<>) b.oid AND a.atthasmissing
  AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
"""

# CREATE TABLE ... PARTITION OF inserts user and system columns in one command. ATTACH PARTITION changes all user
# columns in a later command. So a column as it was inserted proves that the table has been a partition from the start.
# Transaction numbers prove nothing: the transaction that attaches a table may be older than the rows in it, and may
# have written them itself.
_LEAVES = """
WITH RECURSIVE below (root, oid, links, is_born) AS (
    SELECT oid, oid, ARRAY[]::pg_catalog.int8[], true FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS u (oid)
    UNION ALL
    SELECT b.root, i.inhrelid, pg_catalog.array_append(b.links, i.xmin::pg_catalog.text::pg_catalog.int8),
           b.is_born AND EXISTS (
               SELECT 1 FROM pg_catalog.pg_attribute s JOIN pg_catalog.pg_attribute a
                 ON a.attrelid OPERATOR(pg_catalog.=) s.attrelid
                AND a.xmin OPERATOR(pg_catalog.=) s.xmin AND a.cmin OPERATOR(pg_catalog.=) s.cmin
               WHERE s.attrelid OPERATOR(pg_catalog.=) i.inhrelid AND s.attnum OPERATOR(pg_catalog.=) -1
                 AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
                 AND s.xmin OPERATOR(pg_catalog.=) i.xmin
                 AND s.xmax::pg_catalog.text OPERATOR(pg_catalog.=) '0'
                 AND a.xmax::pg_catalog.text OPERATOR(pg_catalog.=) '0')
    FROM below b JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) b.oid
     AND p.relkind OPERATOR(pg_catalog.=) 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) b.oid)
SELECT b.root::pg_catalog.int8, c.oid::pg_catalog.int8, n.nspname::pg_catalog.text, c.relname::pg_catalog.text,
       c.relfilenode::pg_catalog.int8, b.links,
       b.is_born AND c.relfilenode OPERATOR(pg_catalog.=) c.oid, c.xmin::pg_catalog.text::pg_catalog.int8
FROM below b JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) b.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.relkind OPERATOR(pg_catalog.=) 'r' AND b.root OPERATOR(pg_catalog.<>) b.oid
"""

# ALTER TYPE ... RENAME VALUE writes the entry of a label again, and a name that comes back has another entry.
_LABELS = """
SELECT enumtypid::pg_catalog.int8, pg_catalog.concat(oid, ' ', xmin) FROM pg_catalog.pg_enum ORDER BY 1, 2
"""

_NONE: Mapping[Any, Any] = MappingProxyType({})

_HORIZON = "SELECT pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot())"


def read_fingerprints(
    cursor: Any,
    publications: Sequence[str],
    unseen: int = 0,
    marker: Marker | None = None,
    repacks: Mapping[int, int] = _NONE,
) -> tuple[dict[str, Fingerprint], UserTypes | None]:
    """The fingerprints of the published tables in the cursor's transaction, which must keep its snapshot.

    Args:
        cursor: of the transaction.
        publications: their names.
        unseen: how many entries of publications appeared and disappeared, as `UnseenEntries` counts them.
        marker: from `AlteredPublications`; None for marks that change with every alteration.
        repacks: from `running_repacks` before the transaction began.

    Returns:
        {qualified name: fingerprint}, and the types that are not built in; None if no column has such a type.

    Raises:
        CaptureError: if the server cannot send a name.
        psycopg2.Error: if the server cannot be asked.
    """
    major = cursor.connection.server_version // 10000
    expect_sendable_names(cursor, publications)
    cursor.execute(published(major) + _TABLES, (list(publications),))
    rows: dict[int, list[Any]] = {}
    for row in cursor.fetchall():
        rows.setdefault(row[3], []).append(row)
    for oid in partitions_below(cursor, list(rows)):
        rows.pop(oid, None)
    oids = list(rows)
    entries = {row[8] for each in rows.values() for row in each}
    filters = unlocked_filters(cursor, entries - {None})
    operations, members = _published(cursor, publications, rows, unseen, marker)
    columns, generated = _columns(cursor, oids)
    leaves = _leaves(cursor, oids, repacks)
    cursor.execute(_HORIZON)
    horizon = cursor.fetchone()[0] % (1 << 32)
    used = {column.type_oid for each in columns.values() for column in each.values()}
    types = read_types(cursor.connection) if any(oid >= FIRST_USER_OID for oid in used) else None
    labels = _labels(cursor) if types else {}
    found = {}
    for oid, each in rows.items():
        _, schema, name, _, _, filenode, toast, *_ = each[0]
        sent = _sent(columns[oid], generated[oid], [row[7] for row in each], major)
        found[quote_qualified_name(schema, name)] = Fingerprint(
            oid,
            filenode,
            toast,
            sent,
            _filters([row[8] for row in each], filters),
            tuple(what for what in OPERATIONS if what in operations[oid]),
            tuple(sorted(members[oid])),
            leaves.get(oid, {}),
            _parts_of((column.type_oid for column in sent.values() if column.is_published), types, labels),
            horizon,
            each[0][9],
            repacks.get(oid, 0),
            each[0][10],
        )
    return found, types


def _filters(entries: Sequence[int | None], known: Mapping[int, str]) -> tuple[str, ...] | None:
    if None in entries:
        return ()
    texts = {known.get(each) for each in entries if each is not None}
    return None if None in texts else tuple(sorted(filter(None, texts)))


def read_columns(cursor: Any, oid: int) -> dict[str, CatalogColumn]:
    """{name: column} of one table; empty if it was dropped. Ignores column lists."""
    columns, generated = _columns(cursor, [oid])
    return _sent(columns[oid], generated[oid], [None], 0)


def _published(
    cursor: Any,
    publications: Sequence[str],
    rows: Mapping[int, Sequence[Any]],
    unseen: int,
    marker: Marker | None,
) -> tuple[dict[int, set[str]], dict[int, set[str]]]:
    """The published operations of the tables, and the catalog entries that publish them."""
    cursor.execute(_PUBLICATIONS, (list(publications),))
    known = {name: more for name, *more in cursor.fetchall()}
    pubs = [oid for oid, *_ in known.values()]
    operations: dict[int, set[str]] = {oid: set() for oid in rows}
    members: dict[int, set[str]] = {oid: set() for oid in rows}
    for oid, each in rows.items():
        for name, *_ in each:
            pub, xmin, *sent, has_all = known[name]
            members[oid].add(f"publication {pub} {xmin if marker is None else marker(str(pub), xmin)}")
            if has_all and cursor.connection.server_version >= EXCEPT_SINCE:
                members[oid].add(f"exceptions {pub} {unseen}")
            operations[oid] |= {what for what, is_sent in zip(OPERATIONS, sent, strict=True) if is_sent}
    tables = _entries(cursor, _MEMBERS, pubs)
    schemas = _entries(cursor, _SCHEMAS, pubs) if cursor.connection.server_version >= 150000 else {}
    cursor.execute(_ABOVE, (list(rows),))
    for leaf, oid, schema, moved, links in cursor.fetchall():
        members[leaf] |= {f"table {entry} {xmin}{links}" for entry, xmin, _ in tables.get(oid, ())}
        # From 11 on, TRUNCATE is in the stream.
        if oid == leaf and cursor.connection.server_version >= 110000:
            members[leaf] |= {f"{NAMED}{entry} {xmin}" for entry, xmin, named in tables.get(oid, ()) if named}
        for entry, xmin, _ in schemas.get(schema, ()):
            members[leaf] |= {f"schema {entry} {xmin}", f"in schema {entry} {moved}{links}"}
    return operations, members


def _entries(cursor: Any, query: str, publications: Sequence[int]) -> dict[int, list[tuple[int, str, bool]]]:
    """{oid of a table or a schema: (oid, transaction, whether it names a table) of its entries}."""
    cursor.execute(query, (list(publications),))
    found: dict[int, list[tuple[int, str, bool]]] = {}
    for what, *entry in cursor.fetchall():
        found.setdefault(what, []).append(tuple(entry))
    return found


def _columns(
    cursor: Any, oids: Sequence[int]
) -> tuple[dict[int, dict[str, CatalogColumn]], dict[int, set[str]]]:
    """The columns of the tables, and the names of the generated ones."""
    columns: dict[int, dict[str, CatalogColumn]] = {oid: {} for oid in oids}
    generated: dict[int, set[str]] = {oid: set() for oid in oids}
    has_missing = cursor.connection.server_version >= 110000
    query = _COLUMNS.format(
        missing_hex=_MISSING_HEX if has_missing else "NULL", missing=_MISSING if has_missing else ""
    )
    encoding = cursor.connection.get_parameter_status("server_encoding")
    cursor.execute(query, (list(oids),))
    for oid, name, number, kind, typmod, has_default, is_missing, xmin, is_generated, value in cursor:
        missing = _text(value, encoding)
        columns[oid][name] = CatalogColumn(
            number, kind, typmod, has_default or is_missing, is_missing, xmin, missing=missing
        )
        if is_generated:
            generated[oid].add(name)
    if has_missing:
        cursor.execute(_MISSING_BELOW, (list(oids),))
        for oid, name in cursor.fetchall():
            if name in columns[oid]:
                columns[oid][name] = replace(columns[oid][name], is_filled=True)
    return columns, generated


def _sent(
    columns: Mapping[str, CatalogColumn],
    generated: set[str],
    lists: Sequence[Sequence[str] | None],
    major: int,
) -> dict[str, CatalogColumn]:
    """Marks the columns that are published. Before 18, generated ones are not, even if the view lists them."""
    found = {}
    for name, each in columns.items():
        may_be = name not in generated or major >= 18
        is_sent = may_be and any(
            name in listed if listed is not None else name not in generated for listed in lists
        )
        found[name] = replace(each, is_published=is_sent)
    return found


def _text(value: str | None, encoding: str | None) -> str | None:
    """The text of bytes in hexadecimal; None if it may lack a UTF-8 form."""
    if value is None:
        return None
    try:
        return bytes.fromhex(value).decode("utf-8" if encoding == "UTF8" else "ascii")
    except UnicodeDecodeError:
        return None


def _leaves(cursor: Any, oids: Sequence[int], repacks: Mapping[int, int]) -> dict[int, dict[str, Leaf]]:
    found: dict[int, dict[str, Leaf]] = {}
    cursor.execute(_LEAVES, (list(oids),))
    for root, oid, schema, name, filenode, links, is_born, written in cursor.fetchall():
        found.setdefault(root, {})[str(oid)] = Leaf(
            quote_qualified_name(schema, name),
            filenode,
            tuple(links),
            is_born,
            written,
            repacks.get(oid, 0),
        )
    return found


def _labels(cursor: Any) -> dict[int, list[str]]:
    """{oid of an enum: its labels, each as its entry in the catalog}."""
    cursor.execute(_LABELS)
    found: dict[int, list[str]] = {}
    for oid, entry in cursor.fetchall():
        found.setdefault(oid, []).append(entry)
    return found


def _parts_of(
    oids: Iterable[int], types: UserTypes | None, labels: Mapping[int, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """The parts of the enums and composites among these types and the types that they use."""
    types, found, left = types or NO_TYPES, {}, list(oids)
    seen: set[int] = set()
    while left:
        oid = left.pop()
        if oid in seen or oid not in types:
            continue
        seen.add(oid)
        one = types[oid]
        left += [one.of, *(each.type_oid for each in one.fields)]
        if one.kind == "enum":
            found[str(oid)] = ("enum", *labels.get(oid, ()))
        elif one.kind == "composite":
            fields = (f"{each.name} {each.type_oid} {each.typmod}" for each in one.fields)
            found[str(oid)] = ("composite", *fields)
    return found
