"""Writes rows as Parquet files: `RowsFile` one file, `TableFiles` files of limited size of several tables.

A file appears, complete and durable, when it is closed. The files of `TableFiles` belong to a table only after a commit
adds them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.base.display import error_text
from pgoutput_fast.storage.parquet import Compression, rows_writer
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.marker import check_marker
from pgoutput_fast.tables.partitions import MOST_PARTITIONS, Partitioning, divide
from pgoutput_fast.tables.statistics import Measured, measured, statistics_of

__all__ = [
    "APPENDED_FILE_BYTES",
    "CURRENT_FILE_BYTES",
    "LATE_SECONDS",
    "RowsFile",
    "TableFiles",
    "WrittenFile",
    "file_prefix",
    "remove_files",
    "visible_name",
]

# The largest sizes of files, roughly. A file of appended rows has the size that engines read best. An effect on a
# current table rewrites whole files, so it costs as much as the files with the changed keys, not as the table.
APPENDED_FILE_BYTES, CURRENT_FILE_BYTES = 128 << 20, 32 << 20
# Above this many waiting bytes, the rows of the largest table are written.
_MOST_WAITING = 64 << 20
# Above this many open files, the largest one is closed. A process may open some 1,000 files.
_MOST_OPEN = 100
_SEQ = "seq"
#: An object store, or the server of a catalog, may execute a request after it reported an error. So the files of a run
#: that did not end in order stay for this time, counted from when a later run notices it. This is longer than any
#: request is on its way.
LATE_SECONDS = 3600.0

_Values = tuple[str | None, ...]


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task wrote.

    Attributes:
        directory: the table's directory in the target.
        name: the file's name in that directory, with the directory of its partition.
        rows: how many rows it has.
        nbytes: its size in bytes.
        first: the smallest ordinal of a message in it; None if its rows have none.
        last: the largest one.
        statistics: JSON, as `statistics_of` makes it.
        partition: JSON, the list of the values of the partition columns, as texts or nulls.
    """

    directory: str
    name: str
    rows: int
    nbytes: int
    first: int | None
    last: int | None
    statistics: str
    partition: str = "[]"


def remove_files(store: Store, files: Iterable[WrittenFile]) -> None:
    """Removes files that no version of a table has. Those that the store does not remove now stay for the next run."""
    for each in files:
        with suppress(Exception):  # it would hide the error for which they are removed
            store.remove(f"{each.directory}/{each.name}")


def file_prefix(run: str, hidden: bool) -> str:
    """The prefix of the names of a run's files. Readers of directories skip hidden names."""
    return f"{'.' if hidden else ''}part-{run}-"


def visible_name(name: str) -> str:
    """The name of a file after its commit.

    >>> visible_name("day=2024-02-29/.part-1.parquet")
    'day=2024-02-29/part-1.parquet'
    """
    directory, slash, base = name.rpartition("/")
    return f"{directory}{slash}{base.removeprefix('.')}"


