"""Values whose text depends on the server's version: a mirror has one text of them, whatever server it reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import format_lsn
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror
from pgoutput_fast.postgres.session import current_lsn
from pgoutput_fast.postgres.slots import find_slot
from support import pg
from support.capturing import drop_when_free
from support.mirrors import Place, current_of, history_of, opened

TABLES = (
    "CREATE TABLE keyed (at pg_lsn PRIMARY KEY, n int)",
    "CREATE TABLE whole (at pg_lsn, more pg_lsn[], n int)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE PUBLICATION mirrored FOR TABLE keyed, whole",
)
ROWS = (
    "INSERT INTO keyed SELECT ('A/' || to_hex(g * 16))::pg_lsn, 0 FROM generate_series(0, 9) g",
    "INSERT INTO whole SELECT at, ARRAY[at, NULL], n FROM keyed",
)


def _change(database: Any, number: int) -> None:
    database.execute(
        f"UPDATE keyed SET n = {number} WHERE at < 'A/30'",
        f"UPDATE keyed SET at = 'A/4{number}' WHERE at = 'A/40'",
        f"DELETE FROM keyed WHERE at = 'A/{number * 16 + 64:X}'",
        f"INSERT INTO keyed VALUES ('{number}/1', {number})",
        f"UPDATE whole SET n = {number}, more = ARRAY[at] WHERE at < 'A/30'",
        f"DELETE FROM whole WHERE at = 'A/{number * 16 + 64:X}'",
    )


def _expect_all(place: Place, database: Any) -> None:
    """The server's positions as numbers, which do not depend on its version."""
    for table, more in (("keyed", "NULL"), ("whole", "more[1] - '0/0'")):
        rows = database.execute(f"SELECT at - '0/0', {more}, n FROM {table}")
        expected = Counter((format_lsn(at), more and format_lsn(more), n) for at, more, n in rows)
        found = current_of(place.target, f"public.{table}").to_pylist()
        assert Counter((row["at"], (row.get("more") or [None])[0], row["n"]) for row in found) == expected


@pytest.mark.few_servers
def test_a_mirror_has_one_text_of_a_pg_lsn(server: Server, tmp_path: Path) -> None:
    """The first load reads binary values, the stream has text. As keys, in arrays, and in a table without a key."""
    with opened(server, tmp_path) as place:
        place.database.execute(*TABLES, *ROWS)
        place.run()
        _change(place.database, 1)
        place.run()
        _expect_all(place, place.database)
        for row in history_of(place.target, "public.keyed").to_pylist():
            assert row["at"] == format_lsn(row["at"])
        # A repair compares rows of the stream with what it reads in binary.
        drop_when_free(place.database.dsn, place.slot)
        with place.mirror() as mirror:
            done = {each.table: str(each) for each in mirror.repair()}
        assert "0 inserted, 0 updated, 0 deleted" in done["public.keyed"]


def test_a_mirror_moves_from_18_to_19(servers: pg.Servers, tmp_path: Path) -> None:
    """With the same rows. A table of the same oid, as after `pg_upgrade`, needs no change."""
    if not {18, 19} <= set(servers):
        pytest.skip("needs servers of both versions")
    with opened(servers[18], tmp_path) as place, opened(servers[19], tmp_path) as there:
        for each in (place, there):
            each.database.execute(*TABLES, *ROWS)
        place.run()
        _change(place.database, 1)
        place.run()
        _change(there.database, 1)
        while current_lsn(there.database.dsn) < current_lsn(place.database.dsn):
            there.database.execute(
                "SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()"
            )
        try:
            with Mirror(there.database.dsn, place.slot, ["mirrored"], place.target, seconds=0.5) as mirror:
                for done in mirror.repair(another_source=True):
                    # It loads a table whose oid is another one on this server.
                    assert done.loaded or "0 inserted, 0 updated, 0 deleted" in str(done)
                _change(there.database, 2)
                mirror.run(until_lsn="now")
            _expect_all(place, there.database)
        finally:
            if find_slot(there.database.dsn, place.slot) is not None:
                drop_when_free(there.database.dsn, place.slot)


@pytest.mark.slow
def test_types_that_came_with_19(servers: pg.Servers, tmp_path: Path) -> None:
    """As a key, in arrays, and in a table without a key. A regdatabase is no key, like any other name of an object."""
    if max(servers, default=0) < 19:
        pytest.skip("no PostgreSQL that has these types")
    with opened(servers[max(servers)], tmp_path) as place:
        columns = "o oid8, d regdatabase, os oid8[], ds regdatabase[], n int"
        place.database.execute(
            f"CREATE TABLE keyed ({columns}, PRIMARY KEY (o))",
            f"CREATE TABLE whole ({columns})",
            "ALTER TABLE whole REPLICA IDENTITY FULL",
            "INSERT INTO keyed SELECT o::oid8, d, ARRAY['1'::oid8, NULL], ARRAY[d], 0 "
            "FROM (VALUES ('18446744073709551600', 'postgres'::regdatabase), ('1', 'template1')) AS v (o, d)",
            "INSERT INTO whole SELECT * FROM keyed",
            "CREATE PUBLICATION mirrored FOR TABLE keyed, whole",
        )
        place.run()
        for table in ("keyed", "whole"):
            place.database.execute(
                f"UPDATE {table} SET n = 1 WHERE d = 'postgres'::regdatabase",
                f"DELETE FROM {table} WHERE d = 'template1'::regdatabase",
                f"INSERT INTO {table} VALUES ('7', 'template0', '{{18446744073709551615}}', '{{-}}', 2)",
            )
        place.run()
        names = ["o", "d", "n"]
        for table in ("keyed", "whole"):
            expected = place.database.execute(f"SELECT o::text, d::text, n FROM {table}")
            found = current_of(place.target, f"public.{table}").to_pylist()
            assert Counter(tuple(row[name] for name in names) for row in found) == Counter(expected)
            assert sorted(str(row["os"]) for row in found) == ["['1', None]", "['18446744073709551615']"]
