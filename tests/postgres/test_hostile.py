"""Functions, operators, types and tables that somebody planted: nothing that is sent to a server may call them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import (
    Capture,
    Snapshot,
    check,
    create_slot,
    drop_slot,
    find_slot,
    list_slots,
    temporary_slot,
)
from pgoutput_fast.capture.metrics import Meter
from pgoutput_fast.demo import rebuild, shop
from pgoutput_fast.postgres.describe import describe_missing
from pgoutput_fast.postgres.session import connect, current_lsn
from pgoutput_fast.segments import list_segments, read_segment
from pgoutput_fast.snapshot.holder import hold_snapshot
from support import pg
from support.capturing import drop_when_free
from support.forms import and_slow
from support.sql import FILES, statements

# A copy of what pg_catalog has under the words of the source's SQL, and of all its operators, in a schema that is
# looked into before. Every call of a function or an operator
# fails: this function of the server's takes any arguments, and refuses. A domain refuses every value, a table has no
# column.
_PLANT = """
DO $plant$
DECLARE
    one record;
    modern bool := current_setting('server_version_num')::int >= 120000;
    kind jsonb := CASE WHEN current_setting('server_version_num')::int >= 110000 THEN '{"prokind": "f"}'::jsonb
                  ELSE '{"proisagg": false, "proiswindow": false}' END;
    trap oid;
    words text[] := string_to_array('{words}', ' ');
BEGIN
    CREATE FUNCTION public.trap() RETURNS bool LANGUAGE internal AS 'shell_in';
    trap := 'public.trap'::regproc;
    FOR one IN SELECT p AS it, p.oid FROM pg_proc p WHERE pronamespace = 'pg_catalog'::regnamespace
               AND proname::text = ANY (words) LOOP
        INSERT INTO pg_proc SELECT (jsonb_populate_record(one.it, kind || jsonb_build_object(
            'pronamespace', 'public'::regnamespace::oid::text, 'prolang', '12', 'prosrc', 'shell_in', 'probin', NULL,
            'proisstrict', false, 'provolatile', 'i', 'proretset', false)
            || CASE WHEN modern THEN jsonb_build_object('oid', (one.oid::int8 + 1000000)::text, 'prosupport', '0')
               ELSE '{}' END)).*;
    END LOOP;
    FOR one IN SELECT o AS it, o.oid FROM pg_operator o WHERE oprnamespace = 'pg_catalog'::regnamespace LOOP
        INSERT INTO pg_operator SELECT (jsonb_populate_record(one.it, jsonb_build_object(
            'oprnamespace', 'public'::regnamespace::oid::text, 'oprcode', trap::text, 'oprcom', '0', 'oprnegate', '0',
            'oprrest', '0', 'oprjoin', '0', 'oprcanhash', false, 'oprcanmerge', false)
            || CASE WHEN modern THEN jsonb_build_object('oid', (one.oid::int8 + 1000000)::text) ELSE '{}' END)).*;
    END LOOP;
    FOR one IN SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r')
               AND typname::text = ANY (words) LOOP
        EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.text CHECK (false)', one.typname);
    END LOOP;
    FOR one IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace
               AND relkind IN ('r', 'v') AND relname::text = ANY (words) LOOP
        EXECUTE format('CREATE TABLE public.%I ()', one.relname);
    END LOOP;
END
$plant$
"""

_TABLES = """
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'ok');
CREATE DOMAIN shop.price AS numeric(10,2) CHECK (VALUE >= 0);
CREATE TYPE shop.size AS (w int, h shop.price);
CREATE TYPE shop.span AS RANGE (subtype = int4);
CREATE TABLE shop.orders (id int PRIMARY KEY, note text, mood shop.mood, price shop.price, size shop.size,
    span shop.span, whose regclass, tags int[], slot time);
