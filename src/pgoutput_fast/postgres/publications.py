"""The contents of publications, and findings about data that are sent in an unexpected form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pgoutput_fast.base.display import escaped, nearest
from pgoutput_fast.catalog.encodings import NAME_BYTES, read_name
from pgoutput_fast.catalog.identifiers import quote_identifier, quote_qualified_name
from pgoutput_fast.postgres.findings import Finding
from pgoutput_fast.postgres.published import published

__all__ = ["OPERATIONS", "PublishedTable", "of_publications", "of_table", "partitions_below", "read_tables"]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a publication.

    Attributes:
        publication: the publication's name.
        name: the table's qualified, quoted name.
        identity: `d`, `n`, `f` or `i`, as in pg_class.relreplident.
        key: columns of the replica identity's index; empty for full.
        columns: the published columns, None for all publishable ones.
        filtered: whether there is a row filter.
        may_read: whether the user may SELECT.
        changes: whether updates or deletes are published.
        generated: generated columns that are not sent.
        leaves: (name, identity) of partitions whose changes are published as changes of this root.
        unsent: partitions of this root whose changes the server never sends: unlogged and foreign tables.
        refused: generated columns of the replica identity that are not sent: the server refuses updates and deletes (18
            and later).
    """

    publication: str
    name: str
    identity: str
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    filtered: bool
    may_read: bool
    changes: bool
    generated: tuple[str, ...]
    leaves: tuple[tuple[str, str], ...]
    unsent: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


# Columns that only later versions have are read as JSON: pubviaroot of 13, pubgencols of 18.
_TABLES = """
SELECT t.pubname::pg_catalog.text, t.nspname::pg_catalog.text, t.relname::pg_catalog.text,
       c.relreplident::pg_catalog.text,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_index i
             JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid
              AND a.attnum OPERATOR(pg_catalog.=) ANY (i.indkey)
             WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid
               AND CASE WHEN c.relreplident OPERATOR(pg_catalog.=) 'd' THEN i.indisprimary
                        WHEN c.relreplident OPERATOR(pg_catalog.=) 'i' THEN i.indisreplident ELSE false END),
       CASE WHEN t.is_listed THEN t.attnames END, t.filter IS NOT NULL,
       pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       p.pubupdate OR p.pubdelete,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0
               AND NOT a.attisdropped
               AND coalesce(pg_catalog.to_json(a) OPERATOR(pg_catalog.->>) 'attgenerated', '')
                   OPERATOR(pg_catalog.<>) '' ORDER BY a.attnum),
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0
               AND NOT a.attisdropped
               AND (pg_catalog.to_json(a) OPERATOR(pg_catalog.->>) 'attgenerated') OPERATOR(pg_catalog.=) 'v'),
       pg_catalog.to_json(p) OPERATOR(pg_catalog.->>) 'pubgencols',
       c.relkind OPERATOR(pg_catalog.=) 'p'
       AND coalesce((pg_catalog.to_json(p) OPERATOR(pg_catalog.->>) 'pubviaroot')::pg_catalog.bool, false),
       c.oid::pg_catalog.int8
FROM published t
JOIN pg_catalog.pg_publication p ON p.oid OPERATOR(pg_catalog.=) t.publication
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.oid
ORDER BY 1, 2, 3
"""

_LEAVES = """
WITH RECURSIVE below (oid) AS (
    SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent OPERATOR(pg_catalog.=) %s::pg_catalog.oid
    UNION ALL
    SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) b.oid)
SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, c.relreplident::pg_catalog.text,
       c.relkind OPERATOR(pg_catalog.=) 'r' AND c.relpersistence OPERATOR(pg_catalog.=) 'p'
FROM below b JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) b.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'f']::pg_catalog."char"[]) ORDER BY 1, 2
"""


_BELOW = """
WITH RECURSIVE below (oid) AS (
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) i.inhparent AND p.relkind OPERATOR(pg_catalog.=) 'p'
    WHERE i.inhparent OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.oid[])
    UNION
    SELECT i.inhrelid FROM below b
    JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) b.oid)
SELECT oid::pg_catalog.int8 FROM below
"""

