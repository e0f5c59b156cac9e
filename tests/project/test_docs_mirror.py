"""docs/mirror.md does what it says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import pg
from support.capturing import drop_when_free
from support.paths import DOCS

PAGE = (DOCS / "mirror.md").read_text()
SHELL, SQL, PYTHON = (
    re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("sh", "sql", "python")
)
PRINTED = re.findall(r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)


def test_the_page(servers: pg.Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    monkeypatch.chdir(tmp_path)
    database = pg.Database(servers[newest])
    try:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text)",
            "INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
        )
        database.execute(SQL[0])
        _shell(SHELL[0], database.dsn)
        database.execute(SQL[1])
        _shell(SHELL[1], database.dsn)
        assert [_printed(PYTHON[0], {}), _printed(PYTHON[1], {"dsn": database.dsn})] == PRINTED
    finally:
        drop_when_free(database.dsn, "to_lake")
        database.drop()


def _shell(commands: str, dsn: str) -> None:
    for line in commands.splitlines():
        if line.startswith("export"):
            continue  # another database
        words = line.split()
        assert words.pop(0) == "python"
        environment = {
            **os.environ,
            "PGOUTPUT_FAST_DSN": dsn,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr


def _printed(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "mirror.md", "exec"), names)
    return out.getvalue()
