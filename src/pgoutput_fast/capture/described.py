"""Relation versions before they come: what the server would say of published tables, had they changed now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pgoutput_fast.capture.session import connect, read_server
from pgoutput_fast.capture.snapshot_tables import describe_tables
from pgoutput_fast.catalog import Catalog, Relation
from pgoutput_fast.enrich import read_types

__all__ = ["describe_missing"]


def describe_missing(
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
        ValueError: for a publication that is not there.
        psycopg2.Error: if the server cannot be asked.
    """
    found = known if known is not None else Catalog()
    connection = connect(dsn)
    try:
        lacking = [table for table in tables if not _is_known(found, table)]
        if lacking:
            with connection.cursor() as cursor:
                found = found.merged(Catalog(_published(cursor, publications, lacking)))
        return Catalog(found.relations, found.types.merged(read_types(connection)))
    finally:
        connection.close()


def _is_known(known: Catalog, table: str | int) -> bool:
    try:
        return bool(known.named(table))
    except KeyError:
        return False


def _published(cursor: Any, publications: Sequence[str], tables: Sequence[str | int]) -> list[Relation]:
    major = read_server(cursor).major
    published, _ = describe_tables(cursor, publications, major, 0, user_types=False)
    there = Catalog([table.relation for table in published])
    try:
        return [relation for table in tables for relation in there.named(table)]
    except KeyError as problem:
        raise KeyError(
            f"neither the segments nor publication {', '.join(publications)}: {problem.args[0]}"
        ) from None
