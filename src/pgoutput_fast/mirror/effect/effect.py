"""The net effect of committed changes on a table: which rows go, and which come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pgoutput_fast.mirror.effect.schema import COMMIT_LSN, UNREPRESENTABLE, current_schema
from pgoutput_fast.mirror.effect.unfilled import RowLostError, Unfilled, fill, wanted

__all__ = ["COMMIT_LSN", "UNREPRESENTABLE", "Effect", "RowLostError", "Unfilled", "current_schema"]


@dataclass(frozen=True)
class Effect:
    """The net effect of a stretch of committed changes: how the table after them differs from the table before.

    Apply it in this order: all rows go if `truncated`; the rows of `gone` go; the rows of `rows` come.

    Attributes:
        key: the columns that identify a row. Empty: whole rows do (a multiset).
        truncated: whether all rows that were there before the stretch go. Then `gone` is empty.
        gone: which of the rows go that were there before. With a key, it has the key columns, and each key once.
            Without a key, it has whole rows (the relation's columns and `_unrepresentable`), one for each copy.
        rows: the rows that come: the relation's columns, `_commit_lsn` and `_unrepresentable`. With a key, each key is
            there at most once, and is not in `gone`. If the table has a row with this key, the new row takes its place.
            Without a key, there is one row for each copy.
        unfilled: values of `rows` that only the table has. They are null in `rows`. Empty without a key.
    """

    key: tuple[str, ...]
    truncated: bool
    gone: pa.Table
    rows: pa.Table
    unfilled: Sequence[Unfilled] = ()

    @property
    def identity(self) -> list[str]:
        """The columns by which the rows that go are found: the key, or without one all but `_commit_lsn`."""
        return list(self.key) or [name for name in self.gone.schema.names if name != COMMIT_LSN]

    def wanted(self) -> tuple[pa.Table, tuple[str, ...]]:
        """What the table is asked for before the effect is applied: the rows and columns with the unfilled values.

        Returns:
            The keys, each once, and the columns, among them `_unrepresentable`. No keys and no columns if nothing is
            unfilled.
        """
        return wanted(self.unfilled, self.rows.select(self.key))

    def filled(self, found: pa.Table) -> Effect:
        """The effect with the values that the table has.

        Args:
            found: for each key of `wanted` the table's row, in any order: the key columns and the columns of `wanted`.

        Raises:
            RowLostError: if a row is missing, or a column: then the table lacks changes, and must be loaded again.
            ValueError: if a key comes twice.
        """
        if not self.unfilled:
            return self
        return replace(self, rows=fill(self.rows, self.unfilled, found), unfilled=())

    def filled_by(self, find: Callable[[pa.Table, Sequence[str]], pa.Table]) -> Effect:
        """The effect with the values that the table has.

        Args:
            find: (keys, columns) -> the table's rows, as `filled` takes them. Not called if no value is missing.

        Raises:
            As `filled`.
        """
        keys, columns = self.wanted()
        return self.filled(find(keys, columns)) if columns else self
