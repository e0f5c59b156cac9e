"""The ranges of a table that a load has read: files in the target, which stay when the mirror is killed.

A range is a file of rows, and of rejects if it has any. A range is done when the list of the ranges names it, which is
written after its files. The next load reads only the ranges that are missing (`changed.py` says why that is exact). It
reads all of them again if anything was altered since: the list has what must be the same.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.mirror.schema_changes.fingerprint import Fingerprint
from pgoutput_fast.mirror.state.layout import LOADS
from pgoutput_fast.postgres.tables import SnapshotTable
from pgoutput_fast.snapshot.progress import LoadProgress, ProgressCounter
from pgoutput_fast.snapshot.ranges import ReadRange
from pgoutput_fast.snapshot.read import RangeRead
from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.files import RowsFile

__all__ = ["LoadedRanges", "RangeDone", "TableAtRead"]

_FORMAT = 1
_LIST = "ranges.json"


@dataclass(frozen=True)
class TableAtRead:
    """What must be the same for all ranges of a table.

    Attributes:
        stream: the number of the slot whose changes the history has.
        table: the table and its files on the server.
        fingerprint: of the table.
        schema: the columns of the rows.
    """

    stream: int
    table: SnapshotTable
    fingerprint: Fingerprint
    schema: pa.Schema

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "format": _FORMAT,
            "stream": self.stream,
            "relation": self.table.relation.to_dict(),
            # A row that no change names stays in its page, as long as the table has the same files.
            "files": sorted([part.oid, part.filenode] for part in self.table.parts),
            "schema": str(self.schema),
            "fingerprint": asdict(self.fingerprint),
            # A table may have had another name meanwhile, under which changes were sent.
            "written": self.fingerprint.written,
        }

    def is_same(self, known: Mapping[str, Any]) -> bool:
        """Whether nothing was altered since an earlier `to_dict`."""
        now = parsed_json(json.dumps(self.to_dict()).encode())
        before = Fingerprint.from_dict(known["fingerprint"])
        is_altered = before != replace(Fingerprint.from_dict(now["fingerprint"]), horizon=before.horizon)
        return not is_altered and all(known.get(key) == now[key] for key in now if key != "fingerprint")


class RangeDone(NamedTuple):
    """A range that was read.

    Attributes:
        rows: how many rows it has.
        nbytes: bytes of the COPY.
        rejects: how many rejects it has.
        consistent_lsn: its rows have all commits before this LSN.
        is_later: whether they may have later commits, too.
        files: names its files, which no other process writes.
    """

    rows: int
    nbytes: int
    rejects: int
    consistent_lsn: int
    is_later: bool
    files: str


class LoadedRanges:
    """The ranges of one table.

    Args:
        store: the target.
        directory: names the table.

    Attributes:
        done: by name.
        progress: of the load when the last one was added; None before the first one.
    """

    def __init__(self, store: Store, directory: str) -> None:
        self._store, self._directory = store, f"{LOADS}/{directory}"
        self._lock, self._process = threading.Lock(), secrets.token_hex(4)
        self._about: dict[str, Any] = {}
        self.progress: LoadProgress | None = None
        self.done: dict[str, RangeDone] = {}
        try:
            values = parsed_json(store.read(f"{self._directory}/{_LIST}"))
            if values["format"] == _FORMAT:
                Fingerprint.from_dict(values["fingerprint"])
                int(values["range_bytes"])
                self.done = {name: RangeDone(*each) for name, each in values.pop("ranges").items()}
                self.progress = LoadProgress(**values.pop("progress"))
                self._about = values
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            self.done, self.progress = {}, None  # without the list, or if it is damaged, no range is done

    @property
    def begin(self) -> int:
        """All ranges have the commits before this LSN."""
        return min(each.consistent_lsn for each in self.done.values())

    def are_of_one_snapshot(self, consistent_lsn: int) -> bool:
        """Whether all ranges were read in the snapshot with this LSN."""
        return all(each.consistent_lsn == consistent_lsn and not each.is_later for each in self.done.values())

    @property
    def range_bytes(self) -> int:
        """The size of the ranges."""
        return int(self._about["range_bytes"])

    def fit(self, now: TableAtRead) -> bool:
        """Whether the ranges can be completed by others that are read now."""
        return bool(self.done) and now.is_same(self._about)

    def are_whole(self, names: Collection[str]) -> bool:
        """Whether all are among the ranges of these names, and have files with their rows."""
        try:
            return self.done.keys() <= set(names) and all(
                pq.read_metadata(self._open(f"{each.files}.parquet")).num_rows == each.rows
                for each in self.done.values()
            )
        except (FileNotFoundError, pa.ArrowInvalid):
            return False

    def begin_again(self, now: TableAtRead, range_bytes: int) -> None:
        """Forgets all ranges, for others of this size."""
        self.remove()
        self._about = now.to_dict() | {"range_bytes": range_bytes}

    def remove(self) -> None:
        """Removes all files. The list goes first: no range without its file is ever named."""
        self.done, self.progress = {}, None
        self._store.remove(f"{self._directory}/{_LIST}")
        for entry in self._store.entries(self._directory, recursive=True):
            self._store.remove(entry.name)
        if self._store.local:
            shutil.rmtree(self._store.at(self._directory), ignore_errors=True)

    @contextmanager
    def writing(self, each: ReadRange, schema: pa.Schema) -> Iterator[RowsFile]:
        """A file for the rows of a range. It appears when the block ends without an error."""
        with self._file(f"{self._files(each)}.parquet", schema) as file:
            yield file

    def add(
        self,
        each: ReadRange,
        read: RangeRead,
        consistent_lsn: int,
        counter: ProgressCounter,
        *,
        is_later: bool = False,
    ) -> None:
        """Adds a range, whose file has appeared. Any thread may call this.

        Args:
            each: the range.
            read: what was read.
            consistent_lsn: of the snapshot.
            counter: counts it when it is durable.
            is_later: whether it was read later than in the snapshot.
        """
        if read.rejects.num_rows:
            with self._file(f"{self._files(each)}.rejects.parquet", read.rejects.schema) as file:
                file.write(pa.Table.from_batches([read.rejects]))
        with self._lock:
            counts = (read.rows, read.nbytes, read.rejects.num_rows)
            done = self.done | {each.name: RangeDone(*counts, consistent_lsn, is_later, self._files(each))}
            progress = counter.counted(each, read.rows, read.nbytes)
            content = self._about | {"ranges": done, "progress": asdict(progress)}
            self._store.put(f"{self._directory}/{_LIST}", json.dumps(content).encode())
            self.done, self.progress = done, progress
        counter.call(progress)

    def _files(self, each: ReadRange) -> str:
        return f"{each.name}-{self._process}"

    def _file(self, name: str, schema: pa.Schema) -> RowsFile:
        # Each row is read once, and soon. A load that failed in this process may have left the file.
        return RowsFile(self._store, f"{self._directory}/{name}", schema, "lz4", replace=True)

    def rows(self) -> Iterator[pa.Table]:
        """The rows of all ranges, in pieces."""
        for each in self.done.values():
            with pq.ParquetFile(self._open(f"{each.files}.parquet")) as file:
                for k in range(file.num_row_groups):
                    yield file.read_row_group(k)

    def rejects(self) -> Sequence[pa.RecordBatch]:
        """The rejects of all ranges, as REJECTS_SCHEMA."""
        names = [each.files for each in self.done.values() if each.rejects]
        return [
            batch
            for name in names
            for batch in pq.read_table(self._open(f"{name}.rejects.parquet")).combine_chunks().to_batches()
        ]

    def _open(self, name: str) -> Any:
        return open_file(os.fspath(self._store.at(f"{self._directory}/{name}")))

    @property
    def place(self) -> str:
        """The directory of the files in the store."""
        return self._directory
