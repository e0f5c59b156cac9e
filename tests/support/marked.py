"""Marks rows of Delta tables as deleted, as another program does: with a log entry of its own."""

from __future__ import annotations

import base64
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyroaring import BitMap64

from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta.table import uri_and_options
from pgoutput_fast.tables.statistics import as_json

__all__ = ["inline", "mark_rows", "read_with_delta_rs"]

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def inline(positions: Collection[int]) -> dict[str, Any]:
    """A vector in the log."""
    data = (1681511377).to_bytes(4, "little") + BitMap64(positions).serialize()
    text = base64.b85encode(data + b"\0" * (-len(data) % 4)).translate(bytes.maketrans(_B85, _Z85)).decode()
    return {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(data),
        "cardinality": len(positions),
    }


def mark_rows(
    table: Path | str,
    file: str,
    vector: dict[str, Any] | None,
    before: dict[str, Any] | None = None,
    features: Sequence[str] = ("deletionVectors",),
) -> None:
    """Commits another vector of a file.

    Args:
        table: the directory of the table, or its URI as for `open_store`.
        file: the name of the file.
        vector: its new vector.
        before: its vector until now.
        features: those that readers need.
    """
    uri, options = uri_and_options(str(table))
    opened = deltalake.DeltaTable(uri, storage_options=options)
    adds = pa.table(opened.get_add_actions()).to_pylist()
    (add,) = [each for each in adds if each["path"] == file]
    now = int(time.time() * 1000)
    known = {"path": file, "partitionValues": {}, "size": add["size_bytes"], "dataChange": True}
    statistics = {
        "numRecords": add["num_records"],
        "minValues": add["min"],
        "maxValues": add["max"],
        "nullCount": add["null_count"],
        "tightBounds": False,
    }
    removed = {**known, "deletionTimestamp": now, "extendedFileMetadata": True}
    added = {**known, "modificationTime": now, "stats": as_json(statistics)}
    removed |= {} if before is None else {"deletionVector": before}
    added |= {} if vector is None else {"deletionVector": vector}
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "DELETE", "operationParameters": {}}},
        {"remove": removed},
        {"add": added},
    ]
    if set(features) - set(opened.protocol().reader_features or ()):
        versions = {"minReaderVersion": 3, "minWriterVersion": 7}
        names = {"readerFeatures": list(features), "writerFeatures": ["appendOnly", "invariants", *features]}
        actions.append({"protocol": {**versions, **names}})
    with open_store(table).write(f"_delta_log/{opened.version() + 1:020d}.json") as entry:
        entry.write("".join(as_json(each) + "\n" for each in actions).encode())


def read_with_delta_rs(table: Path | str) -> pa.Table:
    """All rows, as the engine of delta-rs reads them. A URI is as for `open_store`."""
    uri, options = uri_and_options(str(table))
    return pa.table(deltalake.DeltaTable(uri, storage_options=options or None).scan())
