"""The initial load on real servers: which tables, which columns and rows of them, and what happens to them meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import LoadProgress, Snapshot, SnapshotError, find_slot, progress_bar
from pgoutput_fast.postgres.session import session
from pgoutput_fast.snapshot.read import in_snapshot
from support import pg
from support.capturing import drop_when_free, wait_until
from support.snapshots import plain_rows, same_as_changes, tables_of

pytestmark = pytest.mark.few_servers


@pytest.fixture
def schema(database: pg.Database) -> Iterator[str]:
    """A schema that is empty; publications p and q, if the test makes them, go with it."""
    database.execute("CREATE SCHEMA s")
    yield "s"
    database.execute("DROP PUBLICATION IF EXISTS p, q", "DROP SCHEMA s CASCADE")


@pytest.fixture
def slot_name(database: pg.Database) -> Iterator[str]:
    name = f"{database.name}_snap"
    yield name
    drop_when_free(database.dsn, name)


def test_the_moment_at_which_the_slot_begins(database: pg.Database, schema: str, slot_name: str) -> None:
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, v text)",
        "INSERT INTO s.t SELECT g, 'v' || g FROM generate_series(1, 3000) g",
        "CREATE TABLE s.empty (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE s.t, s.empty",
    )
    with Snapshot(database.dsn, ["p"], slot_name) as snapshot:
        database.execute("INSERT INTO s.t VALUES (-1, 'later')", "DELETE FROM s.t WHERE id <= 100")
        assert sorted(snapshot.tables) == ["s.empty", "s.t"]
        for threads in (1, 3):
            found = tables_of(snapshot.read(threads=threads))
            assert set(found) == {"s.t"}
            assert sorted(found["s.t"]["id"].to_pylist()) == list(range(1, 3001))
            assert set(found["s.t"]["_commit_lsn"].to_pylist()) == {snapshot.consistent_lsn}
    kept = find_slot(database.dsn, slot_name)
    assert kept is not None
    assert (kept.confirmed_flush_lsn, kept.temporary) == (snapshot.consistent_lsn, False)
    with pytest.raises(SnapshotError, match=r"slot \w+ exists, so its consistent point has passed"):
        Snapshot(database.dsn, ["p"], slot_name)
    with pytest.raises(SnapshotError, match=r"the snapshot [\w-]+ is gone"):
        list(snapshot.read())


def test_a_snapshot_that_was_let_go_of(database: pg.Database, schema: str, slot_name: str) -> None:
    """It cannot be read, also if the server has not noticed yet: here it cannot, for it is stopped."""
    database.execute("CREATE TABLE s.t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE s.t")
    walsenders = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()"
    )
    before = set(database.execute(walsenders))
    snapshot = Snapshot(database.dsn, ["p"], slot_name)
    ((pid,),) = set(database.execute(walsenders)) - before
    os.kill(pid, signal.SIGSTOP)
    try:
        snapshot.close()
        with session(database.dsn) as cursor, in_snapshot(cursor, snapshot.name):
            pass  # the server would still read it
        with pytest.raises(SnapshotError, match=r"the snapshot [\w-]+ is gone"):
            list(snapshot.read())
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.newest_server
def test_a_snapshot_that_is_just_going(database: pg.Database, schema: str) -> None:
    """The server says so in three ways, one of them while the process that exported it is ending."""
    database.execute("CREATE TABLE s.t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE s.t")
    with session(database.dsn) as cursor:
        for _ in range(30):
            snapshot = Snapshot(database.dsn, ["p"])
            snapshot.close()
            while True:
                try:
                    with in_snapshot(cursor, snapshot.name):
                        pass
                except SnapshotError:
                    break


def test_what_a_slot_can_be(database: pg.Database, schema: str, slot_name: str) -> None:
    database.execute("CREATE TABLE s.t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE s.t")
    with Snapshot(database.dsn, ["p"]) as snapshot:
        found = find_slot(database.dsn, snapshot.slot)
        assert found is not None
        assert found.temporary
    options = {"two_phase": database.version >= 15, "failover": database.version >= 17}
    with Snapshot(database.dsn, ["p"], slot_name, **options):
        found = find_slot(database.dsn, slot_name)
        assert found is not None
        assert {"two_phase": found.two_phase, "failover": found.failover} == options
    for name, since in (("two_phase", 15), ("failover", 17)):
        if database.version < since:
            with pytest.raises(ValueError, match="PostgreSQL"):
                Snapshot(database.dsn, ["p"], f"{slot_name}_2", **{name: True})
    with pytest.raises(ValueError, match="lower case letters"):
        Snapshot(database.dsn, ["p"], "No")
    with pytest.raises(ValueError, match="no publication q"):
        Snapshot(database.dsn, ["p", "q"])
    with pytest.raises(KeyError, match=r"s\.u is not published here; published: s\.t"):
        Snapshot(database.dsn, ["p"], f"{slot_name}_3", tables=["s.u"])
    # Nothing of those that failed is left.
    assert find_slot(database.dsn, f"{slot_name}_3") is None
    left = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = current_database()"
    wait_until(lambda: database.execute(left) == [(0,)])


TABLES = (
    "CREATE TABLE s.plain (id int PRIMARY KEY, v varchar(7), n numeric(8,3))",
    'CREATE TABLE s."Odd ""name" ("Id %s" int PRIMARY KEY, "select" text, "é " date)',
    "CREATE TABLE s.keyless (a int, b text)",
    "CREATE TABLE s.full_identity (a int, b text)",
    "ALTER TABLE s.full_identity REPLICA IDENTITY FULL",
    "CREATE TABLE s.by_index (a int NOT NULL, b int NOT NULL, c text, PRIMARY KEY (a))",
    "CREATE UNIQUE INDEX by_index_b ON s.by_index (b)",
    "ALTER TABLE s.by_index REPLICA IDENTITY USING INDEX by_index_b",
    "CREATE TABLE s.nothing (a int PRIMARY KEY)",
    "ALTER TABLE s.nothing REPLICA IDENTITY NOTHING",
    "CREATE TABLE s.late_key (a int PRIMARY KEY DEFERRABLE, b int)",
    "CREATE TABLE s.altered (a int, gone text, id int PRIMARY KEY, b text DEFAULT 'b')",
    "INSERT INTO s.altered VALUES (1, 'gone', 1)",
    "ALTER TABLE s.altered DROP COLUMN gone, ADD COLUMN c int DEFAULT 7",
    "DELETE FROM s.altered",
    "CREATE TABLE s.parent (id int PRIMARY KEY, v text)",
    "CREATE TABLE s.child (extra int, PRIMARY KEY (id)) INHERITS (s.parent)",
    "CREATE TABLE s.no_columns ()",
    "CREATE UNLOGGED TABLE s.unlogged (id int PRIMARY KEY)",
)
ROWS = (
    "INSERT INTO s.plain SELECT g, 'v' || g, g / 8.0 FROM generate_series(1, 700) g",
    """INSERT INTO s."Odd ""name" VALUES (1, 'x', '2020-02-02')""",
    "INSERT INTO s.keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL)",
    "INSERT INTO s.full_identity VALUES (1, 'x')",
    "INSERT INTO s.by_index VALUES (1, 2, 'x')",
    "INSERT INTO s.nothing VALUES (1)",
    "INSERT INTO s.late_key VALUES (1)",
    "INSERT INTO s.altered VALUES (1, 2, 'x', 3)",
    "INSERT INTO s.parent VALUES (1, 'of the parent')",
    "INSERT INTO s.child VALUES (2, 'of the child', 3)",
    "INSERT INTO s.unlogged VALUES (1)",
    "INSERT INTO s.no_columns DEFAULT VALUES",
)
SINCE_11 = (
    "CREATE TABLE s.with_more (a int, b int, c text, PRIMARY KEY (a) INCLUDE (b))",
    "INSERT INTO s.with_more VALUES (1, 2, 'x')",
)
SINCE_12 = (
    "CREATE TABLE s.made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)",
    "INSERT INTO s.made (id, v) VALUES (1, 'x'), (2, NULL)",
)


def test_tables_are_those_that_are_streamed(database: pg.Database, schema: str) -> None:
    """All tables, each as its changes describe it."""
    database.execute(*TABLES)
    more = [*(SINCE_11 if database.version >= 11 else ()), *(SINCE_12 if database.version >= 12 else ())]
    with database.slot() as slot:
        slot.execute(*more, *ROWS)
        with Snapshot(database.dsn, [slot.name]) as snapshot:
            read = same_as_changes(snapshot, slot.peek())
            assert "s.unlogged" not in snapshot.tables
    assert len(read) == 11 + len(more) // 2
    assert read["s.altered"].schema.names[-4:] == ["a", "id", "b", "c"]


def test_column_lists_and_row_filters(database: pg.Database, schema: str) -> None:
    if database.version < 15:
        pytest.skip("publications have them since 15")
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, a int, b text, c text)",
        "CREATE TABLE s.u (id int PRIMARY KEY, a int)",
        "CREATE PUBLICATION q FOR TABLE s.u WHERE (id % 5 = 0)",
    )
    with database.slot("FOR TABLE s.t (c, id, a) WHERE (a > 1 OR a IS NULL), s.u WHERE (a < 30)") as slot:
        slot.execute(
            "INSERT INTO s.t SELECT g, nullif(g % 4, 0), 'b', 'c' FROM generate_series(1, 100) g",
            "INSERT INTO s.u SELECT g, g FROM generate_series(1, 100) g",
        )
        with Snapshot(database.dsn, [slot.name]) as snapshot:
            read = same_as_changes(snapshot, slot.peek())
            assert (read["s.t"].num_rows, read["s.u"].num_rows) == (75, 29)
        # Of two publications a row need be in one only.
        with Snapshot(database.dsn, [slot.name, "q"]) as snapshot:
            read = same_as_changes(snapshot, slot.peek({"publication_names": f"{slot.name},q"}))
            assert read["s.u"].num_rows == 29 + 15
        slot.execute("ALTER PUBLICATION q ADD TABLE s.t")
        with pytest.raises(ValueError, match=r"different columns of s\.t"):
            Snapshot(database.dsn, [slot.name, "q"])


def test_generated_columns_of_18(database: pg.Database, schema: str) -> None:
    if database.version < 18:
        pytest.skip("they are published since 18")
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        " thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL, v text)",
        "CREATE TABLE s.u (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)",
    )
    for publication, names in (
        ("FOR TABLE s.t WITH (publish_generated_columns = stored)", ["id", "twice", "v"]),
        ("FOR TABLE s.t WITH (publish_generated_columns = none)", ["id", "v"]),
        ("FOR TABLE s.t (id, twice)", ["id", "twice"]),
        ("FOR ALL TABLES WITH (publish_generated_columns = stored)", ["id", "twice", "v"]),
    ):
        with database.slot(publication) as slot:
            slot.execute("TRUNCATE s.t", "INSERT INTO s.t (id, v) VALUES (1, 'x')")
            payloads = slot.peek()
            with Snapshot(database.dsn, [slot.name], tables=["s.t"]) as snapshot:
                wanted = [data for _, data in payloads]
                out = pgo.Decoder(catalog=snapshot.catalog).decode(wanted)
                read = tables_of(snapshot.read())["s.t"]
            expected = out.changes[-1].batch
            assert read.schema.equals(expected.schema, check_metadata=True)
            assert read.schema.names[11:] == names
            assert plain_rows(read, names) == [tuple({"id": 1, "twice": 2, "v": "x"}[name] for name in names)]


PARTITIONED = (
    "CREATE TABLE s.root (id int, v text, day date) PARTITION BY RANGE (id)",
    "CREATE TABLE s.low PARTITION OF s.root FOR VALUES FROM (0) TO (100)",
    # Other columns in another order, some of them dropped, and its own partitions.
    "CREATE TABLE s.high (gone int, day date, v text, id int) PARTITION BY LIST (v)",
    "ALTER TABLE s.high DROP COLUMN gone",
    "CREATE TABLE s.high_a PARTITION OF s.high FOR VALUES IN ('a')",
    "CREATE TABLE s.high_b PARTITION OF s.high FOR VALUES IN ('b')",
    "ALTER TABLE s.root ATTACH PARTITION s.high FOR VALUES FROM (100) TO (200)",
)
PARTITIONED_ROWS = (
    "INSERT INTO s.root SELECT g, chr(97 + g % 2), date '2024-01-01' + g FROM generate_series(1, 199) g"
)


@pytest.mark.parametrize("via_root", [False, True])
def test_partitions(database: pg.Database, schema: str, via_root: bool) -> None:
    version = database.version
    if via_root and version < 13:
        pytest.skip("publications have publish_via_partition_root since 13")
    database.execute(*PARTITIONED)
    option = " WITH (publish_via_partition_root = true)" if via_root else ""
    publications = [f"FOR ALL TABLES{option}"]
    if version >= 13:
        publications += [f"FOR TABLE s.root{option}", f"FOR TABLE s.high{option}"]
    for publication in publications:
        with database.slot(publication) as slot:
            slot.execute("TRUNCATE s.root")
            slot.execute(PARTITIONED_ROWS)
            payloads = [each for each in slot.peek() if each[1][:1] != b"T"]
            with Snapshot(database.dsn, [slot.name]) as snapshot:
                read = same_as_changes(snapshot, payloads)
        rows = 100 if "s.high" in publication else 199
        assert sum(table.num_rows for table in read.values()) == rows
        if not via_root:
            assert set(read) <= {"s.low", "s.high_a", "s.high_b"}
        else:
            assert set(read) == {"s.high" if "s.high" in publication else "s.root"}


def test_a_partition_that_is_published_by_its_root_too(database: pg.Database, schema: str) -> None:
    if database.version < 13:
        pytest.skip("publications have publish_via_partition_root since 13")
    database.execute(
        *PARTITIONED,
        "CREATE PUBLICATION p FOR TABLE s.root WITH (publish_via_partition_root = true)",
        "CREATE PUBLICATION q FOR TABLE s.high_a",
        PARTITIONED_ROWS,
    )
    with Snapshot(database.dsn, ["p", "q"]) as snapshot:
        read = tables_of(snapshot.read(threads=2))
    assert {name: table.num_rows for name, table in read.items()} == {"s.root": 199}


def test_ranges_have_all_rows_once(database: pg.Database, schema: str) -> None:
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, v text)",
        "INSERT INTO s.t SELECT g, repeat('x', 300) FROM generate_series(1, 2000) g",
        "DELETE FROM s.t WHERE id % 3 = 0",
        "CREATE PUBLICATION p FOR TABLE s.t",
    )
    told: list[LoadProgress] = []
    with Snapshot(database.dsn, ["p"], range_bytes=1 << 16) as snapshot, progress_bar(disable=True) as bar:
        ranges = snapshot.ranges("s.t")
        assert len(ranges) == (1 if database.version < 14 else 11)
        # Rows that come later lie behind, in free space, and in new pages.
        database.execute(
            "INSERT INTO s.t SELECT g, repeat('y', 300) FROM generate_series(10001, 13000) g",
            "UPDATE s.t SET v = 'z' WHERE id % 7 = 0",
        )

        def progress(now: LoadProgress) -> None:
            told.append(now)
            bar(now)

        read = tables_of(snapshot.read(threads=3, progress=progress))["s.t"]
    expected = [(id_, "x" * 300) for id_ in range(1, 2001) if id_ % 3]
    assert plain_rows(read, ["id", "v"]) == sorted(expected, key=repr)
    assert [each.ranges for each in told] == list(range(1, len(ranges) + 1))
    assert (told[-1].rows, told[-1].all_ranges, told[-1].eta_seconds) == (len(expected), len(ranges), 0)
    assert told[-1].nbytes > 300 * len(expected)
    assert told[-1].table_bytes == told[-1].all_table_bytes == snapshot.tables["s.t"].nbytes


@pytest.mark.newest_server
def test_a_row_of_many_megabytes(database: pg.Database, schema: str) -> None:
    """Memory for a block of rows of this length would be more than there is."""
    database.execute(
        "CREATE TABLE s.t (id int, v text)",
        "INSERT INTO s.t VALUES (-1, repeat('x', 40000000))",
        "INSERT INTO s.t SELECT g, 'short' FROM generate_series(1, 20000) g",
        "CREATE PUBLICATION p FOR TABLE s.t",
    )
    with Snapshot(database.dsn, ["p"]) as snapshot:
        found = tables_of(snapshot.read())["s.t"]
    assert found.num_rows == 20_001
    assert max(map(len, found["v"].to_pylist())) == 40_000_000


def test_chosen_tables_in_plain_types(database: pg.Database, schema: str) -> None:
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, tags text[], at time)",
        "CREATE TABLE s.other (id int PRIMARY KEY)",
        """INSERT INTO s.t VALUES (1, '{a,NULL,"b c"}', '01:02:03')""",
        "CREATE PUBLICATION p FOR TABLE s.t, s.other",
    )
    options = pgo.Options(tables=["s.t", "s.none"], plain=True)
    with Snapshot(database.dsn, ["p"], options=options) as snapshot:
        assert list(snapshot.tables) == ["s.t"]
        found = tables_of(snapshot.read())["s.t"]
        assert found.schema.equals(snapshot.schema("s.t"), check_metadata=True)
        values = found.select(["id", "tags", "at"]).to_pylist()
        assert values == [{"id": 1, "tags": '["a", null, "b c"]', "at": "01:02:03.000000"}]


def test_rows_of_a_condition(database: pg.Database, schema: str) -> None:
    """Of all partitions, and beside a row filter."""
    database.execute(*PARTITIONED, PARTITIONED_ROWS)
    filtered = " WHERE (id % 2 = 0)" if database.version >= 15 else ""
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY)",
        "INSERT INTO s.t SELECT generate_series(1, 199)",
        f"CREATE PUBLICATION p FOR TABLE s.t{filtered}",
        "CREATE PUBLICATION q FOR TABLE s.low, s.high_a, s.high_b",
    )
    where = (
        "id OPERATOR(pg_catalog.>=) 90::pg_catalog.int8 AND id OPERATOR(pg_catalog.<) 110::pg_catalog.int8"
    )
    with Snapshot(database.dsn, ["p", "q"]) as snapshot:
        read = tables_of(snapshot.read(where=where, threads=2))
    ids = {name: sorted(rows["id"].to_pylist()) for name, rows in read.items()}
    assert ids.pop("s.t") == [each for each in range(90, 110) if each % 2 == 0 or not filtered]
    assert sorted(each for found in ids.values() for each in found) == list(range(90, 110))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE s.t", "was dropped or renamed"),
        ("ALTER TABLE s.t RENAME TO t_before", "was dropped or renamed"),
        ("ALTER SCHEMA s RENAME TO s_before", "was dropped or renamed"),
        ("ALTER TABLE s.t DROP COLUMN v", "was altered"),
        ("ALTER TABLE s.t ALTER COLUMN v TYPE int USING 1", "was rewritten"),
        ("TRUNCATE s.t", "was rewritten, truncated"),
        ("VACUUM FULL s.t", "was rewritten"),
        ("DROP TABLE s.t; CREATE TABLE s.t (id int PRIMARY KEY, v text)", "or replaced"),
    ],
)
def test_tables_that_are_lost_in_the_middle(
    database: pg.Database, schema: str, tmp_path: Any, statement: str, said: str
) -> None:
    """Never fewer rows than the snapshot had without a word: the table is named, and the others are read."""
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, v text)",
        "INSERT INTO s.t SELECT g, repeat('x', 500) FROM generate_series(1, 1000) g",
        "CREATE TABLE public.other (id int PRIMARY KEY)",
        "INSERT INTO public.other SELECT generate_series(1, 10)",
        "CREATE PUBLICATION p FOR TABLE s.t, public.other",
    )
    try:
        with Snapshot(database.dsn, ["p"], range_bytes=1 << 16) as snapshot:
            database.execute(statement)
            reading = snapshot.read(threads=2)
            assert set(tables_of(reading)) == {"public.other"}
            assert list(reading.lost) == ["s.t"]
            assert said in reading.lost["s.t"]
            loaded = snapshot.load_to(tmp_path)
            assert (set(loaded.tables), set(loaded.lost)) == ({"public.other"}, {"s.t"})
            assert {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"} == {"public.other"}
    finally:
        database.execute("DROP TABLE public.other")
        if "SCHEMA" in statement:
            database.execute("ALTER SCHEMA s_before RENAME TO s")


def test_a_table_that_is_dropped_after_a_part_of_it_was_read(
    database: pg.Database, schema: str, tmp_path: Any
) -> None:
    if database.version < 14:
        pytest.skip("a table is read in one range before 14")
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, v text)",
        "INSERT INTO s.t SELECT g, repeat('x', 500) FROM generate_series(1, 1000) g",
        "CREATE TABLE s.other (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE s.t, s.other",
    )

    def drop(now: LoadProgress) -> None:
        database.execute("DROP TABLE IF EXISTS s.t")

    with Snapshot(database.dsn, ["p"], range_bytes=1 << 16) as snapshot:
        loaded = snapshot.load_to(tmp_path, progress=drop)
    assert (set(loaded.tables), set(loaded.lost)) == ({"s.other"}, {"s.t"})
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["s.other"]


def test_a_partition_that_is_lost(database: pg.Database, schema: str) -> None:
    if database.version < 13:
        pytest.skip("publications have publish_via_partition_root since 13")
    database.execute(
        *PARTITIONED,
        PARTITIONED_ROWS,
        "CREATE PUBLICATION p FOR TABLE s.root WITH (publish_via_partition_root = true)",
    )
    with Snapshot(database.dsn, ["p"]) as snapshot:
        database.execute("DROP TABLE s.high_b")
        reading = snapshot.read()
        list(reading)
    assert "s.root had its partition s.high_b dropped" in reading.lost["s.root"]


def test_rows_that_a_policy_hides_are_no_rows_that_are_missing(database: pg.Database, schema: str) -> None:
    user = f"{database.name}_user"
    database.execute(
        f"CREATE ROLE {user} LOGIN REPLICATION",
        "CREATE TABLE s.t (id int PRIMARY KEY)",
        "INSERT INTO s.t VALUES (1), (2)",
        "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY one ON s.t USING (id = 1)",
        f"GRANT USAGE ON SCHEMA s TO {user}",
        "CREATE PUBLICATION p FOR TABLE s.t",
    )
    dsn = database.dsn.replace("user=postgres", f"user={user}")
    try:
        with Snapshot(dsn, ["p"]) as snapshot, pytest.raises(psycopg2.errors.InsufficientPrivilege):
            list(snapshot.read())
        database.execute(f"GRANT SELECT ON s.t TO {user}")
        with Snapshot(dsn, ["p"]) as snapshot, pytest.raises(psycopg2.Error, match="row-level security"):
            list(snapshot.read())
    finally:
        database.execute(f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_an_iterator_that_nobody_reads_to_its_end(database: pg.Database, schema: str) -> None:
    """Sessions and threads go; and nothing is read ahead without bounds."""
    database.execute(
        "CREATE TABLE s.t (id int PRIMARY KEY, v text)",
        "INSERT INTO s.t SELECT g, repeat('x', 500) FROM generate_series(1, 40000) g",
        "CREATE PUBLICATION p FOR TABLE s.t",
    )
    options = pgo.Options(batch_rows=100)
    with Snapshot(database.dsn, ["p"], options=options) as snapshot:
        told: list[LoadProgress] = []
        reading = snapshot.read(threads=2, progress=told.append)
        iterator = iter(reading)
        assert next(iterator)[1].num_rows == 100
        assert not told
        iterator.close()  # type: ignore[attr-defined]
        assert not [
            thread for thread in threading.enumerate() if thread.name.startswith("pgoutput_fast-snap")
        ]
        reading_on = snapshot.read()
        assert sum(batch.num_rows for _, batch in reading_on) == 40000
    active = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgoutput_fast' AND state = 'active' "
        "AND datname = current_database()"
    )
    wait_until(lambda: database.execute(active) == [(0,)])
