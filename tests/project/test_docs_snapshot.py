"""The section of docs/capture.md about the initial load does what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgoutput_fast.segments import list_segments
from support import pg
from support.capturing import drop_when_free
from support.paths import DOCS

PAGE = (DOCS / "capture.md").read_text().partition("\n## The initial load\n")[2]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTED = re.search(r"```\n(public.*?)```", PAGE, re.DOTALL)


def test_an_initial_load_does_what_the_page_says(servers: pg.Servers, tmp_path: Path) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    assert PRINTED is not None
    database = pg.Database(servers[newest])
    try:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY)",
            "INSERT INTO orders VALUES (1), (2)",
            "CREATE PUBLICATION shop FOR TABLE orders",
        )
        names: dict[str, Any] = {
            "dsn": database.dsn,
            "lake": tmp_path / "lake",
            "directory": tmp_path / "segments",
            "position": 1,
        }
        exec(BLOCKS[0], names)
        assert names["loaded"].tables["public.orders"].rows == 2
        assert pq.read_table(tmp_path / "lake" / "public.orders")["id"].to_pylist() == [1, 2]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(BLOCKS[1].replace("progress_bar()", "progress_bar(disable=True)"), names)
        assert out.getvalue() == PRINTED[1]
        database.execute(
            "CREATE TABLE customers (id int PRIMARY KEY)",
            "INSERT INTO customers VALUES (7)",
            "ALTER PUBLICATION shop ADD TABLE customers",
        )
        exec(BLOCKS[2], names)
        assert names["later"].tables["public.customers"].rows == 1
        assert list_segments(tmp_path / "segments") == []
    finally:
        drop_when_free(database.dsn, "to_lake")
        database.drop()
