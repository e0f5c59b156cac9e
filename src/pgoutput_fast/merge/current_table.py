"""The interface of current tables, whatever their format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.fill import Part
from pgoutput_fast.tables.table import CurrentRows, OpenVersion

__all__ = ["CurrentTable", "with_null_columns"]


class CurrentTable(CurrentRows):
    """A table with the rows of the server's table at a position, which effects of changes move.

    Its position is an LSN: the table has the effect of all transactions that committed there or before, and of no
    other. The rows and the position change in one commit. So after a crash, the position shows whether an effect was
    applied.

    The columns are those of the relation, `_commit_lsn` and `_unrepresentable` (`current_schema`), in types of the
    table's format.

    Args:
        table: the table of a format.

    Attributes:
        table: the same.
        more_waits: whether more changes wait for the table. Then it leaves work that can wait to a later effect.
    """

    table: CurrentRows
    more_waits = False

    def __init__(self, table: CurrentRows) -> None:
        self.table = table

    def __str__(self) -> str:
        return str(self.table)

    # ---- what the table of the format does -----------------------------------------------------------------------

    def position_and_version(self) -> tuple[int | None, int | None]:
        return self.table.position_and_version()

    def schema(self) -> pa.Schema | None:
        return self.table.schema()

    def takes(self, before: pa.DataType, wide: pa.DataType) -> bool:
        return self.table.takes(before, wide)

    def together(self) -> AbstractContextManager[None] | None:
        return self.table.together()

    def open(self, version: int | None = None) -> OpenVersion:
        return self.table.open(version)

    def size(self, version: int | None = None) -> tuple[int, int | None]:
        return self.table.size(version)

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        return self.table.scan(columns)

    def fix_statistics(self) -> None:
        self.table.fix_statistics()

    def vacuum(self, keep: int = 1) -> int:
        return self.table.vacuum(keep)

    # ---- files that another thread writes anew -------------------------------------------------------------------

    def commit_rewritten(self, within: float | None = None) -> bool:
        """Commits files that another thread has written anew, if it has. Returns whether there may be a new version.

        The rows and the position stay. An effect does this, too.

        Args:
            within: waits at most so many seconds for the files, then gives them up, and begins no others. None: does
                not wait.

        Raises:
            As `apply`.
        """
        return False

    def give_up_rewriting(self) -> None:
        """Ends what another thread writes anew. The table stays as it is."""

    # ---- changes -------------------------------------------------------------------------------------------------

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
    def apply_parts(self, parts: Iterable[Part], position: int, after: int | None = None) -> None:
        """Applies effects and fills one after the other, in one commit: readers see all of them, or none.

        One of them at a time is in memory. Missing values are read from the table as the previous effects leave it.

        Args:
            parts: the effects and fills. They may be iterated again if another program changes the table.
            position: the new position. Nothing is done if it is reached already.
            after: the position that the table must have. None for any.

        Raises:
            MirrorBusyError: if the table has another position: another process mirrors into it. The table is unchanged.
            ValueError, RuntimeError: as `apply`.
        """


def with_null_columns(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows with these columns, of which those that are missing are null."""
    for name in names:
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.select(names)
