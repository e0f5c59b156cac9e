"""Rows of current tables as independent readers have them: programs that know only the format."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from support.current_tables import RandomEffects
from support.iceberg_files import open_table
from support.marked import read_with_delta_rs

__all__ = ["expect_model", "query_lake", "rows_of_iceberg"]


def rows_of_iceberg(place: Path, name: str, native: bool = True) -> list[pa.Table]:
    """With the reader of polars, too, if that is `native`: it refuses deletes of several files, and vectors."""
    table = open_table(place, name)
    rows = [table.scan().to_arrow()]
    if native:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # a package of polars would plan faster
            rows.append(pl.scan_iceberg(table, reader_override="native").collect().to_arrow())
    return rows


def query_lake(place: Path, query: str) -> Any:
    """The result of a query of DuckDB, in which the lake is `lake`."""
    import duckdb

    (directory,) = import_module("duckdb_extension_ducklake").__path__
    connection = duckdb.connect()
    connection.execute(f"LOAD '{directory}/extensions/v{duckdb.__version__}/ducklake.duckdb_extension'")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"ATTACH 'ducklake:{place}' AS lake (READ_ONLY)")
    return connection.execute(query)


def expect_model(effects: RandomEffects, kind: str, place: Path, name: str = "public.orders") -> None:
    """Asserts that two independent readers have the rows of a model; of a lake, DuckDB has them.

    Args:
        effects: have the model.
        kind: of the table, as for `support.current_tables.open_table`.
        place: the directory of the target.
        name: of the table.
    """
    if kind in ("delta", "marked"):
        read = [read_with_delta_rs(place / name), pl.read_delta(str(place / name)).to_arrow()]
    elif kind in ("iceberg", "marked iceberg"):
        read = rows_of_iceberg(place, name)
    else:
        assert kind == "ducklake"
        # ducklake-dataframe 1.0 fails at its files of deletes, and polars-ducklake 0.2 refuses rows in the catalog.
        read = [query_lake(place / "current.ducklake", f'SELECT * FROM lake.main."{name}"').to_arrow_table()]
    for rows in read:
        table: Any = SimpleNamespace(
            read=lambda _version, rows=rows: rows, table=SimpleNamespace(signed_zeros=kind != "ducklake")
        )
        effects.model.assert_equal(table, effects.compared)
