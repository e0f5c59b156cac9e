"""What a mirror asks the server beside the stream: published tables, their columns, types, the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgoutput_fast.catalog.builtin_types import FIRST_USER_OID
from pgoutput_fast.catalog.identifiers import quote_qualified_name
from pgoutput_fast.catalog.read_types import read_types
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.catalog.user_types import NO_TYPES, UserTypes
from pgoutput_fast.postgres.session import read_position, session

__all__ = ["ServerColumn", "ServerView"]

_PUBLISHED = """
SELECT DISTINCT schemaname::pg_catalog.text, tablename::pg_catalog.text FROM pg_catalog.pg_publication_tables
WHERE pubname OPERATOR(pg_catalog.=) ANY (%s) ORDER BY 1, 2
"""

# atthasmissing came with 11, attidentity with 10, attgenerated with 12.
_COLUMNS = """
SELECT a.attname::pg_catalog.text, a.attnum::pg_catalog.int4,
       a.atthasdef OR a.attidentity::pg_catalog.text OPERATOR(pg_catalog.<>) ''
       OR coalesce((pg_catalog.to_json(a) OPERATOR(pg_catalog.->>) 'atthasmissing')::pg_catalog.bool, false)
FROM pg_catalog.pg_attribute a
WHERE a.attrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid
  AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
"""

_CLOCK = """
SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
        OPERATOR(pg_catalog.*) 1000000::pg_catalog.float8)::pg_catalog.int8
"""


@dataclass(frozen=True)
class ServerColumn:
    """A column as the server's catalog has it now.

    Attributes:
        number: its number in the table; it stays when the column is renamed.
        filled: whether rows may have values in it that nobody wrote: it has a default.
    """

    number: int
    filled: bool


class ServerView:
    """Asks the server of a mirror.

    Args:
        dsn: of the database.
        publications: their names.

    All methods raise `psycopg2.Error` if the server cannot be asked.
    """

    def __init__(self, dsn: str, publications: Sequence[str]) -> None:
        self.dsn = dsn
        self.publications = tuple(publications)
        self._types: UserTypes = NO_TYPES
        self._seen: set[int] = set()
        self._typed: tuple[Catalog, Catalog] | None = None

    def published(self) -> list[str]:
        """The qualified names of the published tables."""
        with session(self.dsn) as cursor:
            cursor.execute(_PUBLISHED, (list(self.publications),))
            return [quote_qualified_name(*row) for row in cursor.fetchall()]

    def columns(self, oid: int) -> dict[str, ServerColumn]:
        """{name: column} of a table; empty if it is gone."""
        with session(self.dsn) as cursor:
            cursor.execute(_COLUMNS, (oid,))
            return {name: ServerColumn(number, filled) for name, number, filled in cursor.fetchall()}

    def now(self) -> tuple[int, int]:
        """(the server's time in microseconds since 1970, an LSN before which everything committed before lies)."""
        with session(self.dsn) as cursor:
            cursor.execute(_CLOCK)
            (time,) = cursor.fetchone()
            return int(time), read_position(cursor)

    def typed(self, catalog: Catalog) -> Catalog:
        """The catalog with the server's types. It asks only for a relation version that is new."""
        if self._typed is not None and self._typed[0] is catalog:
            return self._typed[1]
        new = [each for each in catalog.relations if each.version not in self._seen]
        oids = {column.type_oid for each in new for column in each.columns}
        if any(oid >= FIRST_USER_OID and oid not in self._types for oid in oids):
            with session(self.dsn) as cursor:
                self._types = self._types.merged(read_types(cursor.connection))
        self._seen |= {each.version for each in new}
        self._typed = catalog, Catalog(catalog.relations, catalog.types.merged(self._types))
        return self._typed[1]
