"""What a check finds, on every server: each finding is provoked, and where it says that the server refuses, it does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg2
import pytest

from pgoutput_fast.capture import Report, check, create_slot, drop_slot, plugin_options
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.postgres.session import connect
from pgoutput_fast.postgres.walsender import Walsender
from support import pg
from support.capturing import drop_when_free, wait_until


@pytest.fixture
def schema(database: pg.Database) -> Iterator[str]:
    """An empty schema, and no publication."""
    database.execute("CREATE SCHEMA checked")
    yield "checked"
    names = [name for (name,) in database.execute("SELECT pubname FROM pg_publication")]
    database.execute(*(f"DROP PUBLICATION {name}" for name in names), "DROP SCHEMA checked CASCADE")


def _found(report: Report, subject: str) -> list[tuple[str, str]]:
    return [(f.level, f.problem) for f in report.findings if f.subject == subject]


def _table(report: Report, name: str) -> str:
    return "; ".join(f"{level}: {problem}" for level, problem in _found(report, f"checked.{name}"))


def test_a_server_that_is_ready(database: pg.Database, schema: str) -> None:
    database.execute(
        "CREATE TABLE checked.t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE checked.t"
    )
    report = check(database.dsn, ["p"])
    assert report.ok, str(report)
    assert report.tables == ("checked.t",)
    assert report.server.major == database.version
    assert report.slot is None
    # The tests' servers have no limit; 10 knows none. And their user is a superuser.
    assert [(f.level, f.subject) for f in report.findings] == [
        ("warning", "max_slot_wal_keep_size"),
        ("note", "user postgres"),
    ]


def test_publications(database: pg.Database, schema: str) -> None:
    database.execute("CREATE PUBLICATION empty", "CREATE TABLE checked.t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION inserts FOR TABLE checked.t WITH (publish = 'insert')")
    report = check(database.dsn, ["empty", "inserts", "missing one"])
    assert not report.ok
    assert _found(report, "publication empty") == [("warning", "it has no tables")]
    lacking = "update, delete" if database.version < 11 else "update, delete, truncate"
    assert _found(report, "publication inserts")[0][1].startswith(f"it does not publish {lacking}:")
    assert _found(report, "publication missing one") == [("error", "it does not exist")]
    assert 'CREATE PUBLICATION "missing one"' in str(report)
    assert check(database.dsn, ["empty", "empty"]).findings == check(database.dsn, ["empty"]).findings
    assert not check(database.dsn, []).ok
    with pytest.raises(TypeError, match="list of names"):
        check(database.dsn, "p")


def test_replica_identities_are_said_as_the_server_sees_them(database: pg.Database, schema: str) -> None:
    database.execute(
        "CREATE TABLE checked.keyed (id int PRIMARY KEY)",
        "CREATE TABLE checked.keyless (id int)",
        "CREATE TABLE checked.nothing (id int PRIMARY KEY)",
        "ALTER TABLE checked.nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE checked.full_rows (id int)",
        "ALTER TABLE checked.full_rows REPLICA IDENTITY FULL",
        "CREATE TABLE checked.indexed (id int NOT NULL)",
        "CREATE UNIQUE INDEX indexed_id ON checked.indexed (id)",
        "ALTER TABLE checked.indexed REPLICA IDENTITY USING INDEX indexed_id",
        "CREATE TABLE checked.lost_index (id int NOT NULL)",
        "CREATE UNIQUE INDEX lost_id ON checked.lost_index (id)",
        "ALTER TABLE checked.lost_index REPLICA IDENTITY USING INDEX lost_id",
        "DROP INDEX checked.lost_id",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    report = check(database.dsn, ["p"])
    for name in ("keyed", "keyless", "nothing", "full_rows", "indexed", "lost_index"):
        database.execute(f"INSERT INTO checked.{name} VALUES (1)")
        refused = False
        with contextlib.suppress(psycopg2.errors.ObjectNotInPrerequisiteState):
            refused = True
            database.execute(f"UPDATE checked.{name} SET id = 2")
            refused = False
        assert ("the server refuses its updates" in _table(report, name)) == refused, name
        assert (_table(report, name) == "") != refused, name
    # They may only get inserts.
    assert report.ok is True
    # Nobody is refused where only inserts are published.
    database.execute(
        "DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE checked.keyless WITH (publish = 'insert')"
    )
    assert _table(check(database.dsn, ["p"]), "keyless") == ""


def test_column_lists_row_filters_and_generated_columns(database: pg.Database, schema: str) -> None:
    if database.version < 12:
        pytest.skip("generated columns exist from 12 on")
    database.execute(
        "CREATE TABLE checked.made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE checked.plain (id int PRIMARY KEY, a int, b int)",
        "CREATE PUBLICATION p FOR TABLE checked.made, checked.plain",
    )
    report = check(database.dsn, ["p"])
    assert _table(report, "made") == "note: the server does not send generated columns: twice"
    assert _table(report, "plain") == ""
    if database.version >= 18:
        database.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
        assert _table(check(database.dsn, ["p"]), "made") == ""
    if database.version >= 15:
        database.execute(
            "CREATE PUBLICATION listed FOR TABLE checked.plain (id, b), checked.made WHERE (id > 5)",
            "CREATE PUBLICATION wrong FOR TABLE checked.plain (a)",
        )
        report = check(database.dsn, ["listed"])
        assert _table(report, "plain") == "note: only id, b are published"
        assert "note: it has a row filter" in _table(report, "made")
        assert report.ok
        report = check(database.dsn, ["wrong"])
        assert _table(report, "plain").startswith("error: the column list lacks id of its replica identity")
        with pytest.raises(psycopg2.Error):
            database.execute("INSERT INTO checked.plain VALUES (1, 1, 1)", "UPDATE checked.plain SET a = 2")


def test_identities_with_columns_that_are_not_sent(database: pg.Database, schema: str) -> None:
    """Where the server refuses updates, it is an error that says how they become possible."""
    if database.version < 12:
        pytest.skip("generated columns exist from 12 on")
    kinds = ["STORED", "VIRTUAL"] if database.version >= 18 else ["STORED"]
    for kind in kinds:
        database.execute(
            f"CREATE TABLE checked.full_{kind} (id int, twice int GENERATED ALWAYS AS (id * 2) {kind})",
            f"ALTER TABLE checked.full_{kind} REPLICA IDENTITY FULL",
        )
    database.execute(
        "CREATE TABLE checked.keyed (id int, k int GENERATED ALWAYS AS (id) STORED PRIMARY KEY)",
        "CREATE TABLE checked.full_listed (id int, more int)",
        "ALTER TABLE checked.full_listed REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    names = [*(f"full_{kind}".lower() for kind in kinds), "keyed", "full_listed"]

    def expect_said() -> None:
        report = check(database.dsn, ["p"])
        for name in names:
            refused = False
            try:
                database.execute(
                    f"INSERT INTO checked.{name} (id) VALUES (1)", f"UPDATE checked.{name} SET id = 2"
                )
            except psycopg2.Error:
                refused = True
            database.execute(f"TRUNCATE checked.{name}")
            assert ("error" in _table(report, name)) == refused, (name, str(report))

    expect_said()
    if database.version >= 18:
        database.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
        expect_said()
        assert "full_virtual" in str(check(database.dsn, ["p"]))
    if database.version >= 15:
        database.execute(
            "DROP PUBLICATION p",
            "CREATE PUBLICATION p FOR TABLE checked.full_listed (id), checked.keyed",
        )
        expect_said()
        database.execute("ALTER PUBLICATION p SET (publish = 'insert')")
        expect_said()


def test_partition_roots_whose_partitions_differ(database: pg.Database, schema: str) -> None:
    if database.version < 13:
        pytest.skip("changes are published as the root's from 13 on")
    database.execute(
        "CREATE TABLE checked.root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE checked.same PARTITION OF checked.root FOR VALUES FROM (0) TO (10)",
        'CREATE TABLE checked."Other" PARTITION OF checked.root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)',
        'CREATE TABLE checked.below PARTITION OF checked."Other" FOR VALUES FROM (10) TO (20)',
        "ALTER TABLE checked.below REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE checked.root WITH (publish_via_partition_root = true)",
    )
    report = check(database.dsn, ["p"])
    assert report.tables == ("checked.root",)
    (finding,) = [f for f in report.findings if f.subject == "checked.root"]
    assert finding.level == "warning"
    assert "that of checked.below is different" in finding.problem
    assert "checked.same" not in finding.problem
    database.execute("ALTER PUBLICATION p SET (publish_via_partition_root = false)")
    report = check(database.dsn, ["p"])
    assert report.tables == ("checked.below", "checked.same")
    assert _table(report, "root") == ""


@pytest.mark.few_servers
def test_partitions_whose_changes_are_never_sent(database: pg.Database, schema: str) -> None:
    if database.version < 13:
        pytest.skip("changes are published as the root's from 13 on")
    database.execute(
        "CREATE TABLE checked.root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE checked.sent PARTITION OF checked.root FOR VALUES FROM (0) TO (10)",
        "CREATE UNLOGGED TABLE checked.unlogged PARTITION OF checked.root FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION p FOR TABLE checked.root WITH (publish_via_partition_root = true)",
    )
    assert _table(check(database.dsn, ["p"]), "root").startswith(
        "warning: the server never sends changes of its partitions checked.unlogged,"
    )
    database.execute("ALTER TABLE checked.unlogged SET LOGGED")
    assert _table(check(database.dsn, ["p"]), "root") == ""


def test_slots(database: pg.Database, schema: str) -> None:
    database.execute(
        "CREATE TABLE checked.t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE checked.t"
    )
    name = f"{database.name}_c"
    subject = f"slot {name}"
    assert _found(check(database.dsn, ["p"], name), subject) == [("note", "it does not exist yet")]
    wrong = check(database.dsn, ["p"], "Bad Slot!")
    assert not wrong.ok
    assert "lower case letters, digits and underscores" in _found(wrong, "slot Bad Slot!")[0][1]
    create_slot(database.dsn, name)
    try:
        report = check(database.dsn, ["p"], name)
        assert report.ok
        assert report.slot is not None
        assert _found(report, subject) == []
        connection = connect(database.dsn, replication=True)
        try:
            with connection.cursor() as cursor:
                options = plugin_options(database.version * 10000, ["p"])
                cursor.start_replication(slot_name=name, decode=False, options=options)
                pid = connection.info.backend_pid
                assert _found(check(database.dsn, ["p"], name), subject) == [
                    ("error", f"the server's process {pid} uses it")
                ]
        finally:
            connection.close()
        other = pg.Database(database.server)
        try:
            problem = f"it decodes database {database.name}, not {other.name}"
            assert ("error", problem) in _found(check(other.dsn, ["p"], name), subject)
        finally:
            other.drop()
    finally:
        drop_when_free(database.dsn, name)


def test_privileges(database: pg.Database, schema: str) -> None:
    role = f"{database.name}_r"
    database.execute(
        "CREATE TABLE checked.t (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE checked.t",
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA checked TO {role}",
    )
    try:
        dsn = (
            " ".join(part for part in database.dsn.split() if not part.startswith("user=")) + f" user={role}"
        )
        report = check(dsn, ["p"])
        assert _found(report, f"user {role}")[0][0] == "error"
        with pytest.raises(psycopg2.Error):
            create_slot(dsn, "refused")
        assert _table(report, "t").startswith("warning: the user has no right to read")
        advice = {finding.subject: finding.advice for finding in report.findings}
        assert advice["checked.t"] == f"Run GRANT SELECT ON checked.t TO {role}"
        assert f"ALTER ROLE {role} REPLICATION" in advice[f"user {role}"]
        database.execute(f"ALTER ROLE {role} REPLICATION", f"GRANT SELECT ON checked.t TO {role}")
        report = check(dsn, ["p"])
        assert report.ok, str(report)
        assert _table(report, "t") == ""
        create_slot(dsn, f"{database.name}_q")
        drop_slot(dsn, f"{database.name}_q")
    finally:
        database.execute(
            f"REVOKE ALL ON checked.t FROM {role}",
            f"REVOKE USAGE ON SCHEMA checked FROM {role}",
            f"DROP ROLE {role}",
        )


@pytest.mark.newest_server
def test_a_reader_that_is_a_synchronous_standby(server: Server) -> None:
    with Server(server.installation) as own:
        database = pg.Database(own)
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR ALL TABLES")
        create_slot(database.dsn, "synchronous")
        options = plugin_options(database.version * 10000, ["p"])
        with Walsender(database.dsn, "synchronous", options) as sender, database.session() as connection:
            cursor = connection.cursor()
            cursor.execute("SET synchronous_commit = local")
            for names, is_counted in (
                ("*", True),
                ("FIRST 1 (s1, *)", True),
                ('ANY 1 ("PGoutput_fast", s1)', True),
                ("s1, s2", False),
                ('FIRST 1 ("first")', False),
                ("", False),
            ):
                cursor.execute("ALTER SYSTEM SET synchronous_standby_names = %s", (names,))
                cursor.execute("SELECT pg_reload_conf()")
                found = [
                    each for each in check(database.dsn, ["p"]).findings if each.subject[:11] == "synchronous"
                ]
                assert bool(found) == is_counted, names

                def counts() -> bool:
                    sender.read(1 << 20, 0.05)
                    sender.confirm(sender.wal_end)  # only who has confirmed something counts
                    cursor.execute("SELECT sync_priority > 0 FROM pg_stat_replication")
                    return bool(cursor.fetchone()[0])

                wait_until(lambda is_counted=is_counted: counts() == is_counted)


def test_what_is_new_in_19(servers: pg.Servers) -> None:
    """Slots of REPACK count against another limit, plugins may be forbidden, and a publication may lack tables."""
    if 19 not in servers:
        pytest.skip("no PostgreSQL 19")
    settings = {"max_replication_slots": 1, "output_plugin_libraries": "test_decoding"}
    with Server(pg.installations()[19], settings) as own:
        database = pg.Database(own)
        database.execute("CREATE SEQUENCE counted", "CREATE PUBLICATION sequences FOR ALL SEQUENCES")
        report = check(database.dsn, ["sequences"])
        assert _found(report, "output_plugin_libraries")[0][0] == "error"
        with pytest.raises(psycopg2.Error, match="pgoutput"):
            create_slot(database.dsn, "refused")
        assert "has only sequences" in _found(report, "publication sequences")[0][1]
