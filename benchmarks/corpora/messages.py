"""Messages of generated rows: changes with one tuple each, and the transactions around them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.corpora.columns import ColumnKind, fixed_width, join
from pgoutput_fast.encode import ColumnSpec

__all__ = ["boundaries", "changes", "generator", "in_transactions", "ordered", "specs"]


def generator(seed: int, *path: object) -> np.random.Generator:
    """A random generator. Every column has its own, so that its values do not change when another column changes."""
    digest = hashlib.sha256(repr((seed, path)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _cell_parts(cells: pa.Array, format: bytes) -> list[pa.Array]:
    """Returns (header, value) of all cells. The header is format and length, or `n`."""
    header = np.empty(len(cells), [("format", "S1"), ("length", ">i4")])
    header["format"] = format
    header["length"] = pc.fill_null(pc.binary_length(cells), 0).to_numpy()
    headers = fixed_width(header.view(np.uint8).reshape(len(cells), 5))
    if cells.null_count == 0:
        return [headers, cells]
    return [pc.if_else(cells.is_null(), pa.scalar(b"n"), headers), pc.fill_null(cells, b"")]


def changes(tag: bytes, oid: int, columns: Sequence[pa.Array], format: bytes) -> pa.Array:
    """One change per row, with one new tuple."""
    head = tag + oid.to_bytes(4, "big") + b"N" + len(columns).to_bytes(2, "big")
    parts = [part for column in columns for part in _cell_parts(column, format)]
    return join(head, *parts)


def boundaries(count: int) -> tuple[pa.Array, pa.Array]:
    """Begin and Commit of `count` transactions."""
    lsns = (np.arange(count, dtype=np.int64) + 1) * 0x4000 + 0x1_5000_0000
    times = 800_000_000_000_000 + np.arange(count, dtype=np.int64) * 1_234_567
    begin = np.empty(count, [("tag", "S1"), ("lsn", ">i8"), ("time", ">i8"), ("xid", ">u4")])
    begin["tag"], begin["lsn"], begin["time"], begin["xid"] = b"B", lsns, times, np.arange(count) + 1000
    fields = [("tag", "S1"), ("flags", "u1"), ("lsn", ">i8"), ("end", ">i8"), ("time", ">i8")]
    commit = np.empty(count, fields)
    commit["tag"], commit["flags"], commit["time"] = b"C", 0, times
    commit["lsn"], commit["end"] = lsns, lsns + 48
    return _rows_of(begin), _rows_of(commit)


def _rows_of(records: np.ndarray[Any, Any]) -> pa.Array:
    return fixed_width(records.view(np.uint8).reshape(len(records), records.dtype.itemsize))


def specs(columns: dict[str, ColumnKind], key: str | None) -> tuple[ColumnSpec, ...]:
    return tuple(ColumnSpec(name, kind.oid, kind.typmod, name == key) for name, kind in columns.items())


def ordered(sources: Sequence[pa.Array], order: np.ndarray[Any, Any]) -> pa.Array:
    """The messages of all sources in this order. `order` has indexes into the concatenated sources."""
    return pa.concat_arrays(sources).take(pa.array(order))


def in_transactions(relation: bytes, rows: pa.Array, rows_each: int) -> pa.Array:
    """The rows in transactions of `rows_each` rows. The relation precedes the first row; leftover rows are dropped."""
    count = len(rows) // rows_each
    begins, commits = boundaries(count)
    # Indexes into `relation + begins + rows + commits`. A transaction is its begin, its rows, and its commit.
    first_row, first_commit = 1 + count, 1 + count + len(rows)
    order = np.empty((count, rows_each + 2), np.int64)
    order[:, 0] = 1 + np.arange(count)
    order[:, 1:-1] = first_row + np.arange(count * rows_each).reshape(count, -1)
    order[:, -1] = first_commit + np.arange(count)
    flat = np.insert(order.reshape(-1), 1, 0)
    return ordered([pa.array([relation], pa.binary()), begins, rows, commits], flat)
