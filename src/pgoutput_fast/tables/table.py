"""The interfaces of tables, whatever their format.

A `Table` has versions, and a commit makes the next one. `CurrentRows` are the rows of a table of the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.background import BackgroundWork
from pgoutput_fast.tables.columns import fit_types
from pgoutput_fast.tables.damaged import DamagedError, first_line
from pgoutput_fast.tables.errors import LOAD_AGAIN, LOAD_ANY_AGAIN
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.stream import Stream

__all__ = [
    "TABLE_ERRORS",
    "Commit",
    "CommitLsn",
    "ConflictError",
    "CurrentRows",
    "DataFile",
    "DeletedRows",
    "ListedFiles",
    "MarkedRows",
    "Mode",
    "OpenVersion",
    "Ordinal",
    "OutcomeUnknownError",
    "Table",
    "TableRole",
    "Version",
    "Versions",
]

Mode = Literal["append", "overwrite", "error"]
# What a table is for. Those of changes have an `Ordinal`, the others a `CommitLsn`.
TableRole = Literal["changes", "history", "current"]
# Who shares the earlier versions of a current table: nobody, or all tables of the target; `none`: there are none.
Versions = Literal["table", "target", "none"]

_Listing = TypeVar("_Listing")

_REMEDIES: dict[TableRole, str] = {
    "changes": "write to another target, or use mode='overwrite', which loads the whole table again",
    "history": f"{LOAD_AGAIN}: then a new history begins",
    "current": LOAD_ANY_AGAIN,
}
_RUN_AGAIN = "run it again: then the table begins again"


class Ordinal(NamedTuple):
    """The position of a table of changes: the last message of a stream whose effect it has.

    Attributes:
        seq: the ordinal of the message.
        stream: the stream, perhaps without names. None if unknown: an earlier version of this package wrote the table,
            or it was never written from segments. A commit without it keeps the one of the table.
        transactions: which transactions the table has; None as for `stream`.
    """

    seq: int
    stream: Stream | None = None
    transactions: Transactions | None = None


class CommitLsn(NamedTuple):
    """The position of a history or current table: it has all transactions that committed at this LSN or before."""

    lsn: int


class DeletedRows(Protocol):
    """The rows of a file that are marked deleted: they are in the file, and not in the table."""

    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def file(self) -> str | None:
        """The name of the file in the table's directory that has the marks; None if `Table.needed` names what has."""

    def positions(self, store: Store, directory: str, rows: int) -> npt.NDArray[np.int64]:
        """Their positions in the file, from 0 up, ascending.

        Args:
            store: the store of the table.
            directory: the table's directory in it.
            rows: how many rows the file has.

        Raises:
            FileNotFoundError: if the file with the marks is gone.
            ValueError: if it is damaged.
            ImportError: if a package that the format needs is not installed.
        """


@dataclass(frozen=True, eq=False)
class MarkedRows:
    """Rows that a commit marks, beside those that are marked already.

    Attributes:
        before: those that are.
        rows: the positions of others, ascending.
    """

    before: DeletedRows | None
    rows: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.rows) + (0 if self.before is None else self.before.count)

    @property
    def file(self) -> None:
        return None

    def positions(self, store: Store, directory: str, rows: int) -> npt.NDArray[np.int64]:
        if self.before is None:
            return self.rows
        before = self.before.positions(store, directory, rows)
        return np.insert(before, np.searchsorted(before, self.rows), self.rows)


@dataclass(frozen=True)
class DataFile:
    """A file of a table.

    Attributes:
        name: its name in the table's directory.
        rows: how many rows it has, with those that are marked deleted; None in files of other programs that do not tell
            the table. Then `data_files.rows_in` reads it.
        nbytes: its size in bytes.
        deleted: the rows that are marked deleted; None if there are none.
    """

    name: str
    rows: int
    nbytes: int
    deleted: DeletedRows | None = None

    @classmethod
    def of(cls, written: WrittenFile) -> DataFile:
        """A file that was written."""
        return cls(written.name, written.rows, written.nbytes)


