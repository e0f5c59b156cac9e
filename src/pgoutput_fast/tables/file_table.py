"""Tables of Parquet files with a position: their versions, and the commits of new ones."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import pyarrow as pa

from pgoutput_fast.storage.stores import Store, is_unfinished
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.columns import check_names, fitted, in_schema, merged
from pgoutput_fast.tables.data_files import FILE_BYTES, RUN, DataFile, Version, row_groups
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.table import HeldVersion, Table

__all__ = ["ChangedError", "FileTable"]

_OWN = re.compile(rf"part-{RUN}-[0-9a-f]+-[0-9]+\.parquet")
_WEEK = 7 * 24 * 3600


class ChangedError(Exception):
    """Another program has committed to the table since it was read. The commit did nothing."""


class FileTable(Table):
    """A table of Parquet files, whose commits a subclass makes.

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

    # ---- for writers ---------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store with all tables."""
        return self._store

    @property
    def files(self) -> str:
        """The directory of the files in the store."""
        return self._directory

    @property
    def file_bytes(self) -> int:
        """The largest size of a file, roughly."""
        return self._file_bytes

    def now(self) -> Version | None:
        """The current version of the table with its files. None if there is no table."""
        return self._load()

    def schema_with(self, before: Version | None, rows: pa.Schema) -> pa.Schema:
        """The columns of the table after it takes decoded rows with these columns. Without `before`, they replace all.

        Raises:
            ValueError: if the table cannot take a column.
        """
        types = self._fitted(before, rows)
        schema = types if before is None else merged(before.schema, types)
        check_names(schema.names, str(self), folded=self._folded)
        return self._in_files(before, schema)

    def fit(self, version: Version, rows: pa.Table) -> pa.Table:
        """Decoded rows in the types that a version has, or its next one.

        Raises:
            ValueError: if the table cannot take a column.
        """
        return in_schema(rows, self._fitted(version, rows.schema))

    def _fitted(self, version: Version | None, rows: pa.Schema) -> pa.Schema:
        return fitted(None if version is None else version.schema, rows, str(self), self._can_widen)

    def _in_files(self, before: Version | None, schema: pa.Schema) -> pa.Schema:
        """Columns with all metadata of files of this format. Without `before`, all old rows are removed.

        Raises:
            ValueError: if the table cannot have these columns.
        """
        return schema

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
        """Commits files that a writer has written.

        Args:
            before: the version that it has read; None if there was no table.
            schema: the new columns of the table.
            position: the new position.
            added: the new files.
            removed: the names of the removed files; None for all.

        Raises:
            ChangedError: if another program has committed since `before`. The table is unchanged, and the files stay.
        """
        self._expect_own()
        try:
            with advised(self._store):
                self._commit(before, schema, position, added, removed)
        except ChangedError:
            # The other commit may be this one: if the answer of a store is lost, delta-rs retries, and meets its own
            # commit.
            if not self._has_all(added):
                raise

    def _expect_own(self) -> None:
        if self.check is not None:
            self.check()

    # ---- the interface of a table --------------------------------------------------------------------------------

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

    def _has_all(self, files: Sequence[WrittenFile]) -> bool:
        """Whether the table has all of these files, and there are any."""
        now = self._load()
        names = {file.name for file in now.files} if now is not None else set()
        return bool(files) and names.issuperset(file.name for file in files)

    def may_have(self, files: Sequence[WrittenFile]) -> bool:
        """Whether the table has any of these files, or cannot be read."""
        try:
            now = self._load()
        except Exception:
            return True
        return now is not None and not {file.name for file in now.files}.isdisjoint(
            each.name for each in files
        )

    def vacuum(self, keep: int = 1) -> int:
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
