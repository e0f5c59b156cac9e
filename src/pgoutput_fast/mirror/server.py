"""What a mirror asks the server outside the stream: published tables, their columns, types, the time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pgoutput_fast.catalog.builtin_types import FIRST_USER_OID
from pgoutput_fast.catalog.patterns import Chosen
from pgoutput_fast.catalog.read_types import read_types
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.catalog.user_types import NO_TYPES, UserTypes
from pgoutput_fast.mirror.schema_changes.fingerprint import CatalogColumn, Fingerprint, RowQuestion
from pgoutput_fast.mirror.schema_changes.read_fingerprints import (
    EXCEPT_SINCE,
    read_columns,
    read_fingerprints,
)
from pgoutput_fast.mirror.schema_changes.unseen import AlteredPublications, Marker, UnseenEntries
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.postgres.errors import NO_ANSWER
from pgoutput_fast.postgres.publications import read_tables
from pgoutput_fast.postgres.repacks import running_repacks
from pgoutput_fast.postgres.row_age import has_row
from pgoutput_fast.postgres.session import read_position, session
from pgoutput_fast.postgres.slots import find_slot
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.read import in_snapshot
from pgoutput_fast.snapshot.snapshot import Snapshot

__all__ = ["ServerView"]

# From this version on, the statistics tell when they began.
_ALTERED_SINCE = 150000

_CLOCK = """
SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
        OPERATOR(pg_catalog.*) 1000000::pg_catalog.float8)::pg_catalog.int8
"""


class ServerView:
    """Asks the server of a mirror.

    Args:
        dsn: of the database.
        publications: their names.
        state: of the mirror, for changes that fingerprints alone cannot show; None for a view that compares none.
        chosen: the tables that are mirrored; None for all that are published.

    All methods raise `psycopg2.Error` if the server cannot be asked.
    """

    def __init__(
        self,
        dsn: str,
        publications: Sequence[str],
        state: MirrorState | None = None,
        chosen: Chosen | None = None,
    ) -> None:
        self.dsn = dsn
        self.chosen = Chosen() if chosen is None else chosen
        self._unseen = None if state is None else UnseenEntries(state)
        self._altered = None if state is None else AlteredPublications(state)
        self.publications = tuple(publications)
        self._types: UserTypes = NO_TYPES
        self._seen: set[int] = set()
        self._typed: tuple[Catalog, Catalog] | None = None
        self._loaded: tuple[Snapshot, dict[str, Fingerprint]] | None = None

    @property
    def types(self) -> UserTypes:
        """The types that are not built in, as far as a call has needed them."""
        return self._types

    def fingerprints(self) -> dict[str, Fingerprint]:
        """{qualified name: fingerprint} of the chosen published tables. Later calls use the types of this moment."""
        with session(self.dsn) as cursor:
            self._note_unseen(cursor)
            repacks = running_repacks(cursor)
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            found, types = read_fingerprints(cursor, self.publications, self._number, self._marker(), repacks)
            cursor.execute("COMMIT")
        if types is not None and (merged := self._types.merged(types)) != self._types:
            self._types, self._typed = merged, None
        return {name: each for name, each in found.items() if self.chosen.has(name)}

    def published(self) -> set[str]:
        """The qualified names of all published tables, also of those that are not chosen."""
        with session(self.dsn) as cursor:
            return {each.name for each in read_tables(cursor, self.publications)}

    def fingerprint_in(self, snapshot: Snapshot, table: str) -> Fingerprint | None:
        """The fingerprint of a table in a snapshot; None if it is not published there.

        Raises:
            SnapshotError: if the snapshot is gone, or the table is locked.
        """
        if self._loaded is None or self._loaded[0] is not snapshot:
            with session(self.dsn) as cursor, in_snapshot(cursor, snapshot.name):
                marker = self._marker(is_past=True)
                self._loaded = (
                    snapshot,
                    read_fingerprints(cursor, self.publications, self._number, marker)[0],
                )
        found = self._loaded[1].get(table)
        if found is not None and found.filters is None:
            raise SnapshotError(
                f"{table}: its row filter cannot be read now, because somebody has locked the table"
            )
        return found

    def check(self) -> None:
        """Records, before a snapshot is taken, changes that its fingerprints cannot show."""
        with session(self.dsn) as cursor:
            self._note_unseen(cursor)

    def _note_unseen(self, cursor: Any) -> None:
        version = cursor.connection.server_version
        if self._unseen is not None and version >= EXCEPT_SINCE:
            self._unseen.check(cursor)
        if self._altered is not None and version >= _ALTERED_SINCE:
            self._altered.check(cursor)

    @property
    def _number(self) -> int:
        return 0 if self._unseen is None else self._unseen.number

    def _marker(self, *, is_past: bool = False) -> Marker | None:
        return None if self._altered is None else self._altered.marker(is_past=is_past)

    def answer(self, question: RowQuestion) -> bool | None:
        """Whether the partition of a doubt has such a row; None if unknown."""
        return self.has_row(question.leaf.name, question.xid)

    def has_row(self, table: str, before: int | None) -> bool | None:
        """Whether a table has a row of a transaction before this one; None if unknown."""
        return has_row(self.dsn, table, before)

    def columns(self, oid: int) -> dict[str, CatalogColumn]:
        """{name: column} of a table; empty if it was dropped. Ignores the column lists of publications."""
        with session(self.dsn) as cursor:
            return read_columns(cursor, oid)

    def now(self) -> tuple[int, int]:
        """(the server's time in microseconds since 1970, the end of its WAL).

        Everything that committed before this call is before that LSN.
        """
        with session(self.dsn) as cursor:
            cursor.execute(_CLOCK)
            (time,) = cursor.fetchone()
            return int(time), read_position(cursor)

    def kept_bytes(self, slot: str) -> int | None:
        """The bytes of WAL that the server keeps for a slot; None if there is no slot or no answer."""
        with suppress(*NO_ANSWER):
            found = find_slot(self.dsn, slot)
            return None if found is None else found.kept_bytes
        return None

    def sends(self, slot: str) -> bool:
        """Whether the server sends the changes of a slot to a client. False if it cannot be asked."""
        with suppress(*NO_ANSWER):
            found = find_slot(self.dsn, slot)
            return found is not None and found.active_pid is not None
        return False

    def typed(self, catalog: Catalog) -> Catalog:
        """The catalog with the server's types. Asks the server only about new relation versions."""
        if self._typed is not None and self._typed[0] is catalog:
            return self._typed[1]
        new = [each for each in catalog.relations if each.version not in self._seen]
        oids = {column.type_oid for each in new for column in each.columns}
        if any(oid >= FIRST_USER_OID and oid not in self._types for oid in oids):
            with session(self.dsn) as cursor:
                self._types = self._types.merged(read_types(cursor.connection))
        self._seen |= {each.version for each in new}
        self._typed = catalog, catalog.explained(self._types)
        return self._typed[1]
