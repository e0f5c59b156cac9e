"""Every type on every server: a snapshot's values and schemas are those of the changes that made the rows."""

from __future__ import annotations

import random

import pytest

from cells.built_in_cases import CASES as BUILT_IN
from cells.built_in_cases import has_xml, insert
from cells.range_cases import POINTS, RANGES
from cells.range_cases import fill as fill_ranges
from cells.scalar_cases import CASES, SEED, TEXT_LIKE, create, fill_arrays
from pgoutput_fast import Options
from pgoutput_fast.capture import Snapshot
from support import pg
from support.snapshots import plain_rows, same_as_changes, tables_of

pytestmark = pytest.mark.few_servers


@pytest.mark.newest_server
def test_scalars_arrays_and_domains(database: pg.Database) -> None:
    version = database.version
    with database.slot() as slot:
        slot.execute("CREATE SCHEMA a", "SET search_path = a, public", TEXT_LIKE.format("citext"))
        for name, case in CASES.items():
            if version < case.since:
                continue
            create(slot, name, case.sql, [None, *case.values_for(version, random.Random(f"{SEED} {name}"))])
            fill_arrays(slot, name, case.sql)
            slot.execute(
                f"CREATE DOMAIN d_{name} AS {case.sql}",
                f"CREATE TABLE vd_{name} (id int PRIMARY KEY, v d_{name})",
                f"INSERT INTO vd_{name} SELECT * FROM v_{name}",
            )
        # Settings of a user must not show.
        slot.execute(f"ALTER DATABASE {database.name} SET DateStyle = 'SQL, DMY'")
        with Snapshot(database.dsn, [slot.name]) as snapshot:
            read = same_as_changes(snapshot, slot.peek())
        assert len(read) > 90
        # Without a server's word on types: domains lose their precision, in both.
        with Snapshot(database.dsn, [slot.name], user_types=False) as snapshot:
            same_as_changes(snapshot, slot.peek())
        slot.execute(f"ALTER DATABASE {database.name} RESET ALL", "DROP SCHEMA a CASCADE")


@pytest.mark.parametrize("numeric", ["string", "float64"])
def test_options_count_as_for_changes(database: pg.Database, numeric: str) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE SCHEMA o",
            "CREATE TABLE o.t (id int PRIMARY KEY, n numeric, u uuid, d date)",
            "INSERT INTO o.t VALUES (1, 1.5, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'infinity'), (2, 1e20, NULL, NULL)",
        )
        options = Options(
            numeric=numeric, uuid="fixed_size_binary", strings="string_view", metadata_prefix="m_",
            columns={"o.t": ["n", "u", "d"]}, batch_rows=2,
        )  # fmt: skip
        with Snapshot(database.dsn, [slot.name], options=options, tables=["o.t"]) as snapshot:
            ((name, batch),) = list(snapshot.read())
            schema = snapshot.schema("o.t")
        slot.execute("DROP SCHEMA o CASCADE")
    assert name == "o.t"
    assert batch.schema.equals(schema, check_metadata=True)
    assert batch.schema.names[11:] == ["n", "u", "d"]
    assert batch.column("m_unrepresentable").to_pylist() == [["d"], None]
    assert batch.column("n").to_pylist() == (
        ["1.5", "100000000000000000000"] if numeric == "string" else [1.5, 1e20]
    )


def test_built_in_types_ranges_and_points(database: pg.Database) -> None:
    version = database.version
    with database.slot() as slot:
        slot.execute('CREATE TABLE IF NOT EXISTS public."odd ""name" ()')
        slot.execute("CREATE SCHEMA b", "SET search_path = b, public")
        for name, case in BUILT_IN.items():
            if version < case.since or (name == "xml" and not has_xml(database)):
                continue
            insert(slot, f"p_{name}", case.sql, [None, *case.values_for(version, name)])
        slot.execute(
            "CREATE TYPE textrange AS RANGE (subtype = text)",
            "CREATE TYPE floatrange AS RANGE (subtype = float8)",
        )
        for name, ranges in RANGES.items():
            fill_ranges(slot, name, ranges.values(version, random.Random(f"{SEED} {name}")), version)
        slot.execute("CREATE TABLE points (id int PRIMARY KEY, v point, a point[])")
        for number, point in enumerate(POINTS):
            slot.execute(f"INSERT INTO points VALUES ({number}, '{point}', ARRAY['{point}', NULL]::point[])")
        with Snapshot(database.dsn, [slot.name]) as snapshot:
            read = same_as_changes(snapshot, slot.peek())
        assert len(read) > 50
        slot.execute("DROP SCHEMA b CASCADE")


