"""A mirror into a lake of DuckLake: points are snapshots, and go when none needs them."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from pgoutput_fast.mirror import at, fresh, points
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
from support.ducklake import LAKE
from support.mirrors import Place, current_of, expect_equal, place
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
