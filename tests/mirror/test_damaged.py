"""Targets of single tables that are damaged, or that something else made: such a table stops, and the others go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

from pgoutput_fast.mirror import Mirror, MirrorError
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.iceberg.catalog import open_catalog
from support.current_tables import KINDS
from support.forms import and_slow
from support.mirrors import Place, current_of, expect_equal, expect_replayed, history_of, place

__all__ = ["place"]

_TABLES = ("before", "later", "meanwhile", "sound")


def _catalog(place: Place) -> Any:
    return open_catalog(open_store(place.target / "current"), {})


def _query(place: Place, query: str) -> None:
    with duckdb.connect(str(place.target / "current.duckdb")) as connection:
        connection.execute(query)


def _take(place: Place, format: str, name: str) -> None:
    """Something else makes a table where the mirror wants to have its own."""
    directory, rows = place.target / "current" / f"public.{name}", pa.table({"mine": [1]})
    directory.mkdir(parents=True)
    if format == "delta":
        deltalake.write_deltalake(str(directory), rows)
    elif format == "iceberg":
        catalog = _catalog(place)
        catalog.create_namespace("public")
        where = f"file://{place.target}/current/public.{name}"
        catalog.create_table(("public", name), rows.schema, location=where)
        catalog.close()
    else:
        _query(place, f"CREATE SCHEMA IF NOT EXISTS public; CREATE TABLE public.{name} (mine int)")


def _damage(place: Place, format: str, name: str) -> None:
    directory = place.target / "current" / f"public.{name}"
    if format == "duckdb":
        return _query(place, f"DELETE FROM _pgoutput_fast_positions WHERE name = '{name}'")
    for path in _found(directory, "_delta_log/*.json" if format == "delta" else "metadata/*.json"):
        path.write_text("{damaged")


def _found(directory: Path, pattern: str) -> list[Path]:
    found = sorted(directory.glob(pattern))
    assert found
    return found


def _remove(place: Place, format: str, name: str) -> None:
    """Does what the error says."""
    if format == "duckdb":
        return _query(place, f"DROP TABLE public.{name}")
    if format == "iceberg":
        catalog = _catalog(place)
        catalog.drop_table(("public", name))
        catalog.close()
    shutil.rmtree(place.target / "current" / f"public.{name}")


def _stopped(mirror: Mirror) -> dict[str, str]:
    return {
        each.table.removeprefix("public."): str(each.error)
        for each in mirror.status()
        if each.state != "follow"
    }


@pytest.mark.parametrize("format", and_slow(["delta"], [each for each in KINDS if each != "delta"]))
def test_one_table_stops_alone(place: Place, format: str) -> None:
    """At the first load, at a start, and while the mirror runs. When the damage is removed, each is loaded again."""
    database = place.database
    for name in _TABLES:
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (1, 'loaded')"
        )
    database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    change = [
        f"INSERT INTO {name} SELECT max(id) + 1, 'change' FROM {name}; UPDATE {name} SET v = 'new' WHERE id = 1"
        for name in _TABLES
    ]
    _take(place, format, "before")
    with place.mirror(format=format) as mirror:
        mirror.run(until_lsn="now")
        assert _stopped(mirror).keys() == {"before"}
    _damage(place, format, "later")
    database.execute(*change)
    with place.mirror(format=format) as mirror:
        assert _stopped(mirror).keys() == {"before", "later"}  # before it runs
        mirror.run(until_lsn="now")
        assert _stopped(mirror).keys() == {"before", "later"}
        expect_equal(place, "public.meanwhile", "public.sound", format=format)
        _damage(place, format, "meanwhile")
        database.execute(*change)
        mirror.run(until_lsn="now")
        stopped = _stopped(mirror)
        assert stopped.keys() == {"before", "later", "meanwhile"}
        for said in stopped.values():
            assert "is not a table of a mirror" in said or "is damaged" in said
            assert "remove it" in said
        expect_equal(place, "public.sound", format=format)
        for name in stopped:
            kinds = history_of(place.target, f"public.{name}")["_change_type"].to_pylist()
            assert kinds.count("update_postimage") == 2  # the changes are kept
        with pytest.raises(MirrorError, match="cannot be loaded"):
            mirror.reload("public.before")
        for name in stopped:
            _remove(place, format, name)
            mirror.reload(f"public.{name}")
        database.execute(*change)
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    expect_equal(place, *(f"public.{name}" for name in _TABLES), format=format)
    for name in _TABLES[1:]:  # the history of the first one begins with changes, before there was a load
        expect_replayed(place, f"public.{name}", ["id"])


@pytest.mark.slow
def test_names_that_differ_only_in_case(place: Place) -> None:
    """For DuckDB they are the same name. The table that comes second stops, and the others go on."""
    database = place.database
    database.execute('CREATE SCHEMA "Other"', "CREATE SCHEMA other")
    tables = ['"Other".a', '"Other"."A"', "other.a", "other.b", "public.sound"]
    for table in tables:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    for _ in range(2):
        with place.mirror(format="duckdb") as mirror:
            mirror.run(until_lsn="now")
            stopped = {each.table: str(each.error) for each in mirror.status() if each.state != "follow"}
        assert stopped.keys() == {'"Other".a', "other.a"}
        for said in stopped.values():
            assert 'has the table "Other"."A" already' in said
            assert "Rename one of the two tables or schemas on the server" in said
        expect_equal(place, '"Other"."A"', "other.b", "public.sound", format="duckdb")
        for table in tables:
            database.execute(f"INSERT INTO {table} SELECT max(id) + 1 FROM {table}")
    database.execute(
        'ALTER TABLE "Other".a RENAME TO c',
        "ALTER SCHEMA other RENAME TO apart",
        "INSERT INTO apart.a VALUES (9)",
    )
    with place.mirror(format="duckdb") as mirror:
        mirror.run(until_lsn="now")
    expect_equal(place, '"Other".c', '"Other"."A"', "apart.a", "public.sound", format="duckdb")
    renamed = current_of(place.target, "other.b", format="duckdb")  # it has no other directory
    assert sorted(renamed["id"].to_pylist()) == [
        id for (id,) in database.execute("SELECT id FROM apart.b ORDER BY id")
    ]
    assert history_of(place.target, "other.a")["id"].to_pylist() == [2, 3]  # the changes are kept


@pytest.mark.slow
def test_a_history_that_something_else_made(place: Place) -> None:
    """It stays as it is, at the first load and for a table that is published later. The others go on."""
    tables = ("first", "later", "sound")
    for name in tables:
        place.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
    place.database.execute("CREATE PUBLICATION mirrored FOR TABLE first, sound")
    foreign = {name: place.target / "history" / f"public.{name}" for name in ("first", "later")}
    for directory in foreign.values():
        deltalake.write_deltalake(str(directory), pa.table({"mine": [1]}))
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        place.database.execute(
            "ALTER PUBLICATION mirrored ADD TABLE later",
            *(f"INSERT INTO {name} VALUES (2)" for name in tables),
        )
        mirror.run(until_lsn="now")
        assert _stopped(mirror) == {
            name: f"the table in {directory} is not a table of a mirror: use another target, or remove it"
            for name, directory in foreign.items()
        }
        for name in foreign:
            with pytest.raises(MirrorError, match=r"cannot be loaded: .* is not a table of a mirror"):
                mirror.reload(f"public.{name}")
        mirror.run(until_lsn="now")
        for directory in foreign.values():
            assert deltalake.DeltaTable(str(directory)).version() == 0
        expect_equal(place, "public.sound")
        for name, directory in foreign.items():
            shutil.rmtree(directory)
            mirror.reload(f"public.{name}")
        place.database.execute(*(f"INSERT INTO {name} VALUES (3)" for name in tables))
        place.run_in(mirror)
    for name in tables:
        expect_equal(place, f"public.{name}")
        expect_replayed(place, f"public.{name}", ["id"])


@pytest.mark.slow
def test_a_target_whose_memory_somebody_removed(place: Place) -> None:
    """The histories stay as they are. If they are moved away, others begin."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    place.drop()
    for name in ("_mirror", "_segments"):
        shutil.rmtree(place.target / name)
    place.database.execute("DELETE FROM t", "INSERT INTO t VALUES (2)")
    history = place.target / "history" / "public.t"
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        assert _stopped(mirror) == {
            "t": f"the table in {history} is the history of a mirror whose state is gone: restore _mirror, use another "
            "target, or move the history away"
        }
        assert history_of(place.target, "public.t")["id"].to_pylist() == [1]
        history.rename(place.target / "old")
        mirror.reload("public.t")
        place.run_in(mirror)
    expect_equal(place, "public.t")
    expect_replayed(place, "public.t", ["id"])


