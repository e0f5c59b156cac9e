"""Compares all rows of a current table with those of the server, with bounded memory.

First both sides are read once, in any order, into digests of many small sets of keys. Then only the rows of differing
sets are compared one by one, by digests of rows. The server's rows are decoded as for a load, and have the types of the
current table. So a table without a difference equals a load of it, except for `_commit_lsn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.merge.effect.effect import UNREPRESENTABLE
from pgoutput_fast.merge.effect.marks import with_marks
from pgoutput_fast.mirror.repair.compare.differences import KeyedRows, UncomparableError, expect_keys
from pgoutput_fast.mirror.repair.compare.digests import Digests, RowDigests, SetDigests
from pgoutput_fast.mirror.repair.compare.divisions import Division, divided, divided_without_key
from pgoutput_fast.tables.columns import in_schema

__all__ = ["Compared", "Comparison", "Differences", "MirroredRows", "UncomparableError"]

# The rows of the current table that are compared one by one at a time; and how many times.
_MOST_ROWS, _MOST_TIMES = 1 << 21, 8
# The most differences that are kept.
_MOST_DIFFERENT, _MOST_BYTES = 1_000_000, 256 << 20

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Differences:
    """The differences between the server's table and the current table.

    Attributes:
        rows: how many rows the server has.
        sets: how many sets of keys were compared.
        different: how many of them differ.
        removed: the keys of rows that the server does not have.
        new: rows that only the server has, as they were read.
        changed: the server's rows with other values, as they were read.
    """

    rows: int
    sets: int
    different: int
    removed: pa.Table
    new: pa.Table
    changed: pa.Table


class MirroredRows(Protocol):
    """The rows of a mirrored table."""

    def schema(self) -> pa.Schema | None:
        """Its columns; None if there is no table."""

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, with these columns, in pieces."""


@dataclass(frozen=True)
class Compared:
    """Sets of rows on both sides.

    Attributes:
        division: numbers the sets.
        ours, server: the digests of the sets.
        different: the numbers of the sets that differ, ascending.
    """

    division: Division
    ours: SetDigests
    server: SetDigests
    different: _Numbers


class Comparison:
    """A comparison of a current table with the server's.

    Args:
        current: the table. Its rows must not change meanwhile.
        key: the columns of its key. Without a key, only `sets` can compare.
        read: reads the server's rows: all of them, or at least those for which an SQL condition is true. All calls
            read the same snapshot. The rows have the relation's columns, `_unrepresentable`, and maybe others.
        schema: of these rows.
        columns: the relation's columns.
    """

    def __init__(
        self,
        current: MirroredRows,
        key: Sequence[str],
        read: Callable[[str | None], Iterator[pa.Table]],
        schema: pa.Schema,
        columns: Sequence[str],
    ) -> None:
        existing = current.schema()
        assert existing is not None
        self._current, self._key, self._read, self._schema = current, tuple(key), read, schema
        # The key comes first.
        names = [*self._key, *(name for name in columns if name not in self._key), UNREPRESENTABLE]
        self._types = pa.schema([existing.field(name) for name in names])
        self._digests = Digests()

    def run(self) -> Differences:
        """Compares all rows.

        Raises:
            UncomparableError: if too much differs, or rows have no unique keys.
        """
        compared = self.sets()
        return self.rows(compared, _portions(compared.different, compared.ours.rows))

    def sets(self) -> Compared:
        """Compares sets of rows by their digests.

        Raises:
            UncomparableError: if a row has no key.
        """
        if self._key:
            kinds = [self._types.field(name).type for name in self._key]
            division = divided(self._key, self._current.scan(self._key), kinds)
        else:
            division = divided_without_key(self._current.scan(self._types.names[:1]))
        ours, server = SetDigests(division.count), SetDigests(division.count)
        for rows in self._ours():
            ours.add(division.numbers(self._keys(rows)), self._digests.of(rows))
        for _, rows in self._read_fitted(None):
            server.add(division.numbers(self._keys(rows)), self._digests.of(rows))
        return Compared(division, ours, server, ours.different(server))

    def rows(self, compared: Compared, parts: Sequence[_Numbers]) -> Differences:
        """Compares the rows of some sets, one by one.

        Args:
            compared: the result of `sets`.
            parts: numbers of sets; those of a part are in memory together.

        Raises:
            UncomparableError: if too much differs, or rows have no unique keys.
        """
        found = _Found(self._schema, self._types.empty_table().select(self._key))
        for numbers in parts:
            self._compare(compared.division, numbers, found)
        return Differences(
            int(compared.server.rows.sum()),
            compared.division.count,
            len(compared.different),
            *map(pa.concat_tables, (found.removed, found.new, found.changed)),
        )

    def _compare(self, division: Division, numbers: _Numbers, found: _Found) -> None:
        """Compares the rows of some sets, one by one."""
        chosen_sets = np.zeros(division.count, np.bool_)
        chosen_sets[numbers] = True
        keys: list[pa.Table] = []
        digests: list[RowDigests] = []
        for rows in self._ours():
            rows = rows.filter(pa.array(chosen_sets[division.numbers(self._keys(rows))]))
            keys.append(rows.select(self._key))
            digests.append(self._digests.of(rows))
        known = KeyedRows(keys, digests, self._types.empty_table().select(self._key))
        for read, rows in self._read_fitted(division.condition(numbers)):
            chosen = pa.array(chosen_sets[division.numbers(self._keys(rows))])
            read, rows = read.filter(chosen), rows.filter(chosen)
            new, changed = known.compared(rows.select(self._key), self._digests.of(rows))
            found.add(read.take(pa.array(new)), read.take(pa.array(changed)))
        found.add_removed(known.unseen())

    def _ours(self) -> Iterator[pa.Table]:
        """The rows of the current table. Marks of columns that only it has are none on the server."""
        return (with_marks(rows) for rows in self._current.scan(self._types.names))

    def _read_fitted(self, condition: str | None) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The server's rows as they were read, and in the types of the current table."""
        for read in self._read(condition):
            yield read, with_marks(in_schema(read.select(self._types.names), self._types))

    def _keys(self, rows: pa.Table) -> pa.Table:
        if not self._key:
            return rows
        keys = rows.select(self._key)
        expect_keys(keys)
        return keys


class _Found:
    """The differences so far."""

    def __init__(self, schema: pa.Schema, keys: pa.Table) -> None:
        self.removed, self.new, self.changed = [keys], [schema.empty_table()], [schema.empty_table()]
        self._rows = self._nbytes = 0

    def add(self, new: pa.Table, changed: pa.Table) -> None:
        self.new.append(new)
        self.changed.append(changed)
        self._count(new)
        self._count(changed)

    def add_removed(self, keys: pa.Table) -> None:
        self.removed.append(keys)
        self._count(keys)

    def _count(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        self._nbytes += rows.nbytes
        if self._rows > _MOST_DIFFERENT or self._nbytes > _MOST_BYTES:
            raise UncomparableError("too many of its rows differ")


def _portions(numbers: _Numbers, rows: _Numbers) -> list[_Numbers]:
    """Divides sets into parts with a bounded number of rows of the current table.

    Raises:
        UncomparableError: if there are too many parts.
    """
    if not len(numbers):
        return []
    parts = np.cumsum(rows[numbers]) // _MOST_ROWS
    if parts[-1] >= _MOST_TIMES:
        raise UncomparableError("its differing rows are spread over too large a part of it")
    return np.split(numbers, np.flatnonzero(np.diff(parts)) + 1)
