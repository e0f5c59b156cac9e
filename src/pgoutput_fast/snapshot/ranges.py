"""Splits tables into ranges of pages, which several sessions read in parallel."""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_fast.postgres.tables import LeafTable, SnapshotTable

__all__ = ["ReadRange", "ranges_of"]

# Page numbers have 32 bits.
_LAST_PAGE = 0xFFFFFFFE


@dataclass(frozen=True)
class ReadRange:
    """A range of pages of a part of a table.

    Attributes:
        table: the table's qualified, quoted name.
        part: the heap.
        first: its first page.
        end: the page after the last one; None for all remaining pages.
        nbytes: approximate size in bytes.
        where: SQL condition for the rows; None for all.
    """

    table: str
    part: LeafTable
    first: int
    end: int | None
    nbytes: int
    where: str | None = None

    @property
    def name(self) -> str:
        """A name that is valid as a file name.

        >>> ReadRange("public.t", LeafTable(16400, "public.t", 1, 9000, True), 0, None, 9000).name
        '16400-0000000000'
        """
        return f"{self.part.oid}-{self.first:010d}"

    def condition(self) -> str | None:
        """The SQL condition for its rows, None for all rows."""
        terms = []
        if self.first:
            terms.append(f"ctid OPERATOR(pg_catalog.>=) '({self.first},0)'::pg_catalog.tid")
        if self.end is not None:
            terms.append(f"ctid OPERATOR(pg_catalog.<) '({self.end},0)'::pg_catalog.tid")
        if self.where is not None:
            terms.append(f"({self.where})")
        return " AND ".join(terms) or None


def ranges_of(table: SnapshotTable, major: int, block_size: int, range_bytes: int) -> list[ReadRange]:
    """Returns the table's ranges of about `range_bytes`.

    The last range of a part has no end, because tables grow.

    Before PostgreSQL 14 the server cannot scan a range of pages alone, so a part is one range.

    >>> from pgoutput_fast.catalog.relations import Relation
    >>> part = LeafTable(16400, "public.t", 1, 8192 * 5, True)
    >>> table = SnapshotTable(Relation(16400, 1, "public", "t", "d", ()), (part,), (), frozenset(), 0)
    >>> [(each.first, each.end) for each in ranges_of(table, 18, 8192, 8192 * 2)]
    [(0, 2), (2, 4), (4, None)]
    >>> [(each.first, each.end) for each in ranges_of(table, 13, 8192, 8192 * 2)]
    [(0, None)]
    """
    found: list[ReadRange] = []
    for part in table.parts:
        pages = -(-part.nbytes // block_size)
        step = max(1, range_bytes // block_size)
        if major < 14 or not part.has_pages or pages > _LAST_PAGE:
            step = max(pages, 1)
        for first in range(0, max(pages, 1), step):
            end = first + step if first + step < pages else None
            nbytes = part.nbytes - first * block_size if end is None else step * block_size
            found.append(ReadRange(table.name, part, first, end, nbytes))
    return found
