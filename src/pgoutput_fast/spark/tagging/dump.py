"""Plans which row groups of Parquet files each task reads, if the files have the payloads in stream order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from pgoutput_fast.segments.planner import bytes_per_core
from pgoutput_fast.spark.sessions import cores_of
from pgoutput_fast.spark.tasks.dump import FileRows
from pgoutput_fast.storage.paths import open_file

__all__ = ["ordered_row_groups"]

_THREADS = 16


class _RowGroup(NamedTuple):
    """A row group, and the first and the last value of its order column."""

    first: int
    last: int
    path: str
    number: int
    nbytes: int


def ordered_row_groups(df: DataFrame, order: str, columns: Sequence[str]) -> tuple[tuple[FileRows, ...], ...]:
    """Returns the row groups of each range, in stream order; nothing if the tasks cannot read them themselves.

    The statistics of the files decide: the ranges of the order column, an integer, may not overlap between row groups.
    Whether the rows within a row group are in order is checked when they are read.

    Args:
        df: reads the files, and does nothing else.
        order: the order column.
        columns: all columns that the tasks read.
    """
    try:
        paths = [_path(each) for each in df.inputFiles()]
        # Spark takes the values of these columns from the names of the directories, also if the files have such ones.
        if any(f"/{name}=".lower() in path.lower() for name in columns for path in paths):
            return ()
        with ThreadPoolExecutor(_THREADS) as pool:
            files = list(pool.map(lambda path: _row_groups(path, order, columns), paths))
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return ()
    groups = sorted(group for _, found in files for group in found)
    # Spark makes one type of several.
    if len({kinds for kinds, _ in files}) > 1 or any(a.last >= b.first for a, b in pairwise(groups)):
        return ()
    return _ranges(groups, bytes_per_core(cores_of(df.sparkSession))(sum(each.nbytes for each in groups))[0])


def _path(uri: str) -> str:
    """A file of Spark as a path, or as a URI that `open_file` takes."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else uri


def _row_groups(path: str, order: str, columns: Sequence[str]) -> tuple[tuple[Any, ...], list[_RowGroup]]:
    """The types of the columns in a file, and its row groups.

    Raises:
        ValueError: if it lacks statistics of the order column, or one of its columns has another type.
        KeyError: if it lacks a column.
    """
    with pq.ParquetFile(open_file(path)) as file:
        schema, metadata = file.schema_arrow, file.metadata
    kinds = tuple(schema.field(name).type for name in columns)
    if not pa.types.is_integer(schema.field(order).type) or not all(map(_is_plain, kinds)):
        raise ValueError("a column of another type")
    places = {metadata.schema.column(k).path: k for k in range(metadata.num_columns)}
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        known = group.column(places[order]).statistics
        if known is None or not known.has_min_max or not known.has_null_count or known.null_count:
            raise ValueError("a row group without statistics")
        nbytes = sum(group.column(places[name]).total_uncompressed_size for name in columns)
        found.append(_RowGroup(int(known.min), int(known.max), path, number, nbytes))
    return kinds, found


def _is_plain(kind: Any) -> bool:
    return any(
        is_kind(kind) for is_kind in (pa.types.is_signed_integer, pa.types.is_binary, pa.types.is_boolean)
    )


def _ranges(groups: Sequence[_RowGroup], most: int) -> tuple[tuple[FileRows, ...], ...]:
    """Joins row groups up to this number of bytes."""
    ranges: list[list[_RowGroup]] = []
    size = most
    for group in groups:
        if size >= most:
            ranges.append([])
            size = 0
        ranges[-1].append(group)
        size += group.nbytes
    return tuple(
        tuple(_file_rows(list(part)) for _, part in groupby(some, key=lambda each: each.path))
        for some in ranges
    )


def _file_rows(groups: Sequence[_RowGroup]) -> FileRows:
    return FileRows(
        groups[0].path, tuple(each.number for each in groups), sum(each.nbytes for each in groups)
    )
