"""docs/mirror.md and the pages of docs/mirror do what they say."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pgoutput_fast.mirror import Mirror
from support import pg
from support.capturing import drop_when_free
from support.paths import DOCS

PAGE = (DOCS / "mirror.md").read_text()
CONCEPTS, FAILURES = ((DOCS / "mirror" / f"{name}.md").read_text() for name in ("concepts", "failures"))
SHELL, SQL, PYTHON = (
    re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("sh", "sql", "python")
)
PRINTED = r"```\n\n```\n(.*?)```"


@pytest.mark.slow
def test_the_page(servers: pg.Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    monkeypatch.chdir(tmp_path)
    database = pg.Database(servers[newest])
    try:
        database.execute(SQL[0])
        _shell(SHELL[0], database.dsn)
        database.execute(SQL[1])
        _shell(SHELL[1], database.dsn)
        here = [code.replace("host=localhost dbname=shop user=postgres", database.dsn) for code in PYTHON]
        printed = [_printed(code, {}) for code in here]
        assert [_shell(SHELL[2], database.dsn), *printed] == re.findall(PRINTED, PAGE, re.DOTALL)
        (fresh,) = re.findall(r"```python\n(.*?)```", _section(CONCEPTS, "Fresh tables"), re.DOTALL)
        assert [_printed(fresh, {})] == re.findall(PRINTED, CONCEPTS, re.DOTALL)
        _lose_slot(database)
    finally:
        drop_when_free(database.dsn, "to_lake")
        database.drop()


def test_the_page_is_read_in_five_minutes() -> None:
    assert len(PAGE.split()) < 600


def _section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _lose_slot(database: pg.Database) -> None:
    """What the page says of a lost slot, in a program and by the command."""
    section = _section(FAILURES, "When the slot is lost")
    shell, python = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("sh", "python"))
    printed = re.search(r"```\n\n```\n(.*?)```", section, re.DOTALL)
    assert shell
    assert python
    assert printed
    drop_when_free(database.dsn, "to_lake")
    database.execute("UPDATE orders SET note = 'sent'", "INSERT INTO orders VALUES (3, 'new'), (4, 'new')")
    assert _printed(python[1], {"dsn": database.dsn, "Mirror": Mirror}) == printed[1]
    drop_when_free(database.dsn, "to_lake")
    database.execute("DELETE FROM orders WHERE id > 2")
    _shell(shell[1], database.dsn)
    rows = DeltaTable("lake/current/public.orders").to_pyarrow_table()
    assert rows.select(["id", "note"]).to_pylist() == [{"id": 1, "note": "sent"}]


def _shell(commands: str, dsn: str) -> str:
    """What the commands print."""
    printed = ""
    for line in commands.splitlines():
        if line.startswith("export"):
            continue  # another database
        words = shlex.split(line)
        assert words.pop(0) == "pgoutput-fast"
        environment = {
            **os.environ,
            "PGOUTPUT_FAST_DSN": dsn,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, "-m", "pgoutput_fast", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    return printed


def _printed(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "mirror.md", "exec"), names)
    return out.getvalue()