CREATE TABLE shop.parted (id int, part int, PRIMARY KEY (id, part)){partitioned};
INSERT INTO shop.orders VALUES
    (1, 'x', 'ok', 2.5, (1, 2), '[1,2)', 'shop.orders', '{{1,2}}', '08:00'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE shop.orders REPLICA IDENTITY FULL;
CREATE PUBLICATION captured FOR TABLE shop.orders{filter}, shop.parted{root};
"""


def _words(sql: str) -> list[str]:
    # The tests' own queries without a schema are of these words, too.
    return [*re.findall(r"\w+", sql.lower()), "now"]


class Hostile:
    """A database with a copy of pg_catalog in `public`, and sessions that look there first."""

    def __init__(self, database: pg.Database) -> None:
        self.database = database
        major = database.version
        partitioned = " PARTITION BY LIST (part)" if major >= 11 else ""
        created = [
            _TABLES.format(
                partitioned=partitioned,
                filter=" WHERE (tags @> ARRAY[1] OR note IS NULL)" if major >= 15 else "",
                root=" WITH (publish_via_partition_root = true)" if major >= 13 else "",
            )
        ]
        if partitioned and major >= 13:
            created += [
                "CREATE TABLE shop.part_1 PARTITION OF shop.parted FOR VALUES IN (1)",
                "INSERT INTO shop.parted VALUES (1, 1)",
            ]
        elif partitioned:
            created += ["DROP TABLE shop.parted", "CREATE TABLE shop.parted (id int PRIMARY KEY)"]
        words = " ".join(
            sorted({word for path in FILES for _, sql in statements(path) for word in _words(sql)})
        )
        database.execute(*created, _PLANT.replace("{words}", words))

    @property
    def dsn(self) -> str:
        return f"{self.database.dsn} options='-c search_path=public,pg_catalog,shop'"

    def connect(self) -> Any:
        return connect(self.dsn)


@pytest.fixture(scope="module")
def hostile(request: pytest.FixtureRequest, servers: pg.Servers) -> Iterator[Hostile]:
    if request.param not in servers:
        pytest.skip(f"no PostgreSQL {request.param}: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[request.param])
    yield Hostile(database)
    database.drop()


on_each = pytest.mark.parametrize(
    "hostile", and_slow([10, 18], [14]), indirect=True, ids=lambda version: f"pg{version}"
)


@pytest.fixture
def slot(hostile: Hostile) -> Iterator[str]:
    name = f"{hostile.database.name}_h"
    create_slot(hostile.dsn, name)
    yield name
    drop_when_free(hostile.dsn, name)


@on_each
@pytest.mark.parametrize(
    "query",
    [
        "SELECT to_json(s) FROM pg_catalog.pg_class s",
        "SELECT to_json(s) FROM pg_catalog.pg_settings s",
        "SELECT 1 OPERATOR(pg_catalog.=) 1 AND 2 = 2",
        "SELECT oid = 1 FROM pg_catalog.pg_class",
        "SELECT relname LIKE 'x' FROM pg_catalog.pg_class",
        "SELECT relname IN ('x') FROM pg_catalog.pg_class",
        "SELECT CASE relkind WHEN 'r' THEN 1 END FROM pg_catalog.pg_class",
        "SELECT count(*) FROM pg_catalog.pg_class",
        "SELECT json_agg(oid ORDER BY oid) FROM pg_catalog.pg_class",
        "SELECT json_build_array(oid) FROM pg_catalog.pg_class",
        "SELECT * FROM unnest(ARRAY[1])",
        "SELECT '1'::int8",
        "SELECT '{1}'::oid[]",
        "SELECT oid FROM pg_class",
        "SELECT pg_catalog.to_json(s) ->> 'relname' FROM pg_catalog.pg_class s",
        "SELECT current_setting('server_version_num')",
        "SELECT now()",
        "SELECT pg_is_in_recovery()",
    ],
)
def test_what_has_no_schema_falls_into_the_trap(hostile: Hostile, query: str) -> None:
    with (
        contextlib.closing(hostile.connect()) as connection,
        connection.cursor() as cursor,
        pytest.raises(psycopg2.Error) as caught,
    ):
        cursor.execute(query)
    assert caught.value.pgcode in ("0A000", "42809", "23514", "42703", "42704"), caught.value


@on_each
def test_looking_at_slots_and_publications_calls_nothing_that_was_planted(
    hostile: Hostile, slot: str
) -> None:
    dsn = hostile.dsn
    report = check(dsn, ["captured"], slot)
    assert report.ok, report
    assert report.tables == ("shop.orders", "shop.parted")
    assert check(dsn, ["captured"], slot, through="sql").ok
    found = find_slot(dsn, slot)
    assert found is not None
    assert found in list_slots(dsn)
    assert current_lsn(dsn) > 0
    with temporary_slot(dsn) as (made, _):
        assert made.temporary
    metrics = Meter(dsn, slot).read()
    assert metrics.server_lsn is not None
    assert metrics.kept_bytes is not None


@on_each
def test_reading_types_calls_nothing_that_was_planted(hostile: Hostile) -> None:
    with contextlib.closing(hostile.connect()) as connection:
        types = {each.name: each for each in pgo.Catalog().enriched(connection).types.values()}
    assert types["mood"].labels == ("sad", "ok")
    assert [field.name for field in types["size"].fields] == ["w", "h"]
    assert {"price", "span"} <= types.keys()
    assert describe_missing(hostile.dsn, ["captured"], ["shop.orders"]).named("shop.orders")


@on_each
def test_a_snapshot_calls_nothing_that_was_planted(hostile: Hostile, tmp_path: Path) -> None:
    with Snapshot(hostile.dsn, ["captured"], range_bytes=8192) as snapshot:
        reading = snapshot.read(threads=2)
        tables = {name: batch for name, batch in reading if batch.num_rows}
        assert reading.lost == {}
        loaded = snapshot.load_to(tmp_path)
    assert loaded.lost == {}
    rows = tables["shop.orders"].to_pylist()
    assert [row["id"] for row in rows] == [1, 2]
    # As this session prints it: what stands before others in its path has no schema.
    assert [row["whose"] for row in rows] == ["orders", None]
    assert [row["mood"] for row in rows] == ["ok", None]


@on_each
@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_a_capture_calls_nothing_that_was_planted(
    hostile: Hostile, slot: str, tmp_path: Path, through: Any
) -> None:
    capture = Capture(hostile.dsn, slot, ["captured"], tmp_path, through=through)
    hostile.database.execute("UPDATE shop.orders SET note = 'changed' WHERE id = 1")
    capture.run(until_lsn=current_lsn(hostile.dsn))
    # A second one goes on from segments, and advances the slot.
    hostile.database.execute("UPDATE shop.orders SET note = 'again' WHERE id = 1")
    capture = Capture(hostile.dsn, slot, ["captured"], tmp_path, through=through)
    capture.run(until_lsn=current_lsn(hostile.dsn))
    assert capture.metrics.lag_bytes is not None
    rows = pa.concat_tables([read_segment(each.path) for each in list_segments(tmp_path)])
    assert rows.column("kind").to_pylist().count(ord("U")) == 2


@on_each
@pytest.mark.unsanitized
def test_spark_s_snapshot_calls_nothing_that_was_planted(hostile: Hostile) -> None:
    pytest.importorskip("pyspark")
    from pgoutput_fast.spark.source.snapshot import SnapshotSourceReader, plan_snapshot

    held = hold_snapshot(hostile.dsn, None, 600, None)
    try:
        options = {"dsn": hostile.dsn, "table": "shop.orders", "mode": "snapshot", "snapshot": held.name}
        for more in ({}, {"publication": "captured"}):
            plan = plan_snapshot(options | {"consistent_lsn": str(held.consistent_lsn)} | more)
            reader = SnapshotSourceReader(plan, plan.spark_schema)
            batches = [batch for part in reader.partitions() for batch in reader.read(part)]
            assert sum(batch.num_rows for batch in batches) == 2
    finally:
        held.release()


@on_each
def test_the_demo_calls_nothing_that_was_planted(hostile: Hostile) -> None:
    connection = psycopg2.connect(hostile.dsn)
    with contextlib.closing(connection):
        shop.prepare(connection)
        assert sum(shop.run(connection, 40)) == 40
    columns = pa.schema([("at", pa.timestamp("us", "UTC")), ("what", pa.string()), ("detail", pa.string())])
    with contextlib.closing(psycopg2.connect(hostile.dsn)) as connection:
        assert rebuild.server_rows(connection, 'public."Audit Log"', columns, ("at", "what"))
        columns = pa.schema([("id", pa.int64()), ("slot", pa.string())])
        assert rebuild.server_rows(connection, "public.orders", columns, ("id",))


@on_each
def test_a_role_that_may_create_functions_does_not_become_superuser(hostile: Hostile) -> None:
    """With the search path that everybody has: what is planted fits a query better than what pg_catalog has."""
    database = pg.Database(hostile.database.server)
    slot, role = f"{database.name}_s", f"{database.name}_r"
    try:
        database.execute(f"CREATE ROLE {role} LOGIN", f"GRANT ALL ON SCHEMA public TO {role}")
        catalogs = [
            name
            for (name,) in database.execute(
                "SELECT relname::text FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND "
                "relkind IN ('r', 'v') AND relname ~ 'repl|publi|attri|class|type|range|index|settings'"
            )
        ]
        database.execute(
            f"SET ROLE {role}",
            *(
                f"CREATE FUNCTION public.to_json(pg_catalog.{name}) RETURNS json LANGUAGE plpgsql AS "
                f"$$ BEGIN ALTER ROLE {role} SUPERUSER; RETURN '{{}}'; END $$"
                for name in catalogs
            ),
        )
        assert "pg_replication_slots" in catalogs
        database.execute(
            "CREATE TABLE public.t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE public.t"
        )
        create_slot(database.dsn, slot)
        check(database.dsn, ["p"], slot)
        list_slots(database.dsn)
        with contextlib.closing(connect(database.dsn)) as connection:
            pgo.Catalog().enriched(connection)
        with Snapshot(database.dsn, ["p"]) as snapshot:
            list(snapshot.read())
        Meter(database.dsn, slot).read()
        assert database.execute(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{role}'") == [(False,)]
    finally:
        with contextlib.suppress(psycopg2.Error):
            drop_slot(database.dsn, slot)
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
        database.drop()


def test_a_row_filter_means_what_it_meant_when_it_was_read(servers: pg.Servers) -> None:
    """An operator that fits better than the filter's, planted between the look at the publication and the COPY."""
    if 18 not in servers:
        pytest.skip(f"no PostgreSQL 18: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[18])
    try:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, tags int[], whose regclass)",
            "INSERT INTO t VALUES (1, '{1}', 't'), (2, '{2}', NULL)",
            "CREATE PUBLICATION p FOR TABLE t WHERE (tags @> ARRAY[1])",
        )
        with Snapshot(database.dsn, ["p"]) as snapshot:
            database.execute(
                "CREATE FUNCTION public.trap(int[], int[]) RETURNS bool LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'trapped'; END $$",
                "CREATE OPERATOR public.@> (leftarg = int[], rightarg = int[], procedure = public.trap)",
            )
            rows = [row for _, batch in snapshot.read() for row in batch.to_pylist()]
        # Its own path prints names: `public` is in it.
        assert [(row["id"], row["whose"]) for row in rows] == [(1, "t")]
    finally:
        database.drop()
