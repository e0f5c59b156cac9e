"""The changes of a history after one position and up to another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.mirror.follow.apply_order import in_order
from pgoutput_fast.schema.evolution import widen
from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.tables.columns import in_schema
from pgoutput_fast.tables.data_files import rows_in
from pgoutput_fast.tables.table import Table

__all__ = ["Changes", "read_changes"]

# About this many changes are read at a time.
_PART_ROWS = 1 << 20


@dataclass(frozen=True)
class Changes:
    """Changes of one table that commit after `after` and up to `through`.

    Attributes:
        schema: the columns of the history.
        parts: paths or URIs of the files that may have such changes, among others. All changes of a part commit before
            those of the next part.
        after, through: LSNs.
    """

    schema: pa.Schema
    parts: Sequence[Sequence[str]]
    after: int
    through: int

    def as_in(self, base: pa.Schema) -> Changes:
        """The changes with the structs of an earlier version of the table, which may have had fewer fields.

        When a struct gets a field, its history is rewritten with this field, which is null in earlier changes.
        """
        grown = {
            field.name: base.field(field.name)
            for field in self.schema
            if field.name in base.names and _has_grown(base.field(field.name).type, field.type)
        }
        schema = pa.schema([grown.get(field.name, field) for field in self.schema])
        return replace(self, schema=schema)

    @property
    def files(self) -> list[str]:
        """The files of all parts."""
        return [file for part in self.parts for file in part]

    def read(self, columns: Sequence[str]) -> pa.Table:
        """The changes in the order of application.

        Args:
            columns: of the history, among them those of `apply_order.ORDER`.
        """
        return pa.concat_tables([self._types(columns).empty_table(), *self.read_parts(columns)])

    def read_parts(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The same, part by part. A part has whole transactions."""
        types = self._types(columns)
        for part in self.parts:
            # Not in a variable, so that it is freed before the next one is read.
            yield in_order(
                pa.concat_tables([in_schema(self._rows_of(each, columns), types) for each in part])
            )

    def _types(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in columns])

    def _rows_of(self, file: str, columns: Sequence[str]) -> pa.Table:
        with pq.ParquetFile(open_file(file)) as opened:
            existing = set(opened.schema_arrow.names)
        commits = pc.field("_commit_lsn")
        return pq.read_table(
            open_file(file),
            columns=[name for name in columns if name in existing],
            filters=(commits > self.after) & (commits <= self.through),
            partitioning=None,
        )


def read_changes(history: Table, after: int, through: int) -> Changes:
    """The current changes of a history. Reads only its log.

    Args:
        history: the table.
        after, through: LSNs.

    Raises:
        FileNotFoundError: if there is no history.
    """
    version = history.version()
    if version is None:
        raise FileNotFoundError(
            f"{history.store}/{history.directory} has no history: run the mirror until its first load is complete"
        )
    found = []
    lows, highs = (bounds.to_pylist() for bounds in version.bounds("_commit_lsn"))
    for data, low, high in zip(version.files, lows, highs, strict=True):
        file = str(history.store.at(f"{history.directory}/{data.name}"))
        if low is None or high is None:
            low, high = _bounds_in(file)
        if (low is None or low <= through) and (high is None or high > after):
            found.append(_File(file, low, high, rows_in(history.store, history.directory, data)))
    return Changes(version.schema, _parts(found), after, through)


@dataclass(frozen=True)
class _File:
    """A file of a history: its least and largest LSN, None if unknown, and its rows."""

    place: str
    low: int | None
    high: int | None
    rows: int


def _parts(files: Sequence[_File]) -> list[list[str]]:
    """Groups files into parts of about `_PART_ROWS`. Files with overlapping LSNs are in one part."""
    if any(each.low is None or each.high is None for each in files):
        return [[each.place for each in files]]
    parts: list[list[str]] = []
    rows, end = 0, -1
    for each in sorted(files, key=lambda file: (file.low, file.high)):
        assert each.low is not None
        assert each.high is not None
        if not parts or (rows >= _PART_ROWS and each.low > end):
            parts.append([])
            rows = 0
        parts[-1].append(each.place)
        rows, end = rows + each.rows, max(end, each.high)
    return parts


def _has_grown(before: pa.DataType, now: pa.DataType) -> bool:
    """Whether structs have got more fields."""
    return widen(before, now) is None and widen(before, now, more_fields=True) is not None


def _bounds_in(place: str) -> tuple[int | None, int | None]:
    """The least and the largest LSN in a file, from its footer: in the log, a file may have no bounds at all."""
    with pq.ParquetFile(open_file(place)) as file:
        at = file.schema_arrow.names.index("_commit_lsn")
        groups = [file.metadata.row_group(k).column(at).statistics for k in range(file.num_row_groups)]
    if not groups or not all(each is not None and each.has_min_max for each in groups):
        return None, None
    return min(each.min for each in groups), max(each.max for each in groups)
