"""Current tables of Parquet files. An effect rewrites only files with rows that are deleted or changed."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.compaction import to_join
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.match import Finder
from pgoutput_fast.merge.rewriting import Found, Numbers, Search, rewritten
from pgoutput_fast.merge.staged import Staged
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.stores import Store, is_unfinished
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.columns import check_names, fitted, in_schema, merged
from pgoutput_fast.tables.damaged import DamagedError
from pgoutput_fast.tables.data_files import (
    FILE_BYTES,
    RUN,
    DataFile,
    NewFiles,
    Version,
    candidates,
    row_groups,
)
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.table import CurrentTable, HeldVersion, expect_position

__all__ = ["ChangedError", "FileTable", "in_key_order"]

_OWN = re.compile(rf"part-{RUN}-[0-9a-f]+-[0-9]+\.parquet")
# Attempts to apply an effect if another program changes the table meanwhile.
_TRIES = 10
_WEEK = 7 * 24 * 3600

_T = TypeVar("_T")


class ChangedError(Exception):
    """Another program has committed to the table since it was read. The commit did nothing."""


class FileTable(CurrentTable):
    """A current table of Parquet files, whose commits a subclass makes.

    Args:
        store: the store with all tables.
        directory: the directory of this table's files in it.
        file_bytes: the largest size of a file, roughly.
    """

    #: Called before each commit.
    check: Callable[[], object] | None = None
    #: Whether `a` and `A` are the same name of a column.
    _folded = False
    #: How to remove a table of this kind, for errors.
    _remove = "remove its directory"

    def __init__(self, store: Store, directory: str, file_bytes: int = FILE_BYTES) -> None:
        self._store, self._directory, self._file_bytes = store, directory, file_bytes

    @abstractmethod
    def _load(self, number: int | None = None) -> Version | None:
        """A version of the table, by default the current one. None if there is no table.

        Raises:
            FileNotFoundError: if the table no longer has this version.
            ValueError: if a mirror did not make the table. A DamagedError: if the current version cannot be read.
        """

    @abstractmethod
    def _commit(
        self,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
    ) -> None:
        """Makes the next version of the table.

        Args:
            before: the version to change; None if there is no table.
            schema: the new columns.
            position: the new position.
            added: new files.
            removed: names of the removed files; None for all.

        Raises:
            ChangedError: if `before` is not the current version.
        """

    @abstractmethod
    def _can_widen(self, there: pa.DataType, wide: pa.DataType) -> bool:
        """Whether a column of the first type can become the second, wider one."""

    @abstractmethod
    def _kept(self, now: Version, keep: int) -> Iterable[Version]:
        """The last versions: `now` and those before, at most `keep` in all. Others can no longer be read."""

    def __str__(self) -> str:
        return f"the table in {self._store}/{self._directory}"

    # ---- for distributed writers ----------------------------------------------------------------------------------

    @property
    def files(self) -> str:
        """The directory of the files in the store."""
        return self._directory

    def now(self) -> Version | None:
        """The current version of the table with its files. None if there is no table."""
        return self._load()

    def schema_with(self, before: Version | None, rows: pa.Schema) -> pa.Schema:
        """The columns of the table after it takes decoded rows with these columns.

        Raises:
            ValueError: if the table cannot take a column.
        """
        types = fitted(None if before is None else before.schema, rows, str(self), self._can_widen)
        schema = types if before is None else merged(before.schema, types)
        check_names(schema.names, str(self), folded=self._folded)
        return self._in_files(before, schema)

    def _in_files(self, before: Version | None, schema: pa.Schema) -> pa.Schema:
        """Columns with all metadata of files of this format. Without `before`, all old rows are removed.

        Raises:
            ValueError: if the table cannot have these columns.
        """
        return schema

    def short(self, version: Version) -> list[int]:
        """The short files that one effect should join, neighbours adjacent; none while there are few of them."""
        return to_join(version, self._file_bytes)

    def all_again(self, before: Version, schema: pa.Schema) -> bool:
        """Whether all files must be rewritten before the table can have these columns, some of which are wider."""
        return False

    def commit(
        self,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
    ) -> None:
        """Commits files of other writers, as `apply` does.

        Args:
            before: the version that they read; None if there was no table.
            schema: the new columns of the table.
            position: the new position.
            added: the new files.
            removed: the names of the removed files; None for all.

        Raises:
            ChangedError: if another program has committed since `before`. The table is unchanged, and the files stay.
        """
        with advised(self._store):
            self._expect_own()
            self._commit(before, schema, position, added, removed)

    def _expect_own(self) -> None:
        if self.check is not None:
            self.check()

    # ---- the interface of a current table ----------------------------------------------------------------------------

    def position(self) -> int | None:
        return self.reached()[0]

    def version(self) -> int | None:
        return self.reached()[1]

    def reached(self) -> tuple[int | None, int | None]:
        now = self._load()
        return (None, None) if now is None else (now.position, now.number)

    def schema(self) -> pa.Schema | None:
        now = self._load()
        return None if now is None else now.schema

    def held(self, version: int | None = None) -> HeldVersion:
        there = self._load(version)
        if there is None:
            raise FileNotFoundError(f"{self} does not exist")

        def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
            for file in there.files:
                for _, rows in row_groups(self._store, self._file(file), there.schema, columns):
                    yield rows

        places = [str(self._store.at(self._file(file))) for file in there.files]
        return HeldVersion(there.position, there.schema, pieces, places)

    def _file(self, file: DataFile) -> str:
        """The name of a file in the store."""
        return f"{self._directory}/{file.name}"

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return self._tried(lambda there: self._find(there, keys, columns))

    def _find(self, there: Version | None, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        named = [*keys.schema.names, *columns]
        if there is None:
            return pa.table({name: pa.nulls(0) for name in named})
        wanted = self._fit(there, keys)
        known = [name for name in named if name in there.schema.names]
        found = [pa.schema([there.schema.field(name) for name in known]).empty_table()]
        finder = Finder(wanted, keys=True)
        for k in candidates(there, wanted):
            place = self._file(there.files[k])
            # First only the keys: most candidates have no match.
            looked = row_groups(self._store, place, there.schema, wanted.schema.names, wanted)
            if any((finder.find(rows) >= 0).any() for _, rows in looked):
                for _, rows in row_groups(self._store, place, there.schema, known, wanted):
                    found.append(rows.filter(pa.array(finder.find(rows) >= 0)))
        rows = pa.concat_tables(found)
        for name in named:
            if name not in known:
                rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows.select(named)

    def _fit(self, there: Version | None, rows: pa.Table) -> pa.Table:
        """Rows in the types that the table has, or will have."""
        types = fitted(None if there is None else there.schema, rows.schema, str(self), self._can_widen)
        return in_schema(rows, types)

    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        stored = stored_schema(schema, "current")
        check_names(stored.names, str(self), folded=self._folded)
        self._load()  # refuses a table that a mirror did not make, before the long work
        stored = self._in_files(None, stored)
        with NewFiles(self._store, self._directory, self._file_bytes) as files:
            files.write(in_schema(pa.Table.from_batches([each]), stored) for each in rows)
            self._tried(lambda before: self._committed(files, before, stored, position, None))

    def apply_parts(self, parts: Iterable[Effect], position: int, after: int | None = None) -> None:
        def change(before: Version | None) -> None:
            now = None if before is None else before.position
            if now is not None and now >= position:
                return
            expect_position(self, now, after)
            with NewFiles(self._store, self._directory, self._file_bytes) as files:
                staged = Staged(before)
                for effect in parts:
                    there = staged.version
                    effect = effect.filled_by(lambda *wanted: self._find(there, *wanted))  # noqa: B023
                    done = len(files.written)
                    schema, removed = self._write(there, effect, files)
                    staged, gone = staged.behind(schema, files.written[done:], removed)
                    files.remove(gone)
                if staged.schema is not None:
                    self._committed(files, before, staged.schema, position, staged.removed)

        self._tried(change)

    def _tried(self, task: Callable[[Version | None], _T]) -> _T:
        """Runs a task with the current version, and again if another program has committed meanwhile.

        Raises:
            RuntimeError: if that happens again and again.
            DamagedError: if a file is missing.
        """
        for _ in range(_TRIES):
            before = self._load()
            try:
                return task(before)
            except ChangedError:
                continue
            except FileNotFoundError as problem:
                if before is None:
                    raise
                if self.version() == before.number:
                    raise DamagedError(self, problem, None) from problem
                # An OPTIMIZE and a VACUUM have removed a file of the version that was read.
        raise RuntimeError(
            f"something else changed {self} {_TRIES} times during a commit: let only one process mirror into it, and "
            "run OPTIMIZE and the like less often. The table has nothing of this effect"
        )

    def _write(
        self, before: Version | None, effect: Effect, files: NewFiles
    ) -> tuple[pa.Schema, Collection[str] | None]:
        """Writes the files of an effect. Returns the columns after it, and the removed files; None for all."""
        schema = self.schema_with(before, effect.rows.schema)
        rows = in_key_order(in_schema(effect.rows, schema), effect.key)
        if before is None or effect.truncated:
            files.write([rows])
            return schema, None
        looked = self._look(before, effect, schema, rows)
        again = self.all_again(before, schema)
        short = list(range(len(before.files))) if again else self.short(before)
        joined = set(short)
        for k in sorted(looked.keys() - joined):
            files.write(self._rewritten(before, k, schema, looked[k], rows))
        old = [looked[k].comes for k in looked]
        new = np.setdiff1d(np.arange(rows.num_rows), np.concatenate(old)) if old else None
        fresh = rows if new is None else _taken(rows, new)
        parts = [self._rewritten(before, k, schema, looked.get(k), rows) for k in short]
        files.write(each for part in (*parts, [fresh]) for each in part)
        return schema, None if again else {before.files[k].name for k in looked.keys() | joined}

    def _look(self, before: Version, effect: Effect, schema: pa.Schema, rows: pa.Table) -> dict[int, Found]:
        """The removed rows, by file.

        Raises:
            ValueError: if a removed row without a key does not exist.
        """
        names = effect.identity
        wanted = in_schema(effect.gone, pa.schema([schema.field(name) for name in names]))
        comes = np.full(wanted.num_rows, -1, np.int64)
        if effect.key:
            wanted = pa.concat_tables([wanted, rows.select(names)])
            comes = np.concatenate([comes, np.arange(rows.num_rows)])
        if not wanted.num_rows:
            return {}
        search = Search(wanted, comes, keys=bool(effect.key))
        looked = {}
        for k in candidates(before, wanted):
            found = search.look_into(self._store, self._file(before.files[k]), schema)
            if found is not None:
                looked[k] = found
        search.check_all_gone(str(self))
        return looked

    def _rewritten(
        self, before: Version, k: int, schema: pa.Schema, found: Found | None, rows: pa.Table
    ) -> Iterator[pa.Table]:
        return rewritten(self._store, self._file(before.files[k]), schema, found, partial(_taken, rows))

    def _committed(
        self,
        files: NewFiles,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        removed: Collection[str] | None,
    ) -> None:
        """Commits new files. After an error that leaves the outcome unknown, they stay."""
        self._expect_own()
        try:
            with advised(self._store):
                self._commit(before, schema, position, files.written, removed)
        except ChangedError:
            # The other commit may be this one: if the answer of a store is lost, delta-rs retries, and meets its own
            # commit.
            written, files.written = files.written, []
            if self._has_all(written):
                return
            files.written = written
            raise
        except BaseException:
            # A store may execute a request after it reported an error, and an error may follow the commit.
            if not self._store.local or self._has_any(files.written):
                files.written = []
            raise

    def _has_all(self, files: Sequence[WrittenFile]) -> bool:
        """Whether the table has all of these files, and there are any."""
        now = self._load()
        names = {file.name for file in now.files} if now is not None else set()
        return bool(files) and names.issuperset(file.name for file in files)

    def _has_any(self, files: Sequence[WrittenFile]) -> bool:
        """Whether the table has any of these files, or cannot be read."""
        try:
            now = self._load()
        except Exception:
            return True
        return now is not None and not {file.name for file in now.files}.isdisjoint(
            each.name for each in files
        )

    def vacuum(self, keep: int = 1) -> int:
        """Removes files that only older versions have, and files of unfinished commits.

        Files of other programs, such as an OPTIMIZE, are removed when they are a week old.

        Args:
            keep: how many versions stay readable, the current one included.

        Returns:
            How many files it removed.

        Raises:
            ValueError: if `keep` is less than 1.
        """
        if keep < 1:
            raise ValueError("keep must be at least 1: the version of now stays")
        now = self._load()
        if now is None:
            return 0
        kept = {file.name for version in self._kept(now, keep) for file in version.files}
        removed = 0
        for entry in self._store.entries(self._directory):
            name = entry.name.rpartition("/")[2]
            own = _OWN.fullmatch(name) or is_unfinished(name)
            old = name.endswith(".parquet") and entry.modified < time.time() - _WEEK
            if name not in kept and (own or old):
                removed += self._store.remove(entry.name)
        return removed


def _taken(rows: pa.Table, numbers: Numbers) -> pa.Table:
    return rows.take(pa.array(numbers))


def in_key_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows sorted by the first column of the key, so that the rows of few keys are in few files."""
    kinds = [rows.schema.field(name).type for name in key[:1]]
    if not kinds or pa.types.is_nested(kinds[0]) or pa.types.is_boolean(kinds[0]):
        return rows
    places = pc.sort_indices(rows.column(key[0])).to_numpy()
    # New keys of a sequence are already sorted. Taking rows costs more than sorting one column.
    return rows if bool(np.all(places[1:] > places[:-1])) else rows.take(pa.array(places))
