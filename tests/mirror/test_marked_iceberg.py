"""Mirrors of Iceberg tables that are merged on read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from pgoutput_fast.mirror import at, fresh
from support.buckets import opened_bucket
from support.iceberg_files import open_table
from support.mirrors import Place, current_of, expect_equal, place

__all__ = ["place"]


def _prepare(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders SELECT id, 'new' FROM generate_series(1, 1000) AS id",
        "CREATE PUBLICATION mirrored FOR TABLE orders",
    )


def _change(place: Place, n: int) -> None:
    place.database.execute(
        f"UPDATE orders SET note = 'paid {n}' WHERE id = {n}",
        f"DELETE FROM orders WHERE id = {n + 500}",
        f"INSERT INTO orders VALUES ({n + 2000}, 'more')",
    )


@pytest.mark.newest_server
def test_a_mirror_that_marks_rows(place: Place) -> None:
    """Earlier versions stay readable, and runs with the other merge may lie between."""
    _prepare(place)
    place.run(format="iceberg", merge="on_read")
    loaded = at(place.target)["public.orders"]
    for n in range(1, 5):
        _change(place, n)
        place.run(format="iceberg", merge="on_write" if n == 3 else "on_read")
        expect_equal(place, "public.orders", format="iceberg")
        rows = fresh(place.target, "public.orders", ["id", "note"])
        assert rows.num_rows == 1000
    assert set(current_of(place.target, "public.orders", loaded, format="iceberg")["note"].to_pylist()) == {
        "new"
    }
    table = open_table(place.target / "current", "public.orders")
    assert table.scan().to_arrow().num_rows == 1000
    assert table.current_snapshot().summary["total-delete-files"] == "1"


@pytest.mark.slow
def test_killed_at_a_step_of_a_commit_that_marks_rows(place: Place) -> None:
    _prepare(place)
    place.run(format="iceberg", merge="on_read")
    deletes, catalog = "pgoutput_fast.tables.iceberg.table", "pyiceberg.catalog.sql"
    kills = [
        [deletes, "write_deletes", 1],
        [deletes, "write_deletes", -1],
        [catalog, "SqlCatalog.commit_table", 1],
        [catalog, "SqlCatalog.commit_table", -1],
        ["pgoutput_fast.mirror.state.mirror_state", "MirrorState.set_progress", 1],
    ]
    for n, kill in enumerate(kills, 1):
        _change(place, n)
        place.killed(kill, "--format", "iceberg", "--merge", "on_read")
        ids = fresh(place.target, "public.orders")["id"].to_pylist()
        assert len(ids) == len(set(ids)) == 1000
    with place.mirror(format="iceberg", merge="on_read", keep_points=1) as mirror:
        place.run_in(mirror)
    expect_equal(place, "public.orders", format="iceberg")


@pytest.mark.slow
@pytest.mark.newest_server
def test_marked_rows_in_a_store(place: Place, tmp_path: Path) -> None:
    _prepare(place)
    with opened_bucket("marked") as bucket:
        place.target = bucket.uri % "mine"
        catalog = {
            "name": "shared",
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/shared.db",
            "s3.endpoint": f"http://{bucket.endpoint}",
            "s3.region": "us-east-1",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
        }
        more: dict[str, Any] = {"format": "iceberg", "iceberg_catalog": catalog, "merge": "on_read"}
        place.run(**more)
        for n in range(1, 3):
            _change(place, n)
            place.run(**more)
        table = load_catalog(**catalog).load_table("public.orders")
        rows = fresh(place.target, "public.orders", ["id", "note"], iceberg_catalog=catalog)
        expected = place.database.execute("SELECT id, note FROM orders ORDER BY id")
        for each in (table.scan(selected_fields=("id", "note")).to_arrow(), rows):
            assert [tuple(row.values()) for row in each.sort_by("id").to_pylist()] == expected
        assert table.current_snapshot().summary["total-delete-files"] == "1"
