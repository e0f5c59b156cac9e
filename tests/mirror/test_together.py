"""Current tables in a database of DuckDB change in one transaction: after a kill, all of them have a merge, or none."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from support import transfers
from support.mirrors import Place, current_of, expect_equal, place

__all__ = ["place"]

TABLES = "public.left_accounts", "public.right_accounts"


@pytest.fixture
def loaded(place: Place) -> Place:
    pytest.importorskip("duckdb", "2.0")
    place.database.execute(*transfers.SCHEMA, "CREATE PUBLICATION mirrored FOR ALL TABLES")
    place.run(format="duckdb")
    return place


def _positions(place: Place) -> set[tuple[int | None, int | None]]:
    store = open_store(place.target)
    found = (open_current_table("duckdb", store, table, TableOptions()) for table in TABLES)
    return {each.position_and_version() for each in found}


@pytest.mark.newest_server
@pytest.mark.parametrize("call", [1, 2, -2])
def test_killed_amid_the_changes_of_two_tables(loaded: Place, call: int) -> None:
    before = _positions(loaded)
    transfers.write(loaded.database, 1, 25)
    loaded.database.execute(*(f"UPDATE {table} SET balance = balance" for table in TABLES))
    loaded.killed(["pgoutput_fast.merge.duckdb", "DuckDBMerge._change", call], "--format", "duckdb")
    assert _positions(loaded) == before
    rows = [current_of(loaded.target, table, None, "duckdb") for table in TABLES]
    assert sum(pc.sum(each["balance"]).as_py() for each in rows) == transfers.TOTAL
    loaded.run(format="duckdb")
    assert len({position for position, _ in _positions(loaded)}) == 1
    expect_equal(loaded, *TABLES, format="duckdb")


@pytest.mark.newest_server
def test_a_table_that_cannot_take_its_changes_does_not_stop_the_other(loaded: Place) -> None:
    """For DuckDB, the new column has the name of another one."""
    loaded.database.execute('ALTER TABLE left_accounts ADD "ID" int', "UPDATE left_accounts SET balance = 1")
    transfers.write(loaded.database, 1, 25)
    with loaded.mirror(format="duckdb") as mirror:
        mirror.run(until_lsn="now")
        errors = {each.table: each.error for each in mirror.status() if each.error}
    assert errors.keys() == {"public.left_accounts"}
    expect_equal(loaded, "public.right_accounts", format="duckdb")
