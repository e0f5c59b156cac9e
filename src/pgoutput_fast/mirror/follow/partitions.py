"""Partitions that the stream has changes of, and that no check of the catalogs has seen.

The server sends changes of a partition as those of its root. If it is detached, dropped or emptied, the root loses its
rows, which the stream does not show. The catalogs show it, unless the partition was attached after the last check, too.
But before the first change, the server describes the partition. So one that the stream has, and the next check has not,
is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.mirror.follow.tables import MirroredTable

__all__ = ["Partitions"]


class Partitions:
    """Collects the partitions of changes for the records of their tables.

    Args:
        tables: the tables. Their oids and partitions do not change while this object is used.
    """

    def __init__(self, tables: Iterable[MirroredTable]) -> None:
        self._tables = tables
        self._found: dict[MirroredTable, dict[str, tuple[int, str]]] = {}

    @cached_property
    def _with_rows_of(self) -> dict[int, list[MirroredTable]]:
        """The tables that have the rows of a relation, by its oid: the table itself, and roots of partitions."""
        found: dict[int, list[MirroredTable]] = {}
        for each in self._tables:
            for oid in (each.record.oid, *map(int, _leaves(each))):
                found.setdefault(oid, []).append(each)
        return found

    def note(self, found: Iterable[tuple[int, Relation, int]], takers: Mapping[int, MirroredTable]) -> None:
        """Notes partitions, and tables that belonged to another root for a while.

        Args:
            found: (oid of the root, the partition, LSN of a commit).
            takers: the tables that take the changes, by oid.
        """
        for root, leaf, lsn in found:
            if (taker := takers.get(root)) is not None and str(leaf.oid) not in _leaves(taker):
                self._add(taker, leaf.oid, lsn, leaf.qualified_name)
            for each in self._with_rows_of.get(leaf.oid, ()):
                if each.record.oid != root:
                    self._add(each, each.record.oid, lsn, leaf.qualified_name)

    def _add(self, table: MirroredTable, oid: int, lsn: int, name: str) -> None:
        if table.record.stage != "stopped" and (table.position is None or lsn > table.position):
            self._found.setdefault(table, {})[str(oid)] = lsn, name

    def remember(self) -> None:
        """Makes them durable, until the next check of the catalogs."""
        for table, found in self._found.items():
            table.remember(partitions={**table.record.partitions, **found})


def _leaves(table: MirroredTable) -> Iterable[str]:
    """The oids of the partitions at the last check. A table that waits for a load has an outdated fingerprint."""
    known = table.record.fingerprint
    return known.leaves if known is not None and table.follows else {}
