"""One run that writes tables: its targets, its files, and the cleanup after an earlier run that was killed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from pgoutput_fast.storage.lease import Role, WriterLease
from pgoutput_fast.storage.stores import Store, make_target, open_store
from pgoutput_fast.tables import files as table_files
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.files import WrittenFile, file_prefix, visible_name
from pgoutput_fast.tables.formats import formats_of, open_target
from pgoutput_fast.tables.marker import (
    check_marker,
    end_marker,
    ended_at,
    format_of,
    left_runs,
    put_marker,
    remove_marker,
)
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.progress import Progress
from pgoutput_fast.tables.table import Commit, Mode, Ordinal, OutcomeUnknownError, Table
from pgoutput_fast.tables.target import FileTarget

__all__ = ["Run", "begin_run"]

_ROLE = Role(
    "writes tables to",
    "wait until it has finished",
    "run it again",
    RuntimeError,
    lock="_lock",
    mark="_lock.json",
    heartbeats="_lock_heartbeats",
)


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        name: a random name, contained in the names of the run's files.
        format: the name of the format of its tables.
        target: the tables.
        lease: the right to write to the target.
        progress: how far the tables were read.
        added: the directories where the run may leave unused files, and the files there that it added to the table.
        opened: the tables that were opened.
    """

    name: str
    format: str
    target: FileTarget
    lease: WriterLease
    progress: Progress
    added: dict[str, set[str]] = field(default_factory=dict)
    opened: dict[str, Table] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The target."""
        return self.target.store

    @property
    def hidden(self) -> bool:
        """Whether files have hidden names until they are committed."""
        return self.target.hidden

    def table(self, directory: str) -> Table:
        """A table of the target."""
        if directory not in self.opened:
            self.opened[directory] = self.target.table(directory, "changes")
        return self.opened[directory]

    def own_ordinal(self, directory: str) -> Ordinal | None:
        """The position of a table's newest commit."""
        known = self.table(directory).known
        return None if known is None else known.ordinal

    def ordinal(self, directory: str) -> Ordinal | None:
        """The position of a table: how far it was read."""
        return self.progress.ordinal(directory, self.own_ordinal(directory))

    def commit(
        self,
        directory: str,
        files: Sequence[WrittenFile],
        position: Ordinal,
        schema: pa.Schema,
        mode: Mode,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        """Commits a table's files.

        Raises:
            RuntimeError: if another run has begun meanwhile.
        """
        self.lease.check()
        check_marker(self.store, self.name)
        self.added[directory] = {visible_name(each.name) for each in files}
        table = self.table(directory)
        removed: Literal["all"] | tuple[str, ...] = ()
        if mode == "overwrite":
            removed = "all"
        else:
            schema = table.fitted(schema)
        try:
            table.commit(Commit(table.known, schema, position, files, removed, partition_by))
        except Exception:
            self.added[directory] = set()  # the end of the run finds out which of them the table has
            raise

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
        """Removes files of failed and speculative tasks, unless another process writes to the target now."""
        try:
            self.lease.check()
        except RuntimeError:
            return  # the tables are complete, and that process cleans up
        end_marker(self.store, self.name, self.format)
        closed = False
        for directory, added in self.added.items():
            try:
                _remove_orphans(self.name, self.table(directory), added)
            except ValueError:  # the table cannot be read, and was skipped: a later run removes the files
                closed = True
        if not closed:
            remove_marker(self.store, self.name)


@contextmanager
def begin_run(target: str, format: str, options: TableOptions, wait_seconds: float = 0.0) -> Iterator[Run]:
    """Begins a run, after cleaning up after an earlier run that was killed.

    Args:
        target: the target.
        format: the name of the format of the tables.
        options: how to reach the tables.
        wait_seconds: how long to wait for another process that writes to the target.

    Raises:
        NotADirectoryError: if the target is a file.
        OSError: if the target cannot be written.
        RuntimeError: if another process writes to the target.
    """
    store = open_store(target)
    with advised(store):
        make_target(store)
        with WriterLease(store, _ROLE, wait_seconds=wait_seconds) as lease:
            tables = open_target(format, store, options)
            run = Run(secrets.token_hex(8), format, tables, lease, Progress.read(store))
            for name in left_runs(store):
                _clean_up(run, name)
            put_marker(store, run.name, format)
            try:
                yield run
                run.end()
            except Exception as problem:
                if not isinstance(problem, OutcomeUnknownError):
                    with suppress(Exception):  # the original error is raised; the next run cleans up
                        lease.check()  # a process that took over may have unfinished files of its own
                        _clean_up(run, run.name)
                raise


def _clean_up(run: Run, name: str) -> None:
    """Completes a commit that a run began, and removes its other files.

    If this run cannot know which of them are in use, they stay, and so does the marker, for a later run.
    """
    format = run.format if name == run.name else format_of(run.store, name) or run.format
    end_marker(run.store, name, format)
    if name != run.name and (format != run.format or _may_commit(run, name)):
        return
    tables = {
        _table_of(entry.name)
        for entry in run.store.entries(recursive=True)
        if _whole(entry.name).startswith(file_prefix(name, False))
    }
    closed = {directory for directory in tables if not _can_open(run, directory)}
    for directory in tables - closed:
        _remove_orphans(name, run.target.table(directory, "changes"))
    if not closed:
        remove_marker(run.store, name)


def _may_commit(run: Run, name: str) -> bool:
    """Whether a commit of an earlier run may still come. Not if it only names hidden files."""
    ended = ended_at(run.store, name)
    late = run.target.options.commits_late(local=run.store.local)
    return late and not run.hidden and (ended or 0.0) > time.time() - table_files.LATE_SECONDS


def _can_open(run: Run, directory: str) -> bool:
    """Whether a run sees the table of a directory, if it has one: not with another format or another catalog."""
    formats = formats_of(run.store, directory)
    if not formats:
        return True
    try:
        return formats == [run.format] and run.target.table(directory, "changes").version() is not None
    except ValueError:  # it is damaged
        return False


def _remove_orphans(run: str, table: Table, added: Collection[str] = ()) -> None:
    """Removes a run's files that are not in the table, and the hidden files of all runs.

    A task may write a file after its run has ended. Only one run at a time writes to a target, so hidden files are
    unused.

    Args:
        run: the name of the run.
        table: the table.
        added: files known to be in the table. Finding out about others takes long.
    """
    found = [path.removeprefix(f"{table.directory}/") for path in _names(table)]
    suspect = [name for name in found if _may_be_removed(name, run) and name not in added]
    if suspect:
        version = table.version()
        kept = set() if version is None else version.names
        for name in suspect:
            if name not in kept:
                table.store.remove(f"{table.directory}/{name}")


def _may_be_removed(path: str, run: str) -> bool:
    name, whole = path.rpartition("/")[2], _whole(path)
    unfinished = name.startswith(".") and whole.startswith(("part-", "_"))
    return unfinished or whole.startswith(file_prefix(run, False))


def _names(table: Table) -> list[str]:
    """The files of a table, including those that no commit has added."""
    if table.partition_directories:
        known = table.known
        if known is None or known.position is None or known.partition_by:
            return [entry.name for entry in table.store.entries(table.directory, recursive=True)]
    return table.store.names(table.directory)


def _table_of(path: str) -> str:
    """The directory of a file's table. Directories of partitions contain `=`, others do not."""
    parts = path.split("/")[:-1]
    while len(parts) > 1 and "=" in parts[-1]:
        parts.pop()
    return "/".join(parts)


def _whole(path: str) -> str:
    """The name of a file without leading dots. A temporary file begins with the final name."""
    return path.rpartition("/")[2].lstrip(".")
