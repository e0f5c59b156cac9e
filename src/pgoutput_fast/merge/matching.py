"""Finds the rows of a table that equal given rows, whatever their types are. Nulls are equal, and so are NaNs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["Finder", "check_all_gone", "chosen", "is_plain"]

_Codes = np.ndarray[tuple[int], np.dtype[np.int64]]


class Finder:
    """Maps rows of tables to the numbers of equal given rows.

    Args:
        given: the rows to find, in the types of the tables.
        keys: whether -0.0 and 0.0 are equal, as in a key of PostgreSQL. If not, they are two values.

    Attributes:
        codes: the numbers of the given rows: 0, 1, 2, ... Equal rows have the same number.
    """

    codes: _Codes

    def __init__(self, given: pa.Table, *, keys: bool) -> None:
        self._names = given.schema.names
        self._columns: list[_Column] = []
        # For the combination of the first columns with the next one: the numbers that occur.
        self._pairs: list[_Codes] = []
        codes = np.zeros(given.num_rows, np.int64)
        for name in self._names:
            column = _Column(_whole(given.column(name)), keys)
            self._columns.append(column)
            wide = codes * (column.size + 1) + column.codes
            pairs, codes = np.unique(wide, return_inverse=True)
            self._pairs.append(pairs)
            codes = codes.astype(np.int64)
        self.codes = codes

    def counts(self) -> _Codes:
        """The counts of the given rows, by number."""
        return np.bincount(self.codes).astype(np.int64)

    def find(self, rows: pa.Table) -> _Codes:
        """The numbers of the equal given rows; -1 where there is none."""
        found = np.zeros(rows.num_rows, np.int64)
        for name, column, pairs in zip(self._names, self._columns, self._pairs, strict=True):
            codes = column.find(_whole(rows.column(name)))
            wide = np.where((found < 0) | (codes < 0), -1, found * (column.size + 1) + codes)
            found = _position(pairs, wide)
        return found


def chosen(codes: _Codes, left: _Codes) -> _Codes:
    """The ordinals of the removed rows, ascending: of the rows with a number, as many as are `left` of it.

    Args:
        codes: the numbers of the rows, -1 for none.
        left: number -> how many rows to remove. The chosen ones are subtracted.
    """
    at = np.flatnonzero(codes >= 0)
    at = at[_rank(codes[at]) < left[codes[at]]]
    np.subtract.at(left, codes[at], 1)
    return at


def check_all_gone(left: _Codes, table: str) -> None:
    """Checks that all rows to remove were found.

    Args:
        left: number -> how many rows were not found.
        table: names the table.

    Raises:
        ValueError: if one was not found.
    """
    if left.any():
        raise ValueError(
            f"{table} lacks rows that go: something else changed it, or a new column has a default, which rows that "
            f"were there have on the server, but not here. Give it a key, or {LOAD_ANY_AGAIN}"
        )


def is_plain(kind: pa.DataType) -> bool:
    """Whether every engine has the same equality as `Finder`. In a row without a key, -0.0 is not 0.0."""
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _rank(codes: _Codes) -> _Codes:
    """How many times a number occurs before its position."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return rank


class _Column:
    """The distinct values of a column, of any type."""

    def __init__(self, values: pa.Array, keys: bool) -> None:
        self._keys = keys
        self._inner: list[_Column] = []
        self._pairs: list[_Codes] = []
        flat = self._flat(values, learn=True)
        self._values = pc.unique(flat)
        self.size = len(self._values)
        self.codes = _numbers(flat, self._values)

    def find(self, values: pa.Array) -> _Codes:
        return _numbers(self._flat(values, learn=False), self._values)

    def _flat(self, values: pa.Array, *, learn: bool) -> pa.Array:
        """Maps values to values of a type without parts, which are equal if and only if the originals are."""
        if pa.types.is_floating(values.type) and self._keys:
            return pc.add(values, pa.scalar(0.0, values.type))  # -0.0 becomes 0.0
        if pa.types.is_list(values.type):
            return self._lists(values, learn)
        if pa.types.is_struct(values.type):
            codes = np.zeros(len(values), np.int64)
            for k in range(values.type.num_fields):
                codes = self._with_part(codes, k, values.field(k), learn)
            return pa.array(codes, mask=_nulls(values))
        return values

    def _lists(self, values: pa.Array, learn: bool) -> pa.Array:
        """Maps a list to the bytes of its elements' numbers."""
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        codes = self._part(0, values.flatten(), learn)
        known = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            len(values),
            [None, pa.py_buffer(offsets * codes.itemsize), pa.py_buffer(np.ascontiguousarray(codes))],
        )
        return pc.if_else(pa.array(_nulls(values)), pa.scalar(None, pa.large_binary()), known)

    def _with_part(self, codes: _Codes, k: int, part: pa.Array, learn: bool) -> _Codes:
        inner = self._part(k, part, learn)
        wide = np.where((codes < 0) | (inner < 0), -1, codes * (self._inner[k].size + 1) + inner)
        if learn:
            self._pairs.append(np.unique(wide))
        return _position(self._pairs[k], wide)

    def _part(self, k: int, part: pa.Array, learn: bool) -> _Codes:
        if learn:
            self._inner.append(_Column(part, self._keys))
            return self._inner[k].codes
        return self._inner[k].find(part)


def _numbers(values: pa.Array, known: pa.Array) -> _Codes:
    found: Any = pc.fill_null(pc.index_in(values, value_set=known), -1)
    return found.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _position(known: _Codes, values: _Codes) -> _Codes:
    """The positions of values in sorted values; -1 if missing."""
    if not len(known):
        return np.full(len(values), -1, np.int64)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where((values >= 0) & (known[at] == values), at, -1).astype(np.int64)


def _nulls(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return values.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if not column.num_chunks:
        return pa.nulls(0, column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
