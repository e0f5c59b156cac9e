"""Searches for the rows that an effect removes, and for the new rows that replace them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.marks import with_marks
from pgoutput_fast.merge.match import Codes, Finder, is_ascending
from pgoutput_fast.tables.columns import in_schema
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["Numbers", "Removed", "Search", "rows_to_remove"]

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Removed:
    """Removed rows.

    Attributes:
        rows: their ordinals, ascending.
        replacements: the numbers of the new rows that replace them; -1 for none.
    """

    rows: Numbers
    replacements: Numbers


class Search:
    """Searches for rows to remove in the rows of a table, piece by piece.

    Args:
        rows: the rows to remove, in the types of the table.
        keys: whether they are keys. Then all rows with these keys are removed. Otherwise `rows` has one row per copy to
            remove.
        replacements: the numbers of the new rows that replace them; -1 for none. By default, none is replaced.
        signed_zeros: whether the table keeps the sign of zeros. If not, -0.0 and 0.0 are equal in all rows, as in keys.
    """

    def __init__(
        self,
        rows: pa.Table,
        *,
        keys: bool,
        replacements: Numbers | None = None,
        signed_zeros: bool = True,
    ) -> None:
        self._keys = keys
        # The table may have marks of columns that the server has no more, or in the order of earlier columns.
        self._finder = Finder(rows if keys else with_marks(rows), keys=keys or not signed_zeros)
        # For the distinct rows: how many may still be removed, and the replacement that is still unused.
        self._left = self._finder.counts()
        self._replacements = np.full(len(self._left), -1, np.int64)
        if replacements is not None:
            used = replacements >= 0
            self._replacements[self._finder.codes[used]] = replacements[used]

    def removed(self, rows: pa.Table) -> Removed:
        """The removed rows of a piece. If several rows have the same key, the new row replaces the first one.

        Args:
            rows: a piece, with the columns of the rows to remove.
        """
        codes = self._finder.find(rows if self._keys else with_marks(rows))
        at = np.flatnonzero(codes >= 0)
        if not self._keys:
            at = at[_rank(codes[at]) < self._left[codes[at]]]
            np.subtract.at(self._left, codes[at], 1)
        return Removed(at, self._used(codes[at]))

    def _used(self, codes: Codes) -> Numbers:
        """The replacements of removed rows. Every replacement is used once."""
        if is_ascending(codes):  # as the keys of a table that was loaded in their order
            distinct, first = codes, np.arange(len(codes))
        else:
            distinct, first = np.unique(codes, return_index=True)
        numbers = np.full(len(codes), -1, np.int64)
        numbers[first] = self._replacements[distinct]
        self._replacements[distinct] = -1
        return numbers

    def check_complete(self, table: str) -> None:
        """Checks that all copies were found. Call it after the search of the whole table.

        Args:
            table: names the table.

        Raises:
            ValueError: if a row without a key was not found.
        """
        if not self._keys and self._left.any():
            raise ValueError(
                f"{table} lacks rows that changes remove: something else changed it, or older rows lack the default of "
                f"a new column, which they have on the server. Give the table a key, or {LOAD_ANY_AGAIN}"
            )


def rows_to_remove(effect: Effect, rows: pa.Table) -> pa.Table:
    """The rows that an effect removes: those of `gone`, and with a key also the rows with the keys of new rows.

    Args:
        effect: the effect.
        rows: its new rows, in the types of the table.
    """
    names = effect.identity
    gone = in_schema(effect.gone, pa.schema([rows.schema.field(name) for name in names]))
    return pa.concat_tables([gone, rows.select(names)]) if effect.key else gone


def _rank(codes: Codes) -> Numbers:
    """How many times a number occurs before its position."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return rank
