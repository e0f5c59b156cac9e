"""The log of a Delta table, as far as delta-rs lacks it: deletion vectors, and commits of them.

delta-rs 1.6.6 reads a table with deletion vectors, but neither names them nor commits them. It removes a file with one
only if all files are removed.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.base.display import error_text
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.delta.conditional import put_new
from pgoutput_fast.tables.delta.vectors import Vector
from pgoutput_fast.tables.statistics import as_json

__all__ = ["VECTORS_FEATURE", "LogState", "entry", "has_entry", "read_state", "with_vector", "write_entry"]

VECTORS_FEATURE = "deletionVectors"
# Those that a writer of these versions respects without a name.
_VERSION_2 = ("appendOnly", "invariants")
_VERSION_3 = (*_VERSION_2, "checkConstraints")
_VERSION_4 = (*_VERSION_3, "changeDataFeed", "generatedColumns")
_UNNAMED: dict[int, tuple[str, ...]] = {1: (), 2: _VERSION_2, 3: _VERSION_3, 4: _VERSION_4}
# What a table may demand of its writers. The server has checked the rows, and no mirror has columns with variants. A
# change data feed needs no files of its own: readers see which rows an entry marks, and which files it adds.
_WRITER_FEATURES = {*_VERSION_4, "timestampNtz", "variantType", "v2Checkpoint", VECTORS_FEATURE}
_ENABLED, _APPEND_ONLY = "delta.enableDeletionVectors", "delta.appendOnly"
# What a writer would have to check or compute for each row.
_CONSTRAINT, _GENERATED = "delta.constraints.", "delta.generationExpression"

# One file, several, or one whose actions are partly in others, the sidecars.
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:(?:\.\d{10}\.(\d{10}))?\.parquet|\.([0-9a-f-]{36})\.(?:parquet|json))"
)
# Of an action in a checkpoint, without what other columns repeat in another form.
_FIELDS = {
    "add": (
        *("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags"),
        *("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider"),
    ),
    "metaData": (
        *("id", "name", "description", "format", "schemaString", "partitionColumns", "createdTime"),
        "configuration",
    ),
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
    "sidecar": ("path",),
}
_MAPS = {"partitionValues", "tags", "configuration", "options"}

_Action = Mapping[str, Any]


@dataclass(frozen=True)
class LogState:
    """A version of a table, as its log has it.

    Attributes:
        number: the version.
        adds: {path: the `add` action of a file}.
        vectors: {path: the deletion vector of a file} of the files that have one.
        metadata: the last `metaData` action.
        protocol: the last `protocol` action.
    """

    number: int
    adds: Mapping[str, _Action] = field(default_factory=dict)
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    metadata: _Action = field(default_factory=dict)
    protocol: _Action = field(default_factory=dict)

    def check_writable(self) -> None:
        """Checks that this package may commit to the table.

        Raises:
            ValueError: if it may not; the message says why.
        """
        version = self.protocol["minWriterVersion"]
        unknown = set(self.protocol.get("writerFeatures") or ()) - _WRITER_FEATURES
        if version not in (*_UNNAMED, 7) or unknown:
            raise ValueError(f"writers need {', '.join(sorted(unknown)) or f'version {version}'}")
        if self._properties.get(_APPEND_ONLY) == "true":
            raise ValueError(f"it has the property {_APPEND_ONLY}")
        constraints = sorted(name for name in self._properties if name.startswith(_CONSTRAINT))
        if constraints:
            raise ValueError(f"it has the property {constraints[0]}")
        if _GENERATED in (self.metadata.get("schemaString") or ""):
            raise ValueError("it has generated columns")

    @property
    def _properties(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}

    @property
    def checkpoint_interval(self) -> int:
        """The number of commits for each checkpoint."""
        interval = self._properties.get("delta.checkpointInterval", "")
        return int(interval) if re.fullmatch("[1-9][0-9]{0,8}", interval) else 10

    @property
    def cleans_log(self) -> bool:
        """Whether a checkpoint removes old entries of the log."""
        return self._properties.get("delta.enableExpiredLogCleanup") != "false"

    def enabled(self) -> list[dict[str, _Action]]:
        """The actions that allow deletion vectors. The table keeps its other features and properties."""
        actions: list[dict[str, _Action]] = []
        readers, writers = (self.protocol.get(each) or () for each in ("readerFeatures", "writerFeatures"))
        if VECTORS_FEATURE not in readers or VECTORS_FEATURE not in writers:
            writers = {*writers, *_UNNAMED.get(self.protocol["minWriterVersion"], ()), VECTORS_FEATURE}
            features = {
                "readerFeatures": sorted({*readers, VECTORS_FEATURE}),
                "writerFeatures": sorted(writers),
            }
            actions.append({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
        if self._properties.get(_ENABLED) != "true":
            actions.append(
                {"metaData": {**self.metadata, "configuration": {**self._properties, _ENABLED: "true"}}}
            )
        return actions

    def removed(self, path: str, *, data_change: bool = True) -> dict[str, _Action]:
        """The action that removes a file, or this file with its deletion vector. `data_change` is as in `Commit`."""
        add = self.adds[path]
        kept = {name: add[name] for name in ("partitionValues", "size", "deletionVector") if name in add}
        more = {"deletionTimestamp": _now(), "dataChange": data_change, "extendedFileMetadata": True}
        return {"remove": {"path": path, **more, **kept}}

    def marked(self, path: str, vector: Vector, rows: int) -> dict[str, _Action]:
        """The action that adds a file again, with a new deletion vector.

        Args:
            path: its path.
            vector: the vector.
            rows: how many rows the file has. A checkpoint may have its statistics in a form that is not read here.
        """
        add = self.adds[path]
        statistics = _not_tight(add.get("stats") or "{}", rows)
        return {"add": {**add, "dataChange": True, "deletionVector": vector.to_json(), "stats": statistics}}

    def added(self, path: str, statistics: str) -> dict[str, _Action]:
        """The action that adds a file again, with other statistics, JSON, and the same rows."""
        statistics = _not_tight(statistics) if path in self.vectors else statistics
        return {"add": {**self.adds[path], "dataChange": False, "stats": statistics}}

    def after(self, number: int, actions: Iterator[Mapping[str, _Action]]) -> LogState:
        """The next version, whose log entry has these actions, in any order.

        Raises:
            ValueError: if a vector has an unknown form.
        """
        adds, vectors, new = dict(self.adds), dict(self.vectors), list[_Action]()
        metadata, protocol = self.metadata, self.protocol
        for action in actions:
            metadata, protocol = action.get("metaData") or metadata, action.get("protocol") or protocol
            if (removed := action.get("remove")) is not None:
                before = adds.get(removed["path"])
                # A file with another vector is another one, and stays.
                if before is not None and _vector_id(before) == _vector_id(removed):
                    del adds[removed["path"]]
                    vectors.pop(removed["path"], None)
            elif (added := action.get("add")) is not None:
                new.append(added)
        for added in new:
            adds[added["path"]] = added
            vectors.pop(added["path"], None)
            if (vector := added.get("deletionVector")) is not None:
                vectors[added["path"]] = Vector.from_json(vector)
        return LogState(number, adds, vectors, metadata, protocol)


def read_state(store: Store, directory: str, number: int, known: LogState | None = None) -> LogState:
    """Reads a version: the last checkpoint, and the log entries after it.

    Args:
        store: the store of the table.
        directory: the table's directory in it.
        number: the version.
        known: an earlier version that was read before. Then only the log entries after it are read.

    Raises:
        FileNotFoundError: if the log lacks an entry.
        ValueError: if it is damaged, or in a form that this package does not know.
    """
    log = f"{directory}/_delta_log"
    if known is None:
        known = _checkpoint(store, log, number)
    for k in range(known.number + 1, number + 1):
        lines = store.read(entry_name(directory, k)).splitlines()
        with _damage(store, entry_name(directory, k)):
            known = known.after(k, (parsed_json(line, "log entry") for line in lines if line))
    return known


def entry(
    actions: Iterable[Mapping[str, _Action]],
    transactions: Mapping[str, int],
    info: Mapping[str, str] | None = None,
) -> bytes:
    """The content of a log entry. No other entry has the same.

    Args:
        actions: what it changes.
        transactions: {application: version} of its application transactions.
        info: more of the commit info.
    """
    now = _now()
    described = {"timestamp": now, "operation": "MERGE", "operationParameters": {}, "isBlindAppend": False}
    own = {"engineInfo": "pgoutput_fast", "txnId": str(uuid.uuid4())}
    content: list[Mapping[str, Any]] = [
        {"commitInfo": {**described, **own, **(info or {})}},
        *actions,
        *({"txn": {"appId": name, "version": k, "lastUpdated": now}} for name, k in transactions.items()),
    ]
    return "".join(f"{json.dumps(each)}\n" for each in content).encode()


def with_vector(action: Mapping[str, _Action], vector: Vector | None) -> Mapping[str, _Action]:
    """The action that adds a file, with a deletion vector, if there is one."""
    if vector is None:
        return action
    add = action["add"]
    return {"add": {**add, "deletionVector": vector.to_json(), "stats": _not_tight(add["stats"])}}


def write_entry(
    store: Store, directory: str, number: int, content: bytes, uri: str, options: Mapping[str, str] | None
) -> None:
    """Commits a version, unless there is one with this number.

    Args:
        store: the store of the table.
        directory: the table's directory in it.
        number: the version.
        content: what `entry` returned.
        uri, options: of the table, as delta-rs takes them.

    Raises:
        FileExistsError: if there is such a version.
        OSError: if it cannot be written. It may be there all the same, or be lost in a crash of the machine; in an
            object store, it may also appear later.
        ImportError: if `obstore` is needed, and is not installed.
    """
    if store.local:
        with store.write(entry_name(directory, number)) as file:
            file.write(content)
        return
    try:
        put_new(uri, options or {}, entry_name("", number).removeprefix("/"), content)
    except FileExistsError:
        # If the answer of the store was lost, it was asked again, and has met the same entry.
        if store.read(entry_name(directory, number)) != content:
            raise


def has_entry(store: Store, directory: str, number: int) -> bool:
    """Whether the log has a version."""
    return entry_name(directory, number) in store.names(f"{directory}/_delta_log")


def entry_name(directory: str, number: int) -> str:
    """The name of a log entry in the store."""
    return f"{directory}/_delta_log/{number:020d}.json"


def _now() -> int:
    return int(time.time() * 1000)


def _not_tight(statistics: str, rows: int | None = None) -> str:
    """The statistics of a file some of whose bounds may be those of marked rows."""
    values = parsed_json(statistics, "statistics", decimals=True)
    count = {} if rows is None else {"numRecords": rows}
    return as_json({**values, **count, "tightBounds": False})


def _vector_id(action: _Action) -> tuple[Any, ...] | None:
    """The identity of the deletion vector in an action."""
    vector = action.get("deletionVector")
    return vector and (vector["storageType"], vector["pathOrInlineDv"], vector.get("offset"))


def _checkpoint(store: Store, log: str, number: int) -> LogState:
    """The newest version that has a checkpoint, up to this one; if there is none, the one before all log entries."""
    # By version, count of parts and name: another program may write a checkpoint again, in another count.
    found: dict[tuple[int, int, str], list[str]] = {}
    for name in store.names(log):
        match = _CHECKPOINT.fullmatch(name.rpartition("/")[2])
        if match and int(match[1]) <= number:
            found.setdefault((int(match[1]), int(match[2] or 1), match[3] or ""), []).append(name)
    complete = [each for each, parts in found.items() if len(parts) == each[1]]
    if not complete:
        return LogState(-1)
    newest = max(complete)
    state = LogState(newest[0])
    for name in found[newest]:
        with _damage(store, name):
            state = state.after(newest[0], _actions(store, log, name))
    return state


@contextmanager
def _damage(store: Store, name: str) -> Iterator[None]:
    """Errors of a file of the log name it."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{store.at(name)} is damaged: {error_text(problem)}") from None


