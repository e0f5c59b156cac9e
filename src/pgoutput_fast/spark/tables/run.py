"""One run that writes tables: its targets, its files, and what an earlier run left when it was killed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pgoutput_fast.mirror.tables.advice import advised
from pgoutput_fast.mirror.tables.delta import DeltaTarget, delta_directory
from pgoutput_fast.mirror.tables.files import WrittenFile, file_prefix
from pgoutput_fast.mirror.tables.manifest import MANIFEST, ParquetTarget
from pgoutput_fast.mirror.tables.marker import (
    check_marker,
    end_marker,
    left_runs,
    put_marker,
    remove_marker,
)
from pgoutput_fast.mirror.tables.target import Mode, TableTarget
from pgoutput_fast.storage.locks import try_lock
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.storage.table_directories import table_directory

__all__ = ["FORMATS", "Run", "begin_run"]

FORMATS = ("parquet", "delta")
_LOCK = "_lock"


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        name: a random name. It is a part of the names of the run's files.
        store: the target.
        format: of its tables.
        storage_options: what delta-rs needs to reach the store.
        directories: where it may leave files that no table has.
    """

    name: str
    store: Store
    format: str
    storage_options: Mapping[str, str]
    directories: set[str] = field(default_factory=set)

    @property
    def hidden(self) -> bool:
        """Whether files have hidden names until they are committed."""
        return self.format == "parquet"

    def directory_of(self, namespace: str, name: str) -> str:
        """The directory of a relation's table."""
        directory = table_directory(namespace, name)
        return delta_directory(directory) if self.format == "delta" else directory

    def table(self, directory: str) -> TableTarget:
        """Opens a table of the target."""
        if self.format == "delta":
            return DeltaTarget(str(self.store.at(directory)), self.storage_options)
        return ParquetTarget(self.store, directory)

    def commit(
        self, directory: str, files: Sequence[WrittenFile], position: int, schema: pa.Schema, mode: Mode
    ) -> None:
        """Commits a table's files.

        Raises:
            RuntimeError: if another run has begun meanwhile. In a store no lock prevents that.
        """
        check_marker(self.store, self.name)
        self.directories.add(directory)
        self.table(directory).commit(files, position, schema, mode)

    def check_format(self, directory: str) -> None:
        """Checks that a table has no other format.

        Raises:
            ValueError: if it is a Parquet table, and others are written.
        """
        if self.format != "parquet" and f"{directory}/{MANIFEST}" in self.store.names(directory):
            raise ValueError(
                f"{self.store}/{directory} is a Parquet table: use format='parquet', or another target"
            )

    def end(self) -> None:
        """Removes what failed and speculative tasks left."""
        end_marker(self.store, self.name)
        for directory in self.directories:
            _remove_orphans(self.store, directory, self.name, self.table(directory))
        remove_marker(self.store, self.name)


@contextmanager
def begin_run(target: str, format: str, storage_options: Mapping[str, str]) -> Iterator[Run]:
    """Begins a run. First it removes what an earlier run left that was killed.

    In a local target a lock keeps other runs away. In other stores, the user must see to that.

    Raises:
        NotADirectoryError: if the target is a file.
        OSError: if the target cannot be written.
        RuntimeError: if another process writes to the target.
    """
    store = open_store(target)
    with advised(store):
        _make(store)
        with _locked(store):
            run = Run(secrets.token_hex(8), store, format, storage_options)
            for name in left_runs(store):
                _clean_up(run, name)
            put_marker(store, run.name)
            try:
                yield run
                run.end()
            except Exception:
                with suppress(Exception):  # the error counts; the next run cleans up
                    _clean_up(run, run.name)
                raise


def _make(store: Store) -> None:
    try:
        store.make()
    except (FileExistsError, NotADirectoryError) as problem:
        raise NotADirectoryError(
            f"the target {store} is a file, or lies below one: give a directory, which need not exist"
        ) from problem


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    if not store.local:
        yield
        return
    with open(Path(store.at(_LOCK)), "ab") as file:
        if not try_lock(file):
            raise RuntimeError(f"another process writes tables to {store}: wait until it has finished")
        yield


def _clean_up(run: Run, name: str) -> None:
    """Finishes what a run began to commit, and removes its other files."""
    end_marker(run.store, name)
    directories = {
        entry.name.rpartition("/")[0]
        for entry in run.store.entries(recursive=True)
        if _whole(entry.name).startswith(file_prefix(name, False))
    }
    for directory in directories:
        _remove_orphans(run.store, directory, name, run.table(directory))
    remove_marker(run.store, name)


def _remove_orphans(store: Store, directory: str, run: str, table: TableTarget) -> None:
    """Removes a run's files that are not in the table, and the hidden files of all runs.

    A task may write a file after its run has ended. Only one run at a time writes to a target, so hidden files belong
    to nobody.
    """
    kept = table.committed()
    for path in store.names(directory):
        name, whole = path.rpartition("/")[2], _whole(path)
        unfinished = name.startswith(".") and whole.startswith(("part-", "_"))
        if (unfinished or whole.startswith(file_prefix(run, False))) and name not in kept:
            store.remove(path)


def _whole(path: str) -> str:
    """The name of a file without its first dots. A file that a process began to write begins with the later name."""
    return path.rpartition("/")[2].lstrip(".")