class ListedFiles(Sequence[DataFile], Generic[_Listing]):
    """The files of a version, which are listed when they are first used: that may be slow.

    Args:
        read: lists them, in the form of the format.
        files: makes the files of this form.
    """

    def __init__(self, read: Callable[[], _Listing], files: Callable[[_Listing], Iterable[DataFile]]) -> None:
        self._read, self._make = read, files

    @cached_property
    def listing(self) -> _Listing:
        """The files in the form of the format."""
        return self._read()

    @cached_property
    def _files(self) -> list[DataFile]:
        return list(self._make(self.listing))

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, k: int) -> DataFile: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[DataFile]: ...
    def __getitem__(self, k: int | slice) -> DataFile | Sequence[DataFile]:
        return self._files[k]


@dataclass(frozen=True)
class Version:
    """A version of a table.

    Attributes:
        number: the version in the format.
        position: None if this package did not write the table.
        schema: its columns.
        files: its files, which may be listed when they are first used.
        bounds: column -> (least values, largest values) of the column in all files; null if unknown. Nulls do not
            count. Rows that are marked deleted may have them.
        partition_by: the partition columns.
        former_names: whether files may have columns under former names. Then only their ids identify them.
    """

    number: int
    position: Ordinal | CommitLsn | None
    schema: pa.Schema
    files: Sequence[DataFile]
    bounds: Callable[[str], tuple[pa.Array, pa.Array]]
    partition_by: tuple[str, ...] = ()
    former_names: bool = False

    @property
    def lsn(self) -> int:
        """The position of a history or current table."""
        assert isinstance(self.position, CommitLsn)
        return self.position.lsn

    @property
    def ordinal(self) -> Ordinal | None:
        """The position of a table of changes."""
        assert not isinstance(self.position, CommitLsn)
        return self.position

    @property
    def names(self) -> set[str]:
        """The names of its files."""
        return {file.name for file in self.files}


@dataclass(frozen=True)
class Commit:
    """The next version of a table, complete before anything is visible. An append is a commit without removals.

    Attributes:
        base: the version that the writer read; None if there was no table.
        schema: the columns of the added files. The table keeps its other columns, unless all files are removed.
        position: the new position.
        added: the new files.
        removed: the names of the removed files.
        partition_by: the partition columns, those of `base` if there is one.
        deleted: {name of a file of `base` or `added`: positions of rows that are marked deleted now}. Only if the table
            `marks`.
        data_change: whether rows change. Otherwise, the added files have the rows of the removed ones, and readers of
            changes ignore the commit.
    """

    base: Version | None
    schema: pa.Schema
    position: Ordinal | CommitLsn
    added: Sequence[WrittenFile] = ()
    removed: Collection[str] | Literal["all"] = ()
    partition_by: tuple[str, ...] = ()
    deleted: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    data_change: bool = True

    @property
    def replaces(self) -> bool:
        """Whether all files of the table are removed."""
        return self.removed == "all"


@dataclass(frozen=True)
class Joining:
    """Short files of a table that another thread joins.

    Attributes:
        files: the files.
        work: writes the new ones.
    """

    files: Sequence[DataFile]
    work: BackgroundWork[list[WrittenFile]]


class ConflictError(RuntimeError):
    """Another program has committed to the table since it was read. The commit did nothing."""

    def __init__(self, table: object) -> None:
        super().__init__(f"something else changed {table} during the commit, which did nothing: run it again")


# Errors that concern a single table. Others, such as those of a store, or lack of memory, concern all tables.
TABLE_ERRORS = (
    ValueError,
    ConflictError,
    pa.ArrowCapacityError,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowNotImplementedError,
    pa.ArrowSerializationError,
    pa.ArrowTypeError,
)


class OutcomeUnknownError(ConnectionError):
    """A commit failed, and may have been made all the same, or may be made later. So its files must stay."""

    def __init__(self, table: object, problem: BaseException) -> None:
        super().__init__(
            f"the outcome of the commit to {table} is unknown: {first_line(problem)}. Run it again: that finds out"
        )


def _is_made(commit: Commit, newest: Version) -> bool:
    """Whether the newest version is what a commit makes. No other writer knows the names of its files."""
    if commit.added:
        return newest.names.issuperset(file.name for file in commit.added)
    # Without files of its own, it has moved the position, and files have gone.
    base = commit.base
    if newest.position is None or newest.position[0] != commit.position[0]:
        return False
    if base is None:
        return not newest.names
    moved = base.position is None or base.position[0] != commit.position[0]
    before = {file.name: file.deleted for file in base.files}
    if any(file.deleted == before[file.name] for file in newest.files if file.name in commit.deleted):
        return False
    left = set() if commit.removed == "all" else base.names.difference(commit.removed)
    return moved and newest.names == left


