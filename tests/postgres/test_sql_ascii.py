"""Text that is not ASCII: in databases with the encoding SQL_ASCII, and in names of publications."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psycopg2
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, check, create_slot
from pgoutput_fast.mirror import Mirror
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog
from pgoutput_fast.snapshot import Snapshot
from support import pg
from support.capturing import drop_when_free, wait_until
from support.mirrors import current_of

pytestmark = pytest.mark.few_servers


@pytest.fixture
def dsn(database: pg.Database) -> Iterator[str]:
    """A database of this encoding, with a row in UTF-8 and one in LATIN1."""
    name = f"{database.name}_ascii"
    database.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    dsn = database.dsn.replace(f"dbname={database.name}", f"dbname={name}")
    _execute(dsn, "CREATE TABLE té (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE té", *_ROWS)
    yield dsn
    # The server notices a moment later that a session has ended, and with it the slot of a snapshot.
    wait_until(
        lambda: not database.execute(f"SELECT 1 FROM pg_replication_slots WHERE database = '{name}'"),
    )
    database.execute(f"DROP DATABASE {name}")


_ROWS = (r"INSERT INTO té VALUES (1, E'caf\xc3\xa9')", r"INSERT INTO té VALUES (2, E'caf\xe9')")
_EXPECTED = {1: "café", 2: None}


def _execute(dsn: str, *statements: str | bytes) -> None:
    connection = psycopg2.connect(dsn, client_encoding="UTF8")
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET client_encoding = 'SQL_ASCII'")
        for each in statements:
            cursor.execute(each)
    connection.close()


def _values(rows: list[dict[str, Any]]) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in rows}


@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_a_capture(
    dsn: str, tmp_path: Path, through: Literal["walsender", "sql"], database: pg.Database
) -> None:
    slot = f"{database.name}_{through}"
    create_slot(dsn, slot)
    try:
        _execute(dsn, "DELETE FROM té", *_ROWS)
        Capture(dsn, slot, ["p"], tmp_path, through=through).run(until_lsn="now")
    finally:
        drop_when_free(dsn, slot)
    tagged = [read_segment(each.path) for each in list_segments(tmp_path)]
    decoded = pgo.decode_tagged(tagged[0], segment_catalog(tmp_path))
    rows = [row for row in decoded.table('public."té"').to_pylist() if row["_change_type"] == "insert"]
    assert _values(rows) == _EXPECTED
    assert [row["_unrepresentable"] for row in rows] == [None, ["v"]]
    assert [each["raw"] for each in decoded.rejects.to_pylist()] == [b"caf\xe9"]


def test_a_snapshot(dsn: str) -> None:
    with Snapshot(dsn, ["p"]) as snapshot:
        batches = snapshot.read()
        assert _values([row for _, batch in batches for row in batch.to_pylist()]) == _EXPECTED
    assert [each["raw"] for batch in batches.rejects for each in batch.to_pylist()] == [b"caf\xe9"]


@pytest.mark.newest_server
@pytest.mark.unsanitized
def test_a_mirror(dsn: str, tmp_path: Path, database: pg.Database) -> None:
    slot = f"{database.name}_m"
    try:
        for more in ((), (r"INSERT INTO té VALUES (3, E'na\xefve')", "DELETE FROM té WHERE id = 1")):
            _execute(dsn, *more)
            with Mirror(dsn, slot, ["p"], tmp_path, seconds=0.5) as mirror:
                mirror.run(until_lsn="now")
                assert [each.error for each in mirror.status()] == [None]
    finally:
        drop_when_free(dsn, slot)
    rows = current_of(tmp_path, 'public."té"').to_pylist()
    assert _values(rows) == {2: None, 3: None}
    assert [row["_unrepresentable"] for row in rows] == [["v"], ["v"]]


def test_names_of_others_that_are_not_utf_8(dsn: str) -> None:
    """Of a table, a column, a label and a field that nobody publishes. Those in use have escapes for such bytes."""
    _execute(
        dsn,
        b'CREATE TABLE "x\xe9" (id int)',
        b'CREATE TABLE unpublished ("c\xe9" int)',
        b"CREATE TYPE label AS ENUM ('l\xe9', 'l\xe8', 'caf\xc3\xa9')",
        b'CREATE TYPE pair AS ("f\xe9" int)',
    )
    assert check(dsn, ["p"]).ok
    with Snapshot(dsn, ["p"]) as snapshot:
        types = {each.name: each for each in snapshot.catalog.types.values()}
        assert sum(batch.num_rows for _, batch in snapshot.read()) == len(_EXPECTED)
    assert types["label"].labels == ("l\\xe9", "l\\xe8", "café")
    assert [each.name for each in types["pair"].fields] == ["f\\xe9"]


def test_a_published_name_that_is_not_utf_8(dsn: str) -> None:
    _execute(dsn, b'ALTER TABLE "t\xc3\xa9" ADD "c\xe9" int')
    with pytest.raises(CaptureError, match=r"column c\\xe9 of public\.té") as caught, Snapshot(dsn, ["p"]):
        pass
    assert not check(dsn, ["p"]).ok
    _execute(dsn, str(caught.value)[str(caught.value).index("DO $$") :])
    assert check(dsn, ["p"]).ok


@pytest.mark.parametrize("through", ["walsender", "sql"])
@pytest.mark.parametrize("name", ["pé", "it's \\ 発行"])
def test_a_publication_whose_name_is_not_ascii(
    database: pg.Database, tmp_path: Path, through: Literal["walsender", "sql"], name: str
) -> None:
    """A server from 18 on would skip a name that it does not know, and send nothing."""
    slot = f"{database.name}_p"
    database.execute("CREATE TABLE n (id int PRIMARY KEY)", f'CREATE PUBLICATION "{name}" FOR TABLE n')
    create_slot(database.dsn, slot)
    try:
        database.execute("INSERT INTO n VALUES (1)")
        Capture(database.dsn, slot, [name], tmp_path, through=through).run(until_lsn="now")
    finally:
        drop_when_free(database.dsn, slot)
        database.execute(f'DROP PUBLICATION "{name}"', "DROP TABLE n")
    (segment,) = list_segments(tmp_path)
    decoded = pgo.decode_tagged(read_segment(segment.path), segment_catalog(tmp_path))
    assert decoded.table("public.n").column("id").to_pylist() == [1]
