"""Columns for all tools, with `Options(plain=True)`: types that CSV, polars or spreadsheets lack become text."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema, stored_type

__all__ = ["flat_schema", "flatten"]


def flat_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with strings in place of lists, structs, times and intervals.

    >>> import pyarrow as pa
    >>> flat_schema(pa.schema({"at": pa.time64("us"), "tags": pa.list_(pa.string()), "n": pa.int32()})).types
    [DataType(string), DataType(string), DataType(int32)]
    """
    fields = stored_schema(schema, "parquet")
    return pa.schema(
        [field.with_type(pa.string()) if _is_nested(field.type) else field for field in fields],
        metadata=schema.metadata,
    )


def flatten(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the types of `flat_schema`.

    A list or a struct becomes JSON: an array, or an object with the names of its fields. Decimals, dates, times, NaN
    and infinities in it are JSON strings. Bytes are strings of hexadecimal digits after a backslash and an x.

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


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_struct(kind))


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    return to_types(pa.table([column], ["c"]), pa.schema([("c", kind)])).column(0).combine_chunks()


def _json(column: pa.Array) -> pa.Array:
    """JSON texts of a nested column."""
    values = _converted(column, stored_type(column.type, "json")).to_pylist()
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
