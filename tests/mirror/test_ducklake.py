"""A mirror into a lake of DuckLake: points are snapshots, and go when none needs them."""

from __future__ import annotations

import re
import time
from typing import Any

import pyarrow.compute as pc
import pytest

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror import at, fresh, points
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from support import transfers
from support.ducklake import LAKE
from support.mirrors import Place, current_of, expect_equal, loads_of, place
from support.paths import DOCS

__all__ = ["place"]

pytestmark = LAKE


def test_points_of_two_tables(place: Place) -> None:
    """`often` changes in each run, and `seldom` in the first one: it keeps its version. `late` is not in all points."""
    database = place.database
    database.execute(
        "CREATE TABLE often (id int PRIMARY KEY, x float8)",
        "CREATE TABLE seldom (t text)",
        "INSERT INTO often VALUES (1, 1.5)",
        "INSERT INTO seldom VALUES ('a'), ('a')",
        "CREATE PUBLICATION mirrored FOR TABLE often, seldom",
    )
    state = MirrorState(open_store(place.target))
    more: dict[str, Any] = {"format": "ducklake", "keep_points": 3}
    for n in range(2, 7):
        if n == 6:
            database.execute(
                "CREATE TABLE late (id int PRIMARY KEY)", "ALTER PUBLICATION mirrored ADD TABLE late"
            )
        database.execute(f"INSERT INTO often VALUES ({n}, {n})", "UPDATE often SET x = x + 1 WHERE id = 1")
        place.run(**more)
    first, *_, last = points(place.target)
    assert first.versions.keys() < last.versions.keys()
    for point in (first, last):
        rows = [
            current_of(place.target, f"public.{name}", point.versions[f"public.{name}"], "ducklake")
            for name in ("often", "seldom")
        ]
        assert [each.num_rows for each in rows] == [6 if point is last else 4, 2]
        assert fresh(place.target, "public.often", position=point.position).num_rows == rows[0].num_rows
    state.set_cleaned(time.time() - 3600)
    place.run(**more)
    assert points(place.target)[0] == first
    assert current_of(place.target, "public.often", first.versions["public.often"], "ducklake").num_rows == 4
    with pytest.raises(FileNotFoundError, match="has no version"):
        current_of(place.target, "public.often", first.versions["public.often"] - 1, "ducklake")
    expect_equal(place, "public.often", "public.seldom", "public.late", format="ducklake")


def test_killed_between_rows_and_commit(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run(format="ducklake")
    before = at(place.target)
    place.database.execute("UPDATE t SET v = 'w' WHERE id > 50", "DELETE FROM t WHERE id < 10")
    place.killed(["pgoutput_fast.tables.ducklake", "fsync", 1], "--format", "ducklake")
    assert current_of(place.target, "public.t", before["public.t"], "ducklake").num_rows == 100
    place.run(format="ducklake")
    expect_equal(place, "public.t", format="ducklake")


def test_renamed_columns_in_place(place: Place) -> None:
    """Each version has the names of its time, also of a column that comes later with a name that became free."""
    more: dict[str, Any] = {"format": "ducklake", "rename_columns": True}
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text)",
        "INSERT INTO t SELECT g, g, 'b' || g FROM generate_series(1, 50) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run(**more)
    seen = {points(place.target)[-1].lsn: fresh(place.target, "public.t").sort_by("id")}
    for statements in (
        (
            "BEGIN; INSERT INTO t VALUES (60, 1, 'y'); ALTER TABLE t RENAME b TO c; "
            "UPDATE t SET a = 5 WHERE id IN (3, 60); COMMIT",
        ),
        ("ALTER TABLE t ADD b text", "UPDATE t SET b = 'new' WHERE id = 4", "DELETE FROM t WHERE id = 5"),
        ("ALTER TABLE t RENAME id TO pid", "UPDATE t SET a = 7 WHERE pid = 6"),
    ):
        place.database.execute(*statements)
        place.run(**more)
        expect_equal(place, "public.t", format="ducklake")
        seen[points(place.target)[-1].lsn] = fresh(place.target, "public.t").sort_by("a")
    names = [[name for name in rows.column_names if name[0] != "_"] for rows in seen.values()]
    assert names == [["id", "a", "b"], ["id", "a", "c"], ["id", "a", "c", "b"], ["pid", "a", "c", "b"]]
    for lsn, rows in seen.items():
        found = fresh(place.target, "public.t", position=lsn)
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, rows.to_pylist()))
    assert loads_of(place, "public.t") == 1


