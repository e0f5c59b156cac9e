"""Partitions that one publication publishes by their root, and another one by themselves: changes come as the root's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror
from support.capturing import drop_when_free
from support.mirrors import expect_equal, opened

# What else publishes the partitions -> the tables of the mirror.
_OTHERS = {
    "FOR TABLE r1": {"public.r"},
    "FOR TABLE m": {"public.r"},
    "FOR TABLE m WITH (publish_via_partition_root)": {"public.r"},
    "FOR ALL TABLES": {"public.r", "public.plain"},
    "FOR TABLES IN SCHEMA public": {"public.r", "public.plain"},
}


@pytest.mark.slow
@pytest.mark.few_servers
@pytest.mark.newest_server
def test_all_ways(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if server.version < 13:
        pytest.skip("publish_via_partition_root came with PostgreSQL 13")
    others = {how: tables for how, tables in _OTHERS.items() if server.version >= 15 or "SCHEMA" not in how}
    with opened(server, tmp_path) as place:
        database = place.database
        database.execute(
            "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE m PARTITION OF r FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id)",
            "CREATE TABLE r1 PARTITION OF m FOR VALUES FROM (0) TO (50)",
            "CREATE TABLE plain (id int PRIMARY KEY)",
            "CREATE PUBLICATION by_root FOR TABLE r WITH (publish_via_partition_root)",
            "INSERT INTO r VALUES (1)",
        )
        for n, (how, tables) in enumerate(others.items()):
            database.execute(f"CREATE PUBLICATION other_{n} {how}")
            place.target, slot = tmp_path / str(n), f"{place.slot}_{n}"
            with Mirror(database.dsn, slot, ["by_root", f"other_{n}"], place.target, seconds=0.5) as mirror:
                try:
                    mirror.run(until_lsn="now")
                    database.execute(
                        f"INSERT INTO r VALUES ({10 + n})", f"INSERT INTO plain VALUES ({10 + n})"
                    )
                    for _ in range(2):
                        mirror.run(until_lsn="now")
                    assert {each.table: each.state for each in mirror.status()} == dict.fromkeys(
                        tables, "follow"
                    )
                    expect_equal(place, *tables)
                finally:
                    drop_when_free(database.dsn, slot)
        assert not [each for each in caplog.messages if "published" in each]
