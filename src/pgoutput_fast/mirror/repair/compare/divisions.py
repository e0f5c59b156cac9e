"""Divides the rows of a table into many small sets by their keys, in the same way here and on the server.

A table whose key is one integer is divided into ranges of keys: the server can find the rows of a range by its index.
Any other key is divided by its hash, because text and other types may sort differently on the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.identifiers import quote_identifier
from pgoutput_fast.mirror.repair.compare.row_bytes import row_bytes

__all__ = ["Buckets", "Division", "Ranges", "divided", "divided_without_key"]

# The rows of a set, roughly, and the most sets.
_ROWS, _MOST_SETS = 64, 1 << 21
# The most ranges of a query. If there are more, neighbours are merged.
_MOST_RANGES = 200

_Numbers = npt.NDArray[np.int64]


class Division(ABC):
    """A way to divide rows into sets.

    Attributes:
        count: how many sets there are. They have the numbers 0, 1, 2, ...
    """

    count: int

    @abstractmethod
    def numbers(self, keys: pa.Table) -> _Numbers:
        """The sets of the rows.

        Args:
            keys: the key columns, in the types of the current table.
        """

    @abstractmethod
    def condition(self, numbers: _Numbers) -> str | None:
        """SQL that is true for the rows of some sets, and maybe for others. None for all rows.

        Args:
            numbers: of the sets, ascending.
        """


class Ranges(Division):
    """Ranges of a key that is one integer.

    Args:
        name: the column.
        bounds: the least values of all ranges but the first, ascending.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> ranges = Ranges("id", np.array([10, 20, 30]))
    >>> ranges.numbers(pa.table({"id": [1, 10, 29, 30]})).tolist(), ranges.condition(np.array([1, 2]))
    ([0, 1, 2, 3], '(id OPERATOR(pg_catalog.>=) 10::pg_catalog.int8 AND id OPERATOR(pg_catalog.<) 30::pg_catalog.int8)')
    """

    def __init__(self, name: str, bounds: _Numbers) -> None:
        self._name, self._bounds = name, bounds
        self.count = len(bounds) + 1

    def numbers(self, keys: pa.Table) -> _Numbers:
        values = keys.column(self._name).cast(pa.int64()).to_numpy()
        found: _Numbers = np.searchsorted(self._bounds, values, side="right").astype(np.int64)
        return found

    def condition(self, numbers: _Numbers) -> str | None:
        gaps = np.diff(numbers) - 1
        # The widest gaps are kept.
        cuts = np.sort(np.argsort(-gaps, kind="stable")[: _MOST_RANGES - 1])
        cuts = cuts[gaps[cuts] > 0]
        firsts = numbers[np.concatenate([[0], cuts + 1])]
        lasts = numbers[np.concatenate([cuts, [len(numbers) - 1]])]
        return " OR ".join(
            self._between(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)
        )

    def _between(self, first: int, last: int) -> str:
        name, terms = quote_identifier(self._name), []
        if first:
            terms.append(f"{name} OPERATOR(pg_catalog.>=) {_literal(self._bounds[first - 1])}")
        if last < len(self._bounds):
            terms.append(f"{name} OPERATOR(pg_catalog.<) {_literal(self._bounds[last])}")
        return f"({' AND '.join(terms) or 'true'})"


class Buckets(Division):
    """Buckets of hashed keys of any type.

    Args:
        count: how many sets there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def numbers(self, keys: pa.Table) -> _Numbers:
        found = (blake2b(each, digest_size=8).digest() for each in row_bytes(_same(keys)).to_pylist())
        hashes = np.frombuffer(b"".join(found), np.uint64)
        return (hashes % np.uint64(self.count)).astype(np.int64)

    def condition(self, numbers: _Numbers) -> str | None:
        return None


def divided(key: Sequence[str], keys: Iterable[pa.Table], types: Sequence[pa.DataType]) -> Division:
    """Divides a table.

    Args:
        key: the key columns.
        keys: the keys of all rows, in pieces. Neighbouring rows should be in one piece.
        types: of the key columns.
    """
    if len(key) > 1 or not pa.types.is_integer(types[0]):
        return divided_without_key(keys)
    bounds = [np.empty(0, np.int64)]
    for each in keys:
        values = np.sort(each.column(key[0]).cast(pa.int64()).drop_null().to_numpy())
        bounds.append(values[::_ROWS])
    found = np.unique(np.concatenate(bounds))
    return Ranges(key[0], found[:: -(-len(found) // _MOST_SETS) or 1])


def divided_without_key(pieces: Iterable[pa.Table]) -> Buckets:
    """Divides a table by the hash of its keys, or of whole rows.

    Args:
        pieces: all rows, with any columns.
    """
    rows = sum(each.num_rows for each in pieces)
    return Buckets(min(max(rows // _ROWS, 1), _MOST_SETS))


def _same(keys: pa.Table) -> list[pa.ChunkedArray]:
    """The columns with -0.0 as 0.0: they are the same key."""
    return [
        pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column
        for column in keys.columns
    ]


def _literal(value: np.int64) -> str:
    # Without quotes, the cast would bind more tightly than the minus, and the least number has no positive form.
    return f"'{int(value)}'::pg_catalog.int8" if value < 0 else f"{int(value)}::pg_catalog.int8"
