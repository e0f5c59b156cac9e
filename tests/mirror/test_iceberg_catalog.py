"""Current tables of Iceberg in a catalog that is not the mirror's own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import duckdb
import psycopg2
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import OperationalError

from pgoutput_fast.mirror import MirrorError, at, fresh, points, status_of
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.errors import CatalogAwayError
from pgoutput_fast.tables.options import TableOptions
from support import counters, pg
from support.buckets import opened_bucket
from support.counters import Counting, expect_counted
from support.forms import and_slow
from support.fresh import ahead, position_now
from support.mirrors import Following, Place, place

__all__ = ["place"]


def _prepare(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
        "CREATE PUBLICATION mirrored FOR TABLE orders",
    )


def _catalog(directory: Path, **more: str) -> dict[str, str]:
    return {"name": "shared", "type": "sql", "uri": f"sqlite:///{directory}/shared.db", **more}


def _rows(properties: dict[str, str], table: str = "public.orders") -> list[dict[str, Any]]:
    """What another program reads."""
    found = load_catalog(**properties).load_table(table)
    return sorted(
        found.scan(selected_fields=("id", "note")).to_arrow().to_pylist(), key=lambda row: row["id"]
    )


@pytest.mark.slow
def test_a_catalog_elsewhere(place: Place, tmp_path: Path) -> None:
    _prepare(place)
    catalog = _catalog(tmp_path)
    more: dict[str, Any] = {"format": "iceberg", "iceberg_catalog": catalog}
    place.run(**more)
    assert _rows(catalog) == [{"id": 1, "note": "new"}, {"id": 2, "note": "new"}]
    with ahead(place, **more):
        place.database.execute(
            "UPDATE orders SET note = 'paid' WHERE id = 1", "DELETE FROM orders WHERE id = 2"
        )
        lsn = position_now(place, iceberg_catalog=catalog)
        rows = fresh(place.target, "public.orders", ["id", "note"], lsn, iceberg_catalog=catalog)
        assert rows.to_pylist() == [{"id": 1, "note": "paid"}]
    assert _rows(catalog) == [{"id": 1, "note": "paid"}]
    assert not (place.target / "current" / "_catalog.db").exists()
    with pytest.raises(ValueError, match=r"are in the catalog sqlite:.*shared\.db: pass iceberg_catalog="):
        fresh(place.target, "public.orders")
    with pytest.raises(ValueError, match=r"are in the catalog sqlite:.*shared\.db: pass iceberg_catalog="):
        status_of(place.target)
    found = status_of(place.target, iceberg_catalog=catalog)
    assert {(each.state, each.waiting_rows) for each in found} == {("follow", 0)}
    assert not (place.target / "current" / "_catalog.db").exists()
    with pytest.raises(MirrorError, match=r"its iceberg_catalog is sqlite:.*shared\.db, not the default"):
        place.run(format="iceberg")
    with pytest.raises(ValueError, match="iceberg_catalog= is for format='iceberg': leave it out"):
        place.mirror(iceberg_catalog=catalog)


@pytest.mark.slow
def test_tables_in_a_store(place: Place, tmp_path: Path) -> None:
    _prepare(place)
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "mine"
        with pytest.raises(ValueError, match="need a catalog: pass iceberg_catalog="):
            place.mirror(format="iceberg")
        said = {"s3.endpoint": f"http://{bucket.endpoint}", "s3.region": "us-east-1"}
        catalog = _catalog(tmp_path, **said, **{"s3.access-key-id": "key", "s3.secret-access-key": "secret"})
        place.run(format="iceberg", iceberg_catalog=catalog)
        place.database.execute(
            "UPDATE orders SET note = 'paid' WHERE id = 1", "DELETE FROM orders WHERE id = 2"
        )
        place.run(format="iceberg", iceberg_catalog=catalog)
        assert _rows(catalog) == [{"id": 1, "note": "paid"}]
        rows = fresh(place.target, "public.orders", ["id", "note"], iceberg_catalog=catalog)
        assert rows.to_pylist() == [{"id": 1, "note": "paid"}]


@pytest.mark.slow
def test_several_databases_in_one_catalog(place: Place, tmp_path: Path) -> None:
    """Each has a target and a prefix of its own. Without one, a mirror does not write into tables of another."""
    _prepare(place)
    catalog = _catalog(tmp_path)
    more: dict[str, Any] = {"format": "iceberg", "iceberg_catalog": catalog}
    other = pg.Database(place.database.server)
    south, third = Place(other, tmp_path / "south"), Place(other, tmp_path / "third")
    third.slot += "3"
    try:
        _prepare(south)
        other.execute("UPDATE orders SET note = 'south'")
        place.run(**more)
        south.run(**more, namespace="south_")
        for each in (place, south):
            each.database.execute("DELETE FROM orders WHERE id = 2")
        place.run(**more)
        south.run(**more, namespace="south_")
        assert _rows(catalog) == [{"id": 1, "note": "new"}]
        assert _rows(catalog, "south_public.orders") == [{"id": 1, "note": "south"}]
        rows = fresh(south.target, "public.orders", ["id", "note"], iceberg_catalog=catalog)
        assert rows.to_pylist() == [{"id": 1, "note": "south"}]
        (found,) = status_of(south.target, iceberg_catalog=catalog)
        assert (found.table, found.state, found.waiting_rows) == ("public.orders", "follow", 0)
        with third.mirror(**more) as mirror:
            mirror.run(until_lsn="now")
            (found,) = mirror.status()
        assert found.state == "stopped"
        assert "the catalog has the table public.orders at" in str(found.error)
        assert _rows(catalog) == [{"id": 1, "note": "new"}]
    finally:
        south.drop()
        third.drop()
        other.drop()


@pytest.mark.newest_server
@pytest.mark.parametrize("format", and_slow(["delta"], ["duckdb", "iceberg"]))
def test_a_namespace_in_the_target(place: Place, format: str) -> None:
    """The names in the target have the prefix. A mirror keeps it, and readers take the names of the server."""
    _prepare(place)
    place.run(format=format, namespace="north_")
    place.database.execute("UPDATE orders SET note = 'paid' WHERE id = 1")
    command = place.arguments("--format", format, "--namespace", "north_", "--until", "now")
    subprocess.run(command, env=place.environment, check=True)
    assert (place.target / "history" / "north_public.orders").is_dir()
    if format == "duckdb":
        with duckdb.connect(str(place.target / "current.duckdb"), read_only=True) as connection:
            rows = connection.sql("SELECT id, note FROM north_public.orders ORDER BY id").fetchall()
        assert rows == [(1, "paid"), (2, "new")]
    else:
        assert [each.name for each in (place.target / "current").iterdir() if each.is_dir()] == [
            "north_public.orders"
        ]
    rows = fresh(place.target, "public.orders", ["id", "note"])
    assert sorted(map(str, rows.to_pylist())) == [
        "{'id': 1, 'note': 'paid'}", "{'id': 2, 'note': 'new'}"
    ]  # fmt: skip
    assert list(at(place.target)) == ["public.orders"]
    assert [each.table for each in status_of(place.target)] == ["public.orders"]
    with pytest.raises(MirrorError, match="its namespace is north_, not the default"):
        place.run(format=format)
    with pytest.raises(TypeError, match="namespace must be a str, not"):
        place.mirror(namespace=3)


def test_a_catalog_that_goes_away(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The mirror tries again. No change is lost, and none comes twice."""
    place.database.execute(*counters.SCHEMA)
    lose: list[str] = []
    late: list[Any] = []
    commit = SqlCatalog.commit_table

    def answered(*arguments: Any) -> Any:
        while late:
            commit(*late.pop())
        how = lose.pop() if lose else ""
        if how == "late":
            late.append(arguments)
        else:
            done = commit(*arguments)
        if how:
            raise OperationalError("COMMIT", {}, psycopg2.OperationalError("the answer was lost"))
        return done

    monkeypatch.setattr(SqlCatalog, "commit_table", answered)
    with pg.Server(place.database.server.installation) as server:
        uri = f"postgresql+psycopg2://postgres@127.0.0.1:{server.port}/postgres"
        catalog = {"name": "shared", "type": "sql", "uri": uri}
        more: dict[str, Any] = {"format": "iceberg", "iceberg_catalog": catalog}
        with place.mirror(**more, seconds=0.1) as mirror:
            with Counting(place.database), Following(mirror) as following:

                def wait_for_a_point() -> None:
                    before = points(place.target)[-1:]
                    following.until(lambda: points(place.target)[-1:] != before)

                wait_for_a_point()
                server.crash()
                following.until(lambda: "tries again" in caplog.text)
                server.start()
                wait_for_a_point()
                for how in ("made", "late"):
                    lose.append(how)
                    following.until(lambda: not lose)
                    wait_for_a_point()
            place.run_in(mirror)
            server.crash()
            with pytest.raises(CatalogAwayError, match=r"the Iceberg catalog failed: .* refused"):
                fresh(place.target, counters.TABLE, iceberg_catalog=catalog)
            server.start()
            expect_counted(place, format="iceberg", options=TableOptions(iceberg_catalog=catalog))
    assert "public.counted in" in caplog.text
    assert "is unknown: the Iceberg catalog failed: the answer was lost" in caplog.text


