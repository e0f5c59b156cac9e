"""The interface of tables in a lake: their position, and the addition of files in one commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import pyarrow as pa

from pgoutput_fast.schema.evolution import widen
from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.stream import Stream

__all__ = ["Mode", "TableTarget", "fitted_types"]

Mode = Literal["append", "overwrite", "error"]


class TableTarget(ABC):
    """A table in a directory of a lake.

    Its position is the ordinal of the last message whose effect is in the table. Files, position and stream are
    committed together, so runs are idempotent.
    """

    #: Whether files must have hidden names until they are committed.
    hidden: bool
    #: Whether partitions are directories.
    partition_directories: bool = False
    #: Whether the files have the partition columns, too.
    partition_columns_stored: bool = False

    @abstractmethod
    def position(self) -> int | None:
        """The table's position. None if there is no table, or if this package did not write it."""

    @abstractmethod
    def stream(self) -> Stream | None:
        """The stream of the position, perhaps without names.

        None if there is no table, if an earlier version of this package wrote it, or if it was never written from
        segments.
        """

    @abstractmethod
    def transactions(self) -> Transactions | None:
        """Which transactions the table has.

        None if there is no table, or if an earlier version of this package wrote it.
        """

    def named(self, stream: Stream) -> Stream:
        """The stream of this table with its names, if they exist. This may be slow."""
        return stream

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a table."""

    @abstractmethod
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns; empty if there is no table."""

    @abstractmethod
    def fitted(self, schema: pa.Schema) -> pa.Schema:
        """The types that files need, so that rows of this schema can be added. It may have new columns.

        A column may be wider in the table than in the rows. It may be wider in the rows if tables of this format can
        widen it.

        Raises:
            ValueError: if a column has a type in the table that does not fit.
        """

    def stored(self, schema: pa.Schema, mode: Mode) -> pa.Schema:
        """The columns of `fitted` with all metadata of files of this format.

        Raises:
            ValueError: if the table cannot have these columns.
        """
        return schema

    @abstractmethod
    def column_names(self) -> list[str]:
        """The names of the table's columns; none if there is no table."""

    def check_overwrite(self) -> None:  # noqa: B027  (nothing to check: readers read only the files of the log)
        """Checks that `overwrite` replaces all that readers see.

        Raises:
            ValueError: if other files would stay visible.
        """

    @abstractmethod
    def commit(
        self,
        files: Sequence[WrittenFile],
        position: int,
        schema: pa.Schema,
        mode: Mode,
        partition_by: tuple[str, ...] = (),
        stream: Stream | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        """Adds files in one step and sets the position; with `overwrite`, they replace all earlier files.

        Args:
            files: the files, with the types of `fitted`.
            position: the new position.
            schema: the columns of the rows.
            mode: whether the table is replaced.
            partition_by: the partition columns, those of the table if there is one.
            stream: the stream of the position. None if unknown: then the table keeps its stream, but not with
                `overwrite`.
            transactions: which transactions the table then has. None if unknown, as for `stream`.

        Raises:
            ValueError: if the schema does not fit. The table is unchanged.
        """

    def mend(self) -> None:  # noqa: B027  (other tables need nothing)
        """Makes all rows visible to every reader, also in files of an earlier version of this package."""

    @abstractmethod
    def committed(self) -> Collection[str]:
        """The names of the table's files."""


def fitted_types(
    there: pa.Schema,
    new: pa.Schema,
    place: str,
    can_widen: Callable[[pa.DataType, pa.DataType], bool],
    *,
    more_fields: bool = False,
) -> pa.Schema:
    """The types that rows need to fit into a table.

    Args:
        there: the columns of the table.
        new: those of the rows.
        place: names the table.
        can_widen: whether a column of the first type can become the second, wider one.
        more_fields: whether structs of the rows may have more fields, as in `widen`.

    Raises:
        ValueError: if there is no such type.
    """
    return pa.schema([_fitted_field(there, field, place, can_widen, more_fields) for field in new])


def _fitted_field(
    there: pa.Schema,
    field: pa.Field,
    place: str,
    can_widen: Callable[[pa.DataType, pa.DataType], bool],
    more_fields: bool,
) -> pa.Field:
    if field.name not in there.names:
        return field
    known = there.field(field.name).type
    wide = widen(known, field.type, more_fields=more_fields)
    if wide is not None and (wide.equals(known) or can_widen(known, wide)):
        return field.with_type(wide)
    raise ValueError(
        f"{place} has another schema: its column {field.name!r} is {known}, and the rows have {field.type}. "
        f"{'A column cannot change its type in this way' if wide is None else 'Tables of this kind cannot widen it'}: "
        "write to another target, or use mode='overwrite', which loads the whole table again"
    )
