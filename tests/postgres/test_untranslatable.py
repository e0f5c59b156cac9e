"""A byte of the database's encoding that has no form in UTF-8: rejects, and errors that say where and what to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psycopg2
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, check, create_slot
from pgoutput_fast.catalog.encodings import CODECS, to_utf8
from pgoutput_fast.cli.slot_input import SlotPayloads
from pgoutput_fast.mirror import Mirror, SlotLostError
from pgoutput_fast.postgres.recoding import Recoder
from pgoutput_fast.snapshot import Snapshot
from support import pg
from support.capturing import committed, drop_when_free, wait_until
from support.mirrors import current_of

pytestmark = pytest.mark.few_servers

_SLOT = "untranslatable"


@pytest.fixture
def encoding() -> str:
    return "WIN1252"


@pytest.fixture
def dsn(database: pg.Database, encoding: str) -> Iterator[str]:
    """A database of an encoding with a table `good` and a table `bad`."""
    name = f"{database.name}_win"
    database.execute(
        f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    dsn = database.dsn.replace(f"dbname={database.name}", f"dbname={name}")
    _execute(
        dsn,
        b"CREATE TABLE good (id int PRIMARY KEY, v text)",
        b"CREATE TABLE bad (id int PRIMARY KEY, v text)",
        "INSERT INTO good VALUES (1, 'plain')",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    yield dsn
    drop_when_free(dsn, _SLOT)
    wait_until(lambda: not database.execute(f"SELECT 1 FROM pg_replication_slots WHERE database = '{name}'"))
    database.execute(f"DROP DATABASE {name}")


def _execute(dsn: str, *statements: str | bytes) -> None:
    """Runs statements whose text is in the encoding of the database."""
    connection = psycopg2.connect(dsn, client_encoding="UTF8")
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"SET client_encoding = '{connection.get_parameter_status('server_encoding')}'")
        for each in statements:
            cursor.execute(each)
    connection.close()


def _make_large(dsn: str) -> None:
    """Rows of several types, of which one in the middle has a text that the server cannot send."""
    _execute(
        dsn,
        b"CREATE TYPE pair AS (a int, b text)",
        b"ALTER TABLE bad ADD n numeric, ADD l text[], ADD p pair, ADD b bytea, ADD j json",
        b"INSERT INTO bad SELECT i, 'caf\xe9 ' || i, i / 8.0, ARRAY['\xe4', NULL], ROW(i, '\xfc')::pair, '\\xe981', '[\"\xdf\"]' "
        b"FROM generate_series(1, 3000) i",
        b"UPDATE bad SET v = '\xe9\x81', l = ARRAY['\xe9\x81', '\xe9'] WHERE id = 1500",
        b"UPDATE bad SET v = NULL WHERE id = 1501",
    )


@pytest.mark.parametrize("options", [pgo.Options(), pgo.Options(batch_rows=100)], ids=["one", "many batches"])
def test_a_load_has_such_values_in_its_rejects(dsn: str, options: pgo.Options) -> None:
    _make_large(dsn)
    with Snapshot(dsn, ["p"], tables=["public.bad"], options=options) as snapshot:
        batches = snapshot.read()
        rows = {row["id"]: row for _, batch in batches for row in batch.to_pylist()}
    assert [row["id"] for row in rows.values() if row["_unrepresentable"]] == [1500]
    raws = {each["raw"] for batch in batches.rejects for each in batch.to_pylist()}
    assert raws == {b"\xc3\xa9\x81", b"{\xc3\xa9\x81,\xc3\xa9}"}
    assert len(rows) == 3000
    for i, row in rows.items():
        assert row["v"] == (None if i in (1500, 1501) else f"café {i}")
        assert row["l"] == ([None, "é"] if i == 1500 else ["ä", None])
        assert (float(row["n"]), row["p"], row["b"], row["j"]) == (
            i / 8,
            {"a": i, "b": "ü"},
            b"\xe9\x81",
            '["ß"]',
        )


@pytest.mark.unsanitized
@pytest.mark.slow
@pytest.mark.newest_server
def test_a_load_of_a_mirror_has_such_values_in_its_rejects(dsn: str, tmp_path: Path) -> None:
    _execute(dsn, b"INSERT INTO bad VALUES (2, 'a\x81b')")
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        assert [each.error for each in mirror.status()] == [None, None]
    (row,) = current_of(tmp_path, "public.bad").to_pylist()
    assert (row["v"], row["_unrepresentable"]) == (None, ["v"])


@pytest.mark.unsanitized
@pytest.mark.slow
@pytest.mark.newest_server
@pytest.mark.parametrize("encoding", ["EUC_KR"])
def test_a_load_with_several_bytes_per_character_stops_alone(dsn: str, tmp_path: Path) -> None:
    _execute(dsn, b"INSERT INTO bad VALUES (2, '\xc9\xa1')")
    with Snapshot(dsn, ["p"]) as snapshot, pytest.raises(ValueError, match=r"rows of public\.bad: one has"):
        list(snapshot.read())
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        errors = {each.table: each.error for each in mirror.status()}
    assert errors["public.good"] is None
    assert "without a form in UTF-8" in (errors["public.bad"] or "")
    assert "0xc9" not in (errors["public.bad"] or "")


_CHANGES = (
    b"INSERT INTO bad VALUES (1, 'caf\xe9')",
    b"INSERT INTO bad VALUES (2, 'a\xe9\x81b')",
    b"UPDATE bad SET v = 'mended' WHERE id = 2",
    b"INSERT INTO bad VALUES (3, 'd\xe9j\xe0 vu \x81')",
    b"ALTER TABLE bad REPLICA IDENTITY FULL",
    b"UPDATE bad SET id = 4 WHERE id = 3",
    b"INSERT INTO good VALUES (2, 'na\xefve')",
)
_EXPECTED = [
    ("insert", 1, "café", None),
    ("insert", 2, None, ["v"]),
    ("update_postimage", 2, "mended", None),
    ("insert", 3, None, ["v"]),
    ("update_postimage", 4, None, ["v"]),
]
_RAW = [b"a\xc3\xa9\x81b", b"d\xc3\xa9j\xc3\xa0 vu \x81"]


def _shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (row["_change_type"], row["id"], row["v"], row["_unrepresentable"])
        for row in rows
        if row["_change_type"] != "update_preimage"
    ]


@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_a_capture_has_such_a_value_in_its_rejects(
    dsn: str, tmp_path: Path, through: Literal["walsender", "sql"]
) -> None:
    """The publication has a name that the server must understand in its own encoding, too."""
    _execute(dsn, b"ALTER PUBLICATION p RENAME TO p\xe9")
    create_slot(dsn, _SLOT)
    _execute(dsn, *_CHANGES, b'CREATE TABLE "t\x81" ("c\x81" int)', b'INSERT INTO "t\x81" VALUES (7)')
    # With retries: when it connects again, the process of its first connection may still have the lock of the slot.
    Capture(dsn, _SLOT, ["pé"], tmp_path, through=through).run(until_lsn="now")
    decoded = committed(tmp_path)
    assert _shown(decoded.table("public.bad").to_pylist()) == _EXPECTED
    assert decoded.table("public.good").column("v").to_pylist() == ["naïve"]
    assert decoded.table(r'public."t\x81"').column(r"c\x81").to_pylist() == [7]
    assert set(_RAW) == {each["raw"] for each in decoded.rejects.to_pylist()}


@pytest.mark.newest_server
def test_a_large_transaction_with_such_a_value(database: pg.Database, dsn: str, tmp_path: Path) -> None:
    """Parts of it come before the server meets the value. The user has asked for binary values."""
    if database.version < pg.FIRST_BINARY_VERSION:
        pytest.skip("this version neither streams transactions nor sends binary values")
    many = b"INSERT INTO bad SELECT i, repeat('\xe9', 50) FROM generate_series(1, 5000) i"
    create_slot(dsn, _SLOT)
    _execute(
        dsn,
        many,
        b"BEGIN",
        many.replace(b" i,", b" 10000 + i,"),
        b"INSERT INTO bad VALUES (-1, '\x81')",
        b"COMMIT",
    )
    streaming = f"{dsn} options='-c logical_decoding_work_mem=64kB'"
    capture = Capture(streaming, _SLOT, ["p"], tmp_path, overrides={"binary": "true"})
    capture.run(until_lsn="now")
    rows = committed(tmp_path).table("public.bad").column("id").to_pylist()
    assert sorted(rows) == [-1, *range(1, 5001), *range(10001, 15001)]


def test_changes_without_their_publication_are_not_missed_behind_such_a_value(
    dsn: str, tmp_path: Path
) -> None:
    """The server names the publication in its own encoding then."""
    _execute(dsn, b"ALTER PUBLICATION p RENAME TO p\xe9")
    create_slot(dsn, _SLOT)
    _execute(
        dsn,
        b"INSERT INTO bad VALUES (1, '\x81')",
        b"DROP PUBLICATION p\xe9",
        b"INSERT INTO good VALUES (2)",
        b"CREATE PUBLICATION p\xe9 FOR ALL TABLES",
    )
    with pytest.raises(CaptureError, match="did not exist"):
        Capture(dsn, _SLOT, ["pé"], tmp_path).run(until_lsn="now")


@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_such_a_byte_in_a_prefix(
    dsn: str, database: pg.Database, tmp_path: Path, through: Literal["walsender", "sql"]
) -> None:
    """A prefix has no rejects: an escape stands for the byte."""
    if database.version < 14:
        pytest.skip("logical messages are sent since 14")
    create_slot(dsn, _SLOT)
    message = b"SELECT pg_logical_emit_message(true, 'a\x81', 'content')"
    _execute(dsn, message, b"INSERT INTO good VALUES (2, 'na\xefve')")
    Capture(dsn, _SLOT, ["p"], tmp_path, through=through).run(until_lsn="now")
    decoded = committed(tmp_path)
    assert decoded.messages.column("prefix").to_pylist() == [r"a\x81"]
    assert decoded.table("public.good").column("v").to_pylist() == ["naïve"]


def test_a_look_at_the_slot(dsn: str) -> None:
    create_slot(dsn, _SLOT)
    _execute(dsn, *_CHANGES)
    looks = [batch.payloads for batch in SlotPayloads(dsn, _SLOT, ["p"]).batches()]
    decoded = pgo.decode(pa.concat_arrays(looks))
    assert _shown(decoded.table("public.bad").to_pylist()) == _EXPECTED


def test_follow_gives_such_a_value_as_a_reject(dsn: str) -> None:
    create_slot(dsn, _SLOT)
    _execute(dsn, *_CHANGES)
    given = list(pgo.follow(dsn, _SLOT, ["p"], until_lsn="now", retry_seconds=0))
    rows = [row for decoded, _ in given for each in decoded.changes for row in each.batch.to_pylist()]
    assert _shown(rows)[:-1] == _EXPECTED
    assert rows[-1]["v"] == "naïve"


@pytest.mark.unsanitized
@pytest.mark.newest_server
def test_a_mirror_goes_on_behind_such_a_change(dsn: str, tmp_path: Path) -> None:
    for more in ((), _CHANGES, (b"DELETE FROM bad WHERE id = 4", b"INSERT INTO bad VALUES (5, '\x81')")):
        _execute(dsn, *more)
        with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
            mirror.run(until_lsn="now")
            assert [each.error for each in mirror.status()] == [None, None]
    rows = current_of(tmp_path, "public.bad").to_pylist()
    assert {row["id"]: row["v"] for row in rows} == {1: "café", 2: "mended", 5: None}


@pytest.mark.unsanitized
@pytest.mark.slow
@pytest.mark.newest_server
@pytest.mark.parametrize("encoding", ["WIN1251"])
def test_another_encoding(dsn: str, tmp_path: Path) -> None:
    create_slot(dsn, _SLOT)
    values = b"INSERT INTO bad VALUES (1, '\xcf\xf0\xe8\x98'), (2, '\xcf\xf0\xe8')"
    _execute(dsn, values)
    expected = {1: None, 2: "При"}
    given = [
        change for decoded, _ in pgo.follow(dsn, _SLOT, ["p"], until_lsn="now") for change in decoded.changes
    ]
    assert {row["id"]: row["v"] for each in given for row in each.batch.to_pylist()} == expected
    Capture(dsn, _SLOT, ["p"], tmp_path / "capture", adopt=True).run(until_lsn="now")
    rows = committed(tmp_path / "capture").table("public.bad").to_pylist()
    assert {row["id"]: row["v"] for row in rows} == expected
    _execute(dsn, b"DELETE FROM bad")
    drop_when_free(dsn, _SLOT)
    with Mirror(dsn, _SLOT, ["p"], tmp_path / "mirror", seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        _execute(dsn, values)
        mirror.run(until_lsn="now")
    rows = current_of(tmp_path / "mirror", "public.bad").to_pylist()
    assert {row["id"]: row["v"] for row in rows} == expected


@pytest.mark.slow
@pytest.mark.unsanitized
@pytest.mark.newest_server
@pytest.mark.parametrize("encoding", ["EUC_KR"])
def test_several_bytes_per_character(dsn: str, tmp_path: Path) -> None:
    """Python's codec may convert another character than PostgreSQL. So the slot cannot go on."""
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        _execute(dsn, b"INSERT INTO bad VALUES (2, '\xc9\xa1')")
        _execute(dsn, "UPDATE bad SET v = 'mended' WHERE id = 2")
        with pytest.raises(SlotLostError, match=r"without a form in UTF-8.*repair") as caught:
            mirror.run(until_lsn="now")
        assert "0xc9" not in str(caught.value)
    drop_when_free(dsn, _SLOT)
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.repair()
        mirror.run(until_lsn="now")
    assert current_of(tmp_path, "public.bad").column("v").to_pylist() == ["mended"]


