"""What every kind of current table can do, whatever it is stored in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import pyarrow as pa

from pgoutput_fast.mirror.effect.effect import Effect

__all__ = ["CurrentTable"]


class CurrentTable(ABC):
    """A table that has the rows that the server's table had at a position.

    Its position is an LSN: the table has the effect of all transactions that committed there or before, and of no
    other. The rows and the position change in one commit. So who repeats an effect after a crash sees by the position
    whether it was applied.

    The columns are those of the relation, `_commit_lsn` and `_unrepresentable` (`current_schema`), in types that the
    kind of table has.
    """

    @abstractmethod
    def position(self) -> int | None:
        """The table's position. None if there is no table yet."""

    @abstractmethod
    def version(self) -> int | None:
        """The version of the table that readers see now, as its format counts. None if there is no table yet."""

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

    @abstractmethod
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

    @abstractmethod
    def read(self, version: int | None = None) -> pa.Table:
        """All rows, in any order: those of now, or those of a version.

        Raises:
            FileNotFoundError: if there is no table, or if it does not have this version any more.
            ValueError: if tables of this kind have no versions but the one of now.
        """
