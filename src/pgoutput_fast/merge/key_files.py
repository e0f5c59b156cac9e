"""Sorted keys of data files, on this machine: where a few keys lie in a large file, without a read of its keys.

A file of keys belongs to one data file, which never changes. So it cannot be out of date, and it may be lost: the next
search that reads all keys of the data file writes it again.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.match import is_plain
from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.storage.private_directory import PrivateDirectory
from pgoutput_fast.storage.stores import Store, is_unfinished, open_store
from pgoutput_fast.tables.data_files import row_groups, stays_without
from pgoutput_fast.tables.table import DataFile

__all__ = ["KeyFiles", "sorted_keys"]

# Their directory, in the directory of the data files. Other programs leave such a name alone.
_DIRECTORY, _SUFFIX = "_keys", ".arrow"
# The most bytes of keys that are sorted.
_MOST_BYTES = 256 << 20
_ROW = "_row"
# A checksum ends a file.
_CHECK_BYTES = 4


class KeyFiles:
    """The files of keys of a table.

    They are next to the data files if these are in a directory of this machine. Otherwise they are in a temporary
    directory of this process.

    Args:
        store: the store of the table.
        directory: the directory of its data files.
        least_rows: how many rows a data file has at least. The keys of fewer are read as fast.
        rows_a_key: how many rows it has at least for each key that is searched. For more keys, it is read, too.

    Attributes:
        known: the names of the data files that the table has now. The keys of others are removed.
    """

    def __init__(
        self, store: Store, directory: str, *, least_rows: int = 1 << 16, rows_a_key: int = 16
    ) -> None:
        self.known: Collection[str] = ()
        self._store, self._directory = store, directory
        self._least_rows, self._rows_a_key = least_rows, rows_a_key
        self._below = f"{directory}/{_DIRECTORY}"
        self._open: dict[str, pa.Table] = {}

    def rows(
        self, file: DataFile, schema: pa.Schema, columns: Sequence[str], wanted: pa.Table
    ) -> Iterator[tuple[Numbers, pa.Table]]:
        """Yields (positions, keys) as `row_groups`: all rows of a file with the wanted keys, and perhaps others.

        Args:
            file: the data file.
            schema: the columns of the table.
            columns: the columns of the key.
            wanted: the keys, in the types of the table.

        Raises:
            As `row_groups`.
        """
        if not self._suits(file, wanted):
            yield from row_groups(self._store, self._directory, file, schema, columns, wanted)
            return
        keys = self._keys(file, wanted.schema)
        if keys is not None:
            yield self._unmarked(file, *_found(keys, wanted))
            return
        parts: list[pa.Table] = []
        # The keys of rows that are marked now are needed, too: another version of the table may have these rows.
        whole = replace(file, deleted=None)
        for positions, rows in row_groups(self._store, self._directory, whole, schema, columns, wanted):
            parts.append(rows)
            yield self._unmarked(file, positions, rows)
        if sum(part.num_rows for part in parts) == file.rows:  # no row group was skipped
            self._add(file, pa.concat_tables(parts))

    def _suits(self, file: DataFile, wanted: pa.Table) -> bool:
        """Whether a file of keys serves this search: the keys are few, and they have an order."""
        # Files of other programs may lack a count of rows.
        if not wanted.num_columns or not file.rows:
            return False
        if file.rows < max(self._least_rows, self._rows_a_key * wanted.num_rows):
            return False
        return all(
            is_plain(column.type)
            and not isinstance(column.type, pa.BaseExtensionType)
            and not column.null_count
            for column in wanted.columns
        )

    def _unmarked(self, file: DataFile, positions: Numbers, rows: pa.Table) -> tuple[Numbers, pa.Table]:
        if file.deleted is None:
            return positions, rows
        marked = file.deleted.positions(self._store, self._directory, file.rows)
        stays = stays_without(positions, marked)
        return positions[stays], rows.filter(pa.array(stays))

    def _keys(self, file: DataFile, schema: pa.Schema) -> pa.Table | None:
        if file.name not in self._open:
            found = _read(Path(self._place.at(self._name(file.name))), file.rows)
            if found is None:
                return None
            self._open[file.name] = found
        keys = self._open[file.name]
        return keys if keys.drop_columns([_ROW]).schema.equals(schema) else None

    def _add(self, file: DataFile, keys: pa.Table) -> None:
        """Writes the keys of all rows of a data file, if there is space for them."""
        if keys.nbytes > _MOST_BYTES:
            return
        sink, found = pa.BufferOutputStream(), sorted_keys(keys)
        with pa.ipc.new_file(sink, found.schema) as writer:
            writer.write_table(found)
        content = sink.getvalue()
        self._open.pop(file.name, None)
        with suppress(OSError):
            self._remove_others()
            with self._place.write(self._name(file.name), replace=True) as written:
                written.write(content)
                written.write(_checksum(content))

    def _remove_others(self) -> None:
        names = {self._name(name) for name in self.known}
        for name in self._place.names(self._below):
            own = name.endswith(_SUFFIX) or is_unfinished(name.rpartition("/")[2])
            if own and name not in names:
                self._place.remove(name)
        self._open = {name: keys for name, keys in self._open.items() if name in self.known}

    @cached_property
    def _place(self) -> Store:
        if self._store.local:
            return self._store
        self._private = PrivateDirectory()
        return open_store(self._private.path)

    def _name(self, file: str) -> str:
        return f"{self._below}/{file}{_SUFFIX}"


def sorted_keys(keys: pa.Table) -> pa.Table:
    """Keys in order, each with the position of its row.

    >>> import pyarrow as pa
    >>> sorted_keys(pa.table({"id": [30, 10, 20]})).to_pydict()
    {'id': [10, 20, 30], '_row': [1, 2, 0]}
    """
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.schema.names])
    return keys.take(order).append_column(_ROW, order.cast(pa.uint32())).combine_chunks()


def _read(path: Path, rows: int) -> pa.Table | None:
    """The content of a file of keys; None if there is none, or a damaged one."""
    try:
        with pa.memory_map(str(path)) as file:
            whole = file.read_buffer()
        content = whole[: max(whole.size - _CHECK_BYTES, 0)]
        if whole[content.size :].to_pybytes() == _checksum(content):
            keys = pa.ipc.open_file(content).read_all()
            keys.validate(full=True)
            return keys if _is_whole(keys, rows) else None
    except (OSError, pa.ArrowException):
        return None  # it is only a cache: the keys are read from the data file, and written again
    return None


def _is_whole(keys: pa.Table, rows: int) -> bool:
    """Whether a file has the form of `sorted_keys`, with positions in a data file of so many rows."""
    names, kinds = keys.schema.names, keys.schema.types
    if keys.num_rows != rows or names.count(_ROW) != 1 or (names[-1], kinds[-1]) != (_ROW, pa.uint32()):
        return False
    positions = keys.column(_ROW)
    if any(column.num_chunks != 1 or column.null_count for column in keys.columns):
        return False
    return bool(pc.max(positions).as_py() < rows)


def _checksum(content: pa.Buffer) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECK_BYTES, "little")


def _found(keys: pa.Table, wanted: pa.Table) -> tuple[Numbers, pa.Table]:
    """(the positions of the rows with wanted keys, ascending; their keys)."""
    columns = [keys.column(name).chunk(0) for name in wanted.schema.names]
    needles = [column.combine_chunks() for column in wanted.columns]
    low = _bound(columns, needles, upper=False)
    counts = _equal(columns, needles, low).astype(np.int64)
    if _equal(columns, needles, low + 1).any():
        counts = _bound(columns, needles, upper=True) - low
    # The numbers from `low` on, as many as there are of each key, one after the other.
    at = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    rows = np.asarray(keys.column(_ROW).chunk(0).take(pa.array(at))).astype(np.int64)
    order = np.unique(rows, return_index=True)[1]  # a key may be wanted twice
    return rows[order], keys.select(wanted.schema.names).take(pa.array(at[order]))


def _equal(columns: Sequence[pa.Array], wanted: Sequence[pa.Array], places: Numbers) -> npt.NDArray[np.bool_]:
    """Whether the keys at these places are the wanted ones. A place may be the end."""
    equal = places < len(columns[0])
    inside = pa.array(np.where(equal, places, 0))
    for column, key in zip(columns, wanted, strict=True):
        equal &= np.asarray(pc.equal(column.take(inside), key))
    return equal


def _bound(columns: Sequence[pa.Array], wanted: Sequence[pa.Array], *, upper: bool) -> Numbers:
    """For each wanted key, how many keys are smaller; for the upper bound, how many are not larger."""
    low = np.zeros(len(wanted[0]), np.int64)
    high = np.full(len(wanted[0]), len(columns[0]), np.int64)
    while (unsure := low < high).any():
        middle = (low + high) // 2
        places = pa.array(np.where(unsure, middle, 0))
        before: Any = None
        for column, key in zip(reversed(columns), reversed(wanted), strict=True):
            there = column.take(places)
            if before is None:
                before = pc.less_equal(there, key) if upper else pc.less(there, key)
            else:
                before = pc.or_(pc.less(there, key), pc.and_(pc.equal(there, key), before))
        passed = np.asarray(before) & unsure
        low, high = np.where(passed, middle + 1, low), np.where(unsure & ~passed, middle, high)
    return low