def _actions(store: Store, log: str, name: str) -> Iterator[Mapping[str, _Action]]:
    """The actions of a checkpoint, and of its sidecars, that a version needs."""
    actions = _rows(os.fspath(store.at(name)))
    if name.endswith(".json"):
        lines = store.read(name).splitlines()
        actions = (parsed_json(line, "checkpoint") for line in lines if line)
    for action in actions:
        if (sidecar := action.get("sidecar")) is not None:
            yield from _rows(os.fspath(store.at(f"{log}/_sidecars/{unquote(sidecar['path'])}")))
        elif not _FIELDS.keys().isdisjoint(action):
            yield action


def _rows(file: str) -> Iterator[Mapping[str, _Action]]:
    """The actions of a file of a checkpoint that a version needs."""
    columns = [f"{kind}.{field}" for kind, fields in _FIELDS.items() for field in fields]
    with pq.ParquetFile(open_file(file), pre_buffer=True) as opened:
        rows = opened.read(columns=columns)
    for kind in _FIELDS:
        if kind in rows.schema.names:
            actions = rows.column(kind)
            for action in actions.filter(pc.is_valid(actions)).to_pylist():
                yield {kind: _as_json(action)}


def _as_json(action: Mapping[str, Any]) -> dict[str, Any]:
    """An action of a checkpoint in the form of a log entry, without nulls."""
    plain: dict[str, Any] = {}
    for name, value in action.items():
        if value is None:
            continue
        if name in _MAPS:
            value = dict(value)
        plain[name] = _as_json(value) if isinstance(value, dict) and name not in _MAPS else value
    return plain
