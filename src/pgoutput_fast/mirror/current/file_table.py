"""Current tables of Parquet files. An effect rewrites only the files that have rows which go or change."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast.lake.advice import advised
from pgoutput_fast.lake.files import FILE_BYTES, WrittenFile
from pgoutput_fast.mirror.current.columns import check_names, fitted, in_schema, merged, stored_schema
from pgoutput_fast.mirror.current.files import RUN, NewFiles, Version, by_bounds, candidates, row_groups
from pgoutput_fast.mirror.current.matching import Finder, check_all_gone, chosen
from pgoutput_fast.mirror.current.table import CurrentTable
from pgoutput_fast.mirror.effect.effect import COMMIT_LSN, Effect
from pgoutput_fast.storage.stores import Store, is_unfinished

__all__ = ["ChangedError", "FileTable"]

_OWN = re.compile(rf"part-{RUN}-[0-9a-f]+-[0-9]+\.parquet")
# So often an effect is applied again, if something else changes the table meanwhile.
_TRIES = 10
# If there are more files that are shorter than this part of the longest, they become one.
_MOST_SHORT, _SHORT = 16, 4

_WEEK = 7 * 24 * 3600

_Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


class ChangedError(Exception):
    """Something else has committed to the table since it was read. The commit did nothing."""


@dataclass(frozen=True)
class _Found:
    """Rows of a file that go.

    Attributes:
        rows: their ordinals in the file, ascending.
        comes: the row of the effect that takes the place of each; -1 if none does.
    """

    rows: _Numbers
    comes: _Numbers


class FileTable(CurrentTable):
    """A current table of Parquet files, whose commits another class makes.

    Args:
        store: the store with all tables.
        directory: the directory of this table's files in it.
        file_bytes: about how many bytes a file has at most.
    """

    #: Whether `a` and `A` are the same name of a column.
    _folded = False

    def __init__(self, store: Store, directory: str, file_bytes: int = FILE_BYTES) -> None:
        self._store, self._directory, self._file_bytes = store, directory, file_bytes

    @abstractmethod
    def _load(self, number: int | None = None) -> Version | None:
        """A version of the table, by default that of now. None if there is no table."""

    @abstractmethod
    def _commit(
        self,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
        *,
        same_rows: bool = False,
    ) -> None:
        """Makes the next version of the table.

        Args:
            before: the version to change; None if there is no table.
            schema: the new columns.
            position: the new position.
            added: files that come.
            removed: names of files that go; None for all.
            same_rows: whether the table has the same rows as before.

        Raises:
            ChangedError: if `before` is not the version of now.
        """

    @abstractmethod
    def _can_widen(self, there: pa.DataType, wide: pa.DataType) -> bool:
        """Whether a column of the first type can become the second, wider one."""

    @abstractmethod
    def _kept(self, now: Version, keep: int) -> Iterable[Version]:
        """The last versions: `now`, and those before, at most `keep` in all. The others cannot be read any more."""

    def __str__(self) -> str:
        return f"the table in {self._store}/{self._directory}"

    def position(self) -> int | None:
        now = self._load()
        return None if now is None else now.position

    def version(self) -> int | None:
        now = self._load()
        return None if now is None else now.number

    def schema(self) -> pa.Schema | None:
        now = self._load()
        return None if now is None else now.schema

    def read(self, version: int | None = None) -> pa.Table:
        there = self._load(version)
        if there is None:
            raise FileNotFoundError(f"{self} does not exist")
        rows = [each for file in there.files for each in self._rows(there, file.name)]
        return pa.concat_tables([there.schema.empty_table(), *rows])

    def _rows(self, version: Version, name: str) -> Iterator[pa.Table]:
        for _, rows in row_groups(
            self._store, f"{self._directory}/{name}", version.schema, version.schema.names
        ):
            yield rows

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        there = self._load()
        named = [*keys.schema.names, *columns]
        if there is None:
            return pa.table({name: pa.nulls(0) for name in named})
        wanted = self._fit(there, keys)
        known = [name for name in named if name in there.schema.names]
        found = [pa.schema([there.schema.field(name) for name in known]).empty_table()]
        finder = Finder(wanted, keys=True)
        for k in candidates(there, wanted):
            place = f"{self._directory}/{there.files[k].name}"
            # First only the keys: most candidates have none of them.
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
        """Rows in the types that the table has, or gets."""
        types = fitted(None if there is None else there.schema, rows.schema, str(self), self._can_widen)
        return in_schema(rows, types)

    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        stored = stored_schema(schema)
        check_names(stored.names, str(self), folded=self._folded)
        self._load()  # refuses a table that something else made, before the long work
        with NewFiles(self._store, self._directory, self._file_bytes) as files:
            files.write(in_schema(pa.Table.from_batches([each]), stored) for each in rows)
            self._tried(lambda before: self._committed(files, before, stored, position, None))

    def apply(self, effect: Effect, position: int) -> None:
        if effect.unfilled:
            raise ValueError("the effect has values that are not filled: fill them from `find` first")

        def change(before: Version | None) -> None:
            if before is None or before.position < position:
                with NewFiles(self._store, self._directory, self._file_bytes) as files:
                    self._change(before, effect, position, files)

        self._tried(change)

    def optimise(self) -> None:
        """Joins short files. The rows and the position stay.

        Raises:
            RuntimeError: if something else changes the table again and again meanwhile.
        """

        def join(before: Version | None) -> None:
            if before is None or len(short := self._short(before)) < 2:
                return
            with NewFiles(self._store, self._directory, self._file_bytes) as files:
                files.write(rows for k in short for rows in self._rows(before, before.files[k].name))
                gone = {before.files[k].name for k in short}
                self._committed(files, before, before.schema, before.position, gone, same_rows=True)

        self._tried(join)

    def _tried(self, task: Callable[[Version | None], None]) -> None:
        """Does something to the version of now, and again if something else has committed meanwhile.

        Raises:
            RuntimeError: if that happens again and again.
        """
        for _ in range(_TRIES):
            before = self._load()
            try:
                return task(before)
            except ChangedError:
                continue
            except FileNotFoundError:
                if before is None or self.version() == before.number:
                    raise
                # An OPTIMIZE and a VACUUM have removed a file of the version that was read.
        raise RuntimeError(
            f"something else changed {self} {_TRIES} times during a commit: let only one process mirror into it, and "
            "run OPTIMIZE and the like less often. The table has nothing of this effect"
        )

    def _change(self, before: Version | None, effect: Effect, position: int, files: NewFiles) -> None:
        rows = self._fit(before, effect.rows)
        schema = rows.schema if before is None else merged(before.schema, rows.schema)
        check_names(schema.names, str(self), folded=self._folded)
        rows = _sorted(in_schema(rows, schema), effect.key)
        if before is None or effect.truncated:
            files.write([rows])
            return self._committed(files, before, schema, position, None)
        looked = self._look(before, effect, schema, rows)
        short = self._short(before)
        joined = set(short) if len(short) > _MOST_SHORT else set()
        for k in sorted(looked.keys() - joined):
            files.write(self._rewritten(before, k, schema, looked[k], rows))
        old = [looked[k].comes for k in looked]
        new = np.setdiff1d(np.arange(rows.num_rows), np.concatenate(old)) if old else None
        fresh = rows if new is None else rows.take(pa.array(new))
        parts = [self._rewritten(before, k, schema, looked.get(k), rows) for k in short if k in joined]
        files.write(each for part in (*parts, [fresh]) for each in part)
        gone = {before.files[k].name for k in looked.keys() | joined}
        self._committed(files, before, schema, position, gone)

    def _look(self, before: Version, effect: Effect, schema: pa.Schema, rows: pa.Table) -> dict[int, _Found]:
        """The rows that go, by file.

        Raises:
            ValueError: if a row without a key that goes is not there.
        """
        keys = bool(effect.key)
        names = effect.key or [name for name in effect.gone.schema.names if name != COMMIT_LSN]
        gone = in_schema(effect.gone, pa.schema([schema.field(name) for name in names]))
        wanted = pa.concat_tables([gone, rows.select(names)]) if keys else gone
        if not wanted.num_rows:
            return {}
        finder = Finder(wanted, keys=keys)
        left = finder.counts()
        comes = np.full(len(left), -1, np.int64)
        if keys:
            comes[finder.codes[gone.num_rows :]] = np.arange(rows.num_rows)
            left[:] = np.iinfo(np.int64).max  # all rows with a key go
        looked: dict[int, _Found] = {}
        for k in candidates(before, wanted):
            ordinals, numbers = self._look_into(before.files[k].name, schema, wanted, finder, left)
            if len(ordinals):
                looked[k] = _Found(ordinals, _first(comes, numbers))
        if not keys:
            check_all_gone(left, str(self))
        return looked

    def _look_into(
        self, name: str, schema: pa.Schema, wanted: pa.Table, finder: Finder, left: _Numbers
    ) -> tuple[_Numbers, _Numbers]:
        """(ordinals, numbers) of the rows of a file that go. Of equal rows, as many as are `left` go."""
        ordinals, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        place = f"{self._directory}/{name}"
        for begin, rows in row_groups(self._store, place, schema, wanted.schema.names, wanted):
            codes = finder.find(rows)
            at = chosen(codes, left)
            ordinals.append(at + begin)
            numbers.append(codes[at])
        return np.concatenate(ordinals), np.concatenate(numbers)

    def _rewritten(
        self, before: Version, k: int, schema: pa.Schema, found: _Found | None, rows: pa.Table
    ) -> Iterator[pa.Table]:
        """The rows of a file, without those that go, and with those that take their places."""
        place = f"{self._directory}/{before.files[k].name}"
        for begin, there in row_groups(self._store, place, schema, schema.names):
            if found is None:
                yield there
                continue
            first, last = np.searchsorted(found.rows, [begin, begin + there.num_rows])
            stays = np.ones(there.num_rows, np.bool_)
            stays[found.rows[first:last] - begin] = False
            comes = found.comes[first:last]
            yield pa.concat_tables([there.filter(pa.array(stays)), rows.take(pa.array(comes[comes >= 0]))])

    def _short(self, version: Version) -> list[int]:
        """The short files, neighbours next to each other."""
        short = [k for k, file in enumerate(version.files) if file.nbytes * _SHORT < self._file_bytes]
        return by_bounds(version, short)

    def _committed(
        self,
        files: NewFiles,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        removed: Collection[str] | None,
        **more: Any,
    ) -> None:
        """Commits new files. After an error that leaves it open whether they are committed, they stay."""
        try:
            with advised(self._store):
                self._commit(before, schema, position, files.written, removed, **more)
        except ChangedError:
            raise
        except BaseException:
            # A store may do a request later than it says. And an error may come behind the commit.
            if not self._store.local or self._has_any(files.written):
                files.written = []
            raise

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
        """Removes files that only older versions have, and files of commits that never ended.

        Files that something else wrote, such as an OPTIMIZE, it removes when they are a week old.

        Args:
            keep: the files of so many versions stay, the one of now included. Older versions cannot be read any more.

        Returns:
            how many files it removed.

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


def _first(comes: _Numbers, numbers: _Numbers) -> _Numbers:
    """The row that takes the place of each row that goes, by its number. If several rows have a number, one gets it."""
    places = np.full(len(numbers), -1, np.int64)
    each, at = np.unique(numbers, return_index=True)
    places[at] = comes[each]
    comes[each] = -1
    return places


def _sorted(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows in the order of the first column of the key, so that few files have the rows of few keys."""
    kinds = [rows.schema.field(name).type for name in key[:1]]
    if not kinds or pa.types.is_nested(kinds[0]) or pa.types.is_boolean(kinds[0]):
        return rows
    return rows.sort_by(key[0])
