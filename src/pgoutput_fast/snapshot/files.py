"""The directories of a snapshot's tables: each has a Parquet file per range, and appears when all of them are there."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.postgres.tables import SnapshotTable
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.snapshot.export import Export, SnapshotError
from pgoutput_fast.snapshot.ranges import ReadRange
from pgoutput_fast.snapshot.read import RangeRead
from pgoutput_fast.storage.fsync import directory_mode, fsync
from pgoutput_fast.storage.lease import Role, WriterLease
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.storage.table_directories import table_directory
from pgoutput_fast.tables.files import RowsFile

__all__ = ["TableDirectory", "TableLoaded", "loading"]

SNAPSHOT_FORMAT = 1
_ABOUT = "_snapshot.json"
# Not the role of a capture, which may write its segments beside the tables during the load.
_ROLE = Role(
    "loads into",
    "wait until it has ended, or load into another directory",
    "load again",
    SnapshotError,
    lock=".load.lock",
    mark="",
    heartbeats="",
)


@dataclass(frozen=True)
class TableLoaded:
    """A completely loaded table.

    Attributes:
        name: qualified and quoted name.
        path: the directory of its Parquet files; `_snapshot.json` in it has the same values.
        rows: number of rows read.
        nbytes: bytes of the COPY.
        rejects: number of values without an Arrow form; they are in `_rejects-*.parquet` in the same directory.
        consistent_lsn: changes of the table that committed at this LSN or later are not in the files.
    """

    name: str
    path: Path
    rows: int
    nbytes: int
    rejects: int
    consistent_lsn: int


def loading(directory: Path) -> WriterLease:
    """Locks a directory for a load during a block. Another load would remove the unfinished files of this one.

    Raises:
        SnapshotError: if another load has locked it, in this process or another one.
        OSError: if the directory cannot be locked.
    """
    return WriterLease(open_store(directory), _ROLE)


class TableDirectory:
    """The directory of one table, hidden until all ranges are complete. Use it while `loading` its parent.

    Args:
        directory: parent of all tables.
        table: the table.
        export: the snapshot.
        ranges: all ranges of the table.
        schema: schema of its record batches.
        file_mode: the most permissions of files; None leaves them to the umask.

    Raises:
        SnapshotError: if the directory has a table of another snapshot.
        OSError: if the directory cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        table: SnapshotTable,
        export: Export,
        ranges: list[ReadRange],
        schema: pa.Schema,
        file_mode: int | None = None,
    ) -> None:
        self.table = table
        self._schema = stored_schema(schema, "parquet")
        self._lock = threading.Lock()
        name = table_directory(table.relation.namespace, table.relation.name)
        # Two snapshots never share a partial directory, even on a file system without locks.
        by_snapshot = urllib.parse.quote(export.name, safe="")
        self._whole, self._partial = directory / name, directory / f".{name}.{by_snapshot}.partial"
        self._about: dict[str, Any] = {
            "format": SNAPSHOT_FORMAT,
            "snapshot": export.name,
            "slot": export.slot,
            "consistent_lsn": table.consistent_lsn,
            "system_identifier": export.server.system_identifier,
            "database": export.server.database,
            "relation": table.relation.to_dict(),
        }
        self._done: dict[str, list[int]] = {}
        self._names = {each.name for each in ranges}
        if (found := self._read(self._whole)) is not None:
            if not self._is_ours(found):
                position = format_lsn(found["consistent_lsn"])
                raise SnapshotError(
                    f"{self._whole} has another snapshot of {table.name} (consistent at {position}): "
                    "load into another directory, or remove this one"
                )
            self._trust(self._whole, found)
        elif (found := self._read(self._partial)) is not None and self._is_ours(found):
            self._trust(self._partial, found)
            for left in self._partial.glob(".*"):
                left.unlink()
            self._done = {name: counts for name, counts in self._done.items() if self._has(name)}
            if not self.missing:
                self._complete()
        elif self._whole.exists():
            raise SnapshotError(
                f"{self._whole} exists and is not a loaded table: load into another directory"
            )
        else:
            # Remove unfinished files of other snapshots. A table's name has one dot.
            for left in (*directory.glob(f".{name}.partial"), *directory.glob(f".{name}.*.partial")):
                shutil.rmtree(left, ignore_errors=True)
            self._partial.mkdir(directory_mode(file_mode))
            fsync(directory)
        self._store = open_store(self._partial)
        self._store.limit(file_mode)

    def _trust(self, directory: Path, found: dict[str, Any]) -> None:
        """Continues an earlier load.

        Its files are made durable first: it may have been killed, or an fsync may have failed.
        """
        fsync(directory)
        fsync(directory.parent)
        self._done = found["ranges"]

    @staticmethod
    def _read(directory: Path) -> dict[str, Any] | None:
        try:
            found = parsed_json((directory / _ABOUT).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("format") == SNAPSHOT_FORMAT else None

    def _is_ours(self, found: dict[str, Any]) -> bool:
        return all(found.get(key) == value for key, value in self._about.items())

    @property
    def missing(self) -> set[str]:
        """Names of the incomplete ranges."""
        return self._names - self._done.keys()

    @contextmanager
    def writing(self, each: ReadRange) -> Iterator[Callable[[pa.RecordBatch], None]]:
        """Yields a function that writes rows of a range. Their file appears when the block ends without an error."""
        with self._file(f"{each.name}.parquet", self._schema) as file:
            yield lambda batch: file.write(to_types(pa.Table.from_batches([batch]), self._schema))

    def _file(self, name: str, schema: pa.Schema) -> RowsFile:
        # A killed load may have left a file of a range that it did not list as complete.
        return RowsFile(self._store, name, schema, replace=True)

    def add(self, each: ReadRange, read: RangeRead) -> None:
        """Adds a completed range, whose file has appeared. The last range also completes the table."""
        if read.rejects.num_rows:
            with self._file(f"_rejects-{each.name}.parquet", read.rejects.schema) as file:
                file.write(pa.Table.from_batches([read.rejects]))
        with self._lock:
            done = self._done | {each.name: [read.rows, read.nbytes, read.rejects.num_rows]}
            self._store.put(_ABOUT, json.dumps(self._about | {"ranges": done}).encode())
            self._done = done
            if not self.missing:
                self._complete()

    def _has(self, name: str) -> bool:
        """Whether the file of a range is in the hidden directory."""
        return (self._partial / f"{name}.parquet").is_file()

    def _complete(self) -> None:
        """Lets the directory appear.

        Raises:
            SnapshotError: if it lacks files.
        """
        if not all(map(self._has, self._names)):
            raise SnapshotError(f"somebody removed files from {self._partial}: load again")
        os.rename(self._partial, self._whole)
        fsync(self._whole.parent)

    def discard(self) -> None:
        """Removes all files of a table that cannot be loaded."""
        with self._lock:
            shutil.rmtree(self._partial, ignore_errors=True)

    def loaded(self) -> TableLoaded:
        """Returns the loaded table, once no range is missing."""
        rows, nbytes, rejects = (sum(column) for column in zip(*self._done.values(), strict=True))
        return TableLoaded(self.table.name, self._whole, rows, nbytes, rejects, self.table.consistent_lsn)
