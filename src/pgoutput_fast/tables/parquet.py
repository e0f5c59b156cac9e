"""Tables of plain Parquet files: a manifest lists the files of the table, and has its position.

A commit has three steps. It writes `_pending.json`, which lists the new files; from here on they belong to the table.
It gives them visible names. It writes `_manifest.json` and removes the pending file. Opening a table with a pending
file first finishes that commit. So a process may be killed at any point.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, get_args

import pyarrow as pa

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.columns import merged
from pgoutput_fast.tables.files import visible_name
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import Commit, DataFile, ListedFiles, Ordinal, Table, TableRole, Version
from pgoutput_fast.tables.target import FileTarget

__all__ = ["MANIFEST", "ParquetTable", "ParquetTarget"]

MANIFEST = "_manifest.json"
_PENDING = "_pending.json"
_VERSION = 1
# The names of `TableFiles`. Another name in a manifest could lead to the removal of a file elsewhere. A directory is
# one of a partition: it has a `=`, so it is not `..`.
_NAME = re.compile(r"(?:[^/\0]+=[^/\0]*/)*\.?part-[0-9a-zA-Z]+-[0-9a-f]+-[0-9]+\.parquet")


class ParquetTarget(FileTarget):
    """Directories of Parquet files with a manifest."""

    roles = frozenset({"changes"})
    sign = "", f"/{MANIFEST}"
    hidden = True

    def table(self, directory: str, role: TableRole) -> ParquetTable:
        return ParquetTable(self.store, directory, role)

    @classmethod
    def directory(cls, directory: str) -> str:
        return directory


class ParquetTable(Table):
    """A directory of Parquet files with a manifest. Only the newest version exists; its number is its ordinal.

    Raises:
        ValueError: if the manifest is damaged, or of a later version of this package.
        RuntimeError: if the files of an unfinished commit are gone. The table is as before this commit.
    """

    partition_directories = True

    def __init__(self, store: Store, directory: str, role: TableRole = "changes") -> None:
        super().__init__(store, directory, role)
        pending = _read(store, self._path(_PENDING))
        if pending is not None:
            self._finish(pending)

    def _read(self, number: int | None) -> Version | None:
        manifest = _read(self.store, self._path(MANIFEST))
        if manifest is None:
            none = ListedFiles(list, _data_files)
            foreign = self._foreign(set())
            return (
                Version(0, None, pa.schema([]), none, lambda column: (pa.nulls(0),) * 2) if foreign else None
            )
        stream = manifest.get("stream")
        position = Ordinal(
            manifest["position"],
            None if stream is None else Stream.from_json(stream),
            manifest.get("transactions"),
        )
        schema = _schema_of(manifest)
        files = ListedFiles(lambda: manifest["files"], _data_files)
        unknown = pa.nulls(len(manifest["files"]))
        partition_by = tuple(manifest.get("partition_by", ()))
        return Version(position.seq, position, schema, files, lambda column: (unknown, unknown), partition_by)

    def can_widen(self, before: pa.DataType, wide: pa.DataType) -> bool:
        return True  # the manifest has the widest types, and its readers read narrower files as these

    def plain(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def _foreign(self, names: Collection[str]) -> list[str]:
        """Files that readers of the directory take for a part of the table, although they have other names."""
        return sorted(
            name
            for name in self._names(recursive=True)
            if name.endswith(".parquet") and name not in names and not any(map(_is_hidden, name.split("/")))
        )

    def _names(self, *, recursive: bool) -> list[str]:
        """The files of the directory, and of its subdirectories if recursive."""
        if recursive:
            found = [entry.name for entry in self.store.entries(self.directory, recursive=True)]
        else:
            found = self.store.names(self.directory)
        return [path.removeprefix(f"{self.directory}/") for path in found]

    def check_overwrite(self) -> None:
        foreign = self._foreign(set() if self.known is None else self.known.names)
        if foreign:
            raise ValueError(
                f"{self.store}/{self.directory} has files that write_tables did not write, such as {foreign[0]}: "
                "remove them, or use another target"
            )

    def _commit(self, commit: Commit) -> None:
        base, position = commit.base, commit.position
        assert isinstance(position, Ordinal)
        before = None if base is None or commit.replaces else base.ordinal
        stream, transactions = position.stream, position.transactions
        if before is not None:
            stream = before.stream if stream is None else stream
            transactions = before.transactions if transactions is None else transactions
        old = [] if base is None else _listing(base)
        kept = [] if commit.replaces else [each for each in old if each["name"] not in commit.removed]
        columns = pa.schema([pa.field(field.name, field.type) for field in commit.schema])
        columns = merged(base.schema, columns) if base is not None and kept else columns
        new = [
            {"name": visible_name(each.name), "rows": each.rows, "bytes": each.nbytes,
             "first": each.first, "last": each.last}
            for each in commit.added
        ]  # fmt: skip
        manifest = {
            "version": _VERSION,
            "position": position.seq,
            "stream": None if stream is None else stream.to_json(),
            "transactions": transactions,
            "schema": columns.serialize().to_pybytes().hex(),
            "partition_by": list(commit.partition_by),
            "files": [*kept, *new],
        }
        names = {each["name"] for each in manifest["files"]}
        pending = {
            "version": _VERSION,
            "rename": [each.name for each in commit.added],
            "remove": [each["name"] for each in old if each["name"] not in names],
            "manifest": manifest,
        }
        self._write(_PENDING, pending)
        self._finish(pending)

    def _finish(self, pending: dict[str, Any]) -> None:
        """Completes a commit."""
        there = set(self._names(recursive=bool(pending["manifest"].get("partition_by"))))
        left = [
            name for name in pending["rename"] if name in there
        ]  # the others have their visible names already
        lost = set(map(visible_name, pending["rename"])) - set(map(visible_name, there))
        if lost:
            self.store.remove(self._path(_PENDING))
            raise RuntimeError(
                f"something else removed {self.store}/{self._path(min(lost))} before it was committed. "
                "The table is as before. Let only one process write to the target, and run it again"
            )
        for name in left:
            self.store.rename(self._path(name), self._path(visible_name(name)))
        self._write(MANIFEST, pending["manifest"])
        for name in pending["remove"]:
            self.store.remove(self._path(name))
        self.store.remove(self._path(_PENDING))

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _write(self, name: str, values: dict[str, Any]) -> None:
        self.store.put(self._path(name), json.dumps(values).encode())


def _listing(version: Version) -> list[dict[str, Any]]:
    """The files of a version as in its manifest."""
    assert isinstance(version.files, ListedFiles)
    found: list[dict[str, Any]] = version.files.listing
    return found


def _data_files(files: list[dict[str, Any]]) -> list[DataFile]:
    return [DataFile(str(each["name"]), each["rows"], each["bytes"]) for each in files]


def _read(store: Store, path: str) -> dict[str, Any] | None:
    try:
        text = store.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        values = parsed_json(text)
        known = values["version"] == _VERSION
        manifest = values.get("manifest", values)
        if known:
            _check(manifest)
            names = [each["name"] for each in manifest["files"]]
            names += [*values.get("rename", ()), *values.get("remove", ())]
            if not all(_NAME.fullmatch(each) for each in names):
                raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException):
        raise ValueError(f"{store}/{path} is damaged: restore it, or write to another target") from None
    if not known:
        raise ValueError(f"{store}/{path} was written by a later version of pgoutput_fast")
    return values  # type: ignore[no-any-return]


def _check(manifest: dict[str, Any]) -> None:
    """Checks the values of a manifest, beside the names of its files.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, pa.ArrowException: if one cannot be of this package.
    """
    counts = [manifest["position"], *(each[key] for each in manifest["files"] for key in ("rows", "bytes"))]
    if not all(type(each) is int and 0 <= each < 2**63 for each in counts):
        raise ValueError
    if not all(isinstance(each, str) for each in manifest.get("partition_by", ())):
        raise TypeError
    _schema_of(manifest)
    if manifest.get("stream") is not None:
        Stream.from_json(manifest["stream"])
    if manifest.get("transactions") not in (None, *get_args(Transactions)):
        raise ValueError


def _schema_of(manifest: dict[str, Any]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(manifest["schema"])))


def _is_hidden(part: str) -> bool:
    """Whether Spark ignores a file or directory of this name. It reads partitions of a column `_a`, such as `_a=1`."""
    return part[0] == "." or (part[0] == "_" and "=" not in part)