class Table(ABC):
    """One table of a target. A format is a subclass.

    Args:
        store: the target with all tables.
        directory: the table's directory in it.
        role: what it is for.
    """

    #: Whether partitions are directories.
    partition_directories = False
    #: Whether the files have the partition columns, too.
    partition_columns_stored = False
    #: Whether `a` and `A` are the same name of a column.
    folded = False
    #: Whether a commit that removes all files may change types in ways that `can_widen` excludes.
    rewrites_types = False
    #: Whether rows can be marked deleted, in files that stay (`Commit.deleted`).
    marks = False
    #: How to remove a table, for errors.
    remove = "remove its directory"

    def __init__(self, store: Store, directory: str, role: TableRole) -> None:
        self.store, self.directory, self.role = store, directory, role
        # The version that was read last; None also before the first read.
        self._known: Version | None = None
        self._is_known = False

    def __str__(self) -> str:
        return f"the table in {self.store}/{self.directory}"

    def version(self, number: int | None = None) -> Version | None:
        """Reads the newest version of the table, or another one. None if there is no table.

        Raises:
            FileNotFoundError: if the table no longer has this version.
            ValueError: if it cannot be read in its role. A DamagedError: if the newest version cannot be read at all.
        """
        if number is not None:
            return self._read(number)
        self._known, self._is_known = self._read(None), True
        return self._known

    @property
    def known(self) -> Version | None:
        """The version that was read last, unless a commit of this object followed. None if there is no table."""
        return self._known if self._is_known else self.version()

    def commit(self, commit: Commit) -> None:
        """Makes the next version, or does nothing.

        Raises:
            ConflictError: if another program has changed the table since `commit.base` in a way that excludes this
                commit. Such are all changes if files are removed, and a change of the position.
            OutcomeUnknownError: if nobody knows whether the commit was made.
            ValueError: if the table cannot have the columns.
        """
        try:
            self._commit(commit)
        except ConflictError:
            # If the answer of a store was lost, a library retries, and meets its own commit.
            newest = self.version()
            if newest is None or not _is_made(commit, newest):
                raise
        finally:
            self._is_known = False

    @abstractmethod
    def _read(self, number: int | None) -> Version | None:
        """As `version`."""

    @abstractmethod
    def _commit(self, commit: Commit) -> None:
        """As `commit`."""

    @abstractmethod
    def can_widen(self, before: pa.DataType, wide: pa.DataType) -> bool:
        """Whether a column of the first type can become the second, wider one, while its files stay."""

    def takes(self, before: pa.DataType, wide: pa.DataType) -> bool:
        """Whether a column can become wider, if necessary by a commit that replaces all files."""
        return (self.rewrites_types and self.role != "changes") or self.can_widen(before, wide)

    def fitted(self, schema: pa.Schema) -> pa.Schema:
        """The types that files need, so that rows of this schema can be added. It may have new columns.

        Raises:
            ValueError: if a column has a type in the table that does not fit.
        """
        known = self.known
        if known is None:
            return schema
        remedy, grows = _REMEDIES[self.role], self.role == "history"
        return fit_types(known.schema, self.plain(schema), str(self), self.takes, remedy, more_fields=grows)

    def plain(self, schema: pa.Schema) -> pa.Schema:
        """Columns in the types of this format."""
        return stored_schema(schema, "table")

    def in_files(self, base: Version | None, schema: pa.Schema) -> pa.Schema:
        """Columns with all metadata of files of this format. Without `base`, all old rows are removed.

        Raises:
            ValueError: if the table cannot have these columns.
        """
        return schema

    def check_overwrite(self) -> None:  # noqa: B027  (nothing to check: readers read only the files of the log)
        """Checks that a commit that replaces all files replaces all that readers see.

        Raises:
            ValueError: if other files would stay visible.
        """

    def named(self, stream: Stream) -> Stream:
        """The stream of this table with its names, if they exist. This may be slow."""
        return stream

    def fix_statistics(self) -> None:  # noqa: B027  (other tables need nothing)
        """Makes all rows visible to every reader, even in files of earlier versions and of other programs.

        The rows and the position stay.
        """

    def begin_joining(self) -> Joining | None:
        """Lets another thread join small files. None if that is not worth while."""
        return None

    def end_joining(self, joining: Joining, within: float | None = None) -> None:  # noqa: B027
        """Waits for joined files, and commits them. The rows and the position stay.

        Does nothing if another program has removed one of the small files meanwhile.

        Args:
            joining: the files.
            within: gives the work up if it takes so many more seconds. None: never.
        """

    def kept(self, now: Version, keep: int) -> Iterable[Version]:
        """The last versions: `now` and those before, at most `keep` in all. Others can no longer be read."""
        for number in range(max(now.number - keep + 1, 0), now.number):
            with suppress(FileNotFoundError):  # Delta removes old entries of its log
                version = self.version(number)
                if version is not None:
                    yield version
        yield now

    def needed(self, version: Version) -> set[str]:
        """The names of the files in the table's directory that a version needs, with those of marks."""
        marks = {file.deleted.file for file in version.files if file.deleted and file.deleted.file}
        return version.names | marks

    def clean(self, kept: Collection[str], expired: float) -> int:
        """Removes files of the format that no version needs, besides those of rows. Returns how many.

        Args:
            kept: the names of files that stay.
            expired: files of other programs are removed if they were written before, in seconds since 1970.
        """
        return 0

    def damaged(self, problem: BaseException, *, remove: bool = True) -> DamagedError:
        """The error of a table that cannot be read.

        Args:
            problem: the error of the reader.
            remove: whether the table must be removed before it can begin again.
        """
        return DamagedError(self, problem, self.remove if remove else None, self.again)

    @property
    def again(self) -> str:
        """How the table begins again after it was removed, for errors."""
        return _RUN_AGAIN if self.role == "changes" else _REMEDIES[self.role]


