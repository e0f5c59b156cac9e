"""Sorted keys of data files, on this machine: where a few keys lie in a large file, without a read of its keys.

A file of keys belongs to one data file, which never changes. So it cannot be out of date, and it may be lost: the next
search that reads all keys of the data file writes it again.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.private_directory import PrivateDirectory
from pgoutput_fast.merge.match import is_ascending, is_plain
from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.storage.stores import Store, is_unfinished, open_store, remove_directories
from pgoutput_fast.tables.columns import column_id
from pgoutput_fast.tables.data_files import row_groups, rows_that_stay, stays_without
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
        rows_a_key: how many rows it has at least for each key that is searched, unless this is one integer. For more
            keys, it is read, too.

    Attributes:
        known: the names of the data files that the table has now. The keys of others are removed.
        coming: the names of data files of another thread that are not committed yet. Their keys stay, too.
    """

    def __init__(
        self, store: Store, directory: str, *, least_rows: int = 1 << 16, rows_a_key: int = 16
    ) -> None:
        self.known: Collection[str] = ()
        self.coming: set[str] = set()
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
        types = pa.schema([schema.field(name) for name in wanted.schema.names])
        keys = self._keys(file, types)
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
            found = pa.concat_tables(parts)
            # A file in which many rows change is soon rewritten.
            if file.rows >= self._rows_a_key * _count_within(wanted, found):
                self._add(file, found)

    def _suits(self, file: DataFile, wanted: pa.Table) -> bool:
        """Whether a file of keys serves this search: the keys are few, and they have an order."""
        # Files of other programs may lack a count of rows.
        if not wanted.num_columns or not file.rows:
            return False
        if file.rows < self._least_rows or not (
            _is_integer(wanted) or file.rows >= self._rows_a_key * wanted.num_rows
        ):
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
        return positions[stays], rows_that_stay(rows, stays)

    def _keys(self, file: DataFile, schema: pa.Schema) -> pa.Table | None:
        """The keys of a file; None if there are none in these types, or if they are those of other columns."""
        keys = self._opened(file)
        known = None if keys is None else keys.drop_columns([_ROW]).schema
        if (
            known is None
            or not known.equals(schema)
            or list(map(column_id, known)) != list(map(column_id, schema))
        ):
            return None
        return keys

    def _opened(self, file: DataFile) -> pa.Table | None:
        if file.name not in self._open:
            found = _read(Path(self._place.at(self._name(file.name))), file.rows)
            if found is None:
                return None
            self._open[file.name] = found
        return self._open[file.name]

    def _add(self, file: DataFile, keys: pa.Table) -> None:
        """Writes the keys of all rows of a data file."""
        if keys.nbytes <= _MOST_BYTES:
            self._write(file.name, sorted_keys(keys))

    def _write(self, name: str, keys: pa.Table) -> None:
        """Writes the sorted keys of a data file, if there is space for them."""
        self._open.pop(name, None)
        with suppress(OSError):
            self.remove_others()
            _write(self._place, self._name(name), keys)

    def rewriting(self, file: DataFile) -> Callable[[str], None] | None:
        """A function that writes the keys of a data file that will have the rows of another one. None without its keys.

        Another thread may call it, with the name of the new file. That has the rows in their order, without the marked
        ones.

        Args:
            file: the other one, with the positions of marked rows in memory.
        """
        keys, place = self._opened(file), self._place
        if keys is None or file.deleted is None:
            return None
        marked = file.deleted.positions(self._store, self._directory, file.rows)

        def write(name: str) -> None:
            self.coming.add(name)
            with suppress(OSError):
                _write(place, self._name(name), _without(keys, marked))

        return write

    def remove_others(self, known: Collection[str] | None = None) -> int:
        """Removes the keys of data files that are not `known`. Returns how many files it removed.

        Args:
            known: those that are known from now on.
        """
        self.known = self.known if known is None else known
        names, removed = {self._name(name) for name in self.coming.union(self.known)}, 0
        for name in self._place.names(self._below):
            own = name.endswith(_SUFFIX) or is_unfinished(name.rpartition("/")[2])
            if own and name not in names:
                removed += self._place.remove(name)
        self._open = {name: keys for name, keys in self._open.items() if name in self.known}
        if not self.known:
            remove_directories([Path(self._place.at(self._below))])
        return removed

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
    in_order = keys if is_ascending(order.to_numpy()) else keys.take(order)
    return in_order.append_column(_ROW, order.cast(pa.uint32())).combine_chunks()


