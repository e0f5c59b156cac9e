"""Tables of Parquet files with a position: their versions, and the commits of new ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.storage.stores import Store, is_unfinished
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.columns import check_names, fitted, in_schema, merged
from pgoutput_fast.tables.damaged import DamagedError
from pgoutput_fast.tables.data_files import RUN, row_groups, rows_in
from pgoutput_fast.tables.files import CURRENT_FILE_BYTES, WrittenFile
from pgoutput_fast.tables.options import Merge
from pgoutput_fast.tables.table import Commit, CommitLsn, CurrentRows, OpenVersion, Table, Version

__all__ = ["CurrentFileTable"]

_OWN = re.compile(rf"part-{RUN}-[0-9a-f]+-[0-9]+\.parquet")
_WEEK = 7 * 24 * 3600


class CurrentFileTable(CurrentRows):
    """A current table of Parquet files.

    Args:
        table: the same in its format, which makes the commits.
        file_bytes: the largest size of a file, roughly.
        merge: how rows are updated and deleted, as in `TableOptions`.
        commits_late: as `TableOptions.commits_late`.
    """

    #: Called before each commit.
    check: Callable[[], object] | None = None
    #: A file in which a larger share of the rows is marked deleted is worth rewriting without them, because readers
    #: read them. With random keys, this costs about as much CPU time as the merges themselves.
    most_marked = 0.1

    def __init__(
        self,
        table: Table,
        file_bytes: int = CURRENT_FILE_BYTES,
        merge: Merge = "on_write",
        *,
        commits_late: bool = False,
    ) -> None:
        self._table, self._store, self._directory = table, table.store, table.directory
        self._file_bytes, self._merge = file_bytes, merge
        self.commits_late = commits_late or not table.store.local

    def _load(self, number: int | None = None) -> Version | None:
        """A version of the table, by default the current one. None if there is no table.

        Raises:
            FileNotFoundError: if the table no longer has this version.
            ValueError: if a mirror did not make the table. A DamagedError: if the current version cannot be read.
        """
        version = self._table.version(number)
        if version is not None and version.position is None:
            raise ValueError(
                f"{self} is not a table of a mirror, or something else changed it: use another target, or remove it"
            )
        return version

    def __str__(self) -> str:
        return str(self._table)

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

    @property
    def marks(self) -> bool:
        """Whether merges mark rows as deleted, in files that stay."""
        return self._merge == "on_read" and self._table.marks

    def now(self) -> Version | None:
        """The current version of the table with its files. None if there is no table."""
        return self._load()

    def size(self, version: int | None = None) -> tuple[int, int | None]:
        found = self._load(version)
        if found is None:
            raise FileNotFoundError(f"{self} does not exist")
        rows = sum(
            rows_in(self._store, self._directory, file) - (0 if file.deleted is None else file.deleted.count)
            for file in found.files
        )
        return rows, sum(file.nbytes for file in found.files)

    def schema_with(self, before: Version | None, rows: pa.Schema) -> pa.Schema:
        """The columns of the table after it takes decoded rows with these columns. Without `before`, they replace all.

        Raises:
            ValueError: if the table cannot take a column.
        """
        types = self._fitted(before, rows)
        schema = types if before is None else merged(before.schema, types)
        check_names(schema.names, str(self), folded=self._table.folded)
        return self._table.in_files(before, schema)

    def renamed(self, before: Version, names: Sequence[str]) -> pa.Schema:
        """The columns of the table after they got other names.

        Args:
            before: the version.
            names: their names, in its order.

        Raises:
            ValueError: if the table cannot have these names.
        """
        check_names(list(names), str(self), folded=self._table.folded)
        fields = [field.with_name(name) for field, name in zip(before.schema, names, strict=True)]
        return self._table.in_files(before, pa.schema(fields))

    def fit(self, version: Version, rows: pa.Table) -> pa.Table:
        """Decoded rows in the types that a version has, or its next one.

        Raises:
            ValueError: if the table cannot take a column.
        """
        return in_schema(rows, self._fitted(version, rows.schema))

    def _fitted(self, version: Version | None, rows: pa.Schema) -> pa.Schema:
        return fitted(None if version is None else version.schema, rows, str(self), self._table.takes)

    def all_again(self, before: Version, schema: pa.Schema) -> bool:
        """Whether all files must be rewritten before the table can have these columns, some of which are wider."""
        wider = ((field.type, schema.field(field.name).type) for field in before.schema)
        return any(not self._table.can_widen(*types) for types in wider)

    def commit(
        self,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
        deleted: Mapping[str, npt.NDArray[np.int64]],
        *,
        data_change: bool = True,
    ) -> None:
        """Commits files that a writer has written.

        Args:
            before: the version that it has read; None if there was no table.
            schema: the new columns of the table.
            position: the new position.
            added: the new files.
            removed: the names of the removed files; None for all.
            deleted: {name of a file: the positions of the rows that are marked deleted now}.
            data_change: as in `Commit`.

        Raises:
            ConflictError: if another program has committed since `before`. The table is unchanged, and the files stay.
        """
        self._expect_own()
        all_or_some: Collection[str] | Literal["all"] = "all" if removed is None else removed
        with advised(self._store):
            self._table.commit(
                Commit(
                    before,
                    schema,
                    CommitLsn(position),
                    added,
                    all_or_some,
                    deleted=deleted,
                    data_change=data_change,
                )
            )

    def _expect_own(self) -> None:
        if self.check is not None:
            self.check()

    # ---- the interface of a table --------------------------------------------------------------------------------

    def position_and_version(self) -> tuple[int | None, int | None]:
        now = self._load()
        return (None, None) if now is None else (now.lsn, now.number)

    def takes(self, before: pa.DataType, wide: pa.DataType) -> bool:
        return self._table.takes(before, wide)

    def schema(self) -> pa.Schema | None:
        now = self._load()
        return None if now is None else now.schema

    def open(self, version: int | None = None) -> OpenVersion:
        there = self._load(version)
        if there is None:
            raise FileNotFoundError(f"{self} does not exist")

        def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
            for file in there.files:
                for _, rows in row_groups(self._store, self._directory, file, there.schema, columns):
                    yield rows

        apart = there.former_names or any(file.deleted is not None for file in there.files)
        places = [str(self._store.at(f"{self._directory}/{file.name}")) for file in there.files]
        return OpenVersion(there.lsn, there.schema, pieces, None if apart else places)

    def may_have(self, files: Sequence[WrittenFile]) -> bool:
        """Whether the table has any of these files, or cannot be read."""
        try:
            now = self._load()
        except Exception:
            return True
        return now is not None and not {file.name for file in now.files}.isdisjoint(
            each.name for each in files
        )

    def damaged(self, problem: BaseException) -> DamagedError:
        """The error of a table that lacks a file, or has a damaged one."""
        return self._table.damaged(problem, remove=False)

    def vacuum(self, keep: int = 1) -> int:
        if keep < 1:
            raise ValueError("keep must be at least 1: the current version stays")
        now = self._load()
        if now is None:
            return 0
        kept, removed, expired = set[str](), 0, time.time() - _WEEK
        for version in self._table.kept(now, keep):
            kept |= self._table.needed(version)
        for entry in self._store.entries(self._directory):
            name = entry.name.rpartition("/")[2]
            own = _OWN.fullmatch(name) or is_unfinished(name)
            old = name.endswith(".parquet") and entry.modified < expired
            if name not in kept and (own or old):
                removed += self._store.remove(entry.name)
        return removed + self._table.clean(kept, expired)

    def fix_statistics(self) -> None:
        if self._load() is not None:
            self._expect_own()
            self._table.fix_statistics()