OPERATIONS = ("insert", "update", "delete", "truncate")
"""The operations that a publication can publish."""


def read_tables(cursor: Any, publications: Sequence[str]) -> list[PublishedTable]:
    cursor.execute(published(cursor.connection.server_version // 10000) + _TABLES, (list(publications),))
    found = []
    for row in cursor.fetchall():
        publication, schema, name, identity, key, columns, filtered, *more = row
        may_read, changes, generated, virtual, sent, root, oid = more
        leaves: list[tuple[str, str]] = []
        lost: list[str] = []
        if root:
            cursor.execute(_LEAVES, (oid,))
            below = cursor.fetchall()
            leaves = [(quote_qualified_name(s, n), i) for s, n, i, is_sent in below if is_sent]
            lost = [quote_qualified_name(s, n) for s, n, _, is_sent in below if not is_sent]
        unsent = tuple(generated) if sent != "s" else ()
        # Listed columns are sent, even if they are generated. Servers before 18 do not check generated columns.
        hidden = set(virtual) if sent == "s" else set(generated)
        is_looked_at = sent is not None and columns is None
        refused = [name for name in generated if name in hidden and (identity == "f" or name in key)]
        found.append(
            PublishedTable(
                publication,
                quote_qualified_name(schema, name),
                identity,
                tuple(key),
                None if columns is None else tuple(columns),
                filtered,
                may_read,
                changes,
                unsent,
                tuple(leaves),
                tuple(lost),
                tuple(refused) if is_looked_at else (),
            )
        )
    return found


def partitions_below(cursor: Any, oids: Sequence[int]) -> set[int]:
    """The oids of all partitions of tables, on every level.

    One publication may publish a partition's changes as its root's, and another the partition itself. The server then
    sends them as those of the topmost published table.
    """
    cursor.execute(_BELOW, (list(oids),))
    return {oid for (oid,) in cursor.fetchall()}


def of_publications(
    cursor: Any, publications: Sequence[str], tables: Sequence[PublishedTable]
) -> Iterator[Finding]:
    if not publications:
        yield Finding("error", "publications", "you named none", "Name at least one publication", stops=True)
        return
    cursor.execute(
        "SELECT pg_catalog.getdatabaseencoding()::pg_catalog.text, "
        f"{NAME_BYTES.format('pubname::pg_catalog.text')}, pubinsert, pubupdate, pubdelete, "
        "coalesce((pg_catalog.to_json(p) OPERATOR(pg_catalog.->>) 'pubtruncate')::pg_catalog.bool, true), "
        "coalesce((pg_catalog.to_json(p) OPERATOR(pg_catalog.->>) 'puballsequences')::pg_catalog.bool, false) "
        "FROM pg_catalog.pg_publication p"
    )
    known = {read_name(name, encoding): sent for encoding, name, *sent in cursor.fetchall()}
    for name in publications:
        subject = f"publication {name}"
        if name not in known:
            near = nearest(name, known)
            meant = (
                f"Name one that exists (the nearest: {', '.join(map(escaped, near))}), or run"
                if near
                else "Run"
            )
            yield Finding(
                "error",
                subject,
                "it does not exist",
                f"{meant} CREATE PUBLICATION {quote_identifier(name)} FOR TABLE ..., or FOR ALL TABLES. A slot lacks "
                "what changed while there was no publication",
                stops=True,
            )
            continue
        *operations, has_sequences = known[name]
        lacking = [what for what, sent in zip(OPERATIONS, operations, strict=True) if not sent]
        if lacking:
            yield Finding(
                "warning",
                subject,
                f"it does not publish {', '.join(lacking)}: a copy of its tables is wrong after the first one",
                f"Run ALTER PUBLICATION {quote_identifier(name)} SET (publish = '{', '.join(OPERATIONS)}')",
            )
        if not any(table.publication == name for table in tables):
            yield Finding(
                "warning",
                subject,
                "it has only sequences, which the server never sends as changes"
                if has_sequences
                else "it has no tables",
                "Add tables. The server sends their changes from then on",
            )


_IDENTITIES = {"d": "the primary key", "n": "nothing", "f": "full", "i": "an index"}


def of_table(table: PublishedTable, user: str) -> Iterator[Finding]:
    """Findings about a table.

    Args:
        table: the table.
        user: of the capture.
    """
    yield from _of_key(table)
    yield from _of_columns(table)
    if table.filtered:
        yield Finding(
            "note",
            table.name,
            "it has a row filter: a row that leaves the filter comes as a delete, a row that enters it as an insert",
            "The server does not send the unchanged TOASTed values of this insert",
        )
    yield from _of_partitions(table)
    if not table.may_read:
        yield Finding(
            "warning",
            table.name,
            "the user has no right to read: the server sends changes, but an initial load fails",
            f"Run GRANT SELECT ON {table.name} TO {quote_identifier(user)}",
        )


def _of_key(table: PublishedTable) -> Iterator[Finding]:
    lacks_key = table.identity in "din" and not table.key
    if lacks_key and table.changes:
        what = (
            "replica identity is nothing"
            if table.identity == "n"
            else "there is no key as its replica identity"
        )
        # A table that only gets inserts is fine, but updates would fail with an error of the server.
        yield Finding(
            "note",
            table.name,
            f"{what}: the server refuses its updates and deletes while they are published",
            "If it gets updates or deletes, give it a primary key, or run "
            f"ALTER TABLE {table.name} REPLICA IDENTITY FULL",
        )


def _of_columns(table: PublishedTable) -> Iterator[Finding]:
    if table.columns is not None:
        hidden = sorted(set(table.key) - set(table.columns))
        if table.identity == "f" and table.changes:
            yield Finding(
                "error",
                table.name,
                "it has a column list, and its replica identity is full: the server refuses updates and deletes",
                f"Remove the column list. Or run ALTER TABLE {table.name} REPLICA IDENTITY DEFAULT, if it has a "
                "primary key",
            )
        elif hidden and table.changes:
            yield Finding(
                "error",
                table.name,
                f"the column list lacks {', '.join(hidden)} of its replica identity: the server refuses updates and "
                "deletes",
                "Add these columns to the publication's column list",
            )
        elif not hidden:
            yield Finding(
                "note",
                table.name,
                f"only {', '.join(table.columns)} are published",
                "The server never sends the other columns",
            )
    elif table.refused and table.changes:
        yield Finding(
            "error",
            table.name,
            f"the server refuses its updates and deletes: its replica identity has generated columns that are not "
            f"published: {', '.join(table.refused)}",
            f"Run ALTER PUBLICATION {quote_identifier(table.publication)} SET (publish_generated_columns = stored), "
            "which suffices if they are stored. Or give the table an identity without them",
        )
    elif table.generated:
        yield Finding(
            "note",
            table.name,
            f"the server does not send generated columns: {', '.join(table.generated)}",
            "From PostgreSQL 18 on, a publication can have publish_generated_columns = stored",
        )


def _of_partitions(table: PublishedTable) -> Iterator[Finding]:
    if table.unsent:
        yield Finding(
            "warning",
            table.name,
            f"the server never sends changes of its partitions {', '.join(table.unsent)}, which are unlogged or "
            "foreign tables: a copy has only the rows that an initial load finds there, and they become stale",
            "Run ALTER TABLE ... SET LOGGED for the unlogged ones, and detach the foreign ones",
        )
    differing = [name for name, identity in table.leaves if identity != table.identity]
    if differing:
        yield Finding(
            "warning",
            table.name,
            f"its replica identity is {_IDENTITIES[table.identity]}, that of {', '.join(differing)} is different: "
            "old rows have the columns of the root's identity, but only the values of the partition's identity",
            "Give all partitions the same identity with ALTER TABLE ... REPLICA IDENTITY",
        )
