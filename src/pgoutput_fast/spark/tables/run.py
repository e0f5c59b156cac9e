"""One run that writes tables: its targets, its files, and the cleanup after an earlier run that was killed."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.storage.lease import Role, WriterLease
from pgoutput_fast.storage.stores import Store, make_target, open_store
from pgoutput_fast.storage.table_directories import table_directory
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.delta.appended import DeltaTarget
from pgoutput_fast.tables.directories import delta_directory
from pgoutput_fast.tables.files import WrittenFile, file_prefix
from pgoutput_fast.tables.formats import check_path, formats_of
from pgoutput_fast.tables.iceberg.appended import IcebergTarget, may_be_committed, open_catalog
from pgoutput_fast.tables.manifest import ParquetTarget, visible_name
from pgoutput_fast.tables.marker import (
    check_marker,
    end_marker,
    left_runs,
    put_marker,
    remove_marker,
)
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.target import Mode, TableTarget

__all__ = ["Run", "begin_run"]

_ROLE = Role(
    "writes tables to",
    "wait until it has finished",
    "run it again",
    RuntimeError,
    lock="_lock",
    mark="_lock.json",
    heartbeats="_lock",
)


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        name: a random name, contained in the names of the run's files.
        store: the target.
        format: format of its tables.
        storage_options: options of delta-rs for the store.
        lease: the right to write to the target.
        catalog: the catalog of Iceberg tables.
        added: the directories where the run may leave unused files, and the files there that it added to the table.
    """

    name: str
    store: Store
    format: str
    storage_options: Mapping[str, str]
    lease: WriterLease
    catalog: Any = None
    added: dict[str, set[str]] = field(default_factory=dict)

    @property
    def hidden(self) -> bool:
        """Whether files have hidden names until they are committed."""
        return self.format == "parquet"

    def directory_of(self, namespace: str, name: str) -> str:
        """The directory of a relation's table."""
        directory = table_directory(namespace, name)
        return directory if self.format == "parquet" else delta_directory(directory)

    def table(self, directory: str) -> TableTarget:
        """Opens a table of the target."""
        if self.format == "delta":
            return DeltaTarget(str(self.store.at(directory)), self.storage_options)
        if self.format == "iceberg":
            return IcebergTarget(self.catalog, self.store, directory)
        return ParquetTarget(self.store, directory)

    def commit(
        self,
        directory: str,
        files: Sequence[WrittenFile],
        position: int,
        schema: pa.Schema,
        mode: Mode,
        partition_by: tuple[str, ...] = (),
        stream: Stream | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        """Commits a table's files.

        Raises:
            RuntimeError: if another run has begun meanwhile.
        """
        self.lease.check()
        check_marker(self.store, self.name)
        self.added[directory] = {visible_name(each.name) for each in files}
        self.table(directory).commit(files, position, schema, mode, partition_by, stream, transactions)

    def check_format(self, directory: str) -> None:
        """Checks that a directory in which this format has no table has no table of another format.

        Raises:
            ValueError: if it has.
        """
        for format in formats_of(self.store, directory):
            if format != self.format:
                raise ValueError(
                    f"{self.store}/{directory} is a table of another format: use format={format!r}, or another target"
                )

    def end(self) -> None:
        """Removes files of failed and speculative tasks."""
        end_marker(self.store, self.name)
        for directory, added in self.added.items():
            _remove_orphans(self.store, directory, self.name, self.table(directory), added)
        remove_marker(self.store, self.name)


@contextmanager
def begin_run(
    target: str, format: str, storage_options: Mapping[str, str], catalog: Mapping[str, str] | None = None
) -> Iterator[Run]:
    """Begins a run, after cleaning up after an earlier run that was killed.

    Raises:
        NotADirectoryError: if the target is a file.
        OSError: if the target cannot be written.
        RuntimeError: if another process writes to the target.
        ValueError: if readers of the format would not find the path.
    """
    store = open_store(target)
    check_path(store, format)
    with advised(store):
        make_target(store)
        with WriterLease(store, _ROLE) as lease, _catalog(store, format, catalog or {}) as opened:
            run = Run(secrets.token_hex(8), store, format, storage_options, lease, opened)
            for name in left_runs(store):
                _clean_up(run, name)
            put_marker(store, run.name)
            try:
                yield run
                run.end()
            except Exception as problem:
                if not may_be_committed(problem):
                    with suppress(Exception):  # the original error is raised; the next run cleans up
                        lease.check()  # a process that took over may have unfinished files of its own
                        _clean_up(run, run.name)
                raise


@contextmanager
def _catalog(store: Store, format: str, properties: Mapping[str, str]) -> Iterator[Any]:
    """The catalog of Iceberg tables; None for other formats."""
    if format != "iceberg":
        yield None
        return
    with open_catalog(store, properties) as catalog:
        yield catalog


def _clean_up(run: Run, name: str) -> None:
    """Completes a commit that a run began, and removes its other files."""
    end_marker(run.store, name)
    tables = {
        _table_of(entry.name)
        for entry in run.store.entries(recursive=True)
        if _whole(entry.name).startswith(file_prefix(name, False))
    }
    for directory in tables:
        _remove_orphans(run.store, directory, name, run.table(directory))
    remove_marker(run.store, name)


def _remove_orphans(
    store: Store, directory: str, run: str, table: TableTarget, added: Collection[str] = ()
) -> None:
    """Removes a run's files that are not in the table, and the hidden files of all runs.

    A task may write a file after its run has ended. Only one run at a time writes to a target, so hidden files are
    unused.

    Args:
        store: the target.
        directory: the table's directory in it.
        run: the name of the run.
        table: the table.
        added: files known to be in the table. Finding out about others takes long.
    """
    found = [path.removeprefix(f"{directory}/") for path in _names(store, directory, table)]
    suspect = [name for name in found if _may_be_removed(name, run) and name not in added]
    if suspect:
        kept = table.committed()
        for name in suspect:
            if name not in kept:
                store.remove(f"{directory}/{name}")


def _may_be_removed(path: str, run: str) -> bool:
    name, whole = path.rpartition("/")[2], _whole(path)
    unfinished = name.startswith(".") and whole.startswith(("part-", "_"))
    return unfinished or whole.startswith(file_prefix(run, False))


def _names(store: Store, directory: str, table: TableTarget) -> list[str]:
    """The files of a table, including those that no commit has added."""
    if table.partition_directories and (table.partition_by() or table.position() is None):
        return [entry.name for entry in store.entries(directory, recursive=True)]
    return store.names(directory)


def _table_of(path: str) -> str:
    """The directory of a file's table. Directories of partitions contain `=`, others do not."""
    parts = path.split("/")[:-1]
    while len(parts) > 1 and "=" in parts[-1]:
        parts.pop()
    return "/".join(parts)


def _whole(path: str) -> str:
    """The name of a file without leading dots. A temporary file begins with the final name."""
    return path.rpartition("/")[2].lstrip(".")
