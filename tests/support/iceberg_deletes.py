"""Deletes in Iceberg tables, as other programs write them: pyiceberg copies such files, and writes none."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.snapshots import Operation
from pyroaring import BitMap64

from pgoutput_fast.tables.iceberg.overwrite import begin_overwrite
from pgoutput_fast.tables.iceberg.transaction import begin_transaction

__all__ = ["commit_deletes", "delete_rows", "vector"]

_PATH = 2147483546


def delete_rows(table: Any, rows: Mapping[str, Sequence[int]], name: str = "deletes.parquet") -> Path:
    """Marks rows of several files by one file, as Spark does with the deletes of a partition.

    Args:
        table: of pyiceberg.
        rows: {path: positions}.
        name: of the file.

    Returns:
        The file of the deletes.
    """
    place = Path(table.location().removeprefix("file://")) / name
    columns = [(path, position) for path in sorted(rows) for position in rows[path]]
    pq.write_table(
        pa.table({"file_path": [path for path, _ in columns], "pos": [position for _, position in columns]}),
        place,
    )
    commit_deletes(table, place, len(columns), bounds=(min(rows), max(rows)))
    return place


def vector(table: Any, file: str, rows: Sequence[int], name: str = "deletes.puffin") -> Path:
    """Marks rows of a file by a deletion vector, as version 3 of the format has them."""
    place = Path(table.location().removeprefix("file://")) / name
    data = b"\xd1\xd3\x39\x64" + BitMap64(rows).serialize()
    blob = len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    description = {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": len(blob),
        "properties": {"referenced-data-file": file, "cardinality": str(len(rows))},
    }
    footer = json.dumps({"blobs": [description]}).encode()
    sizes = len(footer).to_bytes(4, "little") + bytes(4)
    place.write_bytes(b"PFA1" + blob + b"PFA1" + footer + sizes + b"PFA1")
    commit_deletes(table, place, len(rows), format=FileFormat.PUFFIN)
    return place


def commit_deletes(
    table: Any,
    place: Path,
    count: int,
    *,
    content: DataFileContent = DataFileContent.POSITION_DELETES,
    format: FileFormat = FileFormat.PARQUET,
    bounds: tuple[str, str] | None = None,
) -> None:
    """Adds a file of deletes to a table, in a snapshot that only deletes rows."""
    (partition,) = {task.file.partition for task in table.scan().plan_files()}
    file = DataFile.from_args(
        content=content,
        file_path=f"file:{place}",  # as Spark writes it
        file_format=format,
        partition=partition,
        record_count=count,
        file_size_in_bytes=place.stat().st_size if place.exists() else 1,
        lower_bounds={_PATH: bounds[0].encode()} if bounds else None,
        upper_bounds={_PATH: bounds[1].encode()} if bounds else None,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = 0
    known = {each.file_path for task in table.scan().plan_files() for each in task.delete_files}
    with begin_transaction(table) as transaction, begin_overwrite(transaction, {}, [file], known) as snapshot:
        snapshot._operation = Operation.DELETE
