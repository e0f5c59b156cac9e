"""Statistics of a Parquet file in the form of Delta's protocol: engines skip files by them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq

__all__ = ["statistics_of"]

# Longer texts make the log long and rarely let an engine skip a file. A UUID has 36 characters.
_LONGEST_TEXT = 36
_MILLISECOND = timedelta(milliseconds=1)


def statistics_of(file: pq.FileMetaData) -> str:
    """Returns JSON with `numRecords`, `minValues`, `maxValues` and `nullCount` of a file's plain columns.

    A bound is left out if it cannot be said exactly in JSON: of floats (NaN has no place in the order), decimals,
    binary values and long texts. Delta keeps timestamps in milliseconds, so the largest one is rounded up.
    """
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at, name in _plain_columns(file):
        found = [file.row_group(k).column(at).statistics for k in range(file.num_row_groups)]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = _bounds(each for each in found if each.num_values)
        if bounds is not None:
            smallest[name], largest[name] = bounds
    return json.dumps(
        {"numRecords": file.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    )


def _plain_columns(file: pq.FileMetaData) -> Iterable[tuple[int, str]]:
    """Yields (ordinal, name) of the columns that are no part of a list or struct."""
    for at in range(file.num_columns):
        column = file.schema.column(at)
        if column.max_repetition_level == 0 and column.path == column.name:
            yield at, column.name


def _bounds(found: Iterable[Any]) -> tuple[Any, Any] | None:
    lowest, highest = [], []
    for each in found:
        if not each.has_min_max:
            return None
        try:
            lowest.append(each.min)
            highest.append(each.max)
        except (ValueError, OverflowError):  # a date or time that Python does not have
            return None
    if not lowest:
        return None
    return _as_json(min(lowest), max(highest))


def _as_json(lowest: Any, highest: Any) -> tuple[Any, Any] | None:
    if isinstance(lowest, bool) or type(lowest) is not type(highest):
        return None
    if isinstance(lowest, int):
        return lowest, highest
    if isinstance(lowest, str):
        return (lowest, highest) if max(len(lowest), len(highest)) <= _LONGEST_TEXT else None
    if isinstance(lowest, datetime):
        try:
            return _moment(lowest), _moment(highest + _MILLISECOND)
        except OverflowError:
            return None
    if isinstance(lowest, date):
        return lowest.isoformat(), highest.isoformat()
    return None


def _moment(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else f"{text}Z"
