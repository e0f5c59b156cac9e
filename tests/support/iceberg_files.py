"""The files of Iceberg tables: the ids of their columns, and the same files without ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.table import TableProperties

from pgoutput_fast.schema.types import stored_type

__all__ = ["files_of", "forget_ids", "has_ids", "open_table", "read_by_ids"]


def open_table(directory: Path, name: str) -> Any:
    """A table of the catalog in a directory."""
    return load_catalog("pgoutput_fast", type="sql", uri=f"sqlite:///{directory}/_catalog.db").load_table(
        name
    )


def files_of(table: Any) -> list[Path]:
    return [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]


def has_ids(file: Path) -> bool:
    return all(b"PARQUET:field_id" in (field.metadata or {}) for field in pq.read_schema(file))


def read_by_ids(table: Any) -> pa.Table:
    """The rows found by a reader that uses only ids, not the mapping of names."""
    table.metadata.properties.pop(TableProperties.DEFAULT_NAME_MAPPING)
    return table.scan().to_arrow()


def forget_ids(table: Any) -> None:
    """Rewrites the files of a table as in earlier versions of this package, without ids."""
    for file in files_of(table):
        rows = pq.read_table(file)
        pq.write_table(pa.table({name: _plain(rows[name]) for name in rows.schema.names}), file)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(stored_type(column.type, "table"))
