"""The files of a current table: those that may have certain rows, their content, and new ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.columns import column_id, in_schema, names_in
from pgoutput_fast.tables.files import TableFiles, WrittenFile, remove_files
from pgoutput_fast.tables.table import DataFile, Version

__all__ = [
    "RUN",
    "NewFiles",
    "by_bounds",
    "candidates",
    "has_bounds",
    "has_ids",
    "least_and_largest",
    "part_of",
    "row_groups",
    "rows_in",
    "rows_that_stay",
    "stays_without",
]

# Takes the place of a run in the names of files of the mirror.
RUN = "current"
# The bytes of rows in a row group, roughly. A search for a key reads at least one.
_WAITING_BYTES = 32 << 20
# The types whose bounds are used, and their Python types in pyarrow's statistics. Not floats: NaN has no place in their
# order. Some programs store a decimal as an integer, which pyarrow then returns.
_BOUNDS: Sequence[tuple[Callable[[pa.DataType], bool], type]] = (
    (pa.types.is_integer, int),
    (pa.types.is_string, str),
    (pa.types.is_date32, date),
    (pa.types.is_timestamp, datetime),
    (pa.types.is_binary, bytes),
    (pa.types.is_decimal128, Decimal),
)
# JSON has no exact form of these, so only row groups have their bounds.
_INEXACT = (pa.types.is_binary, pa.types.is_decimal128)


@dataclass(frozen=True)
class _Bounds:
    """The bounds of some columns in files."""

    count: int
    columns: Mapping[str, tuple[pa.Array, pa.Array]]

    def __call__(self, column: str) -> tuple[pa.Array, pa.Array]:
        return self.columns.get(column) or (pa.nulls(self.count), pa.nulls(self.count))


def part_of(version: Version, files: Sequence[int], columns: Sequence[str]) -> Version:
    """Some files of a version, by their indexes, with the bounds of some columns. Other processes may get it."""
    numbers, bounds = pa.array(files, pa.int64()), {}
    for name in columns:
        if has_bounds(version, name):
            lows, highs = version.bounds(name)
            bounds[name] = lows.take(numbers), highs.take(numbers)
    return replace(version, files=[version.files[k] for k in files], bounds=_Bounds(len(files), bounds))


def _form(kind: pa.DataType) -> type | None:
    """The Python type of bounds of a column of this type; None if bounds cannot select files by such a column."""
    return next((form for test, form in _BOUNDS if test(kind)), None)


def _leading(wanted: pa.Table, has: Callable[[pa.DataType], bool]) -> tuple[str, pa.ChunkedArray] | None:
    """The column whose bounds select files or row groups, and its values; None if there is none."""
    for field in wanted.schema:
        if has(field.type):
            values = wanted.column(field.name)
            if not values.null_count:
                return field.name, values
    return None


def _in_group(kind: pa.DataType) -> bool:
    """Whether row groups have bounds of this type."""
    return _form(kind) is not None


def _in_log(kind: pa.DataType) -> bool:
    """Whether the bounds of files have this type."""
    return _in_group(kind) and not any(test(kind) for test in _INEXACT)


def by_bounds(version: Version, files: Sequence[int]) -> list[int]:
    """Files sorted by their least values in the first column with bounds."""
    for field in version.schema:
        if _in_log(field.type):
            lows = version.bounds(field.name)[0].take(pa.array(files, pa.int64()))
            return [files[k] for k in pc.sort_indices(lows).to_pylist()]
    return list(files)


def candidates(version: Version, wanted: pa.Table) -> list[int]:
    """The files that may have any of these rows, by their bounds: indexes of `version.files`."""
    leading = _leading(wanted, _in_log)
    if leading is None or leading[0] not in version.schema.names:
        return list(range(len(version.files)))
    name, values = leading
    lows, highs = version.bounds(name)
    return [k for k, (low, high) in enumerate(zip(lows, highs, strict=True)) if _between(values, low, high)]


def least_and_largest(version: Version, column: str) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    """The bounds of a column in all files of a version; None and None if unknown."""
    # Those of timestamps may be rounded.
    if not has_bounds(version, column) or pa.types.is_timestamp(version.schema.field(column).type):
        return None, None
    lows, highs = version.bounds(column)
    if not len(lows) or lows.null_count or highs.null_count:
        return None, None
    return pc.min(lows), pc.max(highs)


def has_bounds(version: Version, column: str) -> bool:
    """Whether bounds of a column select files."""
    return column in version.schema.names and _in_log(version.schema.field(column).type)


def _between(values: pa.ChunkedArray, low: pa.Scalar, high: pa.Scalar) -> bool:
    if not low.is_valid or not high.is_valid:
        return True
    if pa.types.is_timestamp(high.type):
        # Delta's bounds have milliseconds. Some programs round the upper bound down.
        try:
            high = pc.add_checked(high, pa.scalar(1000, pa.duration("us")))
        except pa.ArrowInvalid:  # the end of time
            return True
    return bool(pc.any(pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))).as_py())


def row_groups(
    store: Store,
    directory: str,
    file: DataFile,
    schema: pa.Schema,
    columns: Sequence[str],
    wanted: pa.Table | None = None,
    at: npt.NDArray[np.int64] | None = None,
) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
    """Yields (positions, rows) for the row groups of a file, without the rows that are marked deleted.

    A position is the number of a row in the file, from 0 up, with those that are marked deleted.

    Args:
        store: the store of the table.
        directory: the table's directory in it.
        file: the file.
        schema: the columns of the table. One that the file lacks is null, and it may have one under a former name.
        columns: the columns to read.
        wanted: skips row groups that have none of these rows, by their bounds.
        at: skips row groups that have none of these positions, which ascend.

    Raises:
        FileNotFoundError: if the file is gone, or the one with the marks.
        ValueError: if one of them is damaged.
    """
    types = pa.schema([schema.field(each) for each in columns])
    leading = None if wanted is None else _leading(wanted, _in_group)
    begin = 0
    # Spark may write timestamps of 96 bits. Object stores are read with many columns at once.
    more = {"coerce_int96_timestamp_unit": "us", "pre_buffer": not store.local}
    with pq.ParquetFile(open_file(os.fspath(store.at(f"{directory}/{file.name}"))), **more) as opened:
        count = opened.metadata.num_rows
        deleted = None if file.deleted is None else file.deleted.positions(store, directory, count)
        named = names_in(types, opened.schema_arrow)
        former = [*named.values()]
        for k in range(opened.num_row_groups):
            group = opened.metadata.row_group(k)
            positions = np.arange(begin, begin + group.num_rows)
            begin += group.num_rows
            if leading is not None and not _may_have(group, named.get(leading[0]), leading[1]):
                continue
            if at is not None and np.diff(np.searchsorted(at, [begin - group.num_rows, begin]))[0] == 0:
                continue
            if named:
                rows = opened.read_row_group(k, columns=former).select(former).rename_columns([*named])
            else:
                rows = pa.table({"": pa.nulls(group.num_rows)})
            if deleted is not None:
                first, last = np.searchsorted(deleted, [begin - group.num_rows, begin])
                stays = np.ones(group.num_rows, np.bool_)
                stays[deleted[first:last] - (begin - group.num_rows)] = False
                rows, positions = rows_that_stay(rows, stays), positions[stays]
            yield positions, in_schema(rows, types)


def rows_in(store: Store, directory: str, file: DataFile) -> int:
    """How many rows a file has, with those that are marked deleted. The arguments are those of `row_groups`.

    Raises:
        FileNotFoundError: if the table does not know it, and the file is gone.
    """
    known: int | None = file.rows
    if known is None:
        return int(pq.read_metadata(open_file(os.fspath(store.at(f"{directory}/{file.name}")))).num_rows)
    return known


def has_ids(store: Store, directory: str, file: DataFile) -> bool:
    """Whether the columns of a file have ids. The arguments are those of `row_groups`."""
    with pq.ParquetFile(open_file(os.fspath(store.at(f"{directory}/{file.name}")))) as opened:
        return any(column_id(each) is not None for each in opened.schema_arrow)


def rows_that_stay(rows: pa.Table, stays: npt.NDArray[np.bool_]) -> pa.Table:
    """Some rows of a table, as `Table.filter` returns them, in half of the time if the others lie anywhere.

    >>> rows_that_stay(pa.table({"id": [1, 2, 3]}), np.array([True, False, True])).to_pydict()
    {'id': [1, 3]}
    """
    mask, numbers = pa.array(stays), np.flatnonzero(stays)
    at = pa.array(numbers, pa.int32() if len(stays) < 1 << 31 else pa.int64())

    def part(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
        if column.null_count == len(column):
            return pa.nulls(len(at), column.type)
        if pa.types.is_primitive(column.type) or pa.types.is_decimal(column.type):
            return pc.take(column, at, boundscheck=False)
        return column.filter(mask)  # copies whole runs of texts

    return pa.Table.from_arrays([part(column) for column in rows.columns], schema=rows.schema)


def stays_without(positions: npt.NDArray[np.int64], gone: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of some positions are not in others. Both ascend.

    >>> stays_without(np.array([1, 3, 4, 9]), np.array([0, 3, 5, 9, 12])).tolist()
    [True, False, True, False]
    """
    stays = np.ones(len(positions), np.bool_)
    if not len(positions):
        return stays
    first, last = np.searchsorted(gone, [positions[0], positions[-1] + 1])
    gone = gone[first:last]
    # Each of the fewer ones is searched among the others.
    if len(gone) <= len(positions):
        at = np.searchsorted(positions, gone)
        stays[at[positions[at] == gone]] = False
    else:
        at = np.searchsorted(gone, positions)
        stays[gone[np.minimum(at, len(gone) - 1)] == positions] = False
    return stays


