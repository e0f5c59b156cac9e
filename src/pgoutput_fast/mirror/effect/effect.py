"""What committed changes do to a table in all: which rows go, and which come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["COMMIT_LSN", "UNREPRESENTABLE", "Effect", "Unfilled", "current_schema"]

# The columns that a current table has behind those of its relation.
COMMIT_LSN = "_commit_lsn"
UNREPRESENTABLE = "_unrepresentable"


@dataclass(frozen=True)
class Unfilled:
    """Values of a column that were not sent, because an update left them as they were.

    Attributes:
        column: the column.
        rows: where the values belong: indexes of `Effect.rows`, int64.
        keys: the keys that these rows had before the stretch, in the same order. So the values lie in the rows that the
            table has under these keys.
    """

    column: str
    rows: pa.Array
    keys: pa.Table


@dataclass(frozen=True)
class Effect:
    """The net effect of a stretch of committed changes: what is different behind it, compared with the moment before.

    Apply it in this order: all rows go if `truncated`; the rows of `gone` go; the rows of `rows` come.

    Attributes:
        key: the columns that identify a row. Empty: whole rows do (a multiset).
        truncated: whether all rows that were there before the stretch go. Then `gone` is empty.
        gone: what goes of the rows that were there before. With a key: the key columns, each key once. Without: whole
            rows (the relation's columns and `_unrepresentable`), once for each copy that goes.
        rows: what comes: the relation's columns, `_commit_lsn` and `_unrepresentable`. With a key: each key at most
            once; the row takes the place of the row with this key, if there is one, and the key is not in `gone`.
            Without: once for each copy.
        unfilled: values of `rows` that only the table has. They are null in `rows`. Empty without a key.
    """

    key: tuple[str, ...]
    truncated: bool
    gone: pa.Table
    rows: pa.Table
    unfilled: Sequence[Unfilled] = ()


def current_schema(columns: pa.Schema) -> pa.Schema:
    """The schema of a current table: the relation's columns, and behind them what the mirror adds."""
    added = [pa.field(COMMIT_LSN, pa.int64()), pa.field(UNREPRESENTABLE, pa.list_(pa.string()))]
    return pa.schema([*(pa.field(field.name, field.type) for field in columns), *added])
