"""Changes that wait for a current table: in memory, or, if they are too many, in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from pgoutput_fast.merge.effect.change_arrays import needed_columns
from pgoutput_fast.mirror.follow.changes import commits_of
from pgoutput_fast.storage.temporary_rows import TemporaryRows
from pgoutput_fast.tables.columns import joined

__all__ = ["PendingChanges"]

# About this many bytes of a file are in memory at a time.
_PART_BYTES = 64 << 20
_BATCH_ROWS = 1 << 16


class PendingChanges:
    """Changes of one table, in commit order, with the columns that their effect needs.

    Attributes:
        num_rows, nbytes: how many there are.
        last: the LSN of the last commit.
        in_memory: (rows, bytes) of those that are not in a file.
    """

    def __init__(self) -> None:
        self.num_rows = self.nbytes = 0
        self.last = -1
        self.in_memory = (0, 0)
        self._tables: list[pa.Table] = []
        self._file: TemporaryRows | None = None
        # The positions of the parts in the file.
        self._offsets: list[int] = []

    def add(self, rows: pa.Table) -> None:
        """Adds later changes. The two rows of an update are added together."""
        rows = needed_columns(rows)
        self._tables.append(rows)
        added = rows.num_rows, rows.nbytes
        self.num_rows, self.nbytes = self.num_rows + added[0], self.nbytes + added[1]
        self.in_memory = self.in_memory[0] + added[0], self.in_memory[1] + added[1]
        self.last = int(commits_of(rows)[-1])

    @property
    def in_file(self) -> bool:
        """Whether some changes are in a file."""
        return bool(self._offsets)

    def to_file(self, directory: str | os.PathLike[str] | None) -> None:
        """Moves the changes in memory to a file.

        Args:
            directory: of the file; None for the directory of temporary files.

        Raises:
            OSError: if there is no space.
        """
        file = self._file = self._file or TemporaryRows(directory)
        for part in self._parts_in_memory():
            batches = part.combine_chunks().to_batches(_BATCH_ROWS)
            self._offsets.append(file.write(part.schema, batches))
        self._tables, self.in_memory = [], (0, 0)

    def parts(self) -> Iterator[pa.Table]:
        """All changes, in order: one part, or several if some are in a file. No update is divided."""
        if self._file is None:
            yield _joined(self._tables)
            return
        for offset in self._offsets:
            yield pa.Table.from_batches(list(self._file.read(offset)))
        if self._tables:
            yield _joined(self._tables)

    def _parts_in_memory(self) -> Iterator[pa.Table]:
        found: list[pa.Table] = []
        for each in self._tables:
            if found and sum(part.nbytes for part in found) + each.nbytes > _PART_BYTES:
                yield _joined(found)
                found = []
            found.append(each)
        if found:
            yield _joined(found)


def _joined(rows: list[pa.Table]) -> pa.Table:
    return joined(rows, "the changes that wait")
