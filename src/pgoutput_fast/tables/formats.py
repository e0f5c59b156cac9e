"""The formats of tables, by name."""

from __future__ import annotations

from typing import cast

from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.delta.table import DeltaTarget
from pgoutput_fast.tables.directories import CURRENT
from pgoutput_fast.tables.duckdb import DuckDBTarget
from pgoutput_fast.tables.ducklake import DuckLakeTarget
from pgoutput_fast.tables.iceberg.table import IcebergTarget
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.parquet import ParquetTarget
from pgoutput_fast.tables.table import CurrentRows, Table, TableRole
from pgoutput_fast.tables.target import FileTarget, Target

__all__ = [
    "FORMATS",
    "HISTORIES",
    "check_name",
    "formats_of",
    "names_of",
    "open_current",
    "open_history",
    "open_target",
]

FORMATS: dict[str, type[Target]] = {
    "parquet": ParquetTarget,
    "delta": DeltaTarget,
    "iceberg": IcebergTarget,
    "duckdb": DuckDBTarget,
    "ducklake": DuckLakeTarget,
}
# The format of histories, whatever the format of the current tables is.
HISTORIES = "delta"


def names_of(role: TableRole, *, of_files: bool = False) -> list[str]:
    """The formats of tables for a role.

    >>> names_of("changes"), names_of("current"), names_of("current", of_files=True)
    (['parquet', 'delta', 'iceberg'], ['delta', 'iceberg', 'duckdb', 'ducklake'], ['delta', 'iceberg'])
    """
    return [
        name
        for name, format in FORMATS.items()
        if role in format.roles and (issubclass(format, FileTarget) or not of_files)
    ]


def check_name(format: str, role: TableRole, *, of_files: bool = False) -> None:
    """Checks the name of a format.

    Raises:
        ValueError: if there is no such format for this role.
    """
    names = names_of(role, of_files=of_files)
    if format not in names:
        raise ValueError(f"format must be one of {', '.join(map(repr, names))}, not {format!r}")


def open_target(format: str, store: Store, options: TableOptions) -> FileTarget:
    """The tables of files of a place."""
    return cast("type[FileTarget]", FORMATS[format])(store, options)


def open_current(format: str, store: Store, table: str, options: TableOptions) -> CurrentRows:
    """Opens a current table, which need not exist yet.

    Args:
        format: its format.
        store: the target of the mirror.
        table: the qualified name of the server's table, quoted as in SQL.
        options: how to reach it.

    Raises:
        ImportError: if a package that the format needs is not installed.
    """
    return FORMATS[format](open_store(store.at(CURRENT)), options).current(table)


def open_history(store: Store, directory: str, options: TableOptions) -> Table:
    """Opens a history, or a table like it, which need not exist yet."""
    return open_target(HISTORIES, store, options).table(directory, "history")


def formats_of(store: Store, directory: str) -> list[str]:
    """The formats of the tables in a directory."""
    return [
        name
        for name, format in FORMATS.items()
        if issubclass(format, FileTarget) and format.has_table(store, directory)
    ]
