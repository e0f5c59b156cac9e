"""Commits to a Delta table that delta-rs cannot make, because they concern deletion vectors: entries of its log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from pgoutput_fast.storage.stores import is_unfinished
from pgoutput_fast.tables.delta.log import LogState, entry, has_entry, read_state, with_vector, write_entry
from pgoutput_fast.tables.delta.vectors import OWN_VECTORS, VECTORS, Vector, with_rows, write_vectors
from pgoutput_fast.tables.table import (
    Commit,
    ConflictError,
    DataFile,
    DeletedRows,
    OutcomeUnknownError,
    Table,
)

__all__ = ["LogEntries", "concerns_vectors"]


class LogEntries:
    """The log of a table, which is read and written without delta-rs.

    Args:
        table: the table.
        opened: opens its newest version with delta-rs.
        uri, options: of the table, as delta-rs takes them.
    """

    def __init__(
        self, table: Table, opened: Callable[[], Any], uri: str, options: Mapping[str, str] | None
    ) -> None:
        self._table, self._store, self._directory = table, table.store, table.directory
        self._opened, self._uri, self._options = opened, uri, options
        # The newest version that was read, and the one that was read last.
        self._newest: LogState | None = None
        self._last: LogState | None = None

    def forget(self) -> None:
        """Reads the whole log the next time: the table may be another one."""
        self._newest = self._last = None

    def deleted(self, number: int) -> Mapping[str, DeletedRows]:
        """{path: the marked rows of a file} of the files of a version that have some.

        Raises:
            FileNotFoundError, ValueError: as `read_state`.
        """
        return self._state(number).vectors

    def commit(
        self,
        commit: Commit,
        number: int,
        added: Iterable[Mapping[str, Any]],
        applied: Mapping[str, int],
        info: Mapping[str, str] | None,
    ) -> None:
        """Makes a commit as the version after this one.

        Args:
            commit: the commit.
            number: the version. It has the files of `commit.base`.
            added: the actions for the added files.
            applied, info: as for `write_entry`.

        Raises:
            ConflictError: if there is such a version.
            OutcomeUnknownError: if the commit may be lost in a crash of the machine, or comes later.
            ValueError: if another program has changed what writers of the table must do.
        """
        assert commit.base is not None
        state, base = self._writable(number), {file.name: file for file in commit.base.files}
        rows = {name: with_rows(new, self._marked(base.get(name))) for name, new in commit.deleted.items()}
        vectors = write_vectors(self._store, self._directory, rows) if rows else {}
        actions: list[Mapping[str, Any]] = [*state.enabled()] if vectors else []
        stay = [name for name in vectors if name in base]
        actions += [state.removed(name, data_change=commit.data_change) for name in (*stay, *commit.removed)]
        actions += [state.marked(name, vectors[name], base[name].rows) for name in stay]
        actions += [with_vector(action, vectors.get(unquote(action["add"]["path"]))) for action in added]
        if not self._write(number + 1, actions, applied, info, vectors.values()):
            raise ConflictError(self._table)
        if (number + 1) % state.checkpoint_interval == 0:
            self._checkpoint(clean=state.cleans_log)

    def _marked(self, file: DataFile | None) -> Any:
        """The bitmap of the rows of a file that are marked already; None if there are none, or for a new file."""
        if file is None or file.deleted is None:
            return None
        assert isinstance(file.deleted, Vector)
        return file.deleted.bitmap(self._store, self._directory, file.rows)

    def add_again(self, number: int, statistics: Mapping[str, str], applied: Mapping[str, int]) -> bool:
        """Gives files other statistics, in the version after this one. Returns whether no other commit was in the way.

        Args:
            number: the version.
            statistics: {path: the new statistics of a file}.
            applied: as for `write_entry`.

        Raises:
            As `commit`.
        """
        state = self._writable(number)
        adds = [state.added(path, new) for path, new in statistics.items()]
        return self._write(number + 1, adds, applied)

    def clean(self, kept: Collection[str], expired: float) -> int:
        """Removes vectors and unfinished entries, as `Table.clean`."""
        log, own = (self._store.names(f"{self._directory}/{each}") for each in ("_delta_log", OWN_VECTORS))
        others = self._store.entries(self._directory)
        vectors = [
            *own,
            *(each.name for each in others if each.modified < expired and VECTORS.search(each.name)),
        ]
        unneeded = [name for name in log if is_unfinished(name.rpartition("/")[2])]
        unneeded += [name for name in vectors if name.removeprefix(f"{self._directory}/") not in kept]
        return sum(map(self._store.remove, unneeded))

    def _state(self, number: int) -> LogState:
        known = next((each for each in (self._newest, self._last) if each and each.number <= number), None)
        self._last = read_state(self._store, self._directory, number, known)
        if self._newest is None or number > self._newest.number:
            self._newest = self._last
        return self._last

    def _writable(self, number: int) -> LogState:
        """The log of a version, for an entry after it.

        Raises:
            ValueError: if this package may not write it.
        """
        state = self._state(number)
        try:
            state.check_writable()
        except ValueError as problem:
            raise ValueError(
                f"{self._table} was changed by something else, and cannot be written: {problem}"
            ) from None
        return state

    def _write(
        self,
        number: int,
        actions: Iterable[Mapping[str, Any]],
        applied: Mapping[str, int],
        info: Mapping[str, str] | None = None,
        vectors: Iterable[Vector] = (),
    ) -> bool:
        """Writes an entry. Returns whether there was none with this number. If there was, the new vectors are removed.

        Raises:
            OutcomeUnknownError: if it may be lost in a crash of the machine, or comes later.
        """
        content = entry(actions, applied, info)
        try:
            write_entry(self._store, self._directory, number, content, self._uri, self._options)
        except OSError as problem:
            exists = isinstance(problem, FileExistsError)
            # A store may execute a request after it reported an error.
            may_come = not self._store.local or has_entry(self._store, self._directory, number)
            if not exists and may_come:
                raise OutcomeUnknownError(self._table, problem) from problem
            for file in {vector.file for vector in vectors}:
                with suppress(OSError):
                    self._store.remove(f"{self._directory}/{file}")
            if exists:
                return False
            raise
        return True

    def _checkpoint(self, *, clean: bool) -> None:
        """Writes a checkpoint, and removes old entries of the log, as delta-rs does after its own commits."""
        from deltalake.exceptions import DeltaError

        # The commit is done, and the next one tries again.
        with suppress(DeltaError, OSError):
            table = self._opened()
            table.create_checkpoint()
            if clean:
                table.cleanup_metadata()


def concerns_vectors(commit: Commit) -> bool:
    """Whether delta-rs cannot make a commit: it marks rows, or removes a file with marked rows, but not all files."""
    if commit.base is None or commit.replaces:
        return False
    marked = (
        {file.name for file in commit.base.files if file.deleted is not None} if commit.removed else set()
    )
    return bool(commit.deleted) or not marked.isdisjoint(commit.removed)
