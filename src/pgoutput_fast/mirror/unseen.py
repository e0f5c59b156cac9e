"""Entries of publications that came and went between two looks: nothing is left of them in the catalogs.

From PostgreSQL 19 on, a publication of all tables can except some (`SET ALL TABLES EXCEPT`). The exception is a row of
pg_publication_rel, and the only trace of it: `SET ALL TABLES` removes the row, and leaves that of the publication as it
was. But the server counts the rows that were ever inserted. If it counts more than the looks have seen, some came and
went.
"""

from __future__ import annotations

from typing import Any

from pgoutput_fast.mirror.memory import Memory, SeenEntries

__all__ = ["UnseenEntries"]

# The times tell when the count began again at 0: somebody has reset it, or the server has crashed.
_COUNT = """
SELECT pg_catalog.pg_stat_get_tuples_inserted('pg_catalog.pg_publication_rel'::pg_catalog.regclass),
       pg_catalog.concat(d.stats_reset, ' ', w.stats_reset)
FROM pg_catalog.pg_stat_database d, pg_catalog.pg_stat_wal w
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
"""
_ENTRIES = "SELECT oid::pg_catalog.int8 FROM pg_catalog.pg_publication_rel ORDER BY oid"


class UnseenEntries:
    """Counts them.

    Args:
        memory: of the mirror. It has what the last look saw.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def look(self, cursor: Any) -> None:
        """Compares the server's count with the entries that are there.

        The server adds to its count some seconds after a commit. So it may lack an entry that a look has seen: this one
        counts already.

        Args:
            cursor: of a session that has no transaction open.
        """
        before = self._memory.entries()
        cursor.execute(_COUNT)
        count, since = cursor.fetchone()
        # They come second: then all that counts was there, or is gone.
        cursor.execute(_ENTRIES)
        oids = tuple(oid for (oid,) in cursor.fetchall())
        if before is None:
            now = SeenEntries(oids, count, since, 0)
        else:
            new = len(set(oids).difference(before.oids))
            seen = new + (before.count if before.since == since else 0)
            now = SeenEntries(oids, max(count, seen), since, before.unseen + max(0, count - seen))
        if now != before:
            self._memory.set_entries(now)

    @property
    def number(self) -> int:
        """How many there were up to the last look."""
        found = self._memory.entries()
        return 0 if found is None else found.unseen
