"""What every kind of table in a lake can do: say how far it goes, and add files in one commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Literal

import pyarrow as pa

from pgoutput_fast.mirror.tables.files import WrittenFile

__all__ = ["Mode", "TableTarget"]

Mode = Literal["append", "overwrite", "error"]


class TableTarget(ABC):
    """A table in a directory of a lake.

    Its position is the ordinal of the last message whose effect is in the table. Files and position are committed
    together, so a run that is repeated adds nothing.
    """

    #: Whether files must have hidden names until they are committed.
    hidden: bool

    @abstractmethod
    def position(self) -> int | None:
        """The table's position. None if there is no table, or if something else wrote it."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a table."""

    @abstractmethod
    def check_schema(self, schema: pa.Schema) -> None:
        """Checks that rows of this schema can be added. New columns can.

        Raises:
            ValueError: if a column has another type in the table.
        """

    def check_overwrite(self) -> None:  # noqa: B027  (nothing to check: readers read only the files of the log)
        """Checks that `overwrite` replaces all that readers see.

        Raises:
            ValueError: if files would stay.
        """

    @abstractmethod
    def commit(self, files: Sequence[WrittenFile], position: int, schema: pa.Schema, mode: Mode) -> None:
        """Adds files in one step and sets the position; with `overwrite`, they replace all that was there.

        Raises:
            ValueError: if the schema does not fit. The table is as before.
        """

    @abstractmethod
    def committed(self) -> Collection[str]:
        """The names of the table's files."""


def check_types(there: pa.Schema, new: pa.Schema, place: str) -> None:
    """Checks that columns that both schemas have, have one type.

    Raises:
        ValueError: if not.
    """
    for field in new:
        if field.name in there.names and there.field(field.name).type != field.type:
            raise ValueError(
                f"{place} has another schema: its column {field.name!r} is {there.field(field.name).type}, and the "
                f"rows have {field.type}. Write to another target, or use mode='overwrite'"
            )
