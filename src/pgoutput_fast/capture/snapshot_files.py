"""A snapshot's tables as Parquet files: a range's file is whole or not there, and so is a table's directory."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.capture.snapshot_export import Export, SnapshotError
from pgoutput_fast.capture.snapshot_ranges import ReadRange
from pgoutput_fast.capture.snapshot_read import RangeRead
from pgoutput_fast.capture.snapshot_tables import SnapshotTable
from pgoutput_fast.durable import directory_mode, fsync
from pgoutput_fast.plain_values import plain_schema, to_types
from pgoutput_fast.table_directories import table_directory

__all__ = ["TableFiles", "TableLoaded", "loading"]

FORMAT = 1
_ABOUT = "_snapshot.json"
# Another one than a capture's: one may write its segments beside the tables while they are loaded.
_LOCK = ".load.lock"


@dataclass(frozen=True)
class TableLoaded:
    """A table that is there as a whole.

    Attributes:
        name: qualified and quoted.
        path: the directory of its Parquet files; `_snapshot.json` there says the same as this.
        rows, nbytes: that were read; bytes of the COPY.
        rejects: how many values had no Arrow form; they are in the `_rejects-*.parquet` beside the others.
        consistent_lsn: changes of it that committed there or later are not in it.
    """

    name: str
    path: Path
    rows: int
    nbytes: int
    rejects: int
    consistent_lsn: int


@contextmanager
def loading(directory: Path) -> Iterator[None]:
    """The right to load into a directory, for the time of the block: one load would take another's files for leftovers.

    Raises:
        SnapshotError: if another load has it, of this process or of another one.
        OSError: if it cannot be locked.
    """
    # The file stays: whoever removed it could remove the one that somebody else has locked since.
    with open(directory / _LOCK, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SnapshotError(
                f"another load writes into {directory}: load into another directory, or wait until it has ended"
            ) from None
        yield


class TableFiles:
    """One table's directory, hidden until all of its ranges are there. To be used while `loading` its parent.

    Args:
        directory: of all tables.
        table: the table.
        export: the snapshot.
        ranges: all of the table's.
        schema: of its record batches.
        file_mode: the permissions that files have at most; None for what the umask leaves.

    Raises:
        SnapshotError: if there is one of another snapshot.
        OSError: if it cannot be written.
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
        self._file_mode = file_mode
        self._schema = schema
        self._lock = threading.Lock()
        name = table_directory(table.relation.namespace, table.relation.name)
        # No two snapshots share one, even where a file system has no locks.
        by_snapshot = urllib.parse.quote(export.name, safe="")
        self._whole, self._partial = directory / name, directory / f".{name}.{by_snapshot}.partial"
        self._about: dict[str, Any] = {
            "format": FORMAT,
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
                raise SnapshotError(
                    f"{self._whole} holds another snapshot of {table.name} (consistent at {found['consistent_lsn']}): "
                    "load into another directory, or remove that one"
                )
            self._trust(self._whole, found)
        elif (found := self._read(self._partial)) is not None and self._is_ours(found):
            self._trust(self._partial, found)
        elif self._whole.exists():
            raise SnapshotError(f"{self._whole} is no table that was loaded: load into another directory")
        else:
            # What another snapshot left unfinished is of no use to anybody. A table's name has one dot.
            for left in (*directory.glob(f".{name}.partial"), *directory.glob(f".{name}.*.partial")):
                shutil.rmtree(left, ignore_errors=True)
            self._partial.mkdir(directory_mode(file_mode))
            fsync(directory)

    def _trust(self, directory: Path, found: dict[str, Any]) -> None:
        """Goes on from what an earlier load left, which may have been killed, or had an fsync fail, before that was
        durable."""
        fsync(directory)
        fsync(directory.parent)
        self._done = found["ranges"]

    @staticmethod
    def _read(directory: Path) -> dict[str, Any] | None:
        try:
            found = json.loads((directory / _ABOUT).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("format") == FORMAT else None

    def _is_ours(self, found: dict[str, Any]) -> bool:
        return all(found.get(key) == value for key, value in self._about.items())

    @property
    def missing(self) -> set[str]:
        """Names of the ranges that are not there yet."""
        return self._names - self._done.keys()

    def write(self, each: ReadRange) -> RangeFile:
        """A file for a range, of which nothing is seen before `add`."""
        return RangeFile(self._partial / f"{each.name}.parquet", self._schema, self._file_mode)

    def add(self, each: ReadRange, read: RangeRead, file: RangeFile) -> None:
        """The range is read: its file is durable and counted from now on; the table too, if it was the last one."""
        file.close()
        if read.rejects.num_rows:
            _durably(
                self._partial / f"_rejects-{each.name}.parquet",
                lambda path: pq.write_table(pa.Table.from_batches([read.rejects]), path),
                self._file_mode,
            )
        with self._lock:
            done = self._done | {each.name: [read.rows, read.nbytes, read.rejects.num_rows]}
            _durably(
                self._partial / _ABOUT,
                lambda path: path.write_text(json.dumps(self._about | {"ranges": done})),
                self._file_mode,
            )
            self._done = done
            if not self.missing:
                os.rename(self._partial, self._whole)
                fsync(self._whole.parent)

    def discard(self) -> None:
        """The table cannot be loaded: nothing of it stays."""
        with self._lock:
            shutil.rmtree(self._partial, ignore_errors=True)

    def loaded(self) -> TableLoaded:
        """What is there, once nothing is missing."""
        rows, nbytes, rejects = (sum(column) for column in zip(*self._done.values(), strict=True))
        return TableLoaded(self.table.name, self._whole, rows, nbytes, rejects, self.table.consistent_lsn)


class RangeFile:
    """A range's Parquet file while it is written."""

    def __init__(self, path: Path, schema: pa.Schema, file_mode: int | None) -> None:
        self._path = path
        self._hidden = path.with_name(f".{path.name}.{threading.get_ident()}")
        self._schema = plain_schema(schema)
        _create(self._hidden, file_mode)
        self._writer = pq.ParquetWriter(self._hidden, self._schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows."""
        self._writer.write_table(to_types(pa.Table.from_batches([batch]), self._schema))

    def close(self) -> None:
        """It is whole: fsynced, and under its name."""
        self._writer.close()
        fsync(self._hidden)
        os.rename(self._hidden, self._path)
        fsync(self._path.parent)

    def discard(self) -> None:
        """It is not."""
        self._writer.close()
        self._hidden.unlink(missing_ok=True)


def _create(path: Path, file_mode: int | None) -> None:
    """An empty file, for others to write into."""
    path.unlink(missing_ok=True)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(path, flags, 0o666 if file_mode is None else file_mode))


def _durably(path: Path, write: Any, file_mode: int | None) -> None:
    hidden = path.with_name(f".{path.name}.{threading.get_ident()}")
    _create(hidden, file_mode)
    write(hidden)
    fsync(hidden)
    os.rename(hidden, path)
    fsync(path.parent)
