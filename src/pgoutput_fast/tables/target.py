"""The interface of formats: a `Target` has all tables of one place in one format."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.directories import delta_directory, directory_of
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.options import MERGES, TableOptions
from pgoutput_fast.tables.table import CurrentRows, Table, TableRole

__all__ = ["FileTarget", "Target"]


class Target(ABC):
    """All tables of one place in one format. A format is a subclass in `formats.FORMATS`.

    Args:
        store: the place: a directory or a store.
        options: how to reach the tables.
    """

    #: What tables of this format can be for.
    roles: ClassVar[frozenset[TableRole]]
    #: The library that the format needs, and what pip installs for it.
    package: ClassVar[tuple[str, str] | None] = None
    #: Characters in a local path that readers of the format misread, because they make a URI of it.
    unfit: ClassVar[re.Pattern[str] | None] = None
    #: Whether rows of current tables can be marked deleted.
    marks: ClassVar[bool] = False
    #: Whether columns of current tables can get another name while their files stay.
    renames: ClassVar[bool] = False
    #: Whether tables may be in a catalog that the user names.
    takes_catalog: ClassVar[bool] = False

    def __init__(self, store: Store, options: TableOptions) -> None:
        self.store, self.options = store, options

    @classmethod
    def check(cls, store: Store, options: TableOptions, format: str) -> None:
        """Checks that a store can have tables of this format, before anything is written.

        Args:
            store: the store.
            options: how to reach the tables.
            format: the name of the format.

        Raises:
            ValueError: if it cannot.
        """
        if options.iceberg_catalog is not None and not cls.takes_catalog:
            raise ValueError(
                "iceberg_catalog= is for format='iceberg': leave it out, or pass format='iceberg'"
            )
        for merge in options.merge.values() if isinstance(options.merge, Mapping) else (options.merge,):
            if merge not in MERGES:
                raise ValueError(f"merge must be one of {', '.join(map(repr, MERGES))}, not {merge!r}")
            if merge == "on_read" and not cls.marks:
                raise ValueError(f"merge='on_read' is not possible for {format} tables: leave it out")
        cls.check_path(store, format)

    @classmethod
    def check_renames(cls, wanted: bool, format: str) -> None:
        """Checks that columns of current tables can get another name, if that is wanted.

        Raises:
            ValueError: if they cannot.
        """
        if wanted and not cls.renames:
            raise ValueError(
                f"rename_columns is not possible for {format} tables, whose columns have no ids: leave it out, and a "
                "column that is renamed becomes a new one beside the old one. Or use format='iceberg', 'duckdb' or "
                "'ducklake'"
            )

    @classmethod
    def check_path(cls, store: Store, format: str) -> None:
        """Checks that readers of the format find the path of a local target.

        Raises:
            ValueError: if they do not.
        """
        wrong = cls.unfit.search(os.fspath(store.at(""))) if store.local and cls.unfit else None
        if wrong:
            raise ValueError(
                f"{store} cannot be the target, because readers of {format} tables cannot find a path with "
                f"{wrong.group()!r}: use another target"
            )

    @classmethod
    def check_package(cls, user: str) -> None:
        """Checks that the library of the format is installed.

        Args:
            user: names what needs it, for the error.

        Raises:
            ImportError: if it is not; the message says how to install it.
        """
        if cls.package is not None:
            try:
                import_module(cls.package[0])
            except ImportError:
                raise ImportError(f"{user} needs {cls.package[0]}: pip install '{cls.package[1]}'") from None

    @abstractmethod
    def current(self, table: str) -> CurrentRows:
        """Opens a current table, which need not exist yet.

        Args:
            table: the qualified name of the server's table, quoted as in SQL.

        Raises:
            ImportError: if the library of the format is not installed.
        """


class FileTarget(Target):
    """Tables of files, each in a directory of the target."""

    #: The directory below a table's with a file of every table, and the end of this file's name.
    sign: ClassVar[tuple[str, str]]
    #: Whether files must have hidden names until they are committed.
    hidden: ClassVar[bool] = False
    #: Whether several threads may read and commit tables, each its own.
    side_by_side: ClassVar[bool] = True

    @abstractmethod
    def table(self, directory: str, role: TableRole) -> Table:
        """Opens a table, which need not exist yet.

        Args:
            directory: the table's directory in the target.
            role: what it is for.

        Raises:
            ImportError: if the library of the format is not installed.
        """

    def current(self, table: str) -> CurrentFileTable:
        return CurrentFileTable(
            self.table(directory_of(table, self.options.naming), "current"),
            self.options.file_bytes,
            self.options.merge_of(table),
            commits_late=self.options.commits_late(local=self.store.local),
        )

    @classmethod
    def directory(cls, directory: str) -> str:
        """The directory of a table, from the one of `table_directory`."""
        return delta_directory(directory)

    @classmethod
    def has_table(cls, store: Store, directory: str) -> bool:
        """Whether a directory has a table of this format."""
        below, end = cls.sign
        return any(name.endswith(end) for name in store.names(f"{directory}{below}"))
