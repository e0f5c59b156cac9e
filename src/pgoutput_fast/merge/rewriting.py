"""Finds removed rows of a file, and rewrites the file without them and with their replacements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.merge.match import Finder, check_all_gone, chosen
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.data_files import row_groups

__all__ = ["Found", "Numbers", "Search", "rewritten"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """Removed rows of a file.

    Attributes:
        rows: their ordinals in the file, ascending.
        comes: the numbers of the rows that replace them; -1 for none.
    """

    rows: Numbers
    comes: Numbers


class Search:
    """Searches for rows to remove, one file after the other.

    Args:
        wanted: the rows, in the types of the table.
        comes: the numbers of the rows that replace them; -1 for none.
        keys: whether they are keys. Then all rows with these keys are removed. Otherwise `wanted` has one row per copy
            to remove.
    """

    def __init__(self, wanted: pa.Table, comes: Numbers, *, keys: bool) -> None:
        self._wanted, self._keys = wanted, keys
        self._finder = Finder(wanted, keys=keys)
        # For the distinct rows of `wanted`: how many rows may still be removed, and the replacement that is still
        # unused.
        self._left = self._finder.counts()
        self._comes = np.full(len(self._left), -1, np.int64)
        if keys:
            self._comes[self._finder.codes[comes >= 0]] = comes[comes >= 0]
            self._left[:] = np.iinfo(np.int64).max

    def look_into(self, store: Store, file: str, schema: pa.Schema) -> Found | None:
        """The removed rows of a file; None if there are none.

        If several rows have the same key, the new row replaces the first one.

        Args:
            store: the store of the file.
            file: its name in the store.
            schema: the columns of the table.
        """
        ordinals, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for begin, rows in row_groups(store, file, schema, self._wanted.schema.names, self._wanted):
            codes = self._finder.find(rows)
            at = chosen(codes, self._left)
            ordinals.append(at + begin)
            numbers.append(codes[at].astype(np.int64))
        gone = np.concatenate(ordinals)
        return Found(gone, self._places(np.concatenate(numbers))) if len(gone) else None

    def _places(self, numbers: Numbers) -> Numbers:
        """The replacements of removed rows. Every replacement is used once."""
        places = np.full(len(numbers), -1, np.int64)
        each, at = np.unique(numbers, return_index=True)
        places[at] = self._comes[each]
        self._comes[each] = -1
        return places

    def check_all_gone(self, table: str) -> None:
        """Checks that all copies were found. Call it after the search of all files.

        Args:
            table: names the table.

        Raises:
            ValueError: if a row without a key was not found.
        """
        if not self._keys:
            check_all_gone(self._left, table)


def rewritten(
    store: Store, file: str, schema: pa.Schema, found: Found | None, take: Callable[[Numbers], pa.Table]
) -> Iterator[pa.Table]:
    """The rows of a file, without the removed ones and with their replacements.

    Args:
        store: the store of the file.
        file: its name in the store.
        schema: the columns of the table.
        found: the removed rows; None for none.
        take: returns replacements by their numbers.
    """
    for begin, there in row_groups(store, file, schema, schema.names):
        if found is None:
            yield there
            continue
        first, last = np.searchsorted(found.rows, [begin, begin + there.num_rows])
        stays = np.ones(there.num_rows, np.bool_)
        stays[found.rows[first:last] - begin] = False
        comes = found.comes[first:last]
        yield pa.concat_tables([there.filter(pa.array(stays)), take(comes[comes >= 0])])
