"""Examples of the pages in docs/ do what the pages say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import capture, encode
from pgoutput_fast.segments import list_segments, read_segment
from support import pg
from support.capturing import drop_when_free
from support.paths import DOCS

PAGE = (DOCS / "decoding.md").read_text().partition("\n## Transactions\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_committed_view_gives_what_the_page_says() -> None:
    printed = re.search(r"```\n(\[\].*?)```", PAGE, re.DOTALL)
    assert printed is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(BLOCKS[0], "decoding.md", "exec"), {})
    assert out.getvalue() == printed[1]


def test_cleaning_leaves_what_states_need(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[1], "decoding.md", "exec"), names)
    options = pgo.Options(transactions="committed", memory_limit=1, spill_directory=tmp_path)
    spec = encode.RelationSpec(16384, "public", "t", (encode.ColumnSpec("id", 23),))
    decoder = pgo.Decoder(options)
    decoder.decode(
        [
            encode.encode_stream_start(9, True),
            encode.encode_relation(spec, xid=9),
            encode.encode_insert(16384, ["1"], xid=9),
            encode.encode_stream_stop(),
        ]
    )
    state = pgo.StreamState.from_json(decoder.state.to_json())
    decoder.close()
    (tmp_path / "pgoutput-fast-0123456789abcdef-0.arrow").write_bytes(b"left behind")
    (tmp_path / "not ours.arrow").write_bytes(b"")
    names["clean"](tmp_path, [state])
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["not ours.arrow", *state.spill_files]
    out = pgo.Decoder(options, state).decode([encode.encode_stream_commit(9, 300, 308, 0)])
    assert out.table("public.t").column("id").to_pylist() == [1]


def test_segments_hold_what_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "segments.md").read_text()
    printed = re.search(r"```\n(\[.*?)```", page, re.DOTALL)
    assert printed is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        first, joining, retention = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        names: dict[str, Any] = {"directory": tmp_path}
        exec(first, names)
        assert out.getvalue() == printed[1]
        for example in (joining, retention):
            before = out.getvalue()
            exec(example, names)
            assert f"```\n{out.getvalue().removeprefix(before)}```" in page


def test_a_capture_does_what_the_page_says(servers: pg.Servers, tmp_path: Path) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    page = (DOCS / "capture.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed = re.search(r"```\n(PostgreSQL.*?)```", page, re.DOTALL)
    assert printed is not None
    database = pg.Database(servers[newest])
    try:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY)",
            "CREATE TABLE customers (id int PRIMARY KEY)",
            "CREATE PUBLICATION shop FOR ALL TABLES",
        )
        names: dict[str, Any] = {"dsn": database.dsn, "directory": tmp_path}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(blocks[0], names)
        said = out.getvalue().replace(database.name, "shop")
        assert said == printed[1].replace("PostgreSQL 18", f"PostgreSQL {newest}")
        capture.create_slot(database.dsn, "to_lake")
        database.execute("INSERT INTO orders VALUES (1), (2)")
        ((names["position"],),) = database.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")
        exec(blocks[1], names)
        exec(blocks[2], names)  # through SQL: nothing is left
        (segment,) = list_segments(tmp_path)
        rows = read_segment(segment.path)
        (batch,) = rows.combine_chunks().to_batches()
        orders = pgo.decode_tagged(batch, segment.catalog).table("public.orders")
        assert orders.column("id").to_pylist() == [1, 2]
        # Another directory needs a slot of its own.
        drop_when_free(database.dsn, "to_lake")
        capture.create_slot(database.dsn, "to_lake")
        database.execute("INSERT INTO orders VALUES (3)")
        # A directory in place of the store, and an end.
        stored = blocks[3].replace("s3://lake/shop?region=eu-central-1", str(tmp_path / "store"))
        exec(stored.replace(".run()", '.run(until_lsn="now")'), names)
        (segment,) = list_segments(tmp_path / "store")
        (batch,) = read_segment(segment.path).combine_chunks().to_batches()
        orders = pgo.decode_tagged(batch, segment.catalog).table("public.orders")
        assert orders.column("id").to_pylist() == [3]
    finally:
        drop_when_free(database.dsn, "to_lake")
        database.drop()
