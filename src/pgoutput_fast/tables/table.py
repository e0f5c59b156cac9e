"""The interface of current tables, whatever their format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.tables.errors import MirrorBusyError

__all__ = ["CurrentTable", "HeldVersion", "expect_position"]


@dataclass(frozen=True)
class HeldVersion:
    """A version of a current table that a reader has opened.

    Attributes:
        position: its LSN.
        schema: its columns.
        pieces: columns -> all rows, with these columns, in pieces.
        files: the paths or URIs of its files; None if it has none of its own.
    """

    position: int
    schema: pa.Schema
    pieces: Callable[[Sequence[str]], Iterator[pa.Table]]
    files: Sequence[str] | None


class CurrentTable(ABC):
    """A table with the rows of the server's table at a position.

    Its position is an LSN: the table has the effect of all transactions that committed there or before, and of no
    other. The rows and the position change in one commit. So after a crash, the position shows whether an effect was
    applied.

    The columns are those of the relation, `_commit_lsn` and `_unrepresentable` (`current_schema`), in types of the
    table's format.
    """

    @abstractmethod
    def position(self) -> int | None:
        """The table's position. None if there is no table yet."""

    @abstractmethod
    def version(self) -> int | None:
        """The version of the table that readers see now, in its format. None if there is no table yet."""

    def reached(self) -> tuple[int | None, int | None]:
        """(position, version), which tables of files read together. None and None if there is no table yet."""
        return self.position(), self.version()

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The current columns of the table. None if there is no table yet."""

    @abstractmethod
    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        """Creates the table, or replaces all rows and columns, in one commit.

        Args:
            rows: all rows, with the columns of `schema`. They may be larger than the memory.
            schema: of a current table.
            position: the position of these rows.

        Raises:
            ValueError: if the table cannot take a column, or if a mirror did not make the table. It is unchanged.
        """

    @abstractmethod
    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows with these keys: the key columns and then `columns`, in any order, in the types of the table.

        Args:
            keys: key columns of decoded keys, without duplicates. -0.0 and 0.0 are the same key, and so are NaNs.
            columns: other columns. One that the table lacks is null.
        """

    def apply(self, effect: Effect, position: int) -> None:
        """Applies an effect and sets the position, in one commit. Does nothing if the position is reached already.

        Missing columns are added first, with null in existing rows. Columns that only the table has are null in new
        rows.

        Args:
            effect: without unfilled values.
            position: the new position.

        A key of `gone` that the table lacks is no error.

        Raises:
            ValueError: if a column has a type or a name that the table cannot take, if the effect has unfilled values,
                or if the table lacks a removed row without a key. The table is unchanged.
            RuntimeError: if another program keeps changing the table meanwhile. The table has nothing of this effect.
        """
        if effect.unfilled:
            raise ValueError("the effect has values that are not filled: fill them from `find` first")
        self.apply_parts([effect], position)

    @abstractmethod
    def apply_parts(self, parts: Iterable[Effect], position: int, after: int | None = None) -> None:
        """Applies effects one after the other, in one commit: readers see all of them, or none.

        One effect at a time is in memory. Missing values are read from the table as the previous effects leave it.

        Args:
            parts: the effects. They may be iterated again if another program changes the table.
            position: the new position. Nothing is done if it is reached already.
            after: the position that the table must have. None for any.

        Raises:
            MirrorBusyError: if the table has another position: another process mirrors into it. The table is unchanged.
            ValueError, RuntimeError: as `apply`.
        """

    def read(self, version: int | None = None) -> pa.Table:
        """All rows, in any order, of the current version or another one.

        Raises:
            As `held`.
        """
        there = self.held(version)
        return pa.concat_tables([there.schema.empty_table(), *there.pieces(there.schema.names)])

    def mend(self) -> None:  # noqa: B027  (other tables need nothing)
        """Makes all rows visible to every reader, even in files of earlier versions and of other programs.

        The rows and the position stay.
        """

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All current rows, in any order, in pieces that fit into memory.

        Args:
            columns: the columns to read, which the table must have. The pieces have them in this order.

        Raises:
            FileNotFoundError: if there is no table, or if its files were removed meanwhile.
        """
        return self.held().pieces(columns)

    @abstractmethod
    def held(self, version: int | None = None) -> HeldVersion:
        """Opens the current version, or another one.

        Raises:
            FileNotFoundError: if there is no table, or if it no longer has this version.
            ValueError: if tables of this format have only the current version.
        """


def expect_position(table: CurrentTable, now: int | None, after: int | None) -> None:
    """Checks that a table has the position that changes start from.

    Raises:
        MirrorBusyError: if it has another one.
    """
    if after is not None and now != after:
        raise MirrorBusyError(
            f"{table} has another position than this mirror left it at: another process mirrors into it. Stop one of "
            "them, and run the other one again"
        )
