"""Relation versions before they come: what the server would say of published tables, had they changed now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pgoutput_fast.capture.session import read_server, session
from pgoutput_fast.capture.snapshot_tables import describe_tables as describe_published
from pgoutput_fast.catalog import Catalog, Relation
from pgoutput_fast.enrich import read_types
from pgoutput_fast.names import parse_qualified_name

__all__ = ["describe_tables"]


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
        ValueError: for a publication that is not there, if one of the tables is not known.
        psycopg2.Error: if the server cannot be asked.
    """
    known = known if known is not None else Catalog()
    lacking = [table for table in tables if not _is_known(known, table)]
    with session(dsn) as cursor:
        if lacking:
            known = known.merged(Catalog(_described(cursor, publications, lacking)))
        return Catalog(known.relations, known.types.merged(read_types(cursor.connection)))


def _described(cursor: Any, publications: Sequence[str], tables: Sequence[str | int]) -> list[Relation]:
    major = read_server(cursor).major
    published, _ = describe_published(cursor, publications, major, 0, user_types=False)
    found = []
    for table in tables:
        wanted = parse_qualified_name(table) if isinstance(table, str) else None
        ours = [
            each.relation
            for each in published
            if (each.relation.oid == table if wanted is None else _name_of(each.relation) == tuple(wanted))
        ]
        if not ours:
            names = sorted(each.name for each in published)
            raise KeyError(
                f"table {table!r} is in none of the publications {', '.join(publications)}; "
                f"there is {', '.join(names) if names else 'no table'}"
            )
        found += ours
    return found


def _name_of(relation: Relation) -> tuple[str, str]:
    return relation.namespace, relation.name


def _is_known(known: Catalog, table: str | int) -> bool:
    try:
        return bool(known.named(table))
    except KeyError:
        return False
