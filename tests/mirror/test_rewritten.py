"""Commands that write a table again as it is need no load. In doubt, and if changes may have been lost, there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.postgres.repacks import running_repacks
from support import pg
from support.forms import and_slow
from support.mirrors import Place, current_of, expect_equal, loads_of, opened
from support.repack import repacking

_ROOT = "WITH (publish_via_partition_root)"
_TABLES = ("public.wide", "public.short", "public.r")
_MADE = (
    "CREATE TABLE wide (id int PRIMARY KEY, note text)",
    "CREATE TABLE short (id int PRIMARY KEY, n int)",
    "CREATE TABLE r (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (0) TO (100)",
    "INSERT INTO wide SELECT g, 'n' FROM generate_series(1, 3) g",
    "INSERT INTO short SELECT g, g FROM generate_series(1, 3) g",
    "INSERT INTO r SELECT g, 'n' FROM generate_series(1, 3) g",
)


@pytest.fixture
def place(servers: pg.Servers, tmp_path: Path) -> Iterator[Place]:
    if max(servers, default=0) < 19:
        pytest.skip("REPACK came with PostgreSQL 19")
    with opened(servers[max(servers)], tmp_path) as found:
        found.database.execute(*_MADE)
        yield found


def _run_twice(place: Place) -> None:
    for _ in range(2):  # the second look decides what the first one could not
        place.run()


def _change(place: Place, number: int) -> None:
    place.database.execute(*(f"INSERT INTO {table} VALUES ({number})" for table in _TABLES))


@pytest.mark.few_servers
def test_the_same_rows_in_other_files(server: Server, tmp_path: Path) -> None:
    if server.version < 13:
        pytest.skip("no roots of partitions before 13")
    commands = [
        "VACUUM FULL {t}",
        "CLUSTER {t} USING {t}_pkey",
        "REINDEX TABLE {t}",
        "ALTER TABLE {t} SET LOGGED",
        "ALTER TABLE {t} SET TABLESPACE elsewhere",
        "ALTER TABLE {t} SET TABLESPACE pg_default",
    ]
    if server.version >= 19:
        commands += ["REPACK {t}", "REPACK {t} USING INDEX {t}_pkey"]
    with opened(server, tmp_path) as place:
        place.database.execute(
            *_MADE,
            f"CREATE PUBLICATION mirrored FOR ALL TABLES {_ROOT}",
            "SET allow_in_place_tablespaces = on",
            "CREATE TABLESPACE elsewhere LOCATION ''",
            "CREATE TABLE named (id int)",
            "CREATE PUBLICATION other FOR TABLE named",
        )
        with pytest.raises(psycopg2.Error, match="publication"):
            place.database.execute("ALTER TABLE named SET UNLOGGED")
        place.run()
        _change(place, 4)
        for table in ("wide", "short", "r_1"):
            place.database.execute(*(each.format(t=table) for each in commands))
        place.database.execute("DROP TABLESPACE elsewhere")
        _change(place, 5)
        _run_twice(place)
        expect_equal(place, *_TABLES)
        assert [loads_of(place, table) for table in _TABLES] == [1, 1, 1]


@pytest.mark.slow
def test_repack_of_tables_that_a_publication_names(place: Place) -> None:
    """The server refuses SET UNLOGGED for them. So it does not matter who has written their rows again."""
    place.database.execute("CREATE PUBLICATION mirrored FOR TABLE wide, short")
    tables = _TABLES[:2]
    place.run()
    for table in tables:
        with pytest.raises(psycopg2.Error, match="publication"):
            place.database.execute(f"ALTER TABLE {table} SET UNLOGGED")
        place.database.execute(
            f"INSERT INTO {table} VALUES (4)",
            f"REPACK (CONCURRENTLY) {table}",
            f"INSERT INTO {table} VALUES (5)",
            f"REPACK (CONCURRENTLY) {table}",
        )
    _run_twice(place)
    expect_equal(place, *tables)
    assert [loads_of(place, table) for table in tables] == [1, 1]
    # These need a load, in spite of REPACK.
    place.database.execute(
        "ALTER TABLE wide ALTER note TYPE text USING upper(note)",
        "REPACK (CONCURRENTLY) wide",
        "ALTER TABLE short ALTER n TYPE int USING n + 1",
        "REPACK (CONCURRENTLY) short",
    )
    _run_twice(place)
    expect_equal(place, *tables)
    assert [loads_of(place, table) for table in tables] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("table", and_slow(["r_1"], ["wide", "short"]))
def test_repack_that_a_look_has_seen(place: Place, table: str) -> None:
    place.database.execute(f"CREATE PUBLICATION mirrored FOR ALL TABLES {_ROOT}")
    place.run()
    with repacking(place.database, table):
        place.run()
    _change(place, 4)
    place.run()
    expect_equal(place, *_TABLES)
    assert [loads_of(place, each) for each in _TABLES] == [1, 1, 1]
    with repacking(place.database, table):
        place.run()
    place.database.execute(
        f"ALTER TABLE {table} SET UNLOGGED",
        f"DELETE FROM {table} WHERE id = 1",
        f"ALTER TABLE {table} SET LOGGED",
    )
    _run_twice(place)
    expect_equal(place, *_TABLES)


@pytest.mark.slow
def test_repack_hides_what_came_before(place: Place) -> None:
    """Nobody has seen the REPACK at work: in the catalogs, it looks the same after changes that the stream lacks."""
    place.database.execute(f"CREATE PUBLICATION mirrored FOR ALL TABLES {_ROOT}")
    place.run()
    for table in ("wide", "short"):
        place.database.execute(
            f"ALTER TABLE {table} SET UNLOGGED",
            f"DELETE FROM {table} WHERE id = 1",
            f"ALTER TABLE {table} SET LOGGED",
            f"REPACK (CONCURRENTLY) {table}",
        )
    place.database.execute("TRUNCATE r_1", "INSERT INTO r VALUES (7)", "REPACK (CONCURRENTLY) r_1")
    _run_twice(place)
    expect_equal(place, *_TABLES)


def test_any_user_sees_which_tables_are_repacked(place: Place) -> None:
    database, role = place.database, f"{place.database.name}_plain"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with repacking(database, "wide"), database.connect(user=role) as connection:
            found = running_repacks(connection.cursor())
            ((oid,),) = database.execute("SELECT 'wide'::regclass::oid::int8")
            assert oid in found
        ((written,),) = database.execute("SELECT xmin::text::int8 FROM pg_class WHERE relname = 'wide'")
        assert found[oid] == written
        with database.session() as connection, connection.cursor() as cursor:
            assert running_repacks(cursor) == {}
    finally:
        database.execute(f"DROP ROLE {role}")


@pytest.mark.slow
def test_a_rewrite_after_which_no_toast_table_is_needed(servers: pg.Servers, tmp_path: Path) -> None:
    """Only another TOAST table tells ALTER TABLE from VACUUM FULL. Here there is none any more."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    with opened(servers[max(servers)], tmp_path) as place:
        place.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, big text)",
            "INSERT INTO t SELECT g, 'n' FROM generate_series(1, 3) g",
            "CREATE PUBLICATION mirrored FOR TABLE t",
        )
        place.run()
        place.database.execute("ALTER TABLE t ADD x int DEFAULT 5")
        _run_twice(place)
        place.database.execute("ALTER TABLE t DROP big, ALTER x TYPE int USING x + 1")
        _run_twice(place)
        assert current_of(place.target, "public.t")["x"].to_pylist() == [6, 6, 6]
