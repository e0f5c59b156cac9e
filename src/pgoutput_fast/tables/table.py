"""The interface of tables with a position, whatever their format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["HeldVersion", "Table"]


@dataclass(frozen=True)
class HeldVersion:
    """A version of a table that a reader has opened.

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


class Table(ABC):
    """A table that a mirror or a sink made, with the LSN of its rows as its position."""

    @abstractmethod
    def reached(self) -> tuple[int | None, int | None]:
        """(position, version), read together. None and None if there is no table yet."""

    def position(self) -> int | None:
        """The table's position. None if there is no table yet."""
        return self.reached()[0]

    def version(self) -> int | None:
        """The version of the table that readers see now, in its format. None if there is no table yet."""
        return self.reached()[1]

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The current columns of the table. None if there is no table yet."""

    @abstractmethod
    def held(self, version: int | None = None) -> HeldVersion:
        """Opens the current version, or another one.

        Raises:
            FileNotFoundError: if there is no table, or if it no longer has this version.
            ValueError: if tables of this format have only the current version.
        """

    def read(self, version: int | None = None) -> pa.Table:
        """All rows, in any order, of the current version or another one.

        Raises:
            As `held`.
        """
        held = self.held(version)
        return pa.concat_tables([held.schema.empty_table(), *held.pieces(held.schema.names)])

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All current rows, in any order, in pieces that fit into memory.

        Args:
            columns: the columns to read, which the table must have. The pieces have them in this order.

        Raises:
            FileNotFoundError: if there is no table, or if its files were removed meanwhile.
        """
        return self.held().pieces(columns)

    def mend(self) -> None:  # noqa: B027  (other tables need nothing)
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