USER_TYPES = (
    "CREATE TYPE u.mood AS ENUM ('sad', 'ok', 'é')",
    "CREATE DOMAIN u.price AS numeric(8,2)",
    "CREATE TYPE u.item AS (sku text, price u.price, mood u.mood, at timestamptz)",
    "CREATE TYPE u.pair AS (a u.item, b int[])",
    "CREATE DOMAIN u.list AS u.mood[]",
    # No binary form: of itself, and of whatever it is in.
    "CREATE TYPE u.mute",
    "CREATE FUNCTION u.mute_in(cstring) RETURNS u.mute LANGUAGE internal IMMUTABLE STRICT AS 'textin'",
    "CREATE FUNCTION u.mute_out(u.mute) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'",
    "CREATE TYPE u.mute (INPUT = u.mute_in, OUTPUT = u.mute_out, LIKE = text)",
    "CREATE TYPE u.with_mute AS (m u.mute, n int)",
    # A binary form that nobody knows, and a cast to text that is not what the type prints.
    "CREATE TYPE u.odd",
    "CREATE FUNCTION u.odd_in(cstring) RETURNS u.odd LANGUAGE internal IMMUTABLE STRICT AS 'int4in'",
    "CREATE FUNCTION u.odd_out(u.odd) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out'",
    "CREATE FUNCTION u.odd_send(u.odd) RETURNS bytea LANGUAGE internal IMMUTABLE STRICT AS 'int4send'",
    "CREATE TYPE u.odd (INPUT = u.odd_in, OUTPUT = u.odd_out, SEND = u.odd_send, LIKE = int4)",
    "CREATE FUNCTION u.odd_text(u.odd) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'wrong'::text$$",
    "CREATE CAST (u.odd AS text) WITH FUNCTION u.odd_text(u.odd)",
)
USER_TABLE = """
    CREATE TABLE u.t (id int PRIMARY KEY, mood u.mood, moods u.mood[], price u.price, item u.item, items u.item[],
                      pair u.pair, list u.list, mute u.mute, mutes u.mute[], inside u.with_mute, odd u.odd, odds u.odd[],
                      class regclass, classes regclass[], acl aclitem, acls aclitem[], of_u u.odd, dropped int, last int)
"""
USER_ROWS = """
    INSERT INTO u.t VALUES
    (1, 'ok', '{sad,NULL,é}', 12.50, ROW('a,b "c"', 1.25, 'sad', '2024-01-01 00:00+00'), ARRAY[ROW('x', NULL, NULL, NULL)]::u.item[],
     ROW(ROW('p', 2, 'ok', NULL), '{1,2}'), '{ok}', 'quiet "x"', '{a,NULL,"b c"}', ROW('in', 3), '42', '{1,NULL,3}',
     'pg_class', '{pg_class,pg_type}', makeaclitem(10, 10, 'SELECT', false), ARRAY[makeaclitem(10, 10, 'SELECT', false)], '7', 1),
    (2, NULL, '{}', NULL, ROW(NULL, NULL, NULL, NULL), '{}', ROW(NULL, NULL), NULL, NULL, '{}', ROW(NULL, NULL), NULL, '{}',
     NULL, '{}', NULL, '{}', NULL, 2)
"""


@pytest.mark.parametrize("user_types", [True, False])
def test_user_types_and_types_without_a_binary_form(database: pg.Database, user_types: bool) -> None:
    with database.slot() as slot:
        slot.execute("DROP SCHEMA IF EXISTS u CASCADE", "CREATE SCHEMA u", *USER_TYPES, USER_TABLE)
        slot.execute("ALTER TABLE u.t DROP COLUMN dropped", USER_ROWS, "INSERT INTO u.t (id) VALUES (3)")
        with Snapshot(database.dsn, [slot.name], user_types=user_types) as snapshot:
            read = same_as_changes(snapshot, slot.peek())["u.t"]
        kind = read.schema.field("item").type
        assert (str(kind).startswith("struct<sku")) == user_types
        assert read["odd"].to_pylist().count("42") == 1
        slot.execute("DROP SCHEMA u CASCADE")


def test_values_without_an_arrow_form_are_null_and_in_the_rejects(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE SCHEMA n",
            "CREATE TABLE n.t (id int PRIMARY KEY, t timestamp, ts timestamp[])",
            "INSERT INTO n.t VALUES (1, 'infinity', '{infinity,2000-01-01}'), (2, NULL, '[0:1]={2000-01-01,NULL}')",
        )
        with Snapshot(database.dsn, [slot.name], tables=["n.t"]) as snapshot:
            reading = snapshot.read()
            read = tables_of(reading)["n.t"]
        slot.execute("DROP SCHEMA n CASCADE")
    (rejects,) = reading.rejects
    assert plain_rows(read, ["id", "_unrepresentable"]) == [(1, ["t", "ts"]), (2, None)]
    assert rejects.column("seq").to_pylist() == [-1, -1, -1]
    assert rejects.column("format").to_pylist() == ["binary"] * 3
