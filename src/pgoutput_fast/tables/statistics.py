"""Statistics of a Parquet file in the form of Delta's protocol, by which engines skip files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["Measured", "as_json", "cut_structs", "measured", "statistics_of", "unmeasured"]

# Longer texts bloat the log and rarely let an engine skip a file. A UUID has 36 characters.
_LONGEST_TEXT = 36
# Arrow writes no bounds of texts of more than some 4,096 bytes.
_MOST_BYTES = 4000
# The number of columns with bounds in Delta, which counts the fields of structs.
_INDEXED = 32
_MILLISECOND = timedelta(milliseconds=1)
_LAST_CHARACTER, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


@dataclass(frozen=True)
class Measured:
    """Statistics of a column from the rows of a row group, where the footer of a Parquet file has none.

    Attributes:
        nulls: how many values are null.
        bounds: (a value that is not larger than any, one that is not smaller); None if there are none.
    """

    nulls: int
    bounds: tuple[Any, Any] | None


def measured(rows: pa.Table) -> dict[str, Measured]:
    """Measures the columns of a row group without bounds in the footer: floats, and columns with long texts."""
    columns = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_floating(column.type):
            columns[name] = Measured(column.null_count, _finite_bounds(column))
        elif (
            pa.types.is_string(column.type) and (pc.max(pc.binary_length(column)).as_py() or 0) > _MOST_BYTES
        ):
            # One more character shows that the text continues.
            ends = pc.min_max(pc.utf8_slice_codeunits(column, 0, _LONGEST_TEXT + 1)).as_py()
            columns[name] = Measured(column.null_count, (ends["min"], ends["max"]))
    return columns


def _finite_bounds(column: pa.ChunkedArray) -> tuple[float, float] | None:
    """None also for NaN and infinities: JSON has no form of them, and engines disagree on the order of NaN."""
    if not pc.all(pc.is_finite(column)).as_py():
        return None
    ends = pc.min_max(column).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])


def unmeasured(file: pq.FileMetaData) -> list[str]:
    """The columns of a file that must be read to know their bounds."""
    names = []
    for at, name in _plain_columns(file):
        kind = file.schema.column(at)
        groups = [file.row_group(k).column(at) for k in range(file.num_row_groups)]
        no_bounds = any(group.statistics is None or not group.statistics.has_min_max for group in groups)
        is_text = kind.logical_type.type == "STRING"
        if kind.physical_type in ("FLOAT", "DOUBLE") or (is_text and no_bounds):
            names.append(name)
    return names


def statistics_of(
    file: pq.FileMetaData, groups: Sequence[Mapping[str, Measured]] = (), lacking: Sequence[pa.Field] = ()
) -> str:
    """Returns JSON with `numRecords`, `minValues`, `maxValues` and `nullCount` of a file's plain columns.

    A bound may be wider than the values: for long texts it is a prefix. Delta keeps timestamps in milliseconds, so the
    largest one is rounded up.

    Args:
        file: the footer.
        groups: the results of `measured` for the row groups.
        lacking: columns of the table that the file does not have.

    Returns:
        The JSON. `unbounded` names the columns with values, but without bounds that JSON can have: those with NaN,
        infinities, or dates that Python lacks; and the structs of `cut_structs`. Binary values never have bounds.
    """
    columns = [*file.schema.to_arrow_schema(), *lacking]
    # Without these, deltalake takes the bounds of the whole struct for null.
    structs = [field.name for field in columns if pa.types.is_struct(field.type)]
    smallest: dict[str, Any] = {name: {} for name in structs}
    largest: dict[str, Any] = {name: {} for name in structs}
    nulls = {field.name: file.num_rows for field in lacking if not pa.types.is_nested(field.type)}
    unbounded = cut_structs(columns)
    for at, name in _plain_columns(file):
        parts = _parts(file, at, name, groups)
        if parts is not None:
            nulls[name] = sum(part.nulls for part in parts)
        bounds = _bounds(file, parts)
        if bounds is not None:
            smallest[name], largest[name] = bounds
        elif nulls.get(name) != file.num_rows and not _is_binary(file, at):
            unbounded.append(name)
    values = {"numRecords": file.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    return as_json({**values, "unbounded": unbounded} if unbounded else values)


def cut_structs(columns: Iterable[pa.Field]) -> list[str]:
    """The structs with Delta bounds for some of their fields, but not for all.

    polars raises an error if a filter names such a struct.
    """
    count, cut = 0, []
    for field in columns:
        before, count = count, count + _leaves(field.type)
        if before < _INDEXED < count:
            cut.append(field.name)
    return cut


def _leaves(kind: pa.DataType) -> int:
    return sum(_leaves(field.type) for field in kind) if pa.types.is_struct(kind) else 1


def _plain_columns(file: pq.FileMetaData) -> Iterator[tuple[int, str]]:
    """Yields (ordinal, name) of the columns that are not part of a list or struct."""
    for at in range(file.num_columns):
        column = file.schema.column(at)
        if column.max_repetition_level == 0 and column.path == column.name:
            yield at, column.name


def _is_binary(file: pq.FileMetaData, at: int) -> bool:
    column = file.schema.column(at)
    in_bytes = column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
    return in_bytes and column.logical_type.type not in ("STRING", "DECIMAL")


def _parts(
    file: pq.FileMetaData, at: int, name: str, groups: Sequence[Mapping[str, Measured]]
) -> list[Measured | _Group] | None:
    """The statistics of the column in the row groups; None if the nulls of one are unknown."""
    parts: list[Measured | _Group] = []
    for k in range(file.num_row_groups):
        known = groups[k].get(name) if k < len(groups) else None
        statistics = file.row_group(k).column(at).statistics
        if known is None and (statistics is None or not statistics.has_null_count):
            return None
        parts.append(known or _Group(statistics))
    return parts


class _Group:
    """A row group with all statistics in the footer."""

    def __init__(self, statistics: Any) -> None:
        self._statistics = statistics
        self.nulls: int = statistics.null_count

    @property
    def bounds(self) -> tuple[Any, Any] | None:
        if not self._statistics.has_min_max:
            return None
        try:
            low, high = self._statistics.min, self._statistics.max
        except (ValueError, OverflowError):  # a date or time that Python lacks
            return None
        return None if isinstance(low, float) else (low, high)  # footers ignore NaN


def _bounds(file: pq.FileMetaData, parts: Sequence[Measured | _Group] | None) -> tuple[Any, Any] | None:
    known = []
    for k, part in enumerate(parts or ()):
        if part.nulls < file.row_group(k).num_rows:
            known.append(part.bounds)
    if not known or None in known:
        return None
    lows, highs = zip(*(bounds for bounds in known if bounds is not None), strict=True)
    return _in_log(min(lows), max(highs))


def _in_log(lowest: Any, highest: Any) -> tuple[Any, Any] | None:
    """Bounds in the form of Delta's log."""
    if type(lowest) is not type(highest):
        return None
    if isinstance(lowest, bool | int | Decimal):
        return lowest, highest
    if isinstance(lowest, float):
        return (lowest, highest) if isfinite(lowest) and isfinite(highest) else None
    if isinstance(lowest, str):
        highest = _not_smaller(highest)
        return None if highest is None else (lowest[:_LONGEST_TEXT], highest)
    if isinstance(lowest, datetime):
        try:
            return _moment(lowest), _moment(highest + _MILLISECOND)
        except OverflowError:
            return None
    if isinstance(lowest, date):
        return lowest.isoformat(), highest.isoformat()
    return None


def _not_smaller(text: str) -> str | None:
    """A short text that is not smaller than this one, in the order of UTF-8; None if there is none."""
    if len(text) <= _LONGEST_TEXT:
        return text
    for end in range(_LONGEST_TEXT, 0, -1):
        following = ord(text[end - 1]) + 1
        if following <= _LAST_CHARACTER:
            following = _SURROGATES.stop if following in _SURROGATES else following
            return text[: end - 1] + chr(following)
    return None


def _moment(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else f"{text}Z"


def as_json(value: Any) -> str:
    """JSON with decimals as numbers with all their digits."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {as_json(each)}' for name, each in value.items())}}}"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)
