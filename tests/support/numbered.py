"""Rows with a number as their key and a text, effects on them, and a current table with a thousand of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pyarrow as pa

from pgoutput_fast.merge.current_table import CurrentTable
from pgoutput_fast.merge.effect.effect import Effect, current_schema

__all__ = ["SCHEMA", "effect", "ids", "keys", "load", "rows"]

SCHEMA = current_schema(pa.schema({"id": pa.int64(), "text": pa.string()}))

_Table = TypeVar("_Table", bound=CurrentTable)


def rows(ids: Iterable[int], text: str = "x", lsn: int = 1) -> pa.Table:
    """Rows with these numbers."""
    return pa.Table.from_pylist([{"id": each, "text": text, "_commit_lsn": lsn} for each in ids], SCHEMA)


def keys(*ids: int) -> pa.Table:
    """The keys of these rows."""
    return pa.table({"id": pa.array(ids, pa.int64())})


def effect(gone: Iterable[int] = (), comes: Iterable[int] = (), text: str = "new") -> Effect:
    """An effect that removes and adds rows, by their numbers."""
    return Effect(("id",), False, keys(*gone), rows(comes, text))


def load(table: _Table, count: int = 1000, batch_rows: int = 100) -> _Table:
    """Loads rows from 0 on into the table. A short file has one batch."""
    table.replace(rows(range(count)).to_batches(max_chunksize=batch_rows), SCHEMA, 1)
    return table


def ids(table: Any) -> list[int]:
    """The numbers of a table's rows, ascending."""
    return sorted(table.read().column("id").to_pylist())
