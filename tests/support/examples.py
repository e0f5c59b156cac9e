"""Runs the programs of docs/examples, and reads their expected output from docs/examples.md."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest

from support import pg
from support.capturing import drop_when_free
from support.paths import DOCS

EXAMPLES = DOCS / "examples"
PAGE = (DOCS / "examples.md").read_text()

# The table of the programs, and its publication.
(_SQL,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
TABLE = _SQL.strip().split(";\n")


def load(name: str) -> Any:
    """The names defined by a program; its `main` does not run."""
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


def run(name: str, *arguments: object) -> str:
    """The output of a program."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue()


def said(name: str) -> str:
    """The output of a program according to the page: the first block without a language after its link."""
    section = PAGE.partition(f"](examples/{name})")[2].partition("\n## ")[0]
    found = re.search(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/examples.md does not say what {name} prints"
    return found[1]


@contextlib.contextmanager
def shop(servers: pg.Servers, *slots: str) -> Iterator[pg.Database]:
    """A database with the table of the examples on the newest server. The slots are dropped at the end."""
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[newest])
    try:
        database.execute(*TABLE)
        yield database
    finally:
        for slot in slots:
            drop_when_free(database.dsn, slot)
        database.drop()
