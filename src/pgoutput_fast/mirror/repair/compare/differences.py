"""The differences between rows of some sets: rows of only one side, and rows with other values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.merge.match import Finder
from pgoutput_fast.mirror.repair.compare.digests import RowDigests

__all__ = ["KeyedRows", "UncomparableError"]

_Numbers = npt.NDArray[np.int64]


class UncomparableError(Exception):
    """Rows cannot be compared by their keys; the message says why."""


class KeyedRows:
    """Rows of the current table by their keys, without the values.

    Args:
        keys: the keys, in pieces.
        digests: of the rows of each piece.
        empty: keys without a row.

    Raises:
        UncomparableError: if two rows have the same key, or a row has none.
    """

    def __init__(self, keys: Iterable[pa.Table], digests: Iterable[RowDigests], empty: pa.Table) -> None:
        self._keys = pa.concat_tables([empty, *keys]).combine_chunks()
        expect_keys(self._keys)
        self._digests = np.concatenate([np.empty((0, 2), np.uint64), *digests])
        self._finder = Finder(self._keys, keys=True)
        self._place = np.empty(self._keys.num_rows, np.int64)
        self._place[self._finder.codes] = np.arange(self._keys.num_rows)
        if len(np.unique(self._finder.codes)) < self._keys.num_rows:
            raise UncomparableError("it has several rows with the same key")
        self._seen = np.zeros(self._keys.num_rows, np.bool_)

    def compared(self, keys: pa.Table, digests: RowDigests) -> tuple[_Numbers, _Numbers]:
        """(ordinals of the server's rows that are missing here, ordinals of those with other values here).

        Args:
            keys: the keys of some rows of the server.
            digests: of these rows.

        Raises:
            UncomparableError: if a key was compared before, or a row has none.
        """
        expect_keys(keys)
        codes = self._finder.find(keys)
        new = np.flatnonzero(codes < 0)
        known = np.flatnonzero(codes >= 0)
        places = self._place[codes[known]]
        if self._seen[places].any() or len(np.unique(places)) < len(places):
            raise UncomparableError("the server has several rows with the same key")
        self._seen[places] = True
        other = (self._digests[places] != digests[known]).any(axis=1)
        return new, known[other]

    def unseen(self) -> pa.Table:
        """The keys of rows that the server does not have. Call it after all of the server's rows were compared."""
        return self._keys.filter(pa.array(~self._seen))


def expect_keys(keys: pa.Table) -> None:
    """Checks that all rows have a key."""
    if any(column.null_count for column in keys.columns):
        raise UncomparableError("a row has a key that has no Arrow form")
