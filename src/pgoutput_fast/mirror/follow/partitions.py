"""Partitions that the stream has changes of, and that no check of the catalogs has seen.

The server sends changes of a partition as those of its root. If it is detached or dropped, the root loses its rows,
which the stream does not show. The catalogs show it, unless the partition was attached after the last check, too. But
before the first change, the server describes the partition. So one that the stream has, and the next check has not, is
gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgoutput_fast.mirror.follow.tables import MirroredTable

__all__ = ["Partitions"]


class Partitions:
    """Collects the partitions of changes for the records of their tables.

    Args:
        tables: the tables. Their oids do not change while this object is used.
    """

    def __init__(self, tables: Iterable[MirroredTable]) -> None:
        self._by_oid: dict[int, list[MirroredTable]] = {}
        for each in tables:
            self._by_oid.setdefault(each.record.oid, []).append(each)
        self._found: dict[MirroredTable, dict[str, int]] = {}

    def note(self, found: Iterable[tuple[int, int, int]], takers: Mapping[int, MirroredTable]) -> None:
        """Notes partitions, and tables that were partitions for a while.

        Args:
            found: (oid of the root, oid of the partition, LSN of a commit).
            takers: the tables that take the changes, by oid.
        """
        for root, leaf, lsn in found:
            tables = [takers[root]] if root in takers else []
            for table in tables + self._by_oid.get(leaf, []):
                if table.record.stage != "stopped" and _is_new(table, leaf, lsn):
                    self._found.setdefault(table, {})[str(leaf)] = lsn

    def remember(self) -> None:
        """Makes them durable, until the next check of the catalogs."""
        for table, found in self._found.items():
            table.remember(partitions={**table.record.partitions, **found})


def _is_new(table: MirroredTable, leaf: int, lsn: int) -> bool:
    known = table.record.fingerprint
    is_known = known is not None and str(leaf) in known.leaves
    return not is_known and (table.position is None or lsn > table.position)
