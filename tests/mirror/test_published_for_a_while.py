"""A table that was not published for a while, and is again before the mirror looks: it lacks rows, so it is loaded.

The stream has nothing of this. The catalogs tell, and what the server counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror
from pgoutput_fast.mirror.schema_changes.unseen import AlteredPublications, UnseenEntries
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
from support import pg
from support.capturing import wait_until
from support.forms import and_slow
from support.mirrors import Place, current_of, loads_of, mirrored_rows, opened, place, rows_of

__all__ = ["place"]

_TABLE = ("CREATE TABLE {t} (id int PRIMARY KEY, n int)",)
_PARTS = (
    "CREATE TABLE {t} (id int, n int) PARTITION BY RANGE (id)",
    "CREATE TABLE {leaf} PARTITION OF {t} FOR VALUES FROM (0) TO (1000)",
    "ALTER TABLE {leaf} ADD PRIMARY KEY (id)",
)
_AWAY = "ALTER TABLE {t} DETACH PARTITION {leaf}"
_BACK = "ALTER TABLE {t} ATTACH PARTITION {leaf} FOR VALUES FROM (0) TO (1000)"
_OUT, _IN = "ALTER TABLE {t} SET SCHEMA elsewhere", "ALTER TABLE elsewhere.{n} SET SCHEMA s_{n}"
_SCHEMA = "FOR TABLES IN SCHEMA s_{n}"


@dataclass(frozen=True)
class _Case:
    """A way to be unpublished for a while.

    Attributes:
        publication: what it publishes.
        away, back: what ends that, and begins it again.
        made: how the tables are made.
        written: the table that changes meanwhile.
        mirrored: the table of the mirror.
        since: the first version that has this.
    """

    publication: str
    away: str
    back: str
    made: tuple[str, ...] = _TABLE
    written: str = "{t}"
    mirrored: str = "{t}"
    leaf: str = "{t}_1"
    since: int = 10

    def named(self, name: str, statement: str) -> str:
        """A statement of the case. `{n}` is its name, `{t}` its table, `{leaf}` a partition, `{p}` the publication."""
        table = f"s_{name}.{name}" if self.publication == _SCHEMA else f"public.{name}"
        leaf = self.leaf.format(t=table, n=name)
        return statement.format(n=name, t=table, leaf=leaf, p=f"p_{name}")


_CASES = {
    "dropped": _Case(
        "FOR TABLE {t}", "ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t}"
    ),
    "leaf": _Case("FOR TABLE {t}", _AWAY, _BACK, _PARTS, "{leaf}", "{leaf}", since=13),
    "leaf_of_root": _Case(
        "FOR TABLE {t} WITH (publish_via_partition_root)", _AWAY, _BACK, _PARTS, "{leaf}", since=13
    ),
    "schema": _Case(
        _SCHEMA,
        "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA s_{n}",
        "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA s_{n}",
        since=15,
    ),
    "moved": _Case(_SCHEMA, _OUT, _IN, written="elsewhere.{n}", since=15),
    # A partition is published with the schema of its root.
    "leaf_elsewhere": _Case(
        _SCHEMA, _AWAY, _BACK, _PARTS, "{leaf}", "{leaf}", leaf="elsewhere.{n}_1", since=15
    ),
    # Short rows: without a TOAST table, the catalogs have nothing of it.
    "unlogged": _Case(_SCHEMA, "ALTER TABLE {t} SET UNLOGGED", "ALTER TABLE {t} SET LOGGED", since=15),
    "unlogged_leaf": _Case(
        "FOR TABLE {t}",
        "ALTER TABLE {leaf} SET UNLOGGED",
        "ALTER TABLE {leaf} SET LOGGED",
        _PARTS,
        "{leaf}",
        "{leaf}",
        since=13,
    ),
    "root_moved": _Case(_SCHEMA, _OUT, _IN, _PARTS, "{leaf}", "{leaf}", leaf="elsewhere.{n}_1", since=15),
}


@pytest.mark.slow
@pytest.mark.few_servers
@pytest.mark.newest_server
def test_all_ways(server: Server, tmp_path: Path) -> None:
    cases = {name: each for name, each in _CASES.items() if each.since <= server.version}
    with opened(server, tmp_path) as place:
        database = place.database
        database.execute("CREATE SCHEMA elsewhere")
        for name, each in cases.items():
            rows = "INSERT INTO {t} SELECT g, g FROM generate_series(1, 3) g"
            made = ("CREATE SCHEMA s_{n}", *each.made, rows, "CREATE PUBLICATION {p} " + each.publication)
            database.execute(*(each.named(name, statement) for statement in made))
        publications = [f"p_{name}" for name in cases]
        with Mirror(database.dsn, place.slot, publications, place.target, seconds=0.5) as mirror:
            mirror.run(until_lsn="now")
            for name, each in cases.items():
                changes = (
                    f"INSERT INTO {each.written} VALUES (10, 10)",
                    f"DELETE FROM {each.written} WHERE id = 1",
                )
                statements = (each.away, *changes, each.back)
                database.execute(*(each.named(name, statement) for statement in statements))
            for _ in range(2):  # the first look cannot tell SET LOGGED from TRUNCATE, which may come yet
                mirror.run(until_lsn="now")
        tables = {name: each.named(name, each.mirrored) for name, each in cases.items()}
        assert {name for name, table in tables.items() if not _is_equal(place, table)} == set()


@pytest.mark.slow
def test_another_file_with_the_same_rows(place: Place) -> None:
    """VACUUM FULL and TRUNCATE need no load, also without a TOAST table, and if the mirror is down meanwhile."""
    database = place.database
    database.execute(
        "CREATE TABLE packed (id int PRIMARY KEY)",
        "CREATE TABLE emptied (id int PRIMARY KEY)",
        "INSERT INTO packed VALUES (1)",
        "INSERT INTO emptied VALUES (1)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    for n in range(2, 4):
        database.execute(
            f"INSERT INTO packed VALUES ({n})",
            "VACUUM FULL packed",
            "TRUNCATE emptied",
            f"INSERT INTO emptied VALUES ({n})",
        )
        for _ in range(2):
            place.run()
    for table in ("public.packed", "public.emptied"):
        assert _is_equal(place, table)
        assert loads_of(place, table) == 1


def _is_equal(place: Place, table: str) -> bool:
    names, expected = rows_of(place.database, table)
    return mirrored_rows(current_of(place.target, table), names) == expected


def test_a_table_that_was_excepted(servers: pg.Servers, tmp_path: Path) -> None:
    """Nothing is left of that in the catalogs, but the server counts it. What a look has seen is no reason for a load."""
    if max(servers, default=0) < 19:
        pytest.skip("EXCEPT came with PostgreSQL 19")
    with opened(servers[max(servers)], tmp_path) as place:
        database = place.database
        database.execute(
            "CREATE TABLE a (id int PRIMARY KEY)",
            "CREATE TABLE b (id int PRIMARY KEY)",
            "CREATE PUBLICATION mirrored FOR ALL TABLES",
            "CREATE PUBLICATION other FOR TABLE b",
        )
        with place.mirror() as mirror:
            place.run_in(mirror)
            database.execute(
                "ALTER PUBLICATION mirrored SET ALL TABLES EXCEPT (TABLE a)",
                "INSERT INTO a VALUES (1)",
                "ALTER PUBLICATION mirrored SET ALL TABLES",
            )
            place.run_in(mirror)
            assert _is_equal(place, "public.a")
            versions = {each.table: each.version for each in mirror.status()}
            database.execute("DROP PUBLICATION other", "CREATE PUBLICATION another FOR TABLE b")
            place.run_in(mirror)
            assert {each.table: each.version for each in mirror.status()} == versions


def test_entries_that_no_look_has_seen(servers: pg.Servers, tmp_path: Path) -> None:
    """The server counts them, although some seconds later, and begins again at 0 after a crash."""
    if max(servers, default=0) < 15:
        pytest.skip("the statistics of earlier servers are not asked")
    add, drop = "ALTER PUBLICATION p ADD TABLE b", "ALTER PUBLICATION p DROP TABLE b"
    server = servers[max(servers)]
    with opened(server, tmp_path) as place:
        database = place.database
        unseen = UnseenEntries(MirrorState(open_store(tmp_path)))

        def number() -> int:
            with database.session() as connection, connection.cursor() as cursor:
                unseen.check(cursor)
            return unseen.number

        database.execute(
            "CREATE TABLE a (id int)", "CREATE TABLE b (id int)", "CREATE PUBLICATION p FOR TABLE a"
        )
        assert number() == 0
        # A server counts at the end of a session, or some seconds later.
        with database.session() as busy, busy.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.execute(add)
            assert number() == 0
        assert number() == 0
        database.execute(drop)
        assert number() == 0
        database.execute(add, drop)
        wait_until(lambda: number() == 1)
        server.stop("immediate")
        server.start()
        assert number() == 1
        database.execute(add, drop)
        wait_until(lambda: number() == 2)


_OPERATIONS = "'insert, update, delete, truncate'"


@pytest.mark.slow
@pytest.mark.parametrize("since", and_slow([19], [15]))
def test_a_publication_that_sends_the_same_as_before(servers: pg.Servers, tmp_path: Path, since: int) -> None:
    """One alteration that changes nothing of what is sent needs no load. Two may have changed it, and back."""
    if max(servers, default=0) < since:
        pytest.skip("no such server")
    harmless = [
        "ALTER PUBLICATION mirrored SET ALL TABLES, ALL SEQUENCES",
        "ALTER PUBLICATION mirrored SET ALL TABLES",
    ]
    if since == 15:
        harmless = [
            "ALTER PUBLICATION mirrored OWNER TO another",
            "ALTER PUBLICATION mirrored OWNER TO postgres",
        ]
    with Server(pg.installations()[since]) as server, opened(server, tmp_path) as place:
        database = place.database
        database.execute(
            "CREATE ROLE another SUPERUSER",
            "CREATE TABLE t (id int PRIMARY KEY)",
            "INSERT INTO t VALUES (1), (2)",
            "CREATE PUBLICATION mirrored FOR ALL TABLES",
        )
        place.run()
        for n, statement in enumerate(harmless):
            database.execute(statement, f"INSERT INTO t VALUES ({n + 10})")
            place.run()
        assert loads_of(place, "public.t") == 1
        assert _is_equal(place, "public.t")
        database.execute(
            "ALTER PUBLICATION mirrored SET (publish = 'insert')",
            "DELETE FROM t WHERE id = 1",
            f"ALTER PUBLICATION mirrored SET (publish = {_OPERATIONS})",
        )
        for _ in range(2):  # the server counts some seconds later
            place.run()
        assert _is_equal(place, "public.t")


@contextmanager
def _not_counted(database: pg.Database, statement: str) -> Iterator[None]:
    """A statement that has committed, and that the server counts at the end of the block: until then its session waits.

    A session that is idle may be counted at once.
    """
    lock, waits = (
        "SELECT pg_advisory_lock(1)",
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
    )
    with database.session() as holder, holder.cursor() as cursor:
        cursor.execute(lock)
        thread = threading.Thread(
            target=database.execute, args=(f"BEGIN; {statement}; COMMIT; {lock}",), daemon=True
        )
        thread.start()
        wait_until(lambda: database.execute(waits))
        yield
    thread.join()


def test_alterations_of_publications(servers: pg.Servers, tmp_path: Path) -> None:
    """The server may count them late, or not at all. In doubt, what was sent may have been another."""
    if max(servers, default=0) < 15:
        pytest.skip("the statistics of earlier servers are not asked")
    server = servers[max(servers)]
    with opened(server, tmp_path) as place:
        database = place.database
        altered = AlteredPublications(MirrorState(open_store(tmp_path)))
        database.execute("CREATE PUBLICATION p", "CREATE PUBLICATION q", "CREATE ROLE other SUPERUSER")
        ((oid,),) = database.execute("SELECT oid::text FROM pg_publication WHERE pubname = 'p'")
        owners = [f"ALTER PUBLICATION p OWNER TO {name}" for name in ("other", "postgres")]
        less, more = (f"ALTER PUBLICATION p SET (publish = {what})" for what in ("'insert'", _OPERATIONS))

        def mark() -> str:
            with database.session() as connection, connection.cursor() as cursor:
                altered.check(cursor)
                cursor.execute("SELECT xmin::text FROM pg_publication WHERE oid = %s", (oid,))
                ((xmin,),) = cursor.fetchall()
            # A snapshot from before another alteration has the mark of none that a check has seen.
            assert altered.marker(is_past=True)(oid, "3") == "3"
            assert altered.marker(is_past=True)(oid, xmin) in (xmin, altered.marker()(oid, xmin))
            return altered.marker()(oid, xmin)

        def counted() -> int:
            query = "SELECT pg_stat_get_tuples_updated('pg_publication'::regclass)"
            return int(database.execute(query)[0][0])

        def alter(*statements: str) -> None:
            before = counted()
            database.execute(*statements)
            wait_until(lambda: counted() >= before + len(statements))

        first = mark()
        alter(owners[0])
        assert mark() == first
        alter(owners[1])
        assert mark() == first
        # Two at once: nobody knows what was between them.
        alter(less, more)
        second = mark()
        assert second != first
        alter(*owners)
        third = mark()
        assert third != second
        # A session that the server has not counted yet: a look waits for it, and the next one does not.
        with _not_counted(database, owners[0]):
            assert mark() == third
            assert mark() != third
        # One that is counted after a look has found another one, and no more.
        wait_until(lambda: mark() == mark())
        fourth = mark()
        with _not_counted(database, less):
            alter(more)
            assert mark() == fourth
        wait_until(lambda: mark() != fourth)
        # After a crash the server begins again at 0.
        alter(owners[1])
        fifth = mark()
        server.stop("immediate")
        server.start()
        # It may have forgotten another alteration, beside the one that looked single.
        sixth = mark()
        assert sixth != fifth
        alter(owners[0])
        assert mark() == sixth
        database.execute("ALTER PUBLICATION p OWNER TO postgres", "DROP ROLE other")
