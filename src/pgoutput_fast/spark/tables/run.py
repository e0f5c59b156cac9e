"""One run that writes tables: its targets, its files, and what an earlier run left when it was killed."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgoutput_fast.mirror.tables.delta import DeltaTarget, delta_directory
from pgoutput_fast.mirror.tables.files import WrittenFile, file_prefix
from pgoutput_fast.mirror.tables.iceberg import IcebergTarget, open_catalog
from pgoutput_fast.mirror.tables.manifest import ParquetTarget
from pgoutput_fast.mirror.tables.target import Mode, TableTarget
from pgoutput_fast.storage.locks import try_lock
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.storage.table_directories import table_directory

__all__ = ["FORMATS", "Run", "begin_run"]

FORMATS = ("parquet", "delta", "iceberg")
_RUNS = "_runs"
_LOCK = "_lock"


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        name: a random name. It is a part of the names of the run's files.
        store: the target.
        format: of its tables.
        storage_options: what delta-rs needs to reach the store.
        catalog: the catalog of Iceberg tables.
    """

    name: str
    store: Store
    format: str
    storage_options: Mapping[str, str]
    catalog: Any = None

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
    ) -> None:
        """Commits a table's files, and removes those that failed or speculative tasks left."""
        table = self.table(directory)
        table.commit(files, position, schema, mode, partition_by)
        _remove_orphans(self.store, directory, self.name, table)


@contextmanager
def begin_run(
    target: str, format: str, storage_options: Mapping[str, str], catalog: Mapping[str, str] | None = None
) -> Iterator[Run]:
    """Begins a run. First it removes what an earlier run left that was killed.

    In a local target a lock keeps other runs away. In other stores, the user must see to that.

    Raises:
        RuntimeError: if another process writes to the target.
    """
    store = open_store(target)
    store.make()
    with _locked(store), _catalog(store, format, catalog or {}) as opened:
        run = Run(secrets.token_hex(8), store, format, storage_options, opened)
        for name in store.names(_RUNS):
            _clean_up(run, name)
        begun = {"host": socket.gethostname(), "process": os.getpid(), "at": datetime.now(UTC).isoformat()}
        marker = f"{_RUNS}/{run.name}.json"
        store.put(marker, json.dumps(begun).encode())
        try:
            yield run
        except Exception:
            with suppress(Exception):  # the error counts; the next run cleans up
                _clean_up(run, marker)
            raise
        store.remove(marker)


@contextmanager
def _catalog(store: Store, format: str, properties: Mapping[str, str]) -> Iterator[Any]:
    """The catalog of Iceberg tables; None for other formats."""
    if format != "iceberg":
        yield None
        return
    with open_catalog(store, properties) as catalog:
        yield catalog


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    if not store.local:
        yield
        return
    with open(Path(store.at(_LOCK)), "ab") as file:
        if not try_lock(file):
            raise RuntimeError(f"another process writes tables to {store}: wait until it has finished")
        yield


def _clean_up(run: Run, marker: str) -> None:
    """Finishes what a run began to commit, and removes its other files."""
    name = marker.rpartition("/")[2].removesuffix(".json")
    # A table is a directory of the target. It may have directories of partitions.
    tables = {
        entry.name.partition("/")[0]
        for entry in run.store.entries(recursive=True)
        if entry.name.rpartition("/")[2].startswith((file_prefix(name, True), file_prefix(name, False)))
    }
    for directory in tables:
        _remove_orphans(run.store, directory, name, run.table(directory))
    run.store.remove(marker)


def _remove_orphans(store: Store, directory: str, run: str, table: TableTarget) -> None:
    """Removes a run's files that are not in the table, and the hidden files of all runs.

    A speculative task may write a file after its run has committed. Only one run at a time writes to a target, so
    hidden files belong to nobody.
    """
    kept = table.committed()
    for path in _names(store, directory, table):
        name = path.removeprefix(f"{directory}/")
        base = name.rpartition("/")[2]
        # A file that a process began to write is named after the file that it would become.
        whole = base.lstrip(".")
        of_run = whole.startswith(file_prefix(run, False))
        abandoned = table.hidden and base.startswith(".") and whole.startswith("part-")
        if (of_run or abandoned) and name not in kept:
            store.remove(path)


def _names(store: Store, directory: str, table: TableTarget) -> list[str]:
    """The files of a table, also those that no commit has added."""
    if table.partition_directories and (table.partition_by() or table.position() is None):
        return [entry.name for entry in store.entries(directory, recursive=True)]
    return store.names(directory)
