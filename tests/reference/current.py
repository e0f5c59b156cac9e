"""The rows of a table in plain Python, changed by single changes or by effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE, Effect
from support.oracle import comparable

__all__ = ["CurrentRows"]

# A row's values, and its _commit_lsn and _unrepresentable.
Row: TypeAlias = dict[str, Any]


class CurrentRows:
    """A table's rows, identified by the key or, without a key, by all values.

    Args:
        key: the columns of the key; empty for none.
        columns: the columns of the table.
    """

    def __init__(self, key: Sequence[str], columns: pa.Schema) -> None:
        self.key = tuple(key)
        self.columns = columns
        self.rows: list[Row] = []

    def sorted(self) -> list[str]:
        """The rows in a canonical order. Without a key they have no _commit_lsn, which may be that of any equal row."""
        hidden = set() if self.key else {COMMIT_LSN}
        return sorted(
            repr(comparable({name: row[name] for name in row if name not in hidden})) for row in self.rows
        )

    # ---- one by one ----------------------------------------------------------------------------------------

    def apply_changes(self, changes: Iterable[Mapping[str, Any]]) -> None:
        """Applies each change to the rows.

        Raises:
            LookupError: if the row of a change does not exist, or a new row's key already exists.
        """
        old: Mapping[str, Any] | None = None
        for change in changes:
            kind = change["_change_type"]
            if kind == "truncate":
                self.rows.clear()
            elif kind == "update_preimage":
                old = change
            elif kind == "alter":
                filled = {name: change[name] for name in self.columns.names if change[name] is not None}
                renamed = change["_unchanged"] or []
                pairs = {
                    new: old for old, new in zip(renamed[::2], renamed[1::2], strict=True) if old and new
                }
                self.rows = [
                    row | filled | {new: row[old] for new, old in pairs.items()} for row in self.rows
                ]
            elif kind == "delete":
                del self.rows[self._place(change)]
            elif kind == "insert":
                self._put(self._row(change, {}, {}))
            else:
                before = self.rows.pop(self._place(old or change))
                self._put(self._row(change, before, before))
                old = None

    def _row(self, change: Mapping[str, Any], before: Row, names: Row) -> Row:
        unchanged = change["_unchanged"] or ()
        row = {name: before[name] if name in unchanged else change[name] for name in self.columns.names}
        marked = set(change["_unrepresentable"] or ())
        marked |= {name for name in unchanged if name in (before[UNREPRESENTABLE] or ())}
        row[COMMIT_LSN] = change["_commit_lsn"]
        row[UNREPRESENTABLE] = [name for name in self.columns.names if name in marked] or None
        return row

    def _put(self, row: Row) -> None:
        if self.key and any(self._same(row, each, self.key) for each in self.rows):
            raise LookupError("a row with this key is there")
        self.rows.append(row)

    def _place(self, wanted: Mapping[str, Any]) -> int:
        names = self.key or (*self.columns.names, UNREPRESENTABLE)
        for place, row in enumerate(self.rows):
            if self._same(row, wanted, names):
                return place
        raise LookupError("there is no such row")

    @staticmethod
    def _same(row: Mapping[str, Any], other: Mapping[str, Any], names: Iterable[str]) -> bool:
        return all(comparable(row[name]) == comparable(other[name]) for name in names)

    # ---- effects -------------------------------------------------------------------------------------------

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows with these keys, as a current table returns them."""
        found = [row for key in keys.to_pylist() for row in self.rows if self._same(row, key, self.key)]
        names = [*self.key, *columns]
        kinds = {**{field.name: field.type for field in self.columns}, UNREPRESENTABLE: pa.list_(pa.string())}
        return pa.table({name: pa.array([row[name] for row in found], kinds[name]) for name in names})

    def apply_effect(self, effect: Effect) -> None:
        """Applies an effect to the rows. Missing values are looked up first.

        Raises:
            LookupError: if a removed row does not exist.
        """
        keys, columns = effect.wanted()
        effect = effect.filled(self.find(keys, columns))
        assert not effect.unfilled
        effect.rows.validate(full=True)
        effect.gone.validate(full=True)
        if effect.truncated:
            assert effect.gone.num_rows == 0
            self.rows.clear()
        for gone in effect.gone.to_pylist():
            del self.rows[self._place(gone)]
        come = effect.rows.to_pylist()
        if self.key:
            assert len({repr(comparable([row[name] for name in self.key])) for row in come}) == len(come)
            for row in come:
                self.rows = [each for each in self.rows if not self._same(each, row, self.key)]
        self.rows += come