@dataclass(frozen=True)
class OpenVersion:
    """A version of a current table that a reader has opened.

    Attributes:
        position: its LSN.
        schema: its columns.
        pieces: columns -> all rows, with these columns, in pieces.
        files: the paths or URIs of its files; None if it has none of its own, if rows of them are marked deleted, or if
            they may have columns under former names.
    """

    position: int
    schema: pa.Schema
    pieces: Callable[[Sequence[str]], Iterator[pa.Table]]
    files: Sequence[str] | None


class CurrentRows(ABC):
    """A table with the rows of a table of the server, whatever its format. Its position is an LSN."""

    #: Who shares its earlier versions.
    versions: ClassVar[Versions] = "table"

    @abstractmethod
    def position_and_version(self) -> tuple[int | None, int | None]:
        """(position, version), read together. None and None if there is no table yet."""

    def position(self) -> int | None:
        """The table's position. None if there is no table yet."""
        return self.position_and_version()[0]

    def version(self) -> int | None:
        """The version of the table that readers see now, in its format. None if there is no table yet."""
        return self.position_and_version()[1]

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The current columns of the table. None if there is no table yet."""

    def takes(self, before: pa.DataType, wide: pa.DataType) -> bool:
        """Whether a column of the first type can become the second, wider one."""
        return True

    def together(self) -> AbstractContextManager[None] | None:
        """A block in which changes of all tables of the target, by this thread, become one commit at its end.

        Within the block, positions and versions are not final. After an error in it, no table is changed. None if each
        table of the format has commits of its own.
        """
        return None

    @abstractmethod
    def open(self, version: int | None = None) -> OpenVersion:
        """Opens the current version, or another one.

        Raises:
            FileNotFoundError: if there is no table, or if it no longer has this version.
            ValueError: if tables of this format have only the current version.
        """

    def size(self, version: int | None = None) -> tuple[int, int | None]:
        """(rows, bytes) of the current version or another one; None for bytes that other tables share.

        Raises:
            As `open`.
        """
        held = self.open(version)
        return sum(piece.num_rows for piece in held.pieces(held.schema.names[:1])), None

    def read(self, version: int | None = None) -> pa.Table:
        """All rows, in any order, of the current version or another one.

        Raises:
            As `open`.
        """
        held = self.open(version)
        return pa.concat_tables([held.schema.empty_table(), *held.pieces(held.schema.names)])

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All current rows, in any order, in pieces that fit into memory.

        Args:
            columns: the columns to read, which the table must have. The pieces have them in this order.

        Raises:
            FileNotFoundError: if there is no table, or if its files were removed meanwhile.
        """
        return self.open().pieces(columns)

    def fix_statistics(self) -> None:  # noqa: B027  (other tables need nothing)
        """Makes all rows visible to every reader, even in files of earlier versions and of other programs.

        The rows and the position stay.
        """

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
        return 0
