"""Current tables of plain Parquet files: each version has a file that says which files the table has.

    <table>/_versions/00000000000000000007.json    version 7: its position, its columns and its files
    <table>/_files/part-current-...parquet         rows

A commit writes the new files of rows, and then the file of the next version. A store shows this file whole, or not at
all. So a process may be killed at any point: either the table has the new version, or there are only files that no
version names, which `vacuum` removes. The table of now is the version with the largest number.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pgoutput_fast.documents import parsed_json
from pgoutput_fast.lake.files import WrittenFile
from pgoutput_fast.mirror.current.damaged import DamagedError
from pgoutput_fast.mirror.current.file_table import ChangedError, FileTable
from pgoutput_fast.mirror.current.files import FILE_BYTES, DataFile, Version, typed_bounds
from pgoutput_fast.storage.stores import open_store

__all__ = ["ParquetCurrent"]

_FORMAT = 1
_DIGITS = 20
_VERSION = re.compile(rf"[0-9]{{{_DIGITS}}}\.json")
# A version with another name could make us read or remove a file elsewhere.
_NAME = re.compile(r"part-[0-9a-z]+-[0-9a-f]+-[0-9]+\.parquet")

# What comes of the file of a version that somebody changed.
_WRONG = (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException)


class ParquetCurrent(FileTable):
    """A current table of plain Parquet files.

    Args:
        target: the directory or URI with all tables.
        directory: the table's directory in it.
        file_bytes: about how many bytes a file has at most.
    """

    def __init__(
        self, target: str | os.PathLike[str], directory: str, *, file_bytes: int = FILE_BYTES
    ) -> None:
        super().__init__(open_store(target), f"{directory}/_files", file_bytes)
        self._versions = f"{directory}/_versions"
        self._known: tuple[Version, list[dict[str, Any]]] | None = None

    def __str__(self) -> str:
        return f"the table in {self._store}/{self._versions.rpartition('/')[0]}"

    def _can_widen(self, there: pa.DataType, wide: pa.DataType) -> bool:
        return True  # readers read narrower files with the columns of the version

    def _numbers(self) -> list[int]:
        """The versions that there are, ascending."""
        names = (path.rpartition("/")[2] for path in self._store.names(self._versions))
        return sorted(int(name.partition(".")[0]) for name in names if _VERSION.fullmatch(name))

    def _path(self, number: int) -> str:
        return f"{self._versions}/{number:0{_DIGITS}}.json"

    def _load(self, number: int | None = None) -> Version | None:
        if number is None:
            numbers = self._numbers()
            if not numbers:
                return None
            number = numbers[-1]
            if self._known is not None and self._known[0].number == number:
                return self._known[0]
        try:
            content = self._store.read(self._path(number))
        except FileNotFoundError:
            raise FileNotFoundError(f"{self} has no version {number}, or has it no more") from None
        version, entries = self._parsed(number, content)
        self._known = version, entries
        return version

    def _parsed(self, number: int, content: bytes) -> tuple[Version, list[dict[str, Any]]]:
        try:
            values = parsed_json(content)
            if values["format"] != _FORMAT:
                raise NotImplementedError
            schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(values["schema"])))
            entries = values["files"]
            files = [DataFile(each["name"], each["rows"], each["bytes"]) for each in entries]
            if not all(_NAME.fullmatch(file.name) for file in files):
                raise ValueError
            position = int(values["position"])
        except NotImplementedError:
            raise ValueError(
                f"{self._store}/{self._path(number)} was written by a later version of pgoutput_fast"
            ) from None
        except _WRONG:
            raise self._damaged(number) from None

        def bounds(column: str) -> tuple[pa.Array, pa.Array]:
            kind = schema.field(column).type
            try:
                statistics = [parsed_json(each["statistics"]) for each in entries]
                low, high = (
                    [each[which].get(column) for each in statistics] for which in ("minValues", "maxValues")
                )
                return typed_bounds(low, kind), typed_bounds(high, kind)
            except _WRONG:
                raise self._damaged(number) from None

        return Version(number, position, schema, files, bounds), entries

    def _damaged(self, number: int) -> DamagedError:
        problem = ValueError(f"{self._path(number)} is not what the mirror wrote")
        return DamagedError(self, problem, self._remove)

    def _commit(
        self,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
        *,
        same_rows: bool = False,
    ) -> None:
        stay: list[dict[str, Any]] = []
        if before is not None and removed is not None:
            _, entries = self._parsed(before.number, self._store.read(self._path(before.number)))
            stay = [each for each in entries if each["name"] not in removed]
        new = [
            {"name": each.name, "rows": each.rows, "bytes": each.nbytes, "statistics": each.statistics}
            for each in added
        ]
        version = {
            "format": _FORMAT,
            "position": position,
            "schema": schema.serialize().to_pybytes().hex(),
            "files": [*stay, *new],
        }
        number = 0 if before is None else before.number + 1
        try:
            with self._store.write(self._path(number)) as file:
                file.write(json.dumps(version).encode())
        except FileExistsError as problem:
            raise ChangedError from problem

    def _kept(self, now: Version, keep: int) -> Iterator[Version]:
        """Forgets the versions before, so that no version names files that are gone."""
        numbers = self._numbers()
        for number in numbers[:-keep]:
            self._store.remove(self._path(number))
        for number in numbers[-keep:]:
            version = self._load(number)
            if version is not None:
                yield version
