"""A byte of the database's encoding that has no form in UTF-8: the errors say where and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psycopg2
import pytest

from pgoutput_fast.capture import Capture, CaptureError, create_slot
from pgoutput_fast.mirror import Mirror, SlotLostError
from pgoutput_fast.snapshot import Snapshot
from support import pg
from support.capturing import drop_when_free, wait_until
from support.mirrors import current_of

pytestmark = pytest.mark.few_versions

_SLOT = "untranslatable"


@pytest.fixture
def dsn(database: pg.Database) -> Iterator[str]:
    """A database of WIN1252 with a table `good` and a table `bad`."""
    name = f"{database.name}_win"
    database.execute(
        f"CREATE DATABASE {name} ENCODING 'WIN1252' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    dsn = database.dsn.replace(f"dbname={database.name}", f"dbname={name}")
    _execute(
        dsn,
        b"CREATE TABLE good (id int PRIMARY KEY, v text)",
        b"CREATE TABLE bad (id int PRIMARY KEY, v text)",
        b"INSERT INTO good VALUES (1, 'caf\xe9')",
        b"CREATE PUBLICATION p FOR ALL TABLES",
    )
    yield dsn
    drop_when_free(dsn, _SLOT)
    wait_until(lambda: not database.execute(f"SELECT 1 FROM pg_replication_slots WHERE database = '{name}'"))
    database.execute(f"DROP DATABASE {name}")


def _execute(dsn: str, *statements: bytes) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET client_encoding = 'WIN1252'")
        for each in statements:
            cursor.execute(each)
    connection.close()


def test_the_load_of_such_a_table_stops_alone(dsn: str, tmp_path: Path) -> None:
    _execute(dsn, b"INSERT INTO bad VALUES (2, 'a\x81b')")
    with Snapshot(dsn, ["p"]) as snapshot, pytest.raises(ValueError, match=r"rows of public\.bad: one has"):
        list(snapshot.read())
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        errors = {each.table: each.error for each in mirror.status()}
    assert errors["public.good"] is None
    assert "without a form in UTF-8" in (errors["public.bad"] or "")
    assert "0x81" not in (errors["public.bad"] or "")


@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_such_a_change_says_that_the_slot_cannot_go_on(
    dsn: str, tmp_path: Path, through: Literal["walsender", "sql"]
) -> None:
    create_slot(dsn, _SLOT)
    _execute(dsn, b"INSERT INTO bad VALUES (2, 'a\x81b')")
    with pytest.raises(CaptureError, match=r"without a form in UTF-8.*Create a new slot") as caught:
        Capture(dsn, _SLOT, ["p"], tmp_path, through=through).run(until_lsn="now")
    assert "0x81" not in str(caught.value)


@pytest.mark.one_version
def test_a_mirror_is_repaired_after_such_a_change(dsn: str, tmp_path: Path) -> None:
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        _execute(dsn, b"INSERT INTO bad VALUES (2, 'a\x81b')", b"UPDATE bad SET v = 'mended' WHERE id = 2")
        with pytest.raises(SlotLostError, match=r"without a form in UTF-8.*repair"):
            mirror.run(until_lsn="now")
    drop_when_free(dsn, _SLOT)
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.repair()
        mirror.run(until_lsn="now")
    assert current_of(tmp_path, "public.bad").column("v").to_pylist() == ["mended"]
