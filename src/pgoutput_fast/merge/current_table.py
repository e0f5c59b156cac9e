"""The interface of current tables, whatever their format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
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
    """

    table: CurrentRows

    def __init__(self, table: CurrentRows) -> None:
        self.table = table

    def __str__(self) -> str:
        return str(self.table)

    # ---- what the table of the format does -----------------------------------------------------------------------

    def position_and_version(self) -> tuple[int | None, int | None]:
        return self.table.position_and_version()

    def schema(self) -> pa.Schema | None:
        return self.table.schema()

    def open(self, version: int | None = None) -> OpenVersion:
        return self.table.open(version)

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        return self.table.scan(columns)

    def fix_statistics(self) -> None:
        self.table.fix_statistics()

    def vacuum(self, keep: int = 1) -> int:
        return self.table.vacuum(keep)

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


def with_null_columns(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows with these columns, of which those that are missing are null."""
    for name in names:
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.select(names)