def test_files_of_a_killed_run(place: Place) -> None:
    """They stay while the server of a catalog may still make the commit that adds them."""
    place.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE t")
    uri = f"postgresql+psycopg2://postgres@127.0.0.1:{place.database.server.port}/{place.database.name}"
    more: dict[str, Any] = {"format": "iceberg", "iceberg_catalog": {"type": "sql", "uri": uri}}
    place.run(**more)
    unused = place.target / "current" / "public.t" / "part-current-0123456789abcdef-00001.parquet"
    unused.write_bytes(b"rows")
    state = MirrorState(open_store(place.target))
    state.set_run("killed")
    place.run(**more)
    assert list(state.left_runs()) == ["killed"]
    assert unused.exists()
    state.set_left_runs({"killed": 0.0})
    state.set_cleaned(0.0)
    place.run(**more)
    assert not unused.exists()


@pytest.mark.slow
@pytest.mark.parametrize("in_store", [False, True])
def test_glue(in_store: bool, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The catalog of AWS: of a target in its store, and of a local one."""
    place.database.execute(*counters.SCHEMA)
    with opened_bucket("lakes") as bucket:
        keys = {"region": "us-east-1", "access-key-id": "key", "secret-access-key": "secret"}
        keys["endpoint"] = f"http://{bucket.endpoint}"
        catalog = {
            "type": "glue",
            "glue.max-retries": "2",
            **{f"{of}.{name}": each for of in ("glue", "s3") for name, each in keys.items()},
        }
        if in_store:
            place.target = bucket.uri % "mine"
        with place.mirror(format="iceberg", iceberg_catalog=catalog, seconds=0.1) as mirror:
            with Counting(place.database), Following(mirror) as following:

                def wait_for_a_point() -> None:
                    before = points(place.target)[-1:]
                    following.until(lambda: points(place.target)[-1:] != before)

                wait_for_a_point()
                bucket.lose_answers("AWSGlue.UpdateTable")
                following.until(lambda: not bucket.to_lose)
                wait_for_a_point()
                bucket.stop()
                following.until(lambda: "tries again" in caplog.text)
                bucket.start()
                wait_for_a_point()
            place.run_in(mirror)
        expect_counted(place, format="iceberg", options=TableOptions(iceberg_catalog=catalog))
    if not in_store:
        assert "the Iceberg catalog failed: Could not connect" in caplog.text