@pytest.mark.slow
@pytest.mark.unsanitized
@pytest.mark.newest_server
def test_names_of_others(dsn: str, tmp_path: Path) -> None:
    """Of a table, a column, a schema, a label, a field and a publication that nobody reads."""
    _execute(
        dsn,
        b'CREATE TABLE "t\x81" (id int)',
        b'CREATE SCHEMA "s\x81"',
        b'CREATE TABLE "s\x81".u ("c\x81" int)',
        b"CREATE TYPE label AS ENUM ('l\x81', 'caf\xe9')",
        b'CREATE TYPE pair AS ("f\x81" int)',
        b'CREATE PUBLICATION "q\x81" FOR TABLE good',
        b"CREATE PUBLICATION few FOR TABLE good",
    )
    assert check(dsn, ["few"]).ok
    with Snapshot(dsn, ["few"]) as snapshot:
        types = {each.name: each for each in snapshot.catalog.types.values()}
        assert sum(batch.num_rows for _, batch in snapshot.read()) == 1
    assert types["label"].labels == ("l\\x81", "café")
    assert [each.name for each in types["pair"].fields] == ["f\\x81"]
    with Mirror(dsn, _SLOT, ["few"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        _execute(dsn, b"UPDATE good SET v = '\x81'")
        mirror.run(until_lsn="now")
        assert [each.error for each in mirror.status()] == [None]


@pytest.mark.unsanitized
@pytest.mark.newest_server
def test_a_published_name(dsn: str, tmp_path: Path) -> None:
    """The errors have a statement that renames it."""
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        _execute(dsn, b'ALTER TABLE bad ADD COLUMN "c\x81" int', b"INSERT INTO bad VALUES (1, 'caf\xe9', 5)")
        with pytest.raises(CaptureError, match=r"column c\\x81 of public\.bad") as caught:
            mirror.run(until_lsn="now")
        _execute(dsn, str(caught.value)[str(caught.value).index("DO $$") :].encode())
        mirror.run(until_lsn="now")
        assert [each.error for each in mirror.status()] == [None, None]
    (row,) = current_of(tmp_path, "public.bad").to_pylist()
    assert (row["v"], row["new_name"]) == ("café", 5)


def test_published_names(dsn: str) -> None:
    _execute(
        dsn,
        b'CREATE TABLE "t\x81" (id int PRIMARY KEY)',
        b'CREATE TYPE "e\x81" AS ENUM ()',
        b'CREATE SCHEMA "s\x81"',
        b'CREATE TABLE "s\x81".u ("c\x81" int PRIMARY KEY, v "e\x81"[])',
    )
    names = ["table public.t\\x81", "schema s\\x81", "column c\\x81 of s\\x81.u", "type e\\x81"]
    found = [each for each in check(dsn, ["p"]).findings if "its name" in each.problem]
    assert [each.subject for each in found] == names
    with pytest.raises(CaptureError) as caught, Snapshot(dsn, ["p"]):
        pass
    assert all(name in str(caught.value) for name in names)
    for k, each in enumerate(found):
        _execute(dsn, each.advice[each.advice.index("DO $$") :].replace("new_name", f"n{k}").encode())
    assert check(dsn, ["p"]).ok
    with Snapshot(dsn, ["p"]) as snapshot:
        assert set(snapshot.tables) == {"public.good", "public.bad", "public.n0", "n1.u"}


# A text in a session of WIN1252 and of UTF-8 is the same to the server.
_OF_EACH_KIND = (
    "CREATE TYPE étype AS ENUM ('né', 'ascii')",
    'CREATE TABLE té (id int PRIMARY KEY, "cé" text, e étype, a text[])',
    "ALTER TABLE té REPLICA IDENTITY FULL",
    "SELECT pg_replication_origin_create('oé'), pg_replication_origin_session_setup('oé')",
    "INSERT INTO té VALUES (1, 'café', 'né', ARRAY['ä', 'b']), (200, 'plain', 'ascii', NULL)",
    "UPDATE té SET \"cé\" = 'ü'",
    "SELECT pg_replication_origin_session_reset()",
    "SELECT pg_logical_emit_message(true, 'pé', 'cé'), pg_logical_emit_message(false, 'pé', 'cé')",
    "BEGIN",
    "INSERT INTO té SELECT 1000 + i, 'grüße ' || i FROM generate_series(1, 2000) i",
    "COMMIT",
    "DELETE FROM té WHERE id = 1",
    "TRUNCATE té",
)
_PREPARED = ("BEGIN", "INSERT INTO té VALUES (1, 'é')", "PREPARE TRANSACTION 'gé'", "COMMIT PREPARED 'gé'")


def test_messages_become_those_that_the_server_would_send(dsn: str, database: pg.Database) -> None:
    has_prepared = database.version >= 15
    connection = psycopg2.connect(
        dsn,
        client_encoding="UTF8",
        options="-c logical_decoding_work_mem=64kB" if database.version >= 14 else "",
    )
    connection.autocommit = True
    create_slot(dsn, _SLOT, two_phase=has_prepared)
    options = pg.all_options(database.version) | {"publication_names": "p"}
    pairs = [text for pair in options.items() for text in pair]
    peek = f"SELECT data FROM pg_logical_slot_peek_binary_changes('{_SLOT}', NULL, NULL, VARIADIC %s)"
    with connection.cursor() as cursor:
        for each in (*_OF_EACH_KIND, *(_PREPARED if has_prepared else ())):
            cursor.execute(each)
        cursor.execute(peek, (pairs,))
        expected = [bytes(data) for (data,) in cursor.fetchall()]
        query = cursor.mogrify(peek, (pairs,)).decode().encode("cp1252")
        cursor.execute("SET client_encoding = 'WIN1252'")
        cursor.execute(query)
        own = pa.array([bytes(data) for (data,) in cursor.fetchall()])
        cursor.execute("SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin")
    connection.close()
    kinds = {each[:1].decode() for each in expected}
    assert kinds >= set(
        "BCRYIUD" + ("TMOSEc" if database.version >= 14 else "") + ("bPK" if has_prepared else "")
    )
    assert own.to_pylist() != expected
    assert Recoder("cp1252").recode(own).to_pylist() == expected


def test_codecs_convert_as_the_server_does(database: pg.Database) -> None:
    database.execute(
        "CREATE FUNCTION converted(b bytea, e name) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN "
        "RETURN convert(b, e, 'UTF8'); EXCEPTION WHEN untranslatable_character THEN RETURN NULL; END $$"
    )
    every = [bytes([byte]) for byte in range(1, 256)]
    for encoding, codec in CODECS.items():
        found = database.execute(
            f"SELECT converted(set_byte('\\x00', 0, i), '{encoding}') FROM generate_series(1, 255) i ORDER BY i",
        )
        for byte, (expected,) in zip(every, found, strict=True):
            got = to_utf8(byte, codec)
            if expected is None:
                with pytest.raises(UnicodeDecodeError):
                    got.decode()
            else:
                assert (encoding, got) == (encoding, bytes(expected))
        assert not all(row[0] for row in found), f"{encoding} lacks no form"


@pytest.mark.parametrize("codec", CODECS.values())
def test_a_text_with_a_byte_without_a_form_is_never_utf_8(codec: str) -> None:
    lacking = [bytes([byte]) for byte in range(256) if not _decodes(bytes([byte]), codec)]
    for pair in itertools.product(lacking, [*lacking, b"", b"a", b"\xe9"]):
        with pytest.raises(UnicodeDecodeError):
            to_utf8(b"x" + b"".join(pair), codec).decode()


def _decodes(text: bytes, codec: str) -> bool:
    try:
        text.decode(codec)
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.unsanitized
@pytest.mark.slow
@pytest.mark.newest_server
def test_a_repair_with_such_a_value(dsn: str, tmp_path: Path) -> None:
    _execute(dsn, b"INSERT INTO bad VALUES (1, '\x81'), (2, 'caf\xe9')")
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
    drop_when_free(dsn, _SLOT)
    _execute(dsn, b"INSERT INTO bad VALUES (3, 'na\xefve \x81')", b"UPDATE bad SET v = 'mended' WHERE id = 1")
    with Mirror(dsn, _SLOT, ["p"], tmp_path, seconds=0.5) as mirror:
        mirror.repair()
        mirror.run(until_lsn="now")
        assert [each.error for each in mirror.status()] == [None, None]
    rows = current_of(tmp_path, "public.bad").to_pylist()
    assert {row["id"]: row["v"] for row in rows} == {1: "mended", 2: "café", 3: None}
