"""Relation versions of published tables as the server's catalog describes them now, before the stream does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pgoutput_fast.catalog.read_types import read_types
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.postgres.session import connect, read_server
from pgoutput_fast.postgres.tables import describe_tables

__all__ = ["describe_missing"]


def describe_missing(
    dsn: str, publications: Sequence[str], tables: Collection[str | int], known: Catalog | None = None
) -> Catalog:
    """Returns the catalog with the server's types and with versions of missing tables.

    These are the versions that a change would have now.

    Args:
        dsn: of the database.
        publications: names of the publications that publish the tables.
        tables: qualified names or oids.
        known: the catalog to extend.

    Raises:
        KeyError: for a table that is neither known nor published; the message names the known ones.
        ValueError: for a publication that does not exist.
        psycopg2.Error: if a query fails.
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
    catalog = Catalog([table.relation for table in published])
    try:
        return [relation for table in tables for relation in catalog.named(table)]
    except KeyError as problem:
        raise KeyError(
            "the segments do not have the table, and neither does publication "
            f"{', '.join(publications)}: {problem.args[0]}"
        ) from None
