"""docs/follow.md does what it says."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from typing import Any

import pytest

from pgoutput_fast.capture import find_slot
from support import pg
from support.capturing import drop_when_free, wait_until
from support.paths import DOCS

PAGE = (DOCS / "follow.md").read_text()


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page(servers: pg.Servers) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[newest])
    stop, printed = threading.Event(), io.StringIO()
    names: dict[str, Any] = {"dsn": database.dsn, "stop": stop}
    failed: list[BaseException] = []

    def follow() -> None:
        try:
            exec(compile(_blocks("python")[0], "docs/follow.md", "exec"), names)
        except BaseException as problem:
            failed.append(problem)

    before, change = _blocks("sql")
    expected = re.findall(r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)[0]
    database.execute(*before.split(";\n"))
    thread = threading.Thread(target=follow)
    try:
        with contextlib.redirect_stdout(printed):
            thread.start()
            # A slot that is still being made is there, too. It does not get what is committed meanwhile.
            wait_until(
                lambda: failed or ((slot := find_slot(database.dsn, "cache")) and slot.confirmed_flush_lsn)
            )
            database.execute(*change.split(";\n"))
            wait_until(lambda: failed or printed.getvalue().count("\n") >= expected.count("\n"))
            stop.set()
            thread.join(120)
        assert not failed
        assert printed.getvalue() == expected
    finally:
        stop.set()
        thread.join(120)
        drop_when_free(database.dsn, "cache")
        database.drop()
