"""Which tables publications publish: as the server's own view says it, and also while somebody holds a lock."""

from __future__ import annotations

from typing import Any

import pytest

from pgoutput_fast.postgres.published import published, row_filters
from support import pg

TABLES = (
    "CREATE TABLE s.plain (id int PRIMARY KEY, a int, b text)",
    'CREATE TABLE s."odd, name" (id int PRIMARY KEY, a int)',
    "CREATE TABLE other.t (id int PRIMARY KEY, a int)",
    "CREATE UNLOGGED TABLE s.unlogged (id int)",
    "CREATE VIEW s.view AS SELECT 1",
    "CREATE TABLE s.parent (id int)",
    "CREATE TABLE other.child (more int) INHERITS (s.parent)",
)
PARTITIONS = (
    "CREATE TABLE s.root (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE TABLE s.leaf PARTITION OF s.root FOR VALUES IN (1)",
    "CREATE TABLE other.middle PARTITION OF s.root FOR VALUES IN (2, 3) PARTITION BY LIST (k)",
    "CREATE TABLE other.low PARTITION OF other.middle FOR VALUES IN (2)",
    "CREATE UNLOGGED TABLE other.dim PARTITION OF other.middle FOR VALUES IN (3)",
)
# The first version that takes each: what is published, and how.
PUBLICATIONS = (
    (10, "FOR ALL TABLES", ""),
    (10, "FOR TABLE s.plain, other.t", "publish = 'insert'"),
    (10, "", ""),
    (10, "FOR TABLE s.parent", ""),
    (13, "FOR ALL TABLES", "publish_via_partition_root"),
    (13, "FOR TABLE s.root", ""),
    (13, "FOR TABLE s.root", "publish_via_partition_root"),
    (13, "FOR TABLE s.root, s.leaf", ""),
    (13, "FOR TABLE s.root, s.leaf", "publish_via_partition_root"),
    (13, "FOR TABLE other.middle, s.leaf", "publish_via_partition_root"),
    (15, "FOR TABLES IN SCHEMA s", ""),
    (15, "FOR TABLES IN SCHEMA s", "publish_via_partition_root"),
    (15, "FOR TABLES IN SCHEMA other", "publish_via_partition_root"),
    (15, "FOR TABLES IN SCHEMA other, TABLE s.root", "publish_via_partition_root"),
    (15, "FOR TABLES IN SCHEMA s, other", ""),
    (15, "FOR TABLES IN SCHEMA s, TABLE s.plain WHERE (a > 1), other.t WHERE (a > 2)", ""),
    (15, 'FOR TABLE s.plain (id, b), s."odd, name" WHERE (a > 1 AND id < 7)', ""),
    (15, "FOR TABLE s.root WHERE (id > 1)", "publish_via_partition_root"),
    (15, "FOR TABLE s.root (id, k)", "publish_via_partition_root"),
    (18, "FOR TABLES IN SCHEMA s", "publish_generated_columns = stored"),
    (18, "FOR TABLE s.generated (id, twice), s.plain", "publish_generated_columns = stored"),
    (19, "FOR ALL TABLES EXCEPT (TABLE s.plain, s.parent)", ""),
    (19, "FOR ALL TABLES EXCEPT (TABLE s.root, ONLY s.parent)", ""),
    (19, "FOR ALL TABLES EXCEPT (TABLE s.root)", "publish_via_partition_root"),
    (19, "FOR ALL TABLES EXCEPT (TABLE s.plain), ALL SEQUENCES", ""),
    (19, "FOR ALL SEQUENCES", ""),
)


@pytest.fixture(scope="module")
def names(database: pg.Database) -> list[str]:
    """Publications of many kinds."""
    version = database.version
    database.execute("CREATE SCHEMA s", "CREATE SCHEMA other", *TABLES)
    if version >= 13:
        database.execute(*PARTITIONS)
    if version >= 12:
        database.execute("CREATE TABLE s.generated (id int, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    if version >= 18:
        database.execute("ALTER TABLE s.generated ADD COLUMN thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL")
    given = [(what, how) for since, what, how in PUBLICATIONS if version >= since]
    for number, (what, how) in enumerate(given):
        database.execute(f"CREATE PUBLICATION p{number} {what} {f'WITH ({how})' if how else ''}")
    return [f"p{number}" for number in range(len(given))]


def _ours(cursor: Any, version: int, names: list[str]) -> list[tuple[Any, ...]]:
    cursor.execute(
        published(version)
        + "SELECT pubname, nspname, relname, attnames, filter FROM published ORDER BY 1, 2, 3",
        (names,),
    )
    return list(cursor.fetchall())


def test_the_same_as_the_view(database: pg.Database, names: list[str]) -> None:
    version = database.version
    with database.session() as connection, connection.cursor() as cursor:
        if version >= 14:
            cursor.execute("ALTER TABLE s.root DETACH PARTITION s.leaf CONCURRENTLY")
            cursor.execute("ALTER TABLE s.root ATTACH PARTITION s.leaf FOR VALUES IN (1)")
        ours = _ours(cursor, version, names)
        cursor.execute("SELECT DISTINCT t.* FROM pg_publication_tables t ORDER BY 1, 2, 3")
        theirs = cursor.fetchall()
        assert [row[:3] for row in ours] == [row[:3] for row in theirs]
        if version < 15:
            return
        filters = row_filters(cursor, [row[4] for row in ours if row[4]])
        assert [filters.get(row[4]) for row in ours] == [row[4] for row in theirs]
        for (*_, columns, _), (_, schema, table, expected, _) in zip(ours, theirs, strict=True):
            cursor.execute(
                "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute WHERE attrelid = %s::regclass "
                "AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
                (f'{schema}."{table}"',),
            )
            # On 15 the view has generated columns, which that server does not send.
            sent = [each for each in expected if version > 15 or each not in ("twice", "thrice")]
            assert (columns or cursor.fetchone()[0]) == sent


def test_a_lock_does_not_matter(database: pg.Database, names: list[str]) -> None:
    version = database.version
    with database.session() as holder, database.session() as connection:
        holder.cursor().execute("BEGIN; LOCK TABLE s.plain, other.t, s.parent IN ACCESS EXCLUSIVE MODE")
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '5s'")
            assert ("p1", "s", "plain") in [row[:3] for row in _ours(cursor, version, names)]
