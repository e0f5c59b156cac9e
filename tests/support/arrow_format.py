"""A format of tables, for a test that a format is one file: each version is a file in Arrow's IPC format.

The file has a row for each file of Parquet, and the position in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import (
    Commit,
    CommitLsn,
    ConflictError,
    DataFile,
    Ordinal,
    Table,
    TableRole,
    Version,
)
from pgoutput_fast.tables.target import FileTarget

__all__ = ["ArrowTarget"]

_VERSIONS = "_versions"
_FILES = pa.schema(
    [("name", pa.string()), ("rows", pa.int64()), ("nbytes", pa.int64()), ("statistics", pa.string())]
)


class ArrowTarget(FileTarget):
    """Tables in this format."""

    roles = frozenset({"changes", "history", "current"})
    sign = f"/{_VERSIONS}", ".arrow"

    def table(self, directory: str, role: TableRole) -> ArrowTable:
        return ArrowTable(self.store, directory, role)


class ArrowTable(Table):
    """A table in this format."""

    rewrites_types = True

    def can_widen(self, before: pa.DataType, wide: pa.DataType) -> bool:
        return bool(wide.equals(before))

    def _path(self, number: int) -> str:
        return f"{self.directory}/{_VERSIONS}/{number:020}.arrow"

    def _read(self, number: int | None) -> Version | None:
        if number is None:
            names = [
                name for name in self.store.names(f"{self.directory}/{_VERSIONS}") if name.endswith(".arrow")
            ]
            if not names:
                return None
            number = int(max(names).rpartition("/")[2].removesuffix(".arrow"))
        files = pa.ipc.open_file(pa.BufferReader(self.store.read(self._path(number)))).read_all()
        known = parsed_json(files.schema.metadata[b"table"])
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(known["schema"])))
        listed = [DataFile(row["name"], row["rows"], row["nbytes"]) for row in files.to_pylist()]
        statistics = [parsed_json(text) for text in files["statistics"].to_pylist()]
        bounds = _bounds(schema, statistics)
        return Version(number, _position(known), schema, listed, bounds, tuple(known["partition_by"]))

    def _commit(self, commit: Commit) -> None:
        base, columns, kept = commit.base, list(commit.schema), _FILES.empty_table()
        if base is not None and not commit.replaces:
            content = self.store.read(self._path(base.number))
            kept = pa.ipc.open_file(pa.BufferReader(content)).read_all().replace_schema_metadata(None)
            kept = kept.filter(
                pa.array([name not in commit.removed for name in kept["name"].to_pylist()], pa.bool_())
            )
            columns = [*base.schema, *(field for field in columns if field.name not in base.schema.names)]
        added = [
            {"name": file.name, "rows": file.rows, "nbytes": file.nbytes, "statistics": file.statistics}
            for file in commit.added
        ]
        files = pa.concat_tables([kept, pa.Table.from_pylist(added, _FILES)])
        known = {
            "position": commit.position[0],
            "is_ordinal": isinstance(commit.position, Ordinal),
            "schema": pa.schema(columns).remove_metadata().serialize().to_pybytes().hex(),
            "partition_by": commit.partition_by,
        }
        if isinstance(commit.position, Ordinal):
            before = base.ordinal if base is not None and not commit.replaces else None
            stream = commit.position.stream or (before and before.stream)
            known["stream"] = stream and stream.to_json()
            known["transactions"] = commit.position.transactions or (before and before.transactions)
        number = 0 if base is None else base.number + 1
        try:
            with self.store.write(self._path(number)) as file:
                files = files.replace_schema_metadata({"table": json.dumps(known)})
                with pa.ipc.new_file(file, files.schema) as writer:
                    writer.write_table(files)
        except FileExistsError as problem:
            raise ConflictError(self) from problem


def _position(known: dict[str, Any]) -> Ordinal | CommitLsn:
    if not known["is_ordinal"]:
        return CommitLsn(known["position"])
    stream = known["stream"]
    return Ordinal(known["position"], stream and Stream.from_json(stream), known["transactions"])


def _bounds(
    schema: pa.Schema, statistics: list[dict[str, Any]]
) -> Callable[[str], tuple[pa.Array, pa.Array]]:
    def bounds(column: str) -> tuple[pa.Array, pa.Array]:
        kind = schema.field(column).type
        if not pa.types.is_integer(kind) and not pa.types.is_string(kind):
            return (pa.nulls(len(statistics), kind),) * 2
        low, high = ([each[which].get(column) for each in statistics] for which in ("minValues", "maxValues"))
        return pa.array(low, kind), pa.array(high, kind)

    return bounds
