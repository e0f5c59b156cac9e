"""Digests of rows and of sets of rows. Equal sets have equal digests, and different sets have different ones.

The digest of a row is BLAKE2b of a key and the row's bytes, 128 bits. The key is random for each comparison. The digest
of a set is the sum of the digests of its rows, as two numbers of 64 bits. So the order of the rows does not matter. As
long as BLAKE2b cannot be told from a random function, two different sets of rows have the same digest with a
probability of 2^-128, whatever their content: rows cannot be crafted for a key that does not exist yet.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.mirror.repair.compare.row_bytes import row_bytes

__all__ = ["Digests", "RowDigests", "SetDigests"]

# Two numbers per row.
RowDigests: TypeAlias = npt.NDArray[np.uint64]

_BYTES = 16
_PIECE_ROWS = 1 << 14


class Digests:
    """Computes digests of rows. Digests of two objects cannot be compared: each has a random secret."""

    def __init__(self) -> None:
        # The key parameter of BLAKE2b would cost an extra block per row.
        self._hash = blake2b(secrets.token_bytes(_BYTES), digest_size=_BYTES)

    def of(self, rows: pa.Table) -> RowDigests:
        """The digests of rows, two numbers per row. All tables must have the same columns and types."""
        found = bytearray()
        for begin in range(0, rows.num_rows, _PIECE_ROWS):
            for each in row_bytes(rows.slice(begin, _PIECE_ROWS).columns).to_pylist():
                whole = self._hash.copy()
                whole.update(each)
                found += whole.digest()
        return np.frombuffer(bytes(found), np.uint64).reshape(-1, 2)


class SetDigests:
    """The digests of numbered sets of rows, to which rows are added in any order.

    Args:
        count: how many sets there are.

    Attributes:
        rows: how many rows each set has.
    """

    def __init__(self, count: int) -> None:
        self._sums = np.zeros((count, 2), np.uint64)
        self.rows = np.zeros(count, np.int64)

    def add(self, numbers: npt.NDArray[np.int64], digests: RowDigests) -> None:
        """Adds rows.

        Args:
            numbers: the set of each row.
            digests: the digest of each row.
        """
        order = np.argsort(numbers, kind="stable")
        present, begins = np.unique(numbers[order], return_index=True)
        if len(present):
            self._sums[present] += np.add.reduceat(digests[order], begins, axis=0)
            self.rows += np.bincount(numbers, minlength=len(self.rows))

    def different(self, other: SetDigests) -> npt.NDArray[np.int64]:
        """The numbers of the sets that differ, ascending."""
        same = (self._sums == other._sums).all(axis=1) & (self.rows == other.rows)
        return np.flatnonzero(~same)
