"""Slots and plugin options, on every server: what is created is what the server says, and what it sends can be decoded."""

from __future__ import annotations

import contextlib
import time

import psycopg2
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import PINS, check, create_slot, drop_slot, find_slot, list_slots, plugin_options
from pgoutput_fast.cli.main import main
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.postgres.session import connect, read_server, session
from pgoutput_fast.snapshot.export import export_snapshot
from support import pg
from support.capturing import drop_when_free
from support.repack import repacking


@pytest.fixture
def slot_name(database: pg.Database):  # type: ignore[no-untyped-def]
    name = f"{database.name}_s"
    yield name
    drop_when_free(database.dsn, name)


def test_a_slot_is_created_found_and_dropped(database: pg.Database, slot_name: str) -> None:
    assert find_slot(database.dsn, slot_name) is None
    made = create_slot(database.dsn, slot_name)
    assert made == find_slot(database.dsn, slot_name)
    assert (made.name, made.plugin, made.database) == (slot_name, "pgoutput", database.name)
    assert (made.temporary, made.active_pid, made.invalidated) == (False, None, None)
    assert made.restart_lsn is not None
    assert made.confirmed_flush_lsn is not None
    assert 0 < made.restart_lsn <= made.confirmed_flush_lsn
    assert made.kept_bytes is not None
    assert made.kept_bytes >= 0
    assert made.wal_status == (None if database.version < 13 else "reserved")
    assert made in list_slots(database.dsn)
    assert drop_slot(database.dsn, slot_name)
    assert not drop_slot(database.dsn, slot_name)
    assert find_slot(database.dsn, slot_name) is None


def test_kept_wal_grows_until_it_is_acknowledged(database: pg.Database, slot_name: str) -> None:
    before = create_slot(database.dsn, slot_name).kept_bytes
    database.execute(
        "CREATE TABLE IF NOT EXISTS kept (t text)",
        "INSERT INTO kept SELECT repeat('x', 5000) FROM generate_series(1, 400)",
    )
    after = find_slot(database.dsn, slot_name)
    assert before is not None
    assert after is not None
    assert after.kept_bytes is not None
    assert after.kept_bytes > before + 30_000


def test_what_a_version_lacks_is_refused_before_the_server_is_asked(
    database: pg.Database, slot_name: str
) -> None:
    if database.version < 15:
        with pytest.raises(ValueError, match=r"from PostgreSQL 15 on; this server is"):
            create_slot(database.dsn, slot_name, two_phase=True)
    else:
        assert create_slot(database.dsn, slot_name, two_phase=True).two_phase
        drop_slot(database.dsn, slot_name)
    if database.version < 17:
        with pytest.raises(ValueError, match=r"came with PostgreSQL 17; this server is"):
            create_slot(database.dsn, slot_name, failover=True)
    else:
        assert create_slot(database.dsn, slot_name, failover=True).failover


@pytest.mark.parametrize("name", ["", "With Space", "UPPER", "x" * 64, "semi;colon", 'quo"te'])
def test_names_that_no_slot_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 63 lower case letters"):
        create_slot("host=/nowhere", name)


def test_a_slot_in_use_names_the_process_and_is_not_dropped(database: pg.Database, slot_name: str) -> None:
    create_slot(database.dsn, slot_name)
    database.execute("DROP PUBLICATION IF EXISTS in_use", "CREATE PUBLICATION in_use FOR ALL TABLES")
    connection = connect(database.dsn, replication=True)
    try:
        with connection.cursor() as cursor:
            options = plugin_options(database.version * 10000, ["in_use"])
            cursor.start_replication(slot_name=slot_name, decode=False, options=options)
            found = find_slot(database.dsn, slot_name)
            assert found is not None
            assert found.active_pid == connection.info.backend_pid
            with pytest.raises(psycopg2.Error, match="is active for PID"):
                drop_slot(database.dsn, slot_name)
    finally:
        connection.close()


def _elsewhere(database: pg.Database, *statements: str) -> None:
    """In a session of another database: those of this one may have a millisecond for a statement."""
    with database.session(dbname="postgres") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_slots_of_repack_are_no_users(servers: pg.Servers, capsys: pytest.CaptureFixture[str]) -> None:
    """They count against a limit of their own, and end with REPACK."""
    if 19 not in servers:
        pytest.skip("REPACK came with PostgreSQL 19")
    with Server(pg.installations()[19], {"max_replication_slots": 1}) as own:
        database = pg.Database(own)
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        with repacking(database, "t"):
            ((name,),) = database.execute("SELECT slot_name FROM pg_replication_slots")
            assert name.startswith("pg_repack_")
            assert list_slots(database.dsn) == []
            assert find_slot(database.dsn, name) is None
            assert main(["slots", "ls", "--dsn", database.dsn]) == 0
            assert "no logical slot" in capsys.readouterr().out
            report = check(database.dsn, ["p"])
            assert [each for each in report.findings if each.subject == "max_replication_slots"] == []


