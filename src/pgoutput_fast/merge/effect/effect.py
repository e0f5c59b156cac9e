"""The net effect of committed changes on a table: the removed rows, and the new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pgoutput_fast.merge.effect.schema import COMMIT_LSN, UNREPRESENTABLE, current_schema
from pgoutput_fast.merge.effect.unfilled import RowLostError, Unfilled, fill, wanted

__all__ = ["COMMIT_LSN", "UNREPRESENTABLE", "Effect", "RowLostError", "Unfilled", "current_schema"]


@dataclass(frozen=True)
class Effect:
    """The net effect of committed changes: the difference between the table before and after them.

    Apply it in this order: remove all rows if `truncated`; remove the rows of `gone`; add the rows of `rows`.

    Attributes:
        key: the columns that identify a row. Empty: whole rows do (a multiset).
        truncated: whether all rows from before the changes are removed. Then `gone` is empty.
        gone: the removed rows from before the changes. With a key, it has the key columns, without duplicates. Without
            a key, it has whole rows (the relation's columns and `_unrepresentable`), one per copy.
        rows: the new rows: the relation's columns, `_commit_lsn` and `_unrepresentable`. With a key, a key occurs at
            most once, and is not in `gone`. A new row replaces the table's row with its key. Without a key, there is
            one row per copy.
        unfilled: values of `rows` that only the table has. They are null in `rows`. Empty without a key.
    """

    key: tuple[str, ...]
    truncated: bool
    gone: pa.Table
    rows: pa.Table
    unfilled: Sequence[Unfilled] = ()

    @property
    def identity(self) -> list[str]:
        """The columns that identify removed rows: the key, or without one all but `_commit_lsn`."""
        return list(self.key) or [name for name in self.gone.schema.names if name != COMMIT_LSN]

    def wanted(self) -> tuple[pa.Table, tuple[str, ...]]:
        """The rows and columns with the unfilled values, to read from the table before the effect is applied.

        Returns:
            The keys, without duplicates, and the columns, among them `_unrepresentable`. No keys and no columns if
            nothing is unfilled.
        """
        return wanted(self.unfilled, self.rows.select(self.key))

    def filled(self, found: pa.Table) -> Effect:
        """The effect with values from the table.

        Args:
            found: the table's rows for the keys of `wanted`, in any order: the key columns and the columns of `wanted`.

        Raises:
            RowLostError: if a row is missing, or a column: then the table lacks changes, and must be loaded again.
            ValueError: if a key occurs twice.
        """
        if not self.unfilled:
            return self
        return replace(self, rows=fill(self.rows, self.unfilled, found), unfilled=())

    def filled_by(self, find: Callable[[pa.Table, Sequence[str]], pa.Table]) -> Effect:
        """The effect with values from the table.

        Args:
            find: (keys, columns) -> the table's rows, as for `filled`. Not called if no value is missing.

        Raises:
            As `filled`.
        """
        keys, columns = self.wanted()
        return self.filled(find(keys, columns)) if columns else self