def _without(keys: pa.Table, marked: Numbers) -> pa.Table:
    """The sorted keys of a file that has the rows of another one, but for the marked ones.

    >>> keys = sorted_keys(pa.table({"id": [30, 10, 20]}))
    >>> _without(keys, np.array([1])).to_pydict()
    {'id': [20, 30], '_row': [1, 0]}
    """
    stays = np.ones(keys.num_rows, np.bool_)
    stays[marked] = False
    rows = np.asarray(keys.column(_ROW).chunk(0))
    staying = stays[rows]
    positions = (np.cumsum(stays, dtype=np.uint32) - 1)[rows[staying]]
    kept = rows_that_stay(keys.drop_columns([_ROW]), staying)
    return kept.append_column(_ROW, pa.array(positions)).combine_chunks()


def _write(place: Store, name: str, keys: pa.Table) -> None:
    with place.write(name, replace=True) as file:
        content = _Checked(file)
        with pa.ipc.new_file(content, keys.schema) as writer:
            writer.write_table(keys)
        file.write(content.checksum.to_bytes(_CHECK_BYTES, "little"))


class _Checked(io.RawIOBase):
    """A file with the checksum of what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.checksum = file, 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.checksum = zlib.crc32(content, self.checksum)
        return self._file.write(content)


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
    if _is_integer(wanted):
        integers, within = needles[0].to_numpy(), columns[0].to_numpy()[[0, -1]]
        if not is_ascending(integers):
            integers = np.unique(integers)  # ordered needles are found several times as fast
        first, last = np.searchsorted(integers, within[0]), np.searchsorted(integers, within[1], "right")
        needles = [pa.array(integers[first:last])]
    low = _bound(columns, needles, upper=False)
    counts = _equal(columns, needles, low).astype(np.int64)
    if _equal(columns, needles, low + 1).any():
        counts = _bound(columns, needles, upper=True) - low
    # The numbers from `low` on, as many as there are of each key, one after the other.
    at = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    rows = np.asarray(keys.column(_ROW).chunk(0).take(pa.array(at))).astype(np.int64)
    if not is_ascending(rows):
        order = np.unique(rows, return_index=True)[1]  # a key may be wanted twice
        rows, at = rows[order], at[order]
    return rows, keys.select(wanted.schema.names).take(pa.array(at))


def _count_within(wanted: pa.Table, keys: pa.Table) -> int:
    """How many wanted keys are between the least and the largest key, by the first column."""
    bounds, column = pc.min_max(keys.column(0)), wanted.column(0)
    within = pc.and_(pc.greater_equal(column, bounds["min"]), pc.less_equal(column, bounds["max"]))
    return int(pc.sum(within).as_py() or 0)


def _is_integer(keys: pa.Table) -> bool:
    return keys.num_columns == 1 and bool(pa.types.is_integer(keys.schema.field(0).type))


def _equal(columns: Sequence[pa.Array], wanted: Sequence[pa.Array], places: Numbers) -> npt.NDArray[np.bool_]:
    """Whether the keys at these places are the wanted ones. A place may be the end."""
    equal = places < len(columns[0])
    inside = pa.array(np.where(equal, places, 0))
    for column, key in zip(columns, wanted, strict=True):
        equal &= np.asarray(pc.equal(column.take(inside), key))
    return equal


def _bound(columns: Sequence[pa.Array], wanted: Sequence[pa.Array], *, upper: bool) -> Numbers:
    """For each wanted key, how many keys are smaller; for the upper bound, how many are not larger."""
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        side: Literal["left", "right"] = "right" if upper else "left"
        found: Numbers = np.searchsorted(columns[0].to_numpy(), wanted[0].to_numpy(), side)
        return found
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