def test_sessions_are_pinned_whatever_users_and_databases_set(database: pg.Database) -> None:
    hostile = {
        "DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601", "TimeZone": "Asia/Kolkata", "extra_float_digits": "-15",
        "bytea_output": "escape", "statement_timeout": "2s", "lock_timeout": "1s",
    }  # fmt: skip
    try:
        _elsewhere(database, *(f"ALTER DATABASE {database.name} SET {k} = '{v}'" for k, v in hostile.items()))
        for dsn in (database.dsn, f"{database.dsn} options='-c DateStyle=German'"):
            with session(dsn) as cursor:
                for setting, value in PINS.items():
                    cursor.execute(f"SHOW {setting}")
                    assert cursor.fetchone()[0].split(",")[0] == value
                cursor.execute(
                    "SELECT 1e-20::float8::text, '\\x00ff'::bytea::text, interval '-1 day 2 hours'::text"
                )
                digits, *others = cursor.fetchone()
                assert (float(digits), *others) == (1e-20, "\\x00ff", "-1 days +02:00:00")
        with session(database.dsn) as cursor:
            cursor.execute("SELECT pg_sleep(2.5)")
    finally:
        _elsewhere(database, f"ALTER DATABASE {database.name} RESET ALL")


@pytest.mark.few_servers
@pytest.mark.parametrize(("setting", "since"), [("idle_session_timeout", 14), ("transaction_timeout", 17)])
def test_timeouts_of_later_versions_end_nothing(database: pg.Database, setting: str, since: int) -> None:
    if database.version < since:
        pytest.skip(f"{setting} came with PostgreSQL {since}")
    try:
        _elsewhere(database, f"ALTER DATABASE {database.name} SET {setting} = '1s'")
        with contextlib.closing(export_snapshot(database.dsn)) as holder, session(database.dsn) as cursor:
            time.sleep(1.5)
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (holder.export.name,))
            cursor.execute("SELECT pg_sleep(1.5)")
            cursor.execute("COMMIT")
    finally:
        _elsewhere(database, f"ALTER DATABASE {database.name} RESET ALL")


def test_what_a_server_says_of_itself(database: pg.Database) -> None:
    with session(database.dsn) as cursor:
        server = read_server(cursor)
        cursor.execute("SELECT system_identifier::text FROM pg_control_system()")
        assert server.system_identifier == cursor.fetchone()[0]
    assert (server.major, server.database, server.in_recovery) == (database.version, database.name, False)
    assert server.settings["wal_level"] == "logical"


def test_the_options_of_each_version_are_taken_and_what_comes_is_decoded(
    database: pg.Database, slot_name: str
) -> None:
    publication = 'so "called", publication'
    database.execute(
        "DROP TABLE IF EXISTS optioned; CREATE TABLE optioned (id int PRIMARY KEY, f float8)",
        'DROP PUBLICATION IF EXISTS "so ""called"", publication"',
        'CREATE PUBLICATION "so ""called"", publication" FOR TABLE optioned',
    )
    two_phase = database.version >= 15
    create_slot(database.dsn, slot_name, two_phase=two_phase)
    database.execute("INSERT INTO optioned SELECT g, g / 3.0 FROM generate_series(1, 50) g")
    variants: list[dict[str, str | None]] = [{}, {"proto_version": "1", "streaming": None}]
    if database.version >= 14:
        variants += [{"binary": "true"}, {"messages": None}]
    for overrides in variants:
        asked = plugin_options(database.version * 10000, [publication], overrides=overrides)
        places = ", %s" * (2 * len(asked))
        with session(database.dsn) as cursor:
            cursor.execute(
                f"SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL{places})",
                [slot_name, *(text for pair in asked.items() for text in pair)],
            )
            out = pgo.decode([bytes(data) for (data,) in cursor.fetchall()])
        assert out.table("public.optioned").column("id").to_pylist() == list(range(1, 51))
        assert out.table("public.optioned").column("f").to_pylist() == [g / 3.0 for g in range(1, 51)]


@pytest.mark.parametrize(
    ("version", "overrides", "problem"),
    [
        (100023, {"binary": "true"}, "option binary came with PostgreSQL 14; this server is 10"),
        (140010, {"two_phase": "on"}, "option two_phase came with PostgreSQL 15"),
        (180000, {"proto_version": "5"}, "knows proto_version 1 to 4, not '5'"),
        (180000, {"proto_version": "0"}, "knows proto_version 1 to 4"),
        (180000, {"proto_version": "one"}, "knows proto_version 1 to 4"),
        (
            180000,
            {"proto_version": "1", "streaming": "on"},
            "option streaming needs proto_version 2, not 1",
        ),
        (180000, {"format": "json"}, "pgoutput has no option 'format'; it has proto_version, binary"),
        (90600, {}, "pgoutput came with PostgreSQL 10"),
    ],
)
def test_options_that_a_version_does_not_take(
    version: int, overrides: dict[str, str | None], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        plugin_options(version, ["p"], overrides=overrides)


def test_no_publication_is_an_error() -> None:
    with pytest.raises(ValueError, match="publications must name"):
        plugin_options(180000, [])
    with pytest.raises(TypeError, match="publications must be a list of names"):
        plugin_options(180000, "p")