@pytest.mark.slow
def test_a_history_that_somebody_removed(place: Place) -> None:
    """A new one would begin in the middle. So the history stands still until the table is loaded again."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1), (2)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    shutil.rmtree(place.target / "history" / "public.t")
    place.database.execute("DELETE FROM t WHERE id = 1")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        (status,) = mirror.status()
        assert status.state == "follow"
        assert "it is gone: somebody removed it" in str(status.history_error)
        assert not (place.target / "history" / "public.t").exists()
        expect_equal(place, "public.t")
        mirror.reload("public.t")
        place.run_in(mirror)
    place.database.execute("INSERT INTO t VALUES (3)")
    place.run()
    expect_equal(place, "public.t")
    expect_replayed(place, "public.t", ["id"])


@pytest.mark.slow
@pytest.mark.parametrize("running", and_slow([True], [False]))
def test_a_history_that_must_be_read_in_another_way(place: Place, running: bool) -> None:
    """Its files may have rows that a user deleted. Only this history stops, and nobody reads it."""
    place.database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "b")),
        "CREATE PUBLICATION mirrored FOR TABLE a, b",
    )
    place.run()
    uri = str(place.target / "history" / "public.a")

    def enable() -> None:
        deltalake.DeltaTable(uri).alter.add_feature(
            deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
        )

    change = [f"INSERT INTO {name} SELECT count(*) FROM {name}" for name in ("a", "b")]
    if not running:
        enable()
    with place.mirror() as mirror:
        if running:
            place.database.execute(*change)
            mirror.run(until_lsn="now")
            enable()
        for _ in range(2):  # a commit that meets the feature may be the last one
            place.database.execute(*change)
            mirror.run(until_lsn="now")
        stopped, other = mirror.status()
        assert (stopped.state, other.state, other.history_error) == ("follow", "follow", None)
        assert "it has deletionVectors, which this package does not know" in str(stopped.history_error)
        expect_equal(place, "public.a", "public.b")
        with pytest.raises(MirrorError, match=r"deletionVectors.*Remove its directory"):
            mirror.reload("public.a")
        shutil.rmtree(uri)
        mirror.reload("public.a")
        place.database.execute(*change)
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    for table in ("public.a", "public.b"):
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])


@pytest.mark.slow
def test_a_table_that_is_removed_while_the_mirror_has_it_open(place: Place) -> None:
    place.database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "b")),
        "CREATE PUBLICATION mirrored FOR TABLE a, b",
    )
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        shutil.rmtree(place.target / "current" / "public.a")
        place.database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
        mirror.run(until_lsn="now")
        removed, other = mirror.status()
        assert (removed.state, other.error) == ("stopped", None)
        assert "is damaged: " in str(removed.error)
        mirror.reload("public.a")
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    expect_equal(place, "public.a", "public.b")
