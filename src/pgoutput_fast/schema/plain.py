"""Converts columns to types that Spark and Parquet have, also where Arrow has no cast."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["iso_8601", "plain_schema", "to_types"]

# Arrow's layout of an interval.
_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with types that Parquet and all of its readers have: times and intervals become strings.

    >>> import pyarrow as pa
    >>> plain_schema(pa.schema({"at": pa.time64("us"), "spans": pa.list_(pa.month_day_nano_interval())})).types
    [DataType(string), ListType(list<item: string>)]
    """
    return pa.schema([field.with_type(_plain(field.type)) for field in schema], metadata=schema.metadata)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind) or pa.types.is_interval(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_struct(kind):
        # Parquet has no struct without fields.
        return (
            pa.struct([field.with_type(_plain(field.type)) for field in kind]) if len(kind) else pa.string()
        )
    return kind


def to_types(table: pa.Table, target: pa.Schema) -> pa.Table:
    """The table with the types of `target`, which has the same columns.

    An interval may become a string, also inside of lists and structs. A struct without fields may become a string,
    too: the one that PostgreSQL prints.
    """
    columns = [
        pa.chunked_array([_to_type(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, target, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=target)


def _has_no_cast(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_no_cast(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_has_no_cast(field.type) for field in kind)
    return bool(pa.types.is_interval(kind))


def _to_type(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not _has_no_cast(array.type) or array.type.equals(target):
        return array.cast(target)
    if pa.types.is_interval(array.type):
        return iso_8601(array)
    if pa.types.is_list(array.type):
        children = [_to_type(array.values, target.value_type)]
        return pa.Array.from_buffers(
            target, len(array), array.buffers()[:2], offset=array.offset, children=children
        )
    if pa.types.is_string(target):
        return pc.if_else(array.is_null(), pa.scalar(None, target), "()")
    fields = [_to_type(array.field(k), field.type) for k, field in enumerate(target)]
    return pa.StructArray.from_arrays(fields, fields=list(target), mask=array.is_null())


def iso_8601(intervals: pa.Array) -> pa.Array:
    """Strings such as `P1Y2M-3DT4H5M6.7S`, as PostgreSQL prints them with IntervalStyle iso_8601.

    >>> import pyarrow as pa
    >>> iso_8601(pa.array([(14, -3, 14706700000000), (0, 0, 0)], pa.month_day_nano_interval())).to_pylist()
    ['P1Y2M-3DT4H5M6.7S', 'PT0S']
    """
    months, days, micros = _fields(intervals)
    years = pc.divide(months, 12)
    size = pc.abs(micros)
    seconds = pc.divide(size, 1_000_000)
    minutes = pc.divide(seconds, 60)
    hours = pc.divide(minutes, 60)
    minus = pc.if_else(pc.less(micros, 0), "-", "")
    fraction = pc.utf8_rtrim(pc.utf8_lpad(_text(_rest(size, seconds, 1_000_000)), 6, "0"), "0")
    point = pc.if_else(pc.equal(fraction, ""), "", ".")
    whole = _text(_rest(seconds, minutes, 60))
    second = _joined(minus, whole, point, fraction, "S")
    no_second = pc.equal(_joined(whole, fraction), "0")
    text = _joined(
        "P",
        _part(years, "Y"),
        _part(_rest(months, years, 12), "M"),
        _part(days, "D"),
        pc.if_else(pc.equal(micros, 0), "", "T"),
        _signed(minus, hours, "H"),
        _signed(minus, _rest(minutes, hours, 60), "M"),
        pc.if_else(no_second, "", second),
    )
    text = pc.if_else(pc.equal(text, "P"), "PT0S", text)
    return pc.if_else(intervals.is_null(), pa.scalar(None, pa.string()), text)


def _fields(intervals: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """(months, days, microseconds) of intervals, without nulls. The server has no finer unit than microseconds."""
    rows = np.frombuffer(intervals.buffers()[1], _INTERVAL, intervals.offset + len(intervals))[
        intervals.offset :
    ]
    return tuple(
        pa.array(part) for part in (rows["months"].astype(np.int64), rows["days"], rows["nanos"] // 1000)
    )


def _rest(whole: pa.Array, quotient: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(whole, pc.multiply(quotient, divisor))


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _part(values: pa.Array, unit: str) -> pa.Array:
    return pc.if_else(pc.equal(values, 0), "", _joined(_text(values), unit))


def _signed(minus: pa.Array, values: pa.Array, unit: str) -> pa.Array:
    return pc.if_else(pc.equal(values, 0), "", _joined(minus, _text(values), unit))
