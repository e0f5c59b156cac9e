"""The kinds of current tables, by name."""

from __future__ import annotations

from collections.abc import Mapping

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.mirror.current.table import CurrentTable
from pgoutput_fast.mirror.layout import CURRENT, directory_of
from pgoutput_fast.storage.stores import Store

__all__ = ["FORMATS", "check_format", "open_current"]

FORMATS = ("delta", "parquet", "duckdb")
_DATABASE = f"{CURRENT}.duckdb"


def check_format(format: str, store: Store) -> None:
    """Checks that a target can have current tables of a format.

    Raises:
        ValueError: if it cannot.
    """
    if format not in FORMATS:
        raise ValueError(
            f"format must be {', '.join(map(repr, FORMATS[:-1]))} or {FORMATS[-1]!r}, not {format!r}"
        )
    if format == "duckdb" and not store.local:
        raise ValueError(
            f"{store} is a store, but a database of DuckDB is a file of this machine: use another format"
        )


def open_current(format: str, store: Store, table: str, storage_options: Mapping[str, str]) -> CurrentTable:
    """Opens a current table, which need not exist yet.

    Args:
        format: one of `FORMATS`.
        store: the target of the mirror.
        table: the qualified name of the server's table, quoted as in SQL.
        storage_options: what delta-rs needs to reach the store, beside what the URI says.

    Raises:
        ImportError: if a package is not installed that the format needs.
    """
    if format == "duckdb":
        from pgoutput_fast.mirror.current.duckdb import DuckDBCurrent

        parts = parse_qualified_name(table)
        assert parts is not None
        return DuckDBCurrent(store.at(_DATABASE), parts[1], parts[0])
    if format == "parquet":
        from pgoutput_fast.mirror.current.parquet import ParquetCurrent

        return ParquetCurrent(store.at(CURRENT), directory_of(table))
    from pgoutput_fast.mirror.current.delta import DeltaCurrent

    return DeltaCurrent(store.at(CURRENT), directory_of(table), storage_options)