def _may_have(group: pq.RowGroupMetaData, name: str | None, values: pa.ChunkedArray) -> bool:
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema != name:
            continue
        with suppress(ValueError, OverflowError, TypeError, pa.ArrowException):
            found = column.statistics
            if found is not None and found.has_min_max and type(found.min) is _form(values.type):
                low, high = (pa.scalar(each, values.type) for each in (found.min, found.max))
                return _between(values, low, high)
    return True


class NewFiles:
    """Writes the new files of a table. A context manager: after an error, all of them are removed.

    Args:
        store: the store with all tables.
        directory: the directory of the files in it.
        file_bytes: the largest size of a file, roughly.

    Attributes:
        written: the files.
    """

    def __init__(self, store: Store, directory: str, file_bytes: int) -> None:
        self._store, self._directory, self._file_bytes = store, directory, file_bytes
        self.written: list[WrittenFile] = []

    def __enter__(self) -> NewFiles:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.remove()

    def write(self, rows: Iterable[pa.Table | pa.RecordBatch]) -> None:
        """Writes rows into files of their own."""
        waiting = min(_WAITING_BYTES, self._file_bytes)
        with TableFiles(
            self._store, RUN, False, file_bytes=self._file_bytes, waiting_bytes=waiting, prefix=None
        ) as files:
            for each in rows:
                for batch in each.to_batches() if isinstance(each, pa.Table) else (each,):
                    files.add(self._directory, batch)
        self.written += files.written

    def remove(self, files: Sequence[WrittenFile] | None = None) -> None:
        """Removes some of the files, by default all."""
        gone = self.written if files is None else list(files)
        remove_files(self._store, gone)
        self.written = [each for each in self.written if each not in gone]
