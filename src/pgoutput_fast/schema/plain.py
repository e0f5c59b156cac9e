"""Converts columns to their stored forms, also where Arrow has no cast."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.schema.interval_text import iso_8601
from pgoutput_fast.schema.types import leaf_pairs

__all__ = ["to_types"]


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
    return any(
        pa.types.is_interval(part)
        or (pa.types.is_struct(part) and (not part.num_fields or part.num_fields != other.num_fields))
        for part, other in leaf_pairs(kind, target)
    )


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
    existing = array.type.num_fields
    fields = [
        _to_type(array.field(k), field.type) if k < existing else pa.nulls(len(array), field.type)
        for k, field in enumerate(target)
    ]
    return pa.StructArray.from_arrays(fields, fields=list(target), mask=array.is_null())
