"""Partitions that the stream has changes of, and that no check of the catalogs has seen.

The server sends changes of a partition as those of its root. If it is detached, dropped or emptied, the root loses its
rows, which the stream does not show. The catalogs show it, unless the partition was attached after the last check, too.
But before the first change, the server describes the partition. So one that the stream has, and the next check has not,
is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.mirror.follow.tables import MirroredTable

__all__ = ["Partitions"]


class Partitions:
    """Collects the partitions of changes for the records of their tables.

    Args:
        tables: the tables.
    """

    def __init__(self, tables: Iterable[MirroredTable]) -> None:
        self._tables = tables
        self._found: dict[MirroredTable, dict[str, tuple[int, str]]] = {}

    def note(self, found: Iterable[tuple[int, Relation, int]], takers: Mapping[int, MirroredTable]) -> None:
        """Notes partitions that their root had not at the last check.

        Other tables lack these changes if they have the partition, or are it.

        Args:
            found: (oid of the root, the partition, LSN of a commit).
            takers: the tables that take the changes, by oid.
        """
        for root, leaf, lsn in found:
            taker = takers.get(root)
            if taker is not None and _has(taker, leaf):
                continue
            for table in self._tables:
                may_differ = table.follows and (table.record.oid == leaf.oid or _is_root(table))
                may_differ = may_differ or (table is taker and table.wants_load)
                if may_differ and (table.position is None or lsn > table.position):
                    self._found.setdefault(table, {})[f"{root}/{leaf.oid}"] = lsn, leaf.qualified_name

    def remember(self) -> None:
        """Makes them durable, until the next check of the catalogs."""
        for table, found in self._found.items():
            table.remember(partitions={**table.record.partitions, **found})


def _has(table: MirroredTable, leaf: Relation) -> bool:
    """Whether a table had a partition at the last check. One that waits for a load has an outdated fingerprint."""
    known = table.record.fingerprint
    return known is not None and table.follows and str(leaf.oid) in known.leaves


def _is_root(table: MirroredTable) -> bool:
    known = table.record.fingerprint
    return known is None or known.filenode == 0
