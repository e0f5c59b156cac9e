"""Tables of plain Parquet files: a manifest lists the files of the table, and has its position.

A commit has three steps. It writes `_pending.json`, which lists the new files; from here on they belong to the table.
It gives them visible names. It writes `_manifest.json` and removes the pending file. Opening a table with a pending
file first finishes that commit. So a process may be killed at any point.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, get_args

import pyarrow as pa

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.target import Mode, TableTarget, fitted_types

__all__ = ["MANIFEST", "ParquetTarget", "visible_name"]

MANIFEST = "_manifest.json"
_PENDING = "_pending.json"
_VERSION = 1
# The names of `TableFiles`. Another name in a manifest could lead to the removal of a file elsewhere. A directory is
# one of a partition: it has a `=`, so it is not `..`.
_NAME = re.compile(r"(?:[^/\0]+=[^/\0]*/)*\.?part-[0-9a-zA-Z]+-[0-9a-f]+-[0-9]+\.parquet")


class ParquetTarget(TableTarget):
    """A directory of Parquet files with a manifest.

    Args:
        store: the target with all tables.
        directory: the table's directory in it.

    Raises:
        ValueError: if the manifest is damaged, or of a later version of this package.
        RuntimeError: if the files of an unfinished commit are gone. The table is as before this commit.
    """

    hidden = True
    partition_directories = True

    def __init__(self, store: Store, directory: str) -> None:
        self._store, self._directory = store, directory
        pending = _read(store, self._path(_PENDING))
        if pending is not None:
            self._finish(pending)
        self._manifest = _read(store, self._path(MANIFEST))

    def exists(self) -> bool:
        return self._manifest is not None or bool(self._foreign())

    def _foreign(self) -> list[str]:
        """Files that readers of the directory take for a part of the table, although no commit added them."""
        known = self.committed()
        return sorted(
            name
            for name in self._names(recursive=True)
            if name.endswith(".parquet") and name not in known and not any(map(_is_hidden, name.split("/")))
        )

    def _names(self, *, recursive: bool) -> list[str]:
        """The files of the directory, and of its subdirectories if recursive."""
        if recursive:
            found = [entry.name for entry in self._store.entries(self._directory, recursive=True)]
        else:
            found = self._store.names(self._directory)
        return [path.removeprefix(f"{self._directory}/") for path in found]

    def check_overwrite(self) -> None:
        foreign = self._foreign()
        if foreign:
            raise ValueError(
                f"{self._store}/{self._directory} has files that write_tables did not write, such as {foreign[0]}: "
                "remove them, or use another target"
            )

    def position(self) -> int | None:
        return None if self._manifest is None else int(self._manifest["position"])

    def stream(self) -> Stream | None:
        found = None if self._manifest is None else self._manifest.get("stream")
        return None if found is None else Stream.from_json(found)

    def transactions(self) -> Transactions | None:
        return None if self._manifest is None else self._manifest.get("transactions")

    def partition_by(self) -> tuple[str, ...]:
        return () if self._manifest is None else tuple(self._manifest.get("partition_by", ()))

    def schema(self) -> pa.Schema | None:
        """The columns of the table; None if there is no table."""
        if self._manifest is None:
            return None
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self._manifest["schema"])))

    def fitted(self, schema: pa.Schema) -> pa.Schema:
        there = self.schema()
        if there is None:
            return schema
        # The manifest has the widest types. Readers of the manifest read narrower files as these.
        return fitted_types(there, schema, f"the table in {self._store}/{self._directory}", lambda *_: True)

    def column_names(self) -> list[str]:
        there = self.schema()
        return [] if there is None else list(there.names)

    def commit(
        self,
        files: Sequence[WrittenFile],
        position: int,
        schema: pa.Schema,
        mode: Mode,
        partition_by: tuple[str, ...] = (),
        stream: Stream | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        if mode != "overwrite":
            stream = self.stream() if stream is None else stream
            transactions = self.transactions() if transactions is None else transactions
            schema = self.fitted(schema)
        before = [] if self._manifest is None or mode == "overwrite" else self._manifest["files"]
        new = [
            {"name": visible_name(each.name), "rows": each.rows, "bytes": each.nbytes,
             "first": each.first, "last": each.last}
            for each in files
        ]  # fmt: skip
        manifest = {
            "version": _VERSION,
            "position": position,
            "stream": None if stream is None else stream.to_json(),
            "transactions": transactions,
            "schema": _merged(self.schema() if before else None, schema).serialize().to_pybytes().hex(),
            "partition_by": list(partition_by),
            "files": [*before, *new],
        }
        pending = {
            "version": _VERSION,
            "rename": [each.name for each in files],
            "remove": []
            if before
            else [name for name in self.committed() if name not in {n["name"] for n in new}],
            "manifest": manifest,
        }
        self._write(_PENDING, pending)
        self._finish(pending)
        self._manifest = manifest

    def committed(self) -> Collection[str]:
        return () if self._manifest is None else {str(each["name"]) for each in self._manifest["files"]}

    def _finish(self, pending: dict[str, Any]) -> None:
        """Completes a commit."""
        there = set(self._names(recursive=bool(pending["manifest"].get("partition_by"))))
        left = [
            name for name in pending["rename"] if name in there
        ]  # the others have their visible names already
        lost = set(map(visible_name, pending["rename"])) - set(map(visible_name, there))
        if lost:
            self._store.remove(self._path(_PENDING))
            raise RuntimeError(
                f"{self._store}/{self._path(min(lost))} is gone before it was committed: something else removed it. "
                "The table is as before. Let only one process write to the target, and run it again"
            )
        for name in left:
            self._store.rename(self._path(name), self._path(visible_name(name)))
        self._write(MANIFEST, pending["manifest"])
        for name in pending["remove"]:
            self._store.remove(self._path(name))
        self._store.remove(self._path(_PENDING))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _write(self, name: str, values: dict[str, Any]) -> None:
        self._store.put(self._path(name), json.dumps(values).encode())


def _read(store: Store, path: str) -> dict[str, Any] | None:
    try:
        text = store.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        values = parsed_json(text)
        known = values["version"] == _VERSION
        manifest = values.get("manifest", values)
        names = [each["name"] for each in manifest["files"]]
        if known and manifest.get("stream") is not None:
            Stream.from_json(manifest["stream"])
        if known and manifest.get("transactions") not in (None, *get_args(Transactions)):
            raise ValueError
        names += [*values.get("rename", ()), *values.get("remove", ())]
        if known and not all(_NAME.fullmatch(each) for each in names):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{store}/{path} is damaged: restore it, or write to another target") from None
    if not known:
        raise ValueError(f"{store}/{path} was written by a later version of pgoutput_fast")
    return values  # type: ignore[no-any-return]


def _is_hidden(part: str) -> bool:
    """Whether Spark ignores a file or directory of this name. It reads partitions of a column `_a`, such as `_a=1`."""
    return part[0] == "." or (part[0] == "_" and "=" not in part)


def visible_name(name: str) -> str:
    """The name of a file after its commit.

    >>> visible_name("day=2024-02-29/.part-1.parquet")
    'day=2024-02-29/part-1.parquet'
    """
    directory, slash, base = name.rpartition("/")
    return f"{directory}{slash}{base.removeprefix('.')}"


def _merged(there: pa.Schema | None, schema: pa.Schema) -> pa.Schema:
    """The columns of the table with their new types, then the new columns."""
    bare = pa.schema([pa.field(field.name, field.type) for field in schema])
    if there is None:
        return bare
    known = [bare.field(field.name) if field.name in bare.names else field for field in there]
    return pa.schema([*known, *(field for field in bare if field.name not in there.names)])