def test_the_page_reads_the_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/current-tables.md."""
    page = (DOCS / "current-tables.md").read_text()
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ATTACH" in each]
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1), (2)",
        "CREATE PUBLICATION mirrored FOR TABLE orders",
    )
    place.run(format="ducklake")
    monkeypatch.chdir(place.target.parent)
    found: dict[str, Any] = {}
    exec(code, found)
    assert sorted(found["rows"]["id"].to_pylist()) == [1, 2]


def test_all_tables_change_in_one_snapshot(place: Place) -> None:
    """Any reader sees the tables of a snapshot at one position: money that moves between them is never lost."""
    place.database.execute(*transfers.SCHEMA, "CREATE PUBLICATION mirrored FOR ALL TABLES")
    place.run(format="ducklake")
    left, right = (
        open_current_table("ducklake", open_store(place.target), f"public.{side}_accounts", TableOptions())
        for side in ("left", "right")
    )
    loaded = max(each.version() or 0 for each in (left, right))
    for seed in range(4):
        transfers.write(place.database, seed, 25)
        place.run(format="ducklake")
        assert left.position_and_version() == right.position_and_version()
    versions = range(loaded, (left.version() or 0) + 1)
    totals = [
        sum(pc.sum(each.read(version)["balance"]).as_py() for each in (left, right)) for version in versions
    ]
    assert totals == [transfers.TOTAL] * len(versions)
    assert len(versions) > 4
    expect_equal(place, "public.left_accounts", "public.right_accounts", format="ducklake")


def test_a_table_that_cannot_take_its_changes_does_not_stop_the_others(place: Place) -> None:
    """DuckLake reserves the name of the new column."""
    place.database.execute(*transfers.SCHEMA, "CREATE PUBLICATION mirrored FOR ALL TABLES")
    place.run(format="ducklake")
    place.database.execute(
        "ALTER TABLE left_accounts ADD row_id int", "UPDATE left_accounts SET balance = 1, row_id = 2"
    )
    transfers.write(place.database, 1, 25)
    with place.mirror(format="ducklake") as mirror:
        mirror.run(until_lsn="now")
        errors = {each.table: each.error for each in mirror.status() if each.error}
    assert errors.keys() == {"public.left_accounts"}
    assert "cannot have the column 'row_id', which DuckLake reserves" in (
        errors["public.left_accounts"] or ""
    )
    expect_equal(place, "public.right_accounts", format="ducklake")


def test_killed_amid_the_changes_of_two_tables(place: Place) -> None:
    place.database.execute(*transfers.SCHEMA, "CREATE PUBLICATION mirrored FOR ALL TABLES")
    place.run(format="ducklake")
    before = at(place.target)
    for kill in (
        ["pgoutput_fast.merge.duckdb", "DuckDBMerge._change", 2],
        ["pgoutput_fast.tables.ducklake", "fsync", 1],
    ):
        transfers.write(place.database, 1, 25)
        place.database.execute(
            "UPDATE left_accounts SET balance = balance", "UPDATE right_accounts SET balance = balance"
        )
        place.killed(kill, "--format", "ducklake")
        rows = [current_of(place.target, table, version, "ducklake") for table, version in before.items()]
        assert sum(pc.sum(each["balance"]).as_py() for each in rows) == transfers.TOTAL
        for table, version in before.items():
            found = open_current_table("ducklake", open_store(place.target), table, TableOptions())
            assert found.version() == version
    place.run(format="ducklake")
    expect_equal(place, "public.left_accounts", "public.right_accounts", format="ducklake")
