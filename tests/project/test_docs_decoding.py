"""docs/decoding.md and docs/types.md: the code that other tests do not run does what stands beside it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from support import pg
from support.code_blocks import blocks_of
from support.paths import DOCS

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


def _code(heading: str, page: str = "decoding.md") -> list[str]:
    return [
        each.text
        for each in blocks_of(DOCS / page)
        if each.heading == heading and each.language == "indented"
    ]


def _run(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "a page", "exec"), names := {"pa": pa, "pgo": pgo, **names})
    return names


@pytest.fixture
def wal() -> list[bytes]:
    server = Writer()
    sent = server.begin(7, 100, 0) + server.change(ORDERS, "insert", new=["1", "first"])
    return sent + server.commit(100, 108, 0)


@pytest.fixture
def database(servers: pg.Servers) -> Iterator[pg.Database]:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[newest])
    yield database
    database.drop()


def test_the_rows_of_a_query(database: pg.Database) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with database.slot() as slot, slot.connection.cursor() as cursor:
        slot.execute("INSERT INTO orders VALUES (1)")
        options = [f"'{text}'" for pair in slot.options.items() for text in pair]
        _, code = _code("Decoding")
        code = code.replace("...", ", ".join([f"'{slot.name}', NULL, NULL", *options]))
        orders = _run(code, cursor=cursor)["decoded"]["public.orders"]
    assert orders["id"].to_pylist() == [1]
    assert orders["_lsn"].null_count == 0


def test_positions() -> None:
    (code,) = _code("Positions")
    for line in code.splitlines():
        call, _, said = line.partition("#")
        assert eval(call, {"pgo": pgo}) == eval(said)


def test_pinned_and_chosen_columns(wal: list[bytes]) -> None:
    pinned, plain, tables, columns = _code("Versions of a table")
    names = _run(pinned, decoded=pgo.decode(wal))
    shown = names["decoded"].table("public.orders", schema=names["orders"])
    assert shown.schema.field("id").type == pa.int64()
    for code in (plain, tables, columns, pinned.splitlines()[-1]):
        options = eval(code.partition("  #")[0], names)
        decoded = pgo.decode(wal, options=options)
        assert decoded["public.orders"]["note"].to_pylist() == ["first"]
    assert pa.types.is_string(pgo.decode(wal, options=eval(plain, names))["public.orders"]["_unchanged"].type)


def test_a_state_goes_on(wal: list[bytes]) -> None:
    before = pgo.Decoder()
    before.decode(wal)
    (code,) = _code("State")
    assert _run(code, decoder=before)["decoder"].state == before.state


def test_frames_of_a_walsender(wal: list[bytes]) -> None:
    frames = [b"w" + struct.pack(">QQq", 100 + n, 100 + n, 0) + each for n, each in enumerate(wal)]
    frames.append(b"k" + struct.pack(">QqB", 200, 0, 1))
    (code,) = _code("Walsender frames")
    names = _run(code, decoder=pgo.Decoder(), frames=frames)
    assert names["decoded"]["public.orders"]["_lsn"].to_pylist() == [102]
    assert names["unframed"].keepalives.select(["wal_end", "reply_requested"]).to_pylist() == [
        {"wal_end": 200, "reply_requested": True}
    ]


@pytest.mark.parametrize("heading", ["Threads and batches", "Tag once, decode anywhere"])
def test_other_ways_give_the_same(heading: str, wal: list[bytes]) -> None:
    (code,) = _code(heading)
    decoded = _run(code, payloads=wal, state=None)["decoded"]
    assert decoded["public.orders"].equals(pgo.decode(wal)["public.orders"])


def test_a_server_explains_types(database: pg.Database) -> None:
    database.execute("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, p pair)")
    sent = [payload for _, payload in database.capture(["INSERT INTO t VALUES (1, (2, 'b'))"])]
    (code,) = _code("Types that a server explains", "types.md")
    with database.session() as connection:
        decoder = _run(code, connection=connection)["decoder"]
    assert decoder.decode(sent)["public.t"]["p"].to_pylist() == [{"a": 2, "b": "b"}]
