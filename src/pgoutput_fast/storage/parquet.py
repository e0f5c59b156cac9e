"""Opens Parquet files for decoded rows, with shared settings."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["COMPRESSIONS", "SETTINGS", "Compression", "rows_writer"]

Compression = Literal["zstd", "lz4", "snappy", "none"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
_LEVELS = {"zstd": 1}

# Measured with `python -m benchmarks.parquet`; see benchmarks/NOTES.md.
SETTINGS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": _LEVELS["zstd"],
    # A dictionary pays only while it is small. Columns with many distinct values fall back early.
    "dictionary_pagesize_limit": 1 << 16,
    # Lets readers skip pages, not only row groups.
    "write_page_index": True,
}


def rows_writer(
    file: Any, schema: pa.Schema, compression: Compression = "zstd", **more: Any
) -> pq.ParquetWriter:
    """Opens a Parquet file for rows with this schema.

    Args:
        file: a path, or a file that is open for writing.
        schema: of the rows, in plain types.
        compression: codec of its pages.
        more: further arguments of `pyarrow.parquet.ParquetWriter`.
    """
    codec = {"compression": compression, "compression_level": _LEVELS.get(compression)}
    statistics = {"write_statistics": _with_statistics(schema)}
    return pq.ParquetWriter(file, schema, **{**SETTINGS, **codec, **statistics, **more})


def _with_statistics(schema: pa.Schema) -> list[str]:
    """The columns with statistics: all but floats.

    Arrow omits NaN from the bounds, and DataFusion and DuckDB, which like PostgreSQL sort NaN after all other values,
    would miss these rows.
    """
    return [path for field in schema for path in _ordered(field.name, field.type)]


def _ordered(path: str, kind: pa.DataType) -> list[str]:
    if pa.types.is_struct(kind):
        return [name for field in kind for name in _ordered(f"{path}.{field.name}", field.type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _ordered(f"{path}.list.element", kind.value_type)
    if pa.types.is_map(kind):
        parts = (("key", kind.key_type), ("value", kind.item_type))
        return [name for part, type_ in parts for name in _ordered(f"{path}.key_value.{part}", type_)]
    return [] if pa.types.is_floating(kind) else [path]
