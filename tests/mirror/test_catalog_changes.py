"""What is altered at the server, and the stream does not have: the mirror sees it in the catalogs, and loads the table.

All tables are loaded by one mirror, and altered then. `LOADED` has what needs a load, `KEPT` what does not.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator

import pytest

from pgoutput_fast.mirror import Mirror, MirrorError
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions
from support import pg
from support.capturing import drop_when_free, wait_until
from support.mirrors import Place, current_of, expect_equal, loads_of, mirrored_rows, opened, place, rows_of

__all__ = ["place"]

_PLAIN = "(id int PRIMARY KEY, a text, b text)"
_PARTS = [
    "CREATE TABLE {t} (id int PRIMARY KEY, a text, b text) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (200)",
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (200) TO (300)",
    "INSERT INTO {t} VALUES (201, 'second', '')",
]
# Name of the table -> how it is made, if not as `_PLAIN`.
_MADE = {
    "attached": _PARTS,
    "attached_at_once": _PARTS,
    "attached_by_an_older_transaction": _PARTS,
    "filled": _PARTS,
    "detached": _PARTS,
    "dropped": _PARTS,
    "cleared": _PARTS,
    "grown": _PARTS,
    "expression": [
        "CREATE TABLE {t} (id int PRIMARY KEY, n int, b text GENERATED ALWAYS AS (n || '!') STORED)"
    ],
    "plus": ["CREATE TABLE {t} (id int PRIMARY KEY, n int)"],
    "computed": ["CREATE TABLE {t} (id int PRIMARY KEY)", "ALTER TABLE {t} ADD c int DEFAULT 5"],
    "moment": ["CREATE TABLE {t} (id int PRIMARY KEY, a timestamp DEFAULT '2020-01-01 00:00:00.7')"],
    "label": [
        "CREATE TYPE mood AS ENUM ('x', 'y')",
        "CREATE TABLE {t} (id int PRIMARY KEY, a mood DEFAULT 'x')",
    ],
    "labels": [
        "CREATE TYPE hue AS ENUM ('x', 'y')",
        "CREATE TABLE {t} (id int PRIMARY KEY, a hue DEFAULT 'x')",
    ],
    "pairs": [
        "CREATE TYPE pair AS (x int, y int)",
        "CREATE TABLE {t} (id int PRIMARY KEY, a pair DEFAULT '(1,2)')",
    ],
    "longer": ["CREATE TABLE {t} (id int PRIMARY KEY, a varchar(5), b text)"],
}
_SWAP = [
    "ALTER TABLE blue RENAME TO blue_now",
    "ALTER TABLE green RENAME TO blue",
    "ALTER TABLE blue_now RENAME TO green",
]
# Name of the table -> what is done to it, before a row is inserted.
LOADED = {
    "again": ["ALTER TABLE {t} DROP b", "ALTER TABLE {t} ADD b text"],
    "swapped": [
        "ALTER TABLE {t} RENAME a TO x",
        "ALTER TABLE {t} RENAME b TO a",
        "ALTER TABLE {t} RENAME x TO b",
    ],
    "random": ["ALTER TABLE {t} ADD c float8 DEFAULT random()", "ALTER TABLE {t} ALTER c DROP DEFAULT"],
    "vacuumed": [
        "ALTER TABLE {t} ADD c int DEFAULT 5",
        "ALTER TABLE {t} ALTER c DROP DEFAULT",
        "VACUUM FULL {t}",
    ],
    "expression": ["ALTER TABLE {t} ALTER b DROP EXPRESSION"],
    "cut": ["ALTER TABLE {t} ALTER a TYPE varchar(1) USING left(a, 1)"],
    "upper": ["ALTER TABLE {t} ALTER a TYPE text USING upper(a)"],
    "plus": ["ALTER TABLE {t} ALTER n TYPE int USING n + 1"],
    "computed": ["ALTER TABLE {t} ALTER c TYPE int USING c + 1"],
    "moment": ["ALTER TABLE {t} ALTER a TYPE timestamp(0)"],
    "label": ["ALTER TYPE mood RENAME VALUE 'x' TO 'z'"],
    "filtered": ["ALTER PUBLICATION listed SET TABLE filtered WHERE (id > 1), chosen (id, a, b)"],
    "chosen": [],
    "left_out": [
        "ALTER PUBLICATION mirrored DROP TABLE {t}",
        "DELETE FROM {t} WHERE id = 1",
        "ALTER PUBLICATION mirrored ADD TABLE {t}",
    ],
    "switched": [
        "ALTER PUBLICATION switched SET (publish = 'insert')",
        "DELETE FROM {t} WHERE id = 1",
        "ALTER PUBLICATION switched SET (publish = 'insert, update, delete, truncate')",
    ],
    "unlogged": [
        "ALTER TABLE {t} SET UNLOGGED",
        "DELETE FROM {t} WHERE id = 1",
        "ALTER TABLE {t} SET LOGGED",
    ],
    "here": ["ALTER TABLE here RENAME TO other", "ALTER TABLE there RENAME TO here"],
    "there": ["ALTER TABLE other RENAME TO there"],
    "blue": [*_SWAP, "INSERT INTO blue VALUES (20, 'in green')", *_SWAP],
    "green": [],
    "attached": [
        "CREATE TABLE {t}_3 (id int PRIMARY KEY, a text, b text)",
        "INSERT INTO {t}_3 VALUES (301, 'before', '')",
        "ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (300) TO (400)",
    ],
    # Only the partitions know the value that their old rows have.
    "filled": ["ALTER TABLE {t} ADD c int DEFAULT 5", "ALTER TABLE {t} ALTER c DROP DEFAULT"],
    # Rows of a subtransaction have a younger number than the transaction that attaches the table.
    "attached_at_once": [
        "DO $$ BEGIN CREATE TABLE {t}_3 (id int PRIMARY KEY, a text, b text);"
        " BEGIN INSERT INTO {t}_3 VALUES (301, 'before', ''); EXCEPTION WHEN unique_violation THEN NULL; END;"
        " ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (300) TO (400); END $$"
    ],
    "attached_by_an_older_transaction": [
        "CREATE TABLE {t}_3 (id int PRIMARY KEY, a text, b text)",
        "INSERT INTO {t}_3 VALUES (301, 'before', '')",
    ],
    "detached": ["ALTER TABLE {t} DETACH PARTITION {t}_2"],
    "dropped": ["DROP TABLE {t}_2"],
    "cleared": ["TRUNCATE {t}_2"],
}
KEPT = {
    # These get their names back before the mirror looks.
    "renamed": [
        "ALTER TABLE {t} RENAME TO other_name",
        "DELETE FROM other_name WHERE id = 1",
        "ALTER TABLE other_name RENAME TO renamed",
    ],
    "moved": [
        "ALTER TABLE {t} SET SCHEMA elsewhere",
        "UPDATE elsewhere.moved SET a = 'there' WHERE id = 1",
        "ALTER TABLE elsewhere.moved SET SCHEMA public",
    ],
    "added": ["ALTER TABLE {t} ADD c int"],
    "less": ["ALTER TABLE {t} DROP b"],
    "longer": ["ALTER TABLE {t} ALTER a TYPE varchar(9)", "ALTER TABLE {t} ALTER a TYPE text"],
    "packed": ["VACUUM FULL {t}"],
    "emptied": ["TRUNCATE {t}"],
    "strict": [
        "UPDATE {t} SET a = 'a'",
        "ALTER TABLE {t} ALTER a SET NOT NULL",
        "ALTER TABLE {t} ALTER a SET DEFAULT 'd'",
    ],
    "labels": ["ALTER TYPE hue ADD VALUE 'w' BEFORE 'x'"],
    "twice": ["ALTER PUBLICATION switched ADD TABLE {t}"],
    "grown": [
        "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (300) TO (400)",
        "CREATE TABLE {t}_4 (id int PRIMARY KEY, a text, b text)",
        "ALTER TABLE {t} ATTACH PARTITION {t}_4 FOR VALUES FROM (400) TO (500)",
        "INSERT INTO {t} VALUES (301, 'behind', '')",
        "VACUUM FULL {t}_1",
    ],
}
_ALL = [*LOADED, *KEPT, "pairs"]
_LISTED, _SWITCHED, _BY_SCHEMA = ("filtered", "chosen"), ("switched",), ("unlogged",)
_PUBLICATIONS = ["mirrored", "listed", "switched", "by_schema"]


def _mirror(place: Place) -> Mirror:
    return Mirror(place.database.dsn, place.slot, _PUBLICATIONS, place.target, seconds=0.5)


def _named(name: str) -> str:
    return f"sch.{name}" if name in _BY_SCHEMA else f"public.{name}"


def _make(database: pg.Database) -> None:
    database.execute("CREATE SCHEMA sch", "CREATE SCHEMA elsewhere")
    for name in _ALL:
        table = _named(name)
        for statement in _MADE.get(name, [f"CREATE TABLE {{t}} {_PLAIN}"]):
            database.execute(statement.format(t=table))
        if name in _MADE and _MADE[name] is not _PARTS:
            database.execute(f"INSERT INTO {table} (id) SELECT generate_series(1, 3)")
        else:
            database.execute(f"INSERT INTO {table} SELECT g, 'a' || g, 'b' || g FROM generate_series(1, 3) g")
    database.execute("UPDATE expression SET n = id", "UPDATE plus SET n = id")
    own = {*_LISTED, *_SWITCHED, *_BY_SCHEMA}
    rest = ", ".join(_named(name) for name in _ALL if name not in own)
    database.execute(
        f"CREATE PUBLICATION mirrored FOR TABLE {rest} WITH (publish_via_partition_root)",
        "CREATE PUBLICATION listed FOR TABLE filtered WHERE (id > 2), chosen (id, a)",
        "CREATE PUBLICATION switched FOR TABLE switched",
        "CREATE PUBLICATION by_schema FOR TABLES IN SCHEMA sch",
    )


def _alter(database: pg.Database) -> None:
    older = database.connect()
    older.autocommit = False
    with contextlib.closing(older), older.cursor() as cursor:
        cursor.execute("SELECT txid_current()")
        for name, statements in {**LOADED, **KEPT}.items():
            for statement in statements:
                database.execute(statement.format(t=_named(name)))
        table = _named("attached_by_an_older_transaction")
        cursor.execute(f"ALTER TABLE {table} ATTACH PARTITION {table}_3 FOR VALUES FROM (300) TO (400)")
        older.commit()
    for name in _ALL:
        if name not in ("strict", "here", "there"):
            database.execute(f"INSERT INTO {_named(name)} (id) VALUES (100)")


@pytest.fixture(scope="module")
def altered(servers: pg.Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A mirror whose tables were altered. It was opened twice: so what it remembers was read from its files."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    with opened(servers[max(servers)], tmp_path_factory.mktemp("altered")) as place:
        _make(place.database)
        with _mirror(place) as mirror:
            mirror.run(until_lsn="now")
        _forget_fingerprint(place, "public.cut")
        with _mirror(place) as mirror:
            mirror.run(until_lsn="now")
            assert [loads_of(place, _named(name)) for name in _ALL] == [1] * len(_ALL)
            _alter(place.database)
            place.database.execute(
                "ALTER TYPE pair ADD ATTRIBUTE z int CASCADE", "INSERT INTO pairs VALUES (4, '(1,2,3)')"
            )
            mirror.run(until_lsn="now")
            assert {each.table for each in mirror.status() if each.state != "follow"} == set()
        yield place


def _forget_fingerprint(place: Place, table: str) -> None:
    """A mirror that began with an earlier version has none: it takes the first that it sees, without a load."""
    path = place.target / "_mirror" / "tables" / f"{table}.json"
    record = json.loads(path.read_text())
    assert record.pop("fingerprint")["oid"] == record["oid"]
    path.write_text(json.dumps(record))


def _expect_equal(place: Place, name: str) -> None:
    where = " WHERE id > 1" if name == "filtered" else ""
    names, expected = rows_of(place.database, _named(name) + where)
    assert mirrored_rows(current_of(place.target, _named(name)), names) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADED)
def test_what_needs_a_load(altered: Place, name: str) -> None:
    _expect_equal(altered, name)
    assert loads_of(altered, _named(name)) == 2


@pytest.mark.parametrize("name", KEPT)
def test_what_needs_no_load(altered: Place, name: str) -> None:
    _expect_equal(altered, name)
    assert loads_of(altered, _named(name)) == 1


def test_a_composite_type_that_gets_an_attribute(altered: Place) -> None:
    rows = {row["id"]: row["a"] for row in current_of(altered.target, "public.pairs").to_pylist()}
    assert rows[1] == {"x": 1, "y": 2, "z": None}
    assert rows[4] == {"x": 1, "y": 2, "z": 3}


def test_a_publication_that_does_not_publish_all(altered: Place) -> None:
    altered.database.execute("CREATE PUBLICATION part_of FOR TABLE added WITH (publish = 'insert, update')")
    target = altered.target.parent / "other"
    with (
        Mirror(altered.database.dsn, f"{altered.slot}_2", ["part_of"], target) as mirror,
        pytest.raises(MirrorError, match=r"does not publish delete, truncate.*ALTER PUBLICATION part_of SET"),
    ):
        mirror.run(until_lsn="now")


@pytest.mark.slow
def test_a_column_that_is_dropped_and_comes_back_while_the_mirror_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a row in between. Rows alone show it: nobody looks at the publications meanwhile."""
    monkeypatch.setattr("pgoutput_fast.mirror.service.run._LOOK_SECONDS", 1e6)
    place.database.execute(
        f"CREATE TABLE t {_PLAIN}",
        "INSERT INTO t SELECT g, 'a', 'b' FROM generate_series(1, 3) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    stop = threading.Event()
    with place.mirror() as mirror:
        running = threading.Thread(target=lambda: mirror.run(stop=stop))
        running.start()
        try:
            place.database.execute("INSERT INTO t VALUES (10, 'x', 'y')")
            _wait_for_rows(place, 4, running)
            place.database.execute(
                "ALTER TABLE t DROP b",
                "INSERT INTO t VALUES (11, 'x')",
                "ALTER TABLE t ADD b text",
                "INSERT INTO t VALUES (12, 'x', 'z')",
            )
            _wait_for_rows(place, 6, running)
        finally:
            stop.set()
            running.join()
        place.expect_no_errors(mirror)
        mirror.run(until_lsn="now")
    expect_equal(place, "public.t")


def _wait_for_rows(place: Place, count: int, running: threading.Thread) -> None:
    def is_there() -> bool:
        current = open_current("delta", open_store(place.target), "public.t", TableOptions())
        return current.read(current.version()).num_rows == count or not running.is_alive()

    wait_until(is_there)
    assert running.is_alive()


@pytest.mark.slow
def test_a_table_that_cannot_be_read_stops_alone(place: Place) -> None:
    """And operations that are not published any more stop a table until they are published again."""
    database, role = place.database, f"{place.database.name}_reader"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON t TO {role}",
    )
    dsn = re.sub(r"user=\S+", f"user={role}", database.dsn)
    try:
        with Mirror(dsn, place.slot, ["mirrored"], place.target, seconds=0.5) as mirror:
            mirror.run(until_lsn="now")
            database.execute(
                "CREATE TABLE secret (id int PRIMARY KEY)",
                "CREATE TABLE divided (id int PRIMARY KEY)",
                "ALTER TABLE divided ENABLE ROW LEVEL SECURITY",
                f"GRANT SELECT ON divided TO {role}",
                "INSERT INTO t VALUES (1)",
            )
            mirror.run(until_lsn="now")
            divided, secret, other = mirror.status()
            assert (divided.state, secret.state, other.state) == ("stopped", "stopped", "follow")
            assert "permission denied" in str(secret.error)
            assert "GRANT SELECT" in str(secret.error)
            assert "BYPASSRLS" in str(divided.error)
            assert "GRANT SELECT" not in str(divided.error)
            expect_equal(place, "public.t")
            database.execute(
                f"GRANT SELECT ON secret TO {role}",
                f"ALTER ROLE {role} BYPASSRLS",
            )
            mirror.reload("public.divided")
            mirror.reload("public.secret")
            database.execute("ALTER PUBLICATION mirrored SET (publish = 'insert, truncate')")
            mirror.run(until_lsn="now")
            stopped = {each.table: str(each.error) for each in mirror.status() if each.error}
            assert stopped.keys() == {"public.divided", "public.secret", "public.t"}
            assert "no update, delete. Run ALTER PUBLICATION" in stopped["public.t"]
            with pytest.raises(MirrorError, match="no update, delete"):
                mirror.reload("public.t")
            database.execute(
                "DELETE FROM t",
                "ALTER PUBLICATION mirrored SET (publish = 'insert, update, delete, truncate')",
            )
            mirror.run(until_lsn="now")
            place.expect_no_errors(mirror)
        expect_equal(place, "public.t", "public.secret")
    finally:
        drop_when_free(database.dsn, place.slot)
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
