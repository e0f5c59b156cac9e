"""Tables that have not changed yet are described as the server will: the versions are those that come."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_fast.capture import Capture, create_slot
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.postgres.describe import describe_missing
from pgoutput_fast.segments import segment_catalog
from support import pg
from support.capturing import drop_when_free

SETUP = [
    "CREATE SCHEMA described",
    "CREATE TYPE described.mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN described.price AS numeric(10,2)",
    "CREATE DOMAIN described.dear AS described.price CHECK (VALUE > 100)",
    "CREATE TYPE described.item AS (sku text, price described.price)",
    "CREATE TABLE described.keyed (id int PRIMARY KEY, v varchar(20), gone int, d described.dear, m described.mood,"
    " i described.item, l described.mood[], o information_schema.sql_identifier)",
    "ALTER TABLE described.keyed DROP COLUMN gone",
    "CREATE TABLE described.plain (a int, b numeric(7,3))",
    "CREATE TABLE described.full (a int, b text)",
    "ALTER TABLE described.full REPLICA IDENTITY FULL",
    "CREATE TABLE described.indexed (a int NOT NULL, b int NOT NULL, c text, PRIMARY KEY (a))",
    "CREATE UNIQUE INDEX by_b ON described.indexed (b)",
    "ALTER TABLE described.indexed REPLICA IDENTITY USING INDEX by_b",
    "CREATE TABLE described.nothing (a int PRIMARY KEY)",
    "ALTER TABLE described.nothing REPLICA IDENTITY NOTHING",
    'CREATE TABLE described."Odd ""Name""" ("A b" int PRIMARY KEY)',
]
TABLES = ["keyed", "plain", "full", "indexed", "nothing", '"Odd ""Name"""']


@pytest.fixture
def tables(database: pg.Database) -> list[str]:
    """What is published as `described`, as SQL writes it."""
    setup, published = list(SETUP), list(TABLES)
    if database.version >= 11:
        setup.append("CREATE TABLE described.wide (a int, b text, PRIMARY KEY (a) INCLUDE (b))")
        published.append("wide")
    if database.version >= 12:
        setup.append(
            "CREATE TABLE described.made (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a + 1) STORED)"
        )
        published.append("made")
    if database.version >= 13:
        setup.append("CREATE TABLE described.root (a int PRIMARY KEY, b text) PARTITION BY RANGE (a)")
        setup.append("CREATE TABLE described.leaf (b text, a int NOT NULL)")
        setup.append("ALTER TABLE described.root ATTACH PARTITION described.leaf FOR VALUES FROM (0) TO (10)")
        published.append("root")
    names = [f"described.{table}" for table in published]
    database.execute(*setup, f"CREATE PUBLICATION described FOR TABLE {', '.join(names)}")
    if database.version >= 13:
        database.execute("ALTER PUBLICATION described SET (publish_via_partition_root = true)")
    if database.version >= 15:
        database.execute(
            "CREATE TABLE described.listed (a int PRIMARY KEY, b text, c int)",
            "ALTER PUBLICATION described ADD TABLE described.listed (c, a)",
        )
        names.append("described.listed")
    return names


def test_versions_are_those_that_come(database: pg.Database, tables: list[str], tmp_path: Path) -> None:
    slot = f"{database.name}_d"
    create_slot(database.dsn, slot)
    try:
        described = describe_missing(database.dsn, ["described"], tables)
        assert len(described) == len(tables)
        defaults = [table for table in tables if "keyed" in table or "plain" in table or "full" in table]
        database.execute(
            *(f"INSERT INTO {t} DEFAULT VALUES" for t in defaults if "keyed" not in t),
            "INSERT INTO described.keyed (id) VALUES (1)",
            "INSERT INTO described.indexed VALUES (1, 2)",
            *(f"INSERT INTO {t} VALUES (1)" for t in tables if t not in defaults and "indexed" not in t),
        )
        (lsn,) = database.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")[0]
        Capture(database.dsn, slot, ["described"], tmp_path).run(until_lsn=lsn)
        sent = segment_catalog(tmp_path)
        for table in tables:
            assert described.named(table) == sent.named(table), table
        # What is known is not asked for; types come all the same.
        again = describe_missing(database.dsn, ["none"], tables, sent)
        assert again.relations == sent.relations
        assert {each.name for each in again.types.values()} >= {"mood", "dear", "item"}
    finally:
        drop_when_free(database.dsn, slot)
    with pytest.raises(
        KeyError, match=r"publication described: no relation .*described\.other.*described\.keyed"
    ):
        describe_missing(database.dsn, ["described"], ["described.other"], Catalog())
