"""What mirrors often leave out, each in a table of its own: docs/peers.md names these tests.

All tables are loaded by one mirror, and changed then. At the end each must be what the server has.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import pg
from support.mirrors import Place, current_of, expect_equal, expect_replayed, history_of, opened

_SCHEMA = """
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE DOMAIN price AS numeric(8, 2) CHECK (VALUE >= 0);
    CREATE TABLE large (id int PRIMARY KEY, n int, doc text);
    ALTER TABLE large ALTER doc SET STORAGE EXTERNAL;
    INSERT INTO large SELECT g, 0, repeat(g::text, 9000) FROM generate_series(1, 4) g;
    CREATE TABLE keys (id int PRIMARY KEY, v text);
    INSERT INTO keys SELECT g, 'row ' || g FROM generate_series(1, 5) g;
    CREATE TABLE swapped (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);
    ALTER TABLE swapped REPLICA IDENTITY FULL;
    INSERT INTO swapped SELECT g, 'row ' || g FROM generate_series(1, 3) g;
    CREATE TABLE copies (v text, n int);
    ALTER TABLE copies REPLICA IDENTITY FULL;
    INSERT INTO copies VALUES ('a', 1), ('a', 1), ('a', 1), ('b', NULL);
    CREATE TABLE emptied (id int PRIMARY KEY, v text);
    INSERT INTO emptied VALUES (1, 'old'), (2, 'old');
    CREATE TABLE undone (id int PRIMARY KEY, v text);
    CREATE TABLE measured (id int PRIMARY KEY, n numeric(8, 2), at timestamp, day date, v text);
    CREATE TABLE typed (id int PRIMARY KEY, m mood, p price, r int4range, a mood[]);
    CREATE TABLE parts (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE parts_north PARTITION OF parts FOR VALUES IN ('north');
    CREATE TABLE parts_south PARTITION OF parts FOR VALUES IN ('south');
    INSERT INTO parts VALUES (1, 'north', 'a'), (2, 'south', 'b')
"""
_CHANGES = [
    # The server sends `doc` in none of these.
    "UPDATE large SET n = 1",
    "UPDATE large SET id = 10, n = 2 WHERE id = 1",
    # Keys that change, also to one that another row had.
    "UPDATE keys SET id = id + 100 WHERE id < 3",
    "BEGIN; DELETE FROM keys WHERE id = 3; UPDATE keys SET id = 3 WHERE id = 4; COMMIT",
    # Two rows take each other's key: in three steps, and at once, which a deferred constraint allows.
    "BEGIN; UPDATE keys SET id = -1 WHERE id = 101; UPDATE keys SET id = 101 WHERE id = 102; "
    "UPDATE keys SET id = 102 WHERE id = -1; COMMIT",
    "UPDATE swapped SET id = 3 - id WHERE id < 3",
    "DELETE FROM copies WHERE ctid = (SELECT min(ctid) FROM copies WHERE v = 'a')",
    "UPDATE copies SET n = 7 WHERE ctid = (SELECT min(ctid) FROM copies WHERE v = 'a')",
    "BEGIN; INSERT INTO emptied VALUES (3, 'gone'); TRUNCATE emptied; INSERT INTO emptied VALUES (1, 'new'); COMMIT",
    # Large enough to be streamed before it ends, with a part that is rolled back.
    "BEGIN; INSERT INTO undone SELECT g, repeat('x', 200) FROM generate_series(1, 2000) g; SAVEPOINT s; "
    "INSERT INTO undone SELECT g, repeat('y', 200) FROM generate_series(2001, 4000) g; UPDATE undone SET v = 'z'; "
    "ROLLBACK TO s; DELETE FROM undone WHERE id <= 10; COMMIT",
    "INSERT INTO measured VALUES (1, 'NaN', 'infinity', '0044-03-15 BC', 'x'), (2, 1.5, '2024-01-01', '2024-01-01', 'y')",
    "UPDATE measured SET v = 'z' WHERE id = 1",
    "INSERT INTO typed VALUES (1, 'ok', 9.5, '[1,5)', '{sad,ok}'), (2, 'sad', 0, 'empty', NULL)",
    "UPDATE typed SET m = 'sad', p = 12.25 WHERE id = 1",
    "UPDATE parts SET v = 'c' WHERE id = 1",
    "UPDATE parts SET region = 'south' WHERE id = 1",
]


@pytest.fixture(scope="module")
def mirrored(servers: pg.Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A database that was loaded, and then changed."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    with opened(servers[max(servers)], tmp_path_factory.mktemp("left_out")) as place:
        place.database.execute(
            _SCHEMA,
            "CREATE PUBLICATION mirrored FOR ALL TABLES WITH (publish_via_partition_root = true)",
        )
        place.run()
        for statements in _CHANGES:
            place.database.execute(*statements.split("; "))
        place.run()
        yield place


def _expect(place: Place, table: str, *key: str) -> None:
    expect_equal(place, table)
    expect_replayed(place, table, list(key))


@pytest.mark.slow
def test_large_values_that_did_not_change(mirrored: Place) -> None:
    _expect(mirrored, "public.large", "id")
    docs = current_of(mirrored.target, "public.large")["doc"].to_pylist()
    assert sorted(len(doc) for doc in docs) == [9000] * 4


def test_keys_that_change(mirrored: Place) -> None:
    _expect(mirrored, "public.keys", "id")


def test_two_rows_that_swap_their_keys(mirrored: Place) -> None:
    _expect(mirrored, "public.swapped")
    rows = {row["id"]: row["v"] for row in current_of(mirrored.target, "public.keys").to_pylist()}
    assert (rows[101], rows[102]) == ("row 2", "row 1")


def test_tables_without_a_key(mirrored: Place) -> None:
    """Of equal rows, as many are there as on the server."""
    _expect(mirrored, "public.copies")
    assert current_of(mirrored.target, "public.copies").num_rows == 3


def test_truncate(mirrored: Place) -> None:
    _expect(mirrored, "public.emptied", "id")
    assert "truncate" in history_of(mirrored.target, "public.emptied")["_change_type"].to_pylist()


def test_a_part_of_a_streamed_transaction_is_rolled_back(mirrored: Place) -> None:
    _expect(mirrored, "public.undone", "id")
    assert current_of(mirrored.target, "public.undone").num_rows == 1990


def test_values_that_no_column_can_have(mirrored: Place) -> None:
    """The row is there, and says which values are missing. Nothing stops. Python has no such day, but the table has."""
    rows = current_of(mirrored.target, "public.measured").sort_by("id")
    first, second = rows.drop_columns(["day"]).to_pylist()
    assert first["_unrepresentable"] == ["n", "at"]
    assert (first["id"], first["n"], first["at"], first["v"]) == (1, None, None, "z")
    ((days,),) = mirrored.database.execute("SELECT day - date '1970-01-01' FROM measured WHERE id = 1")
    assert rows["day"].cast("int32")[0].as_py() == days
    assert second["_unrepresentable"] is None
    assert (str(second["n"]), second["at"].year, second["v"]) == ("1.50", 2024, "y")


def test_types_that_users_made(mirrored: Place) -> None:
    rows = {
        row["id"]: (row["m"], str(row["p"]), row["r"]["lower"], row["r"]["upper"], row["a"])
        for row in current_of(mirrored.target, "public.typed").to_pylist()
    }
    assert rows == {1: ("sad", "12.25", 1, 5, ["sad", "ok"]), 2: ("sad", "0.00", None, None, None)}


def test_partitions(mirrored: Place) -> None:
    """A row that moves to another partition is still one row of one table."""
    _expect(mirrored, "public.parts", "id", "region")
