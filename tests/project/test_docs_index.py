"""docs/index.md does what it says."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest

from pgoutput_fast.capture import find_slot
from support import pg
from support.capturing import drop_when_free
from support.paths import DOCS

PAGE = (DOCS / "index.md").read_text()


def test_the_page(servers: pg.Servers) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    (sql,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    follow, drop = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    database, out = pg.Database(servers[newest]), io.StringIO()
    names: dict[str, Any] = {"dsn": database.dsn}
    try:
        database.execute(*sql.strip().split(";\n"))
        with contextlib.redirect_stdout(out):
            exec(compile(follow, "docs/index.md", "exec"), names)
        assert out.getvalue() == printed
        exec(compile(drop, "docs/index.md", "exec"), names)
        assert find_slot(database.dsn, "first_look") is None
    finally:
        drop_when_free(database.dsn, "first_look")
        database.drop()


def test_ten_lines_lead_to_a_data_frame() -> None:
    first = PAGE.partition("\n## ")[0]
    code = re.findall(r"```(?:sql|python)\n(.*?)```", first, re.DOTALL)[:2]
    assert sum(len([line for line in block.splitlines() if line.strip()]) for block in code) <= 12
