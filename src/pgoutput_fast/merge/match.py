"""Which rows are equal, whatever their types are. Nulls are equal, and so are NaNs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Codes", "Finder", "float_bits", "is_ascending", "is_plain", "row_codes", "storage"]

Codes: TypeAlias = npt.NDArray[np.int32]
Integers: TypeAlias = npt.NDArray[np.integer]


def row_codes(columns: Sequence[pa.ChunkedArray]) -> tuple[Codes, int]:
    """The numbers of the rows, from 0 up, and how many numbers there are.

    Two rows have the same number exactly if PostgreSQL stores the same values: 0.0 and -0.0 are different.

    Args:
        columns: at least one, all of the same length.

    >>> import pyarrow as pa
    >>> row_codes([pa.chunked_array([[7, 8, 7]]), pa.chunked_array([["a", None, "a"]])])
    (array([0, 1, 0], dtype=int32), 2)
    """
    numbers = _RowNumbers(len(columns), keys=False)
    return numbers.codes(columns), numbers.count


class Finder:
    """Maps rows of tables to the numbers of equal requested rows.

    Args:
        rows: the requested rows, in the types of the tables.
        keys: whether -0.0 and 0.0 are equal, as in a key of PostgreSQL. If not, they are two values.

    Attributes:
        codes: the numbers of the requested rows: 0, 1, 2, ... Equal rows have the same number.
    """

    codes: Codes

    def __init__(self, rows: pa.Table, *, keys: bool) -> None:
        self._names = rows.schema.names
        self._numbers = _RowNumbers(len(self._names), keys)
        self.codes = self.find(rows)

    def counts(self) -> npt.NDArray[np.int64]:
        """The counts of the requested rows, by number."""
        return np.bincount(self.codes).astype(np.int64)

    def find(self, rows: pa.Table) -> Codes:
        """The numbers of the equal requested rows; -1 for a row without one."""
        if not self._names:
            return np.zeros(rows.num_rows, np.int32)
        return self._numbers.codes([rows.column(name) for name in self._names])


def is_ascending(values: npt.NDArray[Any]) -> bool:
    """Whether every value is larger than the one before it."""
    return bool(np.all(values[1:] > values[:-1]))


def is_plain(kind: pa.DataType) -> bool:
    """Whether every engine has the same equality as `Finder`. In a row without a key, -0.0 is not 0.0."""
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _has_order(values: pa.Array) -> bool:
    return pa.types.is_integer(values.type) and len(values) > 0 and not values.null_count


def storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without its extension type, if it has one."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def float_bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The floats as integers. All NaN become the same one, as they are equal in PostgreSQL."""
    kind = column.type
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), column)
    integer = pa.int64() if pa.types.is_float64(kind) else pa.int32()
    return pa.chunked_array([chunk.view(integer) for chunk in one_nan.chunks], integer)


class _Numbers:
    """Numbers for the values of a column. The first column defines them; values that it lacks have the number -1."""

    def __init__(self, *, keys: bool = False) -> None:
        self._keys = keys
        self._values: pa.Array | None = None
        # For values that consist of others.
        self._parts: list[_Numbers] = []

    @property
    def count(self) -> int:
        """How many distinct values the first column has."""
        return 0 if self._values is None else len(self._values)

    def codes(self, column: pa.ChunkedArray) -> Codes:
        """The numbers of the values."""
        flat = self._flat(storage(column))
        if self._values is None:
            return self._learned(flat)
        if _has_order(self._values) and not flat.null_count:
            integers = flat.to_numpy()
            # index_in makes a hash table of all values at each call.
            if len(integers) < len(self._values) or is_ascending(integers):
                return self._searched(integers)
        found: Any = pc.fill_null(pc.index_in(flat, value_set=self._values), -1)
        return found.to_numpy()  # type: ignore[no-any-return]

    def _searched(self, integers: Integers) -> Codes:
        values, numbers = self._ordered
        at = np.minimum(np.searchsorted(values, integers), len(values) - 1)
        found: Codes = np.where(values[at] == integers, numbers[at], -1).astype(np.int32)
        return found

    @cached_property
    def _ordered(self) -> tuple[Integers, Integers]:
        """(the values, which are integers, in order; their numbers)."""
        assert self._values is not None
        values = self._values.to_numpy()
        if is_ascending(values):
            return values, np.arange(len(values))
        order = np.argsort(values)
        return values[order], order

    def _learned(self, column: pa.ChunkedArray) -> Codes:
        if pa.types.is_integer(column.type) and not column.null_count and is_ascending(column.to_numpy()):
            self._values = column.combine_chunks()  # no hash table is needed, as for the keys of most effects
            return np.arange(len(column), dtype=np.int32)
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        if not encoded.num_chunks:
            self._values = pa.array([], column.type)
            return np.empty(0, np.int32)
        # The last chunk's dictionary has the values of all chunks.
        self._values = encoded.chunk(encoded.num_chunks - 1).dictionary
        return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])

    def _flat(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Maps values to values of a type without parts, which are equal if and only if the originals are."""
        kind = column.type
        if pa.types.is_floating(kind):
            return float_bits(
                pc.add(column, pa.scalar(0.0, kind)) if self._keys else column
            )  # -0.0 becomes 0.0
        if pa.types.is_struct(kind):
            return self._struct(column.combine_chunks())
        if any(is_of(kind) for is_of in (pa.types.is_list, pa.types.is_large_list, pa.types.is_map)):
            return self._list(column.combine_chunks())
        return column

    def _struct(self, structs: pa.Array) -> pa.ChunkedArray:
        valid = structs.is_valid().to_numpy(zero_copy_only=False).astype(np.int32)
        return _together([valid, *(self._part(k, field) for k, field in enumerate(structs.flatten()))])

    def _list(self, lists: pa.Array) -> pa.ChunkedArray:
        """Maps a list to the bytes of its elements' numbers. A map is a list of pairs."""
        ends = lists.offsets.to_numpy().astype(np.int64)
        elements = self._part(0, lists.values.slice(ends[0], ends[-1] - ends[0]))
        valid = np.packbits(lists.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        offsets = (ends - ends[0]) * elements.itemsize
        buffers = [pa.py_buffer(each) for each in (valid, offsets, np.ascontiguousarray(elements))]
        return pa.chunked_array([pa.Array.from_buffers(pa.large_binary(), len(lists), buffers)])

    def _part(self, k: int, values: pa.Array) -> Codes:
        if k == len(self._parts):
            self._parts.append(_Numbers(keys=self._keys))
        return self._parts[k].codes(pa.chunked_array([values]))


class _RowNumbers:
    """The same for rows."""

    def __init__(self, width: int, keys: bool) -> None:
        self._columns = [_Numbers(keys=keys) for _ in range(width)]
        self._rows = self._columns[0] if width == 1 else _Numbers()

    @property
    def count(self) -> int:
        return self._rows.count

    def codes(self, columns: Sequence[pa.ChunkedArray]) -> Codes:
        codes = [numbers.codes(column) for numbers, column in zip(self._columns, columns, strict=True)]
        return codes[0] if len(codes) == 1 else self._rows.codes(_together(codes))


def _together(codes: Sequence[Codes]) -> pa.ChunkedArray:
    """The numbers in several columns as values of fixed size."""
    together = np.stack(codes, axis=1)
    kind = pa.binary(together.shape[1] * together.itemsize)
    return pa.chunked_array([pa.Array.from_buffers(kind, len(together), [None, pa.py_buffer(together)])])
