"""What every kind of current table can do, whatever it is stored in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.mirror.effect.effect import Effect
from pgoutput_fast.mirror.errors import MirrorBusyError

__all__ = ["CurrentTable", "HeldVersion", "expect_position"]


@dataclass(frozen=True)
class HeldVersion:
    """A version of a current table that a reader has opened.

    Attributes:
        position: the LSN that it has reached.
        schema: its columns.
        pieces: columns -> all rows, with these columns, piece by piece.
        files: the paths or URIs of its files; None if it has none of its own.
    """

    position: int
    schema: pa.Schema
    pieces: Callable[[Sequence[str]], Iterator[pa.Table]]
    files: Sequence[str] | None


class CurrentTable(ABC):
    """A table that has the rows that the server's table had at a position.

    Its position is an LSN: the table has the effect of all transactions that committed there or before, and of no
    other. The rows and the position change in one commit. So after a crash, the position says whether an effect was
    applied.

    The columns are those of the relation, `_commit_lsn` and `_unrepresentable` (`current_schema`), in types that the
    kind of table has.
    """

    @abstractmethod
    def position(self) -> int | None:
        """The table's position. None if there is no table yet."""

    @abstractmethod
    def version(self) -> int | None:
        """The version of the table that readers see now, as its format counts. None if there is no table yet."""

    def reached(self) -> tuple[int | None, int | None]:
        """(the position, the version), for which tables of files look once. None and None if there is no table yet."""
        return self.position(), self.version()

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The columns that the table has now. None if there is no table yet."""

    @abstractmethod
    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        """Makes the table, or replaces all that it has, in one commit.

        Args:
            rows: all rows, with the columns of `schema`. They may be larger than the memory.
            schema: of a current table.
            position: the position that these rows belong to.

        Raises:
            ValueError: if the table cannot take a column, or if something else made the table. It is as before.
        """

    @abstractmethod
    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows with these keys: the key columns and then `columns`, in any order, in the types of the table.

        Args:
            keys: key columns, each key once, as they were decoded. -0.0 and 0.0 are the same key, and so are NaNs.
            columns: other columns. One that the table lacks is null.
        """

    def apply(self, effect: Effect, position: int) -> None:
        """Applies an effect and moves to the position, in one commit. Does nothing if the position is reached already.

        Columns that the table lacks are added first; rows that are there have null in them. Columns that only the table
        has are null in new rows.

        Args:
            effect: without unfilled values.
            position: the new position.

        A key of `gone` that the table lacks is no error.

        Raises:
            ValueError: if a column has a type or a name that the table cannot take, if the effect has unfilled values,
                or if the table lacks a row without a key that goes. The table is as before.
            RuntimeError: if something else changes the table again and again meanwhile. The table has nothing of this
                effect.
        """
        if effect.unfilled:
            raise ValueError("the effect has values that are not filled: fill them from `find` first")
        self.apply_parts([effect], position)

    @abstractmethod
    def apply_parts(self, parts: Iterable[Effect], position: int, after: int | None = None) -> None:
        """Applies effects one after the other, in one commit: readers see all of them, or none.

        One effect at a time is in memory. Values that an effect lacks are those that the table has behind the effects
        before it.

        Args:
            parts: the effects. They may be asked for again from the beginning, if something else changes the table.
            position: the new position. Nothing is done if it is reached already.
            after: the position that the table must have. None: any one.

        Raises:
            MirrorBusyError: if the table has another position: another process mirrors into it. The table is as it is.
            ValueError, RuntimeError: as `apply`.
        """

    def read(self, version: int | None = None) -> pa.Table:
        """All rows, in any order: those of now, or those of a version.

        Raises:
            As `held`.
        """
        there = self.held(version)
        return pa.concat_tables([there.schema.empty_table(), *there.pieces(there.schema.names)])

    def mend(self) -> None:  # noqa: B027  (other tables need nothing)
        """Lets every reader find all rows in files of earlier versions of this package, and of other programs.

        The rows and the position stay.
        """

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows of now, in any order, in pieces that fit into memory.

        Args:
            columns: the columns to read, all of which the table has. The pieces have them in this order.

        Raises:
            FileNotFoundError: if there is no table, or if its files were removed meanwhile.
        """
        return self.held().pieces(columns)

    @abstractmethod
    def held(self, version: int | None = None) -> HeldVersion:
        """Opens the version of now, or another one.

        Raises:
            FileNotFoundError: if there is no table, or if it does not have this version any more.
            ValueError: if tables of this kind have no versions but the one of now.
        """


def expect_position(table: CurrentTable, now: int | None, after: int | None) -> None:
    """Checks that a table has the position that changes were taken for.

    Raises:
        MirrorBusyError: if it has another one.
    """
    if after is not None and now != after:
        raise MirrorBusyError(
            f"{table} has another position than this mirror left it at: another process mirrors into it. Stop one of "
            "them, and run the other one again"
        )
