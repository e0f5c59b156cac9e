"""Converts columns to types of Spark and Parquet, also where Arrow has no cast."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.schema.interval_text import iso_8601

__all__ = ["plain_schema", "to_types"]


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with types that Parquet and all its readers support: times and intervals become strings.

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

    Intervals can be converted to strings, also within lists and structs. So can structs without fields, to the text
    that PostgreSQL prints. Where structs of `target` have more fields at the end, these are null; where they have
    fewer, the surplus ones are dropped.
    """
    columns = [
        pa.chunked_array([_to_type(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, target, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=target)


def _has_no_cast(kind: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_no_cast(kind.value_type, target.value_type)
    if pa.types.is_struct(kind):
        if not kind.num_fields or kind.num_fields != target.num_fields:
            return True
        return any(_has_no_cast(kind.field(k).type, target.field(k).type) for k in range(kind.num_fields))
    return bool(pa.types.is_interval(kind))


def _to_type(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type.equals(target) or not _has_no_cast(array.type, target):
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
    there = array.type.num_fields
    fields = [
        _to_type(array.field(k), field.type) if k < there else pa.nulls(len(array), field.type)
        for k, field in enumerate(target)
    ]
    return pa.StructArray.from_arrays(fields, fields=list(target), mask=array.is_null())
