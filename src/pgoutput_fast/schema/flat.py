"""Columns for all tools, with `Options(plain=True)`: types that CSV, polars or spreadsheets lack become text."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema, stored_type, walk_type

__all__ = ["flat_schema", "flatten", "python_values"]


def flat_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with strings in place of lists, maps, structs, times and intervals.

    >>> import pyarrow as pa
    >>> flat_schema(pa.schema({"at": pa.time64("us"), "tags": pa.list_(pa.string()), "n": pa.int32()})).types
    [DataType(string), DataType(string), DataType(int32)]
    """
    fields = [_without_extension(field) for field in stored_schema(schema, "parquet")]
    return pa.schema(
        [field.with_type(pa.string()) if _is_nested(field.type) else field for field in fields],
        metadata=schema.metadata,
    )


def _without_extension(field: pa.Field) -> pa.Field:
    """The field without the name of an extension type: DuckDB refuses a table with a geography."""
    metadata = field.metadata or {}
    kept = {name: value for name, value in metadata.items() if not name.startswith(b"ARROW:extension:")}
    return field if len(kept) == len(metadata) else field.with_metadata(kept)


def flatten(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the types of `flat_schema`.

    A list, a map or a struct becomes JSON: an array, or an object with its keys or the names of its fields. Decimals,
    dates, times, NaN and infinities in it are JSON strings. Bytes are strings of hexadecimal digits after a backslash
    and an x.

    >>> import pyarrow as pa
    >>> tags = pa.array([["a", None], None], pa.list_(pa.string()))
    >>> flatten(pa.record_batch({"tags": tags})).to_pydict()
    {'tags': ['["a", null]', None]}
    """
    schema = flat_schema(batch.schema)
    columns = [
        _json(column) if _is_nested(column.type) else _converted(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values as Python objects, maps as dicts. pyarrow's own option for maps exists only from version 19 on.

    >>> import pyarrow as pa
    >>> python_values(pa.array([[("a", "1")], [], None], pa.map_(pa.string(), pa.string())))
    [{'a': '1'}, {}, None]
    """
    values: list[Any] = column.to_pylist()
    if any(pa.types.is_map(part) for _, part in walk_type("", column.type)):
        return [_with_dicts(each, column.type) for each in values]
    return values


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _with_dicts(each, kind.item_type) for key, each in value}
    if pa.types.is_list(kind):
        return [_with_dicts(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    return value


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_struct(kind))


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    return to_types(pa.table([column], ["c"]), pa.schema([("c", kind)])).column(0).combine_chunks()


def _json(column: pa.Array) -> pa.Array:
    """JSON texts of a nested column."""
    values = python_values(_converted(column, stored_type(column.type, "json")))
    texts = [None if each is None else json.dumps(_jsonable(each), ensure_ascii=False) for each in values]
    return pa.array(texts, pa.string())


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
