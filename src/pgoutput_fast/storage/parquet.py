"""Opens Parquet files for decoded rows: the settings that all such files share."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["COMPRESSIONS", "SETTINGS", "Compression", "rows_writer"]

Compression = Literal["zstd", "lz4", "snappy", "none"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
_LEVELS = {"zstd": 1}

# Chosen by measurement: `python -m benchmarks.parquet`; benchmarks/NOTES.md gives the reasons.
SETTINGS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": _LEVELS["zstd"],
    # A dictionary pays while it is small. A column with more distinct values stops early to try one.
    "dictionary_pagesize_limit": 1 << 16,
    # Readers then skip pages, not only row groups.
    "write_page_index": True,
}


def rows_writer(
    file: Any, schema: pa.Schema, compression: Compression = "zstd", **more: Any
) -> pq.ParquetWriter:
    """Opens a Parquet file for rows with this schema.

    Args:
        file: a path, or a file that is open for writing.
        schema: of the rows, in plain types.
        compression: how its pages are compressed.
        more: further arguments of `pyarrow.parquet.ParquetWriter`.
    """
    codec = {"compression": compression, "compression_level": _LEVELS.get(compression)}
    return pq.ParquetWriter(file, schema, **{**SETTINGS, **codec, **more})
