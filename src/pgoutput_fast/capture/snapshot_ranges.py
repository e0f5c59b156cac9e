"""A table's rows in ranges of pages, so that several sessions read it side by side."""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_fast.capture.snapshot_tables import SnapshotTable, TablePart

__all__ = ["ReadRange", "ranges_of"]

# Page numbers are of 32 bits; the block size is a server's, 8 kB but for those who built their own.
_LAST_PAGE = 0xFFFFFFFE


@dataclass(frozen=True)
class ReadRange:
    """Pages of a part of a table.

    Attributes:
        table: the table's qualified, quoted name.
        part: the heap.
        first: its first page.
        end: the page behind the last one; None for all that there are.
        nbytes: about how many bytes that is.
    """

    table: str
    part: TablePart
    first: int
    end: int | None
    nbytes: int

    @property
    def name(self) -> str:
        """Fit for a file's name.

        >>> ReadRange("public.t", TablePart(16400, "public.t", 1, 9000, True), 0, None, 9000).name
        '16400-0000000000'
        """
        return f"{self.part.oid}-{self.first:010d}"

    def condition(self) -> str | None:
        """SQL for its rows, None for all."""
        terms = []
        if self.first:
            terms.append(f"ctid OPERATOR(pg_catalog.>=) '({self.first},0)'::pg_catalog.tid")
        if self.end is not None:
            terms.append(f"ctid OPERATOR(pg_catalog.<) '({self.end},0)'::pg_catalog.tid")
        return " AND ".join(terms) or None


def ranges_of(table: SnapshotTable, major: int, block_size: int, range_bytes: int) -> list[ReadRange]:
    """The table's ranges, of about so many bytes each; the last one of each part is open, as tables grow.

    Before 14 the server finds no range of pages without reading all others: there a part is one range.

    >>> from pgoutput_fast.catalog import Relation
    >>> part = TablePart(16400, "public.t", 1, 8192 * 5, True)
    >>> table = SnapshotTable(Relation(16400, 1, "public", "t", "d", ()), (part,), None, frozenset(), 0)
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
