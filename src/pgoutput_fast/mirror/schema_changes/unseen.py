"""Alterations of publications between two checks that left no trace in the catalogs.

**Entries.** From PostgreSQL 19 on, a publication of all tables can exclude some (`SET ALL TABLES EXCEPT`). The only
trace of the exception is a row of pg_publication_rel: `SET ALL TABLES` removes it, and leaves the row of the
publication unchanged. But the server counts all inserted rows. If it counts more than the checks have seen, some
appeared and disappeared.

**Publications.** A command that alters a publication updates its row, even if what is sent stays the same, as with
OWNER TO, or `SET ALL TABLES, ALL SEQUENCES`. The row looks the same after `SET (publish = 'insert')` and back. The
server also counts updates. If it counts as many as there are altered rows, all of them were updated once, and the old
and the new row show the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from pgoutput_fast.mirror.state.mirror_state import (
    MirrorState,
    SeenEntries,
    SeenPublication,
    SeenPublications,
)

__all__ = ["AlteredPublications", "Marker", "UnseenEntries"]

Marker: TypeAlias = Callable[[str, str], str]

_UPDATES = """
SELECT pg_catalog.pg_stat_get_tuples_updated('pg_catalog.pg_publication'::pg_catalog.regclass),
       pg_catalog.concat(d.stats_reset, ' ', w.stats_reset)
FROM pg_catalog.pg_stat_database d, pg_catalog.pg_stat_wal w
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
"""
# A name may have bytes that the server cannot send in UTF-8.
_ROWS = """
SELECT p.oid::pg_catalog.text, p.xmin::pg_catalog.text,
       pg_catalog.to_jsonb(p) OPERATOR(pg_catalog.-) 'pubname'::pg_catalog.text
FROM pg_catalog.pg_publication p
"""
# Other columns of a publication do not change what the server sends.
_HARMLESS = {"oid", "pubowner", "puballsequences"}

# The times show a reset of the count, by a user or after a crash of the server.
_COUNT = """
SELECT pg_catalog.pg_stat_get_tuples_inserted('pg_catalog.pg_publication_rel'::pg_catalog.regclass),
       pg_catalog.concat(d.stats_reset, ' ', w.stats_reset)
FROM pg_catalog.pg_stat_database d, pg_catalog.pg_stat_wal w
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
"""
_ENTRIES = "SELECT oid::pg_catalog.int8 FROM pg_catalog.pg_publication_rel ORDER BY oid"


class UnseenEntries:
    """Counts entries of publications that no check has seen.

    Args:
        state: of the mirror. It has the last check.
    """

    def __init__(self, state: MirrorState) -> None:
        self._state = state

    def check(self, cursor: Any) -> None:
        """Compares the server's count with the existing entries.

        The server updates its count some seconds after a commit. So it may lack an entry that a check has seen, which
        is then counted here already.

        Args:
            cursor: of a session without an open transaction.
        """
        before = self._state.entries()
        cursor.execute(_COUNT)
        count, since = cursor.fetchone()
        # Read second: all counted entries then exist, or are gone.
        cursor.execute(_ENTRIES)
        oids = tuple(oid for (oid,) in cursor.fetchall())
        if before is None:
            now = SeenEntries(oids, count, since, 0)
        else:
            new = len(set(oids).difference(before.oids))
            seen = new + (before.count if before.since == since else 0)
            now = SeenEntries(oids, max(count, seen), since, before.unseen + max(0, count - seen))
        if now != before:
            self._state.set_entries(now)

    @property
    def number(self) -> int:
        """The number of such entries up to the last check."""
        found = self._state.entries()
        return 0 if found is None else found.unseen


class AlteredPublications:
    """Finds publications that were altered so that the server may send something else.

    Args:
        state: of the mirror. It has the last check.
    """

    def __init__(self, state: MirrorState) -> None:
        self._state = state

    def check(self, cursor: Any) -> None:
        """Compares the server's count of alterations with the rows of all publications.

        Args:
            cursor: of a session without an open transaction.
        """
        before = self._state.publications()
        cursor.execute(_UPDATES)
        count, since = cursor.fetchone()
        cursor.execute(_ROWS)  # read second, so counted alterations are in the rows
        rows = {oid: SeenPublication(xmin, _sent(values), xmin) for oid, xmin, values in cursor.fetchall()}
        now = (
            SeenPublications(rows, count, since) if before is None else _compared(before, rows, count, since)
        )
        if now != before:
            self._state.set_publications(now)

    def marker(self, *, is_past: bool = False) -> Marker:
        """(oid, xmin of its row) of a publication -> a mark, which changes if what the server sends may have changed.

        Args:
            is_past: whether the row is of a snapshot, which may be older than the last check. If that has seen another
                row, its mark says nothing of the snapshot.
        """
        seen = self._state.publications()
        rows = {} if seen is None else seen.rows

        def mark(oid: str, xmin: str) -> str:
            known = rows.get(oid)
            return xmin if known is None or (is_past and known.xmin != xmin) else known.mark

        return mark


def _compared(
    before: SeenPublications, rows: Mapping[str, SeenPublication], count: int, since: str
) -> SeenPublications:
    """The publications at a check, compared with the check before."""
    altered = {oid for oid, each in rows.items() if oid in before.rows and before.rows[oid].xmin != each.xmin}
    counted = count - before.count
    if since == before.since and counted < len(altered) and not before.waits:
        # A server counts some seconds after a commit. The next check decides.
        return replace(before, waits=True)
    is_explained = since == before.since and counted == len(altered)
    # A crash ends what the server would have counted late.
    is_late = since != before.since or counted > len(altered)

    def seen(oid: str, now: SeenPublication) -> SeenPublication:
        known = before.rows.get(oid)
        if known is None:
            return now
        if oid not in altered:
            # This count may include an alteration before the one that looked single.
            return (
                replace(known, mark=f"{now.xmin}+{count}", is_single=False)
                if is_late and known.is_single
                else known
            )
        if is_explained and known.sends == now.sends:
            return replace(now, mark=known.mark, is_single=True)
        return now

    return SeenPublications({oid: seen(oid, each) for oid, each in rows.items()}, count, since)


def _sent(values: Mapping[str, Any]) -> str:
    return json.dumps({name: each for name, each in values.items() if name not in _HARMLESS}, sort_keys=True)
