"""A mirror of a real database: what it has is what the server has, whatever happens there meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pgoutput_fast.capture import Retention
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import MirrorError, Point, at, points
from pgoutput_fast.protocol.lsn import format_lsn
from support import pg, transfers
from support.buckets import opened_bucket
from support.capturing import drop_when_free
from support.forms import and_slow
from support.mirrors import (
    Following,
    Place,
    current_of,
    expect_equal,
    expect_replayed,
    expect_same_total,
    history_of,
    lose_rows,
    opened,
    place,
)
from support.workload import Workload

__all__ = ["place"]


@pytest.mark.newest_server
def test_a_database_is_mirrored_from_nothing(server: Server, tmp_path: Path) -> None:
    """With transactions and DDL during the load and behind it, on the oldest version and the newest."""
    if server.version not in (min(pg.installations()), max(pg.installations())):
        pytest.skip("tried on the oldest server and the newest")
    with opened(server, tmp_path) as place:
        database = place.database
        work = Workload("w", f"mirror {server.version}", server.version)
        database.execute(work.schema, "CREATE PUBLICATION mirrored FOR ALL TABLES")
        database.execute(*work.transactions(10))
        writer = threading.Thread(target=lambda: database.execute(*work.transactions(40)))
        with place.mirror() as mirror:
            writer.start()
            try:
                mirror.run(until_lsn="now")
            finally:
                writer.join()
            mirror.run(until_lsn="now")
            place.expect_no_errors(mirror)
        tables = [f"public.{name}" for name in work.tables]
        expect_equal(place, *tables)
        assert at(place.target).keys() == set(tables)
        for table, key in zip(tables, (["id"], [], ["code"]), strict=True):
            expect_replayed(place, table, key)


@pytest.mark.slow
def test_points_never_show_a_part_of_a_transaction(place: Place) -> None:
    """Transfers between tables: their total is the same in the versions of every point, whenever it was recorded."""
    database = place.database
    database.execute(*transfers.SCHEMA, "CREATE PUBLICATION mirrored FOR TABLE left_accounts, right_accounts")
    with place.mirror(seconds=0.2) as mirror:
        with transfers.writing(database, 2):
            mirror.run(until_lsn="now")
            with Following(mirror) as following:
                following.until(lambda: len(points(place.target)) > 4)
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    found = points(place.target)
    assert len(found) > 4
    expect_same_total(place, found)
    expect_equal(place, "public.left_accounts", "public.right_accounts")
    # Each point is found by its LSN and by its time.
    for each in found:
        assert at(place.target, each.position) == at(place.target, format_lsn(each.position)) == each.versions
    last = found[-1]
    assert last.committed is not None
    assert at(place.target, last.committed) == at(place.target, last.through) == last.versions
    with pytest.raises(LookupError, match="run the mirror, or use 'latest'"):
        at(place.target, last.through + 1)
    with pytest.raises(LookupError, match="has no point as old as 0/1"):
        at(place.target, 1)


@pytest.mark.slow
def test_columns_that_come_and_go(place: Place) -> None:
    """What DDL does to rows that are there, the stream does not have. The mirror loads such tables again."""
    database = place.database
    altered = {
        "added": [
            "ALTER TABLE added ADD c int",
            "UPDATE added SET c = 7 WHERE id < 5",
            "ALTER TABLE added DROP b",
        ],
        "again": [
            "ALTER TABLE again DROP b",
            "INSERT INTO again VALUES (50)",
            "ALTER TABLE again ADD b text",
        ],
        "filled": ["ALTER TABLE filled ADD d float8 DEFAULT random()"],
        "renamed": ["ALTER TABLE renamed RENAME a TO e", "ALTER TABLE renamed RENAME b TO f"],
        "replaced": ["DROP TABLE replaced", "CREATE TABLE replaced (id int PRIMARY KEY, a int)"],
        "typed": ["ALTER TABLE typed ALTER a TYPE text USING 'was ' || a"],
    }
    for name in altered:
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, a int, b text)",
            f"INSERT INTO {name} SELECT g, g, 'x' FROM generate_series(1, 10) g",
        )
    database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    tables = [f"public.{name}" for name in altered]
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        for name, statements in altered.items():
            database.execute(*statements, f"INSERT INTO {name} (id) VALUES (100)")
        mirror.run(until_lsn="now")
        assert [each.error for each in mirror.status()] == [None] * 6
        expect_equal(place, *tables)
        assert [_loads(place, table) for table in tables] == [1, 2, 2, 2, 2, 1]
        # A type that does not fit ends the history. A load begins a new one.
        (status,) = [each for each in mirror.status() if each.history_error]
        assert "its column 'a' is int32, and the rows have string" in str(status.history_error)
        mirror.reload(status.table)
        place.expect_no_errors(mirror)
        mirror.run(until_lsn="now")
    for table in tables:
        expect_replayed(place, table, ["id"])


def _loads(place: Place, table: str) -> int:
    """How often the table was loaded: its history has the rows of each load."""
    return len({row["_commit_lsn"] for row in history_of(place.target, table).to_pylist() if row["_seq"] < 0})


def test_tables_that_are_published_later(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE first (id int PRIMARY KEY, v text)",
        "CREATE TABLE second (id int PRIMARY KEY, v text)",
        "INSERT INTO second SELECT g, 'old' FROM generate_series(1, 100) g",
        "CREATE PUBLICATION mirrored FOR TABLE first",
    )
    place.run()
    database.execute(
        "INSERT INTO first VALUES (1, 'a')",
        "UPDATE second SET v = 'unseen' WHERE id = 1",
        "ALTER PUBLICATION mirrored ADD TABLE second",
        "UPDATE second SET v = 'seen' WHERE id = 2",
        "DELETE FROM second WHERE id = 3",
    )
    place.run()
    expect_equal(place, "public.first", "public.second")
    expect_replayed(place, "public.second", ["id"])
    database.execute("UPDATE second SET v = v || '!' WHERE id < 10", "INSERT INTO first VALUES (2, 'b')")
    place.run()
    expect_equal(place, "public.first", "public.second")
    expect_replayed(place, "public.second", ["id"])
    assert at(place.target).keys() == {"public.first", "public.second"}


@pytest.mark.slow
def test_a_table_that_is_stopped_and_loaded_again(place: Place) -> None:
    """A row is gone from the mirror: the first change that needs it stops the table. The other one goes on."""
    database = place.database
    database.execute(
        "CREATE TABLE broken (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE broken ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO broken SELECT g, 0, repeat('x', 5000) FROM generate_series(1, 3) g",
        "CREATE TABLE sound (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR TABLE broken, sound",
    )
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
    lose_rows(place, "public.broken")
    database.execute("UPDATE broken SET n = 1", "INSERT INTO sound VALUES (1)")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        broken, sound = mirror.status()
        assert (broken.state, sound.state, sound.error) == ("stopped", "follow", None)
        assert broken.error is not None
        assert at(place.target).keys() == {"public.sound"}
        expect_equal(place, "public.sound")
    database.execute("UPDATE broken SET n = 2 WHERE id = 1", "INSERT INTO sound VALUES (2)")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        assert mirror.status()[0].state == "stopped"
        expect_equal(place, "public.sound")
        expect_replayed(place, "public.broken", ["id"])  # its history goes on
        mirror.reload("public.broken")
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
        with pytest.raises(KeyError, match=r"is not published; published: public\.broken, public\.sound"):
            mirror.reload("public.other")
    expect_equal(place, "public.broken", "public.sound")
    expect_replayed(place, "public.broken", ["id"])


def test_a_table_without_rows_and_one_without_changes(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE TABLE filled (id int, note text)",
        "INSERT INTO filled VALUES (1, NULL), (1, NULL)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    with place.mirror() as mirror:
        assert mirror.status() == []
        mirror.run(until_lsn="now")
        for each in mirror.status():
            assert (each.state, each.version, each.waiting_rows, each.applied_rows) == ("follow", 0, 0, 0)
            assert each.position == each.history_position
            assert each.lag_bytes is not None
            assert each.lag_seconds is not None
            assert 0 <= each.lag_seconds < 100
            assert str(each).startswith(f"{each.table}: follows at ")
    with place.mirror() as mirror:
        assert [each.state for each in mirror.status()] == ["follow", "follow"]  # before it runs
    expect_equal(place, "public.empty", "public.filled")
    (point,) = points(place.target)
    assert isinstance(point, Point)
    assert history_of(place.target, "public.filled").num_rows == 2
    database.execute("INSERT INTO filled VALUES (1, NULL)")
    place.run()
    expect_equal(place, "public.empty", "public.filled")
    assert len(points(place.target)) == 2


@pytest.mark.slow
def test_segments_that_all_tables_have_are_removed(place: Place) -> None:
    database = place.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE t")
    for n in range(4):
        database.execute(f"INSERT INTO t VALUES ({n})")
        place.run(retention=Retention(consumed=True))
    assert len(list((place.target / "_segments").glob("*.parquet"))) == 2
    # It does not pay to compress what is removed soon.
    assert _compressions(place) == {"UNCOMPRESSED"}
    expect_equal(place, "public.t")
    expect_replayed(place, "public.t", ["id"])
    # Without its progress the mirror does not know whether it lacks something.
    (place.target / "_mirror" / "progress.json").unlink()
    for n in range(2):
        with place.mirror() as mirror, pytest.raises(MirrorError, match=r"removed|made another one"):
            mirror.run(until_lsn="now")
        drop_when_free(database.dsn, place.slot)
        database.execute(f"INSERT INTO t VALUES (10 + {n})")
        with place.mirror() as mirror:
            assert [(each.loaded, each.inserted) for each in mirror.repair()] == [(None, 1)]
            mirror.run(until_lsn="now")
        database.execute(f"INSERT INTO t VALUES (20 + {n})")
        place.run()
        expect_equal(place, "public.t")
        expect_replayed(place, "public.t", ["id"])
        (place.target / "_mirror" / "progress.json").unlink()
    assert _compressions(place) == {"UNCOMPRESSED", "ZSTD"}


def _compressions(place: Place) -> set[str]:
    """How the segments of all slots are compressed."""
    files = (place.target / "_segments").rglob("*.parquet")
    return {pq.read_metadata(each).row_group(0).column(0).compression for each in files}


@pytest.mark.slow
def test_a_table_that_is_not_published_any_more(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE kept (id int PRIMARY KEY)",
        "CREATE TABLE gone (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR TABLE kept, gone",
    )
    place.run()
    database.execute("INSERT INTO gone VALUES (1)", "ALTER PUBLICATION mirrored DROP TABLE gone")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        (gone, kept) = mirror.status()
        assert (gone.state, gone.error, kept.state) == ("unpublished", None, "follow")
        assert str(gone).startswith("public.gone: not published any more at ")
        assert mirror.metrics.stopped == 0
        assert at(place.target).keys() == {"public.kept"}
    database.execute("INSERT INTO gone VALUES (2)", "ALTER PUBLICATION mirrored ADD TABLE gone")
    place.run()
    expect_equal(place, "public.gone", "public.kept")


@pytest.mark.parametrize("format", and_slow(["iceberg"], ["duckdb"]))
def test_other_formats(place: Place, format: str) -> None:
    database = place.database
    work = Workload("w", f"mirror {format}", database.version)
    tables = [f"public.{name}" for name in work.tables]
    database.execute(
        work.schema, 'CREATE TABLE "o d.d" (id int PRIMARY KEY)', "CREATE PUBLICATION mirrored FOR ALL TABLES"
    )
    tables.append('public."o d.d"')
    with place.mirror(format=format) as mirror:
        for _ in range(2):
            database.execute(*work.transactions(8), 'INSERT INTO "o d.d" SELECT count(*) FROM "o d.d"')
            mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    expect_equal(place, *tables, format=format)
    with place.mirror() as mirror, pytest.raises(MirrorError, match=f"its format is {format}, not delta"):
        mirror.run(until_lsn="now")


@pytest.mark.slow
def test_a_target_in_a_store(place: Place) -> None:
    """With credentials in the URI, which are in no file and in no error."""
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "mine"
        place.run()
        database.execute("UPDATE t SET v = 'c' WHERE id = 1", "DELETE FROM t WHERE id = 2")
        place.run()
        expect_equal(place, "public.t")
        assert len(points(place.target)) == 2
        with pytest.raises(
            ValueError, match=r"s3://lakes/mine is a store, but a database of DuckDB is a file"
        ):
            place.mirror(format="duckdb")


def test_values_of_many_types(place: Place) -> None:
    """A row is the same, whether a load gives it or a change, and after an update that does not send all of it."""
    database = place.database
    columns = {
        "b": ("bool", "true"),
        "i": ("int8", "-9223372036854775808"),
        "f": ("float8", "'NaN'"),
        "n": ("numeric", "123456789012345678901234567890.5"),
        "d": ("numeric(12, 3)", "-1.5"),
        "na": ("numeric(12, 3)", "'NaN'"),
        "y": ("bytea", r"'\x00ff'"),
        "u": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
        "j": ("jsonb", """'{"a": [1, null]}'"""),
        "da": ("date", "'0001-01-01'"),
        "t": ("time", "'12:30:00.5'"),
        "ts": ("timestamp", "'2026-02-28 11:30:00.000001'"),
        "tz": ("timestamptz", "'infinity'"),
        "iv": ("interval", "'1 mon 2 days 03:00:00'"),
        "a": ("text[]", """'{a,NULL,"b c"}'"""),
        "r": ("int4range", "'[1,5)'"),
        "m": ("mood", "'ok'"),
        "p": ("pair", "'(1,x)'"),
        "pa": ("pair[]", """'{"(1,x)","(2,)"}'"""),
        "o": ("oid", "4294967295"),
        "nu": ("text", "NULL"),
        "big": ("text", "repeat('x', 9000)"),
    }
    values = ", ".join(value for _, value in columns.values())
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (x int, y text)",
        f"CREATE TABLE t (id int PRIMARY KEY, k int, {', '.join(f'{name} {kind}' for name, (kind, _) in columns.items())})",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t VALUES (1, 1, {values}), (2, 1, {values})",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    database.execute(f"INSERT INTO t VALUES (3, 1, {values})", "UPDATE t SET k = 7 WHERE id = 2")
    place.run()
    with place.mirror() as mirror:
        place.expect_no_errors(mirror)
    rows = {row["id"]: row for row in current_of(place.target, "public.t").to_pylist()}
    assert [rows[n]["k"] for n in (1, 2, 3)] == [1, 7, 1]
    hidden = ("id", "k", "_commit_lsn")
    loaded, updated, inserted = ({k: v for k, v in rows[n].items() if k not in hidden} for n in (1, 2, 3))
    assert repr(loaded) == repr(updated) == repr(inserted)
    assert sorted(loaded["_unrepresentable"]) == ["na", "tz"]
    assert loaded["p"] == {"x": 1, "y": "x"}
    assert loaded["m"] == "ok"


@pytest.mark.slow
def test_columns_that_no_table_can_have(place: Place) -> None:
    """Names of metadata columns, at the load and later; two that differ only in case. Only these tables stop."""
    database = place.database
    database.execute(
        'CREATE TABLE cased ("a" int PRIMARY KEY, "A" int)',
        "CREATE TABLE odd (id int PRIMARY KEY, _seq int)",
        'CREATE TABLE sound ("i d" int PRIMARY KEY, "v,;{}\n" text, "ü" int)',
        "CREATE TABLE later (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR TABLE cased, odd, sound, later",
    )
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        database.execute("ALTER TABLE later ADD _lsn int", "INSERT INTO later VALUES (1)")
        for name in ("cased", "odd", "sound"):
            database.execute(f"INSERT INTO {name} VALUES (1, '1')")
        mirror.run(until_lsn="now")
        cased, later, odd, sound = mirror.status()
        assert [each.state for each in (cased, later, odd, sound)] == ["stopped"] * 3 + ["follow"]
        assert "cannot have both columns 'a' and 'A'" in str(cased.error)
        for each in (later, odd):
            assert "has the name of a metadata column" in str(each.error)
            assert "or leave it out with a column list of the publication" in str(each.error)
        expect_equal(place, "public.sound")
        database.execute(
            "ALTER PUBLICATION mirrored DROP TABLE later",
            "ALTER PUBLICATION mirrored ADD TABLE later (id)",
            "ALTER TABLE odd RENAME _seq TO s",
            'ALTER TABLE cased RENAME "A" TO b',
            "INSERT INTO odd VALUES (7, 7)",
            "INSERT INTO cased VALUES (8, 8)",
        )
        mirror.run(until_lsn="now")
        mirror.reload("public.odd")
        mirror.reload("public.cased")
        mirror.reload("public.later")
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    for table, key in (("cased", "a"), ("odd", "id"), ("sound", "i d"), ("later", "id")):
        expect_equal(place, f"public.{table}")
        expect_replayed(place, f"public.{table}", [key])
