"""Statistics in the log of a Delta table by which no reader skips a file with matching rows.

`DeltaTable.to_pyarrow_dataset` takes a missing bound for null, and skips the file whatever its content. So a file has
bounds of all columns with values, or no bounds at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from datetime import date, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.statistics import as_json, cut_structs, measured, statistics_of, unmeasured

__all__ = ["complete", "inexact", "mended_actions"]

# Of these characters, delta-rs encodes only the percent sign.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.=/%-]+")
# The names of files of this package, whose bounds are exact.
_OWN_NAME = r"(^|/)part-[^/]+-[0-9a-f]{16}-[0-9]{5,}\.parquet$"
# Floats, as which delta-rs writes the bounds of decimals, have this many exact digits.
_EXACT_DIGITS = 15
# The range of Python's dates, in days. delta-rs cannot read a table with a bound outside it.
_DAYS = (
    date.min.toordinal() - date(1970, 1, 1).toordinal(),
    date.max.toordinal() - date(1970, 1, 1).toordinal(),
)


def complete(statistics: str) -> str:
    """Converts the result of `statistics_of` for a Delta table: all bounds, or none."""
    values = parsed_json(statistics)
    if "unbounded" not in values:
        return statistics
    return json.dumps({"numRecords": values["numRecords"], "nullCount": values["nullCount"]})


def inexact(schema: pa.Schema, files: pa.Table, checked: int) -> tuple[set[str], int]:
    """The names of files whose bounds may be wrong although they are complete, and when the newest one was written.

    They are those that delta-rs joined, for another program or for an earlier version of this package: it rounds the
    bounds of decimals. Files of all other programs are taken for such.

    Args:
        schema: the columns of the table.
        files: as for `mended_actions`.
        checked: when the newest file was written that was checked before.
    """
    if not any(_is_rounded(field.type) for field in schema):
        return set(), checked
    others = pc.invert(pc.match_substring_regex(files.column("path"), _OWN_NAME))
    found = files.filter(pc.and_(others, pc.greater(files.column("modification_time"), checked)))
    newest = pc.max(found.column("modification_time")).as_py()
    return set(found.column("path").to_pylist()), checked if newest is None else newest


def _is_rounded(kind: pa.DataType) -> bool:
    """Whether delta-rs rounds bounds of this type."""
    if pa.types.is_struct(kind):
        return any(_is_rounded(field.type) for field in kind)
    return bool(pa.types.is_decimal(kind)) and kind.precision > _EXACT_DIGITS


def mended_actions(
    table: Any,
    store: Store,
    files: pa.Table,
    *,
    new: pa.Schema | None = None,
    leave: Collection[str] = (),
    suspect: Collection[str] = (),
) -> list[Any]:
    """The actions that give files of Delta's log other statistics, by which no reader skips rows wrongly.

    Args:
        table: a `DeltaTable`.
        store: the directory of the table.
        files: the actions of its files, as `get_add_actions` returns them.
        new: columns that will be added next. The files have nulls there.
        leave: names of files to leave out.
        suspect: names of files whose statistics are not exact, even if they are complete.
    """
    from deltalake.transaction import AddAction

    incomplete = _incomplete(files)
    added = [] if new is None else list(new)
    columns = [*pa.schema(table.schema().to_arrow()), *added]
    actions = []
    for k, file in enumerate(files.select(["path", "size_bytes", "modification_time"]).to_pylist()):
        name = file["path"]
        place = unquote(name)
        if name in leave or not (added or incomplete[k] or name in suspect) or not _keeps_name(place, name):
            continue
        statistics: str | None
        if incomplete[k] or name in suspect:
            statistics = _read_again(store, place, columns)
        else:
            statistics = _with_nulls(files, k, added, bounded=not cut_structs(columns))
        if statistics is not None:
            partition = _partition(files, k)
            actions.append(
                AddAction(place, file["size_bytes"], partition, file["modification_time"], False, statistics)
            )
    return actions


def _keeps_name(place: str, name: str) -> bool:
    """Whether delta-rs writes the path of a file into the log under the same name. Another name is another file."""
    return bool(_PLAIN_NAME.fullmatch(place)) and place.replace("%", "%25") == name


def _incomplete(files: pa.Table) -> list[bool]:
    """Whether the files lack bounds of some columns, but not of all."""
    none = pa.array([False] * files.num_rows, pa.bool_())
    incomplete, rows = none, files.column("num_records")
    nulls = _fields(files, "null_count")
    for which in ("min", "max"):
        if which not in files.schema.names:
            continue
        has_bounds = files.column(which).is_valid()
        for name, bounds in _fields(files, which).items():
            no_values = none
            if name in nulls and not pa.types.is_struct(bounds.type):
                no_values = pc.fill_null(pc.equal(nulls[name], rows), False)
            lacks = pc.and_(bounds.is_null(), pc.invert(no_values))
            if pa.types.is_date(bounds.type):
                days = bounds.cast(pa.int32())
                lacks = pc.or_(
                    lacks, pc.fill_null(pc.or_(pc.less(days, _DAYS[0]), pc.greater(days, _DAYS[1])), False)
                )
            incomplete = pc.or_(incomplete, pc.and_(has_bounds, lacks))
    return [bool(each) for each in incomplete.to_pylist()]


def _fields(files: pa.Table, name: str) -> dict[str, pa.ChunkedArray]:
    if name not in files.schema.names:
        return {}
    kind, column = files.schema.field(name).type, files.column(name)
    return {kind.field(k).name: pc.struct_field(column, [k]) for k in range(kind.num_fields)}


def _read_again(store: Store, name: str, columns: Sequence[pa.Field]) -> str:
    """The statistics of a file, from its footer and its rows."""
    with pq.ParquetFile(open_file(str(store.at(name)))) as file:
        names = unmeasured(file.metadata)
        groups = [measured(file.read_row_group(k, columns=names)) for k in range(file.num_row_groups)]
        there = set(file.schema_arrow.names)
        lacking = [field for field in columns if field.name not in there]
        return complete(statistics_of(file.metadata, groups, lacking))


def _with_nulls(files: pa.Table, k: int, new: Sequence[pa.Field], *, bounded: bool) -> str | None:
    """The statistics of a file with added columns that are not in it; None if it has no bounds."""
    if "min" not in files.schema.names or not files.column("min")[k].is_valid:
        return None
    rows = files.column("num_records")[k].as_py()
    structs: dict[str, Any] = {field.name: {} for field in new if pa.types.is_struct(field.type)}
    try:
        bounds = {which: _stored(files.column(which)[k].as_py()) | structs for which in ("min", "max")}
    except OverflowError:  # other programs give bounds to the dates in structs, and Python lacks some dates
        bounds, bounded = {}, False
    nulls = _stored(files.column("null_count")[k].as_py() or {})
    nulls |= {field.name: rows for field in new if not pa.types.is_nested(field.type)}
    known = {"minValues": bounds["min"], "maxValues": bounds["max"]} if bounded else {}
    return as_json({"numRecords": rows, **known, "nullCount": nulls})


def _stored(values: dict[str, Any]) -> dict[str, Any]:
    """Values in the form of Delta's log, without unknown ones."""
    stored: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            stored[name] = _stored(value)
        elif isinstance(value, datetime):
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            stored[name] = text if value.tzinfo is None else f"{text}Z"
        elif isinstance(value, date):
            stored[name] = value.isoformat()
        elif value is not None:
            stored[name] = value
    return stored


def _partition(files: pa.Table, k: int) -> dict[str, str | None]:
    """The values of the partition columns, as texts."""
    if "partition" not in files.schema.names:
        return {}
    return {name: _text(value) for name, value in files.column("partition")[k].as_py().items()}


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
