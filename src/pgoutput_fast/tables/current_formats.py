"""The formats of current tables, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.data_files import FILE_BYTES
from pgoutput_fast.tables.directories import CURRENT, directory_of
from pgoutput_fast.tables.errors import MirrorError
from pgoutput_fast.tables.formats import check_path
from pgoutput_fast.tables.table import Table

__all__ = ["FORMATS", "check_format", "check_packages", "check_target", "expect_format", "open_current"]

FORMATS = ("delta", "iceberg", "duckdb")
# Histories are Delta tables, whatever the format of the current tables is.
_OF_HISTORIES = ("deltalake", "deltalake>=1.6.6")
_PACKAGES = {
    "iceberg": ("pyiceberg", "pyiceberg[pyarrow,sql-sqlite]"),
    "duckdb": ("duckdb", "duckdb>=2.0"),
}
_DATABASE = f"{CURRENT}.duckdb"


def check_format(format: str, store: Store, iceberg_catalog: Mapping[str, str] | None = None) -> None:
    """Checks that a target can have current tables of a format.

    Args:
        format: one of `FORMATS`.
        store: the target of the mirror.
        iceberg_catalog: as in `open_current`.

    Raises:
        ValueError: if it cannot.
    """
    if format not in FORMATS:
        raise ValueError(
            f"format must be {', '.join(map(repr, FORMATS[:-1]))} or {FORMATS[-1]!r}, not {format!r}"
        )
    if iceberg_catalog and format != "iceberg":
        raise ValueError(f"iceberg_catalog is for format='iceberg', not {format!r}")
    if format == "iceberg" and not store.local and not iceberg_catalog:
        raise ValueError(
            f"{store} is a store, so a mirror in Iceberg needs a catalog: pass iceberg_catalog= with the properties of "
            "a pyiceberg catalog, or use another format"
        )
    if format == "duckdb" and not store.local:
        raise ValueError(
            f"{store} is a store, but a database of DuckDB is a file of this machine: use another format"
        )


def expect_format(format: str, store: Store) -> None:
    """Checks that this version can go on with the current tables that a target has.

    Raises:
        MirrorError: if another version of the package made them, in a format that this one lacks.
    """
    if format not in FORMATS:
        raise MirrorError(
            f"the current tables in {store} have the format {format!r}, which this version of pgoutput_fast lacks. "
            "Mirror into a new target with format='delta' (--format delta), which loads all tables. Let it take the "
            "slot over with adopt=True (--adopt), or drop the slot first (pgoutput-fast slots drop)"
        )


def check_packages(format: str) -> None:
    """Checks that the packages for a format are installed, before a mirror makes a slot.

    Args:
        format: one of `FORMATS`.

    Raises:
        ImportError: if a package is missing; the message says how to install it.
    """
    for module, requirement in (_OF_HISTORIES, _PACKAGES.get(format, _OF_HISTORIES)):
        try:
            import_module(module)
        except ImportError:
            raise ImportError(
                f"a mirror with format={format!r} needs {module}: pip install '{requirement}'"
            ) from None


def check_target(store: Store, format: str) -> None:
    """Checks that the tables of a target can have its path. Histories are Delta tables.

    Raises:
        ValueError: if it is not.
    """
    check_path(store, "delta")
    check_path(store, format)


def open_current(
    format: str,
    store: Store,
    table: str,
    storage_options: Mapping[str, str],
    *,
    file_bytes: int = FILE_BYTES,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> Table:
    """Opens a current table, which need not exist yet.

    Args:
        format: one of `FORMATS`.
        store: the target of the mirror.
        table: the qualified name of the server's table, quoted as in SQL.
        storage_options: options of delta-rs for the store, besides the URI.
        file_bytes: about how many bytes a file has at most, if the table has files.
        iceberg_catalog: properties of a pyiceberg catalog, for Iceberg; None for the catalog in the target.

    Raises:
        ImportError: if a package that the format needs is not installed.
    """
    if format == "duckdb":
        from pgoutput_fast.tables.duckdb import DuckDBCurrent

        parts = parse_qualified_name(table)
        assert parts is not None
        return DuckDBCurrent(store.at(_DATABASE), parts[1], parts[0])
    if format == "iceberg":
        from pgoutput_fast.tables.iceberg.current import IcebergCurrent

        return IcebergCurrent(store.at(CURRENT), directory_of(table), iceberg_catalog, file_bytes=file_bytes)
    from pgoutput_fast.tables.delta.current import DeltaCurrent

    return DeltaCurrent(store.at(CURRENT), directory_of(table), storage_options, file_bytes=file_bytes)
