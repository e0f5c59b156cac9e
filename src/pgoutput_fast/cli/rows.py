"""Rows as text: CSV and JSON lines for programs, and cells for the screen."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any

import pyarrow as pa

from pgoutput_fast.base.display import escaped
from pgoutput_fast.schema.flat import python_values
from pgoutput_fast.schema.interval_text import iso_8601

__all__ = ["cells", "write_csv", "write_json_lines"]


def write_csv(file: IO[bytes], schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Writes a header and the rows. Texts are in quotes, so that a null, which is nothing, differs from an empty one.

    Args:
        file: is written, and stays open.
        schema: the columns.
        tables: the rows, in these columns.
    """
    from pyarrow import csv

    schema = _text_schema(schema)
    with csv.CSVWriter(file, schema) as writer:
        for rows in tables:
            writer.write_table(_as_text(rows, schema))


def write_json_lines(file: IO[str], tables: Iterable[pa.Table], integers: Collection[str] = ()) -> None:
    """Writes one JSON object per row. Decimals are texts, because readers of JSON round numbers.

    Args:
        file: is written, and stays open.
        tables: the rows. No two columns have the same name.
        integers: the columns of decimals that become numbers.
    """
    for rows in tables:
        names, columns = rows.schema.names, [python_values(column) for column in _safe(rows).columns]
        for row in (dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)):
            # JSON has no NaN and no infinities.
            values = {name: _finite(value) for name, value in row.items()}
            for name in integers:
                values[name] = None if row[name] is None else int(row[name])
            file.write(json.dumps(values, default=_plain_value, ensure_ascii=False) + "\n")


def cells(rows: pa.Table) -> Iterator[list[str]]:
    """Yields the cells of each row as printable text; NULL for a null.

    >>> list(cells(pa.table({"id": [1, None], "note": ["a\\tb", "c"], "list": [[1], []]})))
    [['1', 'a\\\\tb', '[1]'], ['NULL', 'c', '[]']]
    """
    schema = pa.schema([field.with_type(pa.string()) for field in rows.schema])
    columns = [column.to_pylist() for column in _as_text(rows, schema).columns]
    for row in zip(*columns, strict=True):
        yield ["NULL" if each is None else escaped(each) for each in row]


def _text_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without bytes, intervals, lists and maps, which CSV lacks."""
    return pa.schema([field.with_type(pa.string()) if _lacks_text(field.type) else field for field in schema])


def _lacks_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_nested(kind) or pa.types.is_interval(kind))


def _as_text(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        column if column.type.equals(field.type) else _text_of(column)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _text_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_interval(column.type):
        return pa.chunked_array([iso_8601(each) for each in column.chunks], pa.string())
    if not _lacks_text(column.type):
        return column.cast(pa.string())
    return pa.chunked_array([[_jsonable_text(each) for each in python_values(column)]], pa.string())


def _jsonable_text(value: Any) -> str | None:
    if value is None:
        return None
    return _plain_value(value) if isinstance(value, bytes) else json.dumps(value, default=str)


def _safe(rows: pa.Table) -> pa.Table:
    """Converts times and intervals to ISO 8601 text: Python cannot represent some of them."""
    for index, field in enumerate(rows.schema):
        if (
            pa.types.is_timestamp(field.type)
            or pa.types.is_date(field.type)
            or pa.types.is_interval(field.type)
        ):
            rows = rows.set_column(index, field.name, _text_of(rows.column(index)))
    return rows


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain_value(value: object) -> str:
    return "\\x" + value.hex() if isinstance(value, bytes) else str(value)
