"""Mirrors that are merged on read: rows that are updated or deleted are marked in files that stay."""

from __future__ import annotations

from typing import Any

import deltalake
import polars as pl
import pytest

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror import fresh, points
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from support.marked import read_with_delta_rs
from support.mirrors import Place, current_of, expect_equal, expect_replayed, mirrored_rows, place, rows_of

__all__ = ["place"]

TABLES = ["public.keyed", "public.whole"]
_ENTRIES = "pgoutput_fast.tables.delta.entries"


@pytest.fixture
def tables(place: Place) -> Place:
    """A table with a key and long values that updates do not send again, and one without a key."""
    place.database.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, v int, note text)",
        "ALTER TABLE keyed ALTER note SET STORAGE EXTERNAL",
        "INSERT INTO keyed SELECT n, 0, repeat('x', CASE n % 100 WHEN 0 THEN 9000 ELSE 5 END) FROM generate_series(1, 600) n",
        "CREATE TABLE whole (a int, b text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "INSERT INTO whole SELECT n % 50, 'x' FROM generate_series(1, 300) n",
        f"CREATE PUBLICATION mirrored FOR TABLE {', '.join(TABLES)}",
    )
    return place


def _change(place: Place, n: int) -> None:
    place.database.execute(
        f"UPDATE keyed SET v = {n} WHERE id % 100 = {7 * n % 100}",
        f"UPDATE keyed SET v = {n} WHERE id IN (100, {100 + n})",
        f"WITH old AS (DELETE FROM keyed WHERE id = {300 + n}) INSERT INTO keyed VALUES ({1000 + n}, {n}, 'new')",
        f"UPDATE keyed SET id = {2000 + n} WHERE id = {500 + n}",
        f"DELETE FROM whole WHERE ctid = (SELECT min(ctid) FROM whole WHERE a = {n})",
        f"UPDATE whole SET b = 'new' WHERE ctid = (SELECT min(ctid) FROM whole WHERE a = {n + 20})",
    )


def _marked(place: Place, table: str) -> int:
    """How many rows are marked in the current version."""
    current: Any = open_current_table("delta", open_store(place.target), table, TableOptions())
    return sum(file.deleted.count for file in current.table.now().files if file.deleted is not None)


def _expect_all(place: Place) -> None:
    expect_equal(place, *TABLES)
    expect_replayed(place, "public.keyed", ["id"])
    for table in TABLES:
        names, expected = rows_of(place.database, table)
        uri = place.target / "current" / table
        for rows in (read_with_delta_rs(uri), pl.read_delta(str(uri)).to_arrow(), fresh(place.target, table)):
            assert mirrored_rows(rows, names) == expected


@pytest.mark.slow
def test_a_mirror_that_marks_rows(tables: Place) -> None:
    tables.run(merge="on_read")
    loaded = [current_of(tables.target, table) for table in TABLES]
    for n in range(1, 4):
        _change(tables, n)
        tables.run(merge="on_read")
        _expect_all(tables)
    assert _marked(tables, "public.keyed") > 20
    assert _marked(tables, "public.whole") == 6
    first = points(tables.target)[0].versions
    assert [current_of(tables.target, table, first[table]) for table in TABLES] == loaded
    # A new column, and then a mirror that does not mark rows.
    tables.database.execute("ALTER TABLE keyed ADD COLUMN more timestamp")
    for n, merge in enumerate(["on_read", "on_write", "on_read"], 4):
        _change(tables, n)
        tables.database.execute(f"UPDATE keyed SET more = '2024-02-29' WHERE id = {200 + n}")
        before = _marked(tables, "public.keyed")
        tables.run(merge=merge)
        _expect_all(tables)
        # A file with marked rows that no change concerns stays as it is.
        assert (_marked(tables, "public.keyed") < before) == (merge == "on_write")
    tables.database.execute("TRUNCATE keyed", "INSERT INTO keyed VALUES (1, 1, 'after')")
    tables.run(merge="on_read")
    _expect_all(tables)


@pytest.mark.slow
def test_killed_at_a_step_of_a_commit_that_marks_rows(tables: Place) -> None:
    tables.run(merge="on_read")
    kills = [
        [_ENTRIES, "write_vectors", 1],
        [_ENTRIES, "write_vectors", -1],
        [_ENTRIES, "write_entry", 2],
        [_ENTRIES, "write_entry", -1],
        [_ENTRIES, "write_entry", -2],
        ["pgoutput_fast.mirror.state.mirror_state", "MirrorState.set_progress", 1],
    ]
    for n, kill in enumerate(kills, 1):
        _change(tables, n)
        tables.killed(kill, "--merge", "on_read")
        ids = fresh(tables.target, "public.keyed")["id"].to_pylist()
        assert len(ids) == len(set(ids)) == 600
    tables.run(merge="on_read")
    _expect_all(tables)
    with tables.mirror(merge="on_read", keep_points=1) as mirror:
        _change(tables, 10)
        tables.run_in(mirror)
    for table in TABLES:
        files = tables.target / "current" / table
        versions = range(deltalake.DeltaTable(files).version() + 1)
        known = {
            uri.rpartition("/")[2]
            for version in versions
            for uri in deltalake.DeltaTable(files, version).file_uris()
        }
        assert {each.name for each in files.glob("*.parquet")} <= known


def test_what_cannot_be_merged_on_read(place: Place) -> None:
    with pytest.raises(ValueError, match="merge='on_read' is not possible for duckdb tables"):
        place.mirror(format="duckdb", merge="on_read")
    with pytest.raises(ValueError, match="merge must be one of 'on_write', 'on_read', not 'later'"):
        place.mirror(merge="later")
    with pytest.raises(ValueError, match="merge must be one of 'on_write', 'on_read', not 'later'"):
        place.mirror(merge={"public.keyed": "on_read", "public.whole": "later"})
    with pytest.raises(TypeError, match="merge must be a str or a dict, not an int"):
        place.mirror(merge=1)


@pytest.mark.newest_server
def test_some_tables_alone(tables: Place, caplog: pytest.LogCaptureFixture) -> None:
    merge = {"public.keyed": "on_read", "public.kayed": "on_read"}
    tables.run(merge=merge)
    assert "merge names public.kayed, which is not mirrored" in caplog.text
    _change(tables, 1)
    tables.run(merge=merge)
    assert [_marked(tables, table) > 0 for table in TABLES] == [True, False]
    _change(tables, 2)
    process = tables.start(
        "--merge", "public.whole=on_read", "--merge", "public.keyed=on_write", "--until", "now"
    )
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert _marked(tables, "public.whole") > 0
    _expect_all(tables)
