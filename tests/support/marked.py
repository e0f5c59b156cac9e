"""Marks rows of Delta tables as deleted, as another program does: with a log entry of its own."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta.table import uri_and_options
from pgoutput_fast.tables.statistics import as_json

__all__ = ["inline", "mark_rows", "move_to_sidecars", "read_with_delta_rs"]

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


def move_to_sidecars(table: Path, form: str) -> int:
    """Gives a table the feature v2Checkpoint, and a checkpoint whose files are in two sidecars.

    Args:
        table: the directory of the table.
        form: of the checkpoint, `json` or `parquet`.

    Returns:
        Its version, without which no later one can be read.
    """
    feature = deltalake.TableFeatures.V2Checkpoint
    deltalake.DeltaTable(table).alter.add_feature(feature, allow_protocol_versions_increase=True)
    opened, log = deltalake.DeltaTable(table), table / "_delta_log"
    opened.create_checkpoint()
    (classic,) = log.glob(f"{opened.version():020d}.checkpoint.parquet")
    rows = pq.read_table(classic)
    is_file = pc.or_(pc.is_valid(rows["add"]), pc.is_valid(rows["remove"]))
    (log / "_sidecars").mkdir()
    files, actions = rows.filter(is_file).select(["add", "remove"]), list[dict[str, Any]]()
    for part in (files.slice(0, 3), files.slice(3)):
        name = f"{uuid.uuid4()}.parquet"
        pq.write_table(part, log / "_sidecars" / name)
        nbytes = (log / "_sidecars" / name).stat().st_size
        actions.append({"sidecar": {"path": name, "sizeInBytes": nbytes, "modificationTime": 1}})
    others = rows.filter(pc.invert(is_file)).drop_columns(["add", "remove"])
    place = log / f"{opened.version():020d}.checkpoint.{uuid.uuid4()}.{form}"
    if form == "json":
        lines = [json.dumps(each) for each in (*map(_as_entry, others.to_pylist()), *actions)]
        place.write_text("\n".join(lines))
    else:
        schema = pa.schema([pa.field(field.name, _nullable(field.type)) for field in others.schema])
        pq.write_table(pa.Table.from_pylist(others.to_pylist() + actions, schema), place)
    for old in (
        classic,
        log / "_last_checkpoint",
        *(log / f"{k:020d}.json" for k in range(opened.version())),
    ):
        old.unlink(missing_ok=True)
    return opened.version()


def _as_entry(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a checkpoint in the form of a log entry."""
    ((kind, action),) = ((kind, action) for kind, action in row.items() if action is not None)
    action = {name: value for name, value in action.items() if value is not None}
    if kind == "metaData":
        action |= {"configuration": dict(action["configuration"])}
        action |= {"format": {"provider": "parquet", "options": {}}}
    return {kind: action}


def _nullable(kind: pa.DataType) -> pa.DataType:
    """A type whose fields may be null."""
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_type)
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