class TableFiles:
    """Collects rows and writes them into files. A context manager: after an error, it leaves no open file.

    Args:
        store: the target.
        run: names the run that will commit the files.
        hidden: whether the names are hidden until the commit.
        file_bytes: the largest size of a file, roughly.
        waiting_bytes: the most bytes of rows that wait in memory, roughly; 64 MiB by default.
        prefix: the prefix of the metadata columns; None if the rows have no ordinals.
        checked: whether the run has a marker, without which no file may stay.
        partitioning: directory -> partitioning of the table. Other tables are not partitioned.
        compression: how pages of the files are compressed.
        failed: directory -> the error of a table whose rows cannot be written: it gets no files, and the others go on.
            None: such an error is raised.

    Raises:
        RuntimeError: at the end of a file, if the run may no longer write.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        hidden: bool,
        *,
        file_bytes: int = APPENDED_FILE_BYTES,
        waiting_bytes: int | None = None,
        prefix: str | None = "_",
        checked: bool = False,
        partitioning: Mapping[str, Partitioning] | None = None,
        compression: Compression = "zstd",
        failed: dict[str, str] | None = None,
    ) -> None:
        self._failed = failed
        self._store, self._file_bytes = store, file_bytes
        self._waiting_bytes = _MOST_WAITING if waiting_bytes is None else waiting_bytes
        self._run, self._checked = run, checked
        self._partitioning = partitioning or {}
        self._compression = compression
        self._partitions: dict[str, set[_Values]] = {}
        # Every attempt of a task has its own names.
        self._stem = f"{file_prefix(run, hidden)}{secrets.token_hex(8)}"
        self._seq = None if prefix is None else prefix + _SEQ
        self._count = 0
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._nbytes: dict[str, int] = {}
        self._open: dict[tuple[str, _Values], _OpenFile] = {}
        self.written: list[WrittenFile] = []

    def __enter__(self) -> TableFiles:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            try:
                self.finish()
            except BaseException as problem:
                self._abandon(problem)
                raise
        else:
            self._abandon(error[1])

    def add(self, directory: str, batch: pa.RecordBatch) -> None:
        """Adds rows of a table. All batches of a table have the same schema."""
        if batch.num_rows == 0:
            return
        self._waiting.setdefault(directory, []).append(batch)
        self._nbytes[directory] = self._nbytes.get(directory, 0) + batch.nbytes
        with advised(self._store):
            while sum(self._nbytes.values()) > self._waiting_bytes:
                self._flush(max(self._nbytes, key=lambda each: self._nbytes[each]))

    @contextmanager
    def of_table(self, directory: str) -> Iterator[None]:
        """Work whose ValueError concerns a table."""
        try:
            yield
        except ValueError as problem:
            if self._failed is None:
                raise
            self._failed.setdefault(directory, error_text(problem))
            self._drop(directory, problem)

    def _drop(self, directory: str, problem: Exception) -> None:
        """Removes the files of a table."""
        self._waiting.pop(directory, None)
        self._nbytes.pop(directory, None)
        for key in [each for each in self._open if each[0] == directory]:
            self._open.pop(key).abandon(problem)
        for each in self.written:
            if each.directory == directory:
                with suppress(OSError):  # the driver does not commit it, and removes it
                    self._store.remove(f"{directory}/{each.name}")
        self.written = [each for each in self.written if each.directory != directory]

    def _flush(self, directory: str) -> None:
        """Writes the waiting rows of a table, a row group per partition. Closes files that are large enough."""
        rows = pa.Table.from_batches(self._waiting.pop(directory))
        del self._nbytes[directory]
        with self.of_table(directory):
            self._write(directory, rows)

    def _write(self, directory: str, rows: pa.Table) -> None:
        for values, part in divide(rows, self._partitioning.get(directory), directory):
            file = self._open.get((directory, values))
            if file is None:
                while len(self._open) >= _MOST_OPEN:
                    self._close(max(self._open, key=lambda each: self._open[each].nbytes))
                name = self._new_name(directory, values)
                file = _OpenFile(
                    self._store, directory, name, part.schema, self._seq, values, self._compression
                )
                self._open[directory, values] = file
            file.write(part)
            if file.nbytes >= self._file_bytes:
                self._close((directory, values))

    def _new_name(self, directory: str, values: _Values) -> str:
        """A name for a file of a partition.

        Raises:
            ValueError: if this task has too many partitions of the table.
        """
        self._count += 1
        name = f"{self._stem}-{self._count:05d}.parquet"
        partitioning = self._partitioning.get(directory)
        if partitioning is None or not partitioning.columns:
            return name
        known = self._partitions.setdefault(directory, set())
        known.add(values)
        if len(known) > MOST_PARTITIONS:
            raise ValueError(
                f"{directory}: one task has rows of more than {MOST_PARTITIONS:,} partitions: choose columns with "
                "fewer values for partition_by"
            )
        return partitioning.directory(values) + name

    def _close(self, key: tuple[str, _Values]) -> None:
        self.written.append(self._open[key].finish())
        del self._open[key]
        if self._checked:
            check_marker(self._store, self._run)

    def finish(self) -> None:
        """Writes the waiting rows and closes all files. The end of the block does this, too."""
        # Tables with open files first: their rows go to these files, which no other table then closes early.
        opened = dict.fromkeys(directory for directory, _ in self._open)
        with advised(self._store):
            for directory in [*opened, *(each for each in self._waiting if each not in opened)]:
                if directory in self._waiting:
                    self._flush(directory)
                for key in [each for each in self._open if each[0] == directory]:
                    self._close(key)

    def _abandon(self, error: Any) -> None:
        for file in self._open.values():
            file.abandon(error)
        self._open.clear()
        remove_files(self._store, self.written)


class RowsFile:
    """A Parquet file of rows while it is written. The end of the block closes it, or removes it after an error.

    Args:
        store: the store of the file.
        name: its name in the store.
        schema: its columns.
        compression: how its pages are compressed.
        replace: whether to replace a file of this name.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        schema: pa.Schema,
        compression: Compression = "zstd",
        *,
        replace: bool = False,
    ) -> None:
        self._footers: list[pq.FileMetaData] = []
        self._stack = ExitStack()
        self._file: IO[bytes] = self._stack.enter_context(store.write(name, replace=replace))
        self._writer = rows_writer(self._file, schema, compression, metadata_collector=self._footers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self.abandon(error[1])
            return
        try:
            self.close()
        except BaseException as problem:
            self.abandon(problem)
            raise

    @property
    def nbytes(self) -> int:
        return self._file.tell()

    def write(self, rows: pa.Table) -> None:
        """Writes rows as a row group."""
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> int:
        """Completes the file, which then appears. Returns its size in bytes."""
        self._writer.close()
        nbytes = self.nbytes
        self._stack.close()
        return nbytes

    def abandon(self, error: BaseException | None) -> None:
        """Removes the unfinished file."""
        with suppress(Exception):
            self._writer.close()
        with suppress(BaseException):
            self._stack.__exit__(None if error is None else type(error), error, None)


class _OpenFile(RowsFile):
    """A file of a partition of a table. It collects what a commit must know."""

    def __init__(
        self,
        store: Store,
        directory: str,
        name: str,
        schema: pa.Schema,
        seq: str | None,
        values: _Values,
        compression: Compression,
    ) -> None:
        super().__init__(store, f"{directory}/{name}", schema, compression)
        self._directory, self._name, self._seq, self._values = directory, name, seq, values
        self._rows = 0
        self._first: int | None = None
        self._last: int | None = None
        self._measured: list[Mapping[str, Measured]] = []

    def write(self, rows: pa.Table) -> None:
        super().write(rows)
        self._measured.append(measured(rows))
        self._rows += rows.num_rows
        if self._seq in rows.schema.names:
            ends = pc.min_max(rows.column(self._seq)).as_py()
            known = [each for each in (self._first, self._last, ends["min"], ends["max"]) if each is not None]
            self._first, self._last = min(known, default=None), max(known, default=None)

    def finish(self) -> WrittenFile:
        nbytes = self.close()
        return WrittenFile(
            self._directory,
            self._name,
            self._rows,
            nbytes,
            self._first,
            self._last,
            statistics_of(self._footers[0], self._measured),
            json.dumps(self._values),
        )
