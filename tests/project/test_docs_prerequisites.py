"""docs/prerequisites.md: its steps, on a server with its settings, let its user capture, mirror and follow."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extensions
import pytest

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror, points
from support import pg
from support.mirrors import Following, current_of
from support.paths import DOCS

PAGE = (DOCS / "prerequisites.md").read_text()
SQL = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def _settings() -> dict[str, str]:
    (block,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    found = dict(re.findall(r"^(\w+) = (\S+)$", block, re.MULTILINE))
    assert len(found) == len(block.splitlines())
    return found


@pytest.fixture
def prepared() -> Iterator[Server]:
    """A server with the settings of the page, with a database `shop`."""
    installed = pg.installations()
    if not installed:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    with Server(installed[max(installed)], _settings()) as server:
        _execute(server, "postgres", "CREATE DATABASE shop")
        yield server


def test_the_connection_string_names_options_of_libpq() -> None:
    (found,) = re.findall(r"^    (host=.*)$", PAGE, re.MULTILINE)
    assert psycopg2.extensions.parse_dsn(found)["sslmode"] == "verify-full"


def test_a_password_that_changes(prepared: Server, capsys: pytest.CaptureFixture[str]) -> None:
    block, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    asked: list[tuple[object, ...]] = []

    class Rds:
        def generate_db_auth_token(self, *given: object) -> str:
            asked.append(given)
            return "a token"

    exec(compile(block, "prerequisites.md", "exec"), {"dsn": prepared.dsn, "rds": Rds()})
    assert asked[0] == ("db.example", 5432, "reader")
    assert "error: publication shop" in capsys.readouterr().out


def _execute(server: Server, database: str, *statements: str) -> list[tuple[Any, ...]]:
    connection = server.connect(dbname=database)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            for each in statements:
                cursor.execute(each)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


@pytest.mark.slow
def test_the_steps(prepared: Server, tmp_path: Path) -> None:
    server = prepared
    without_key, full, publication, user = SQL
    _execute(
        server,
        "shop",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE logs (line text)",
        "INSERT INTO orders VALUES (1)",
        "INSERT INTO logs VALUES ('a'), ('b')",
    )
    assert _execute(server, "shop", without_key) == [("logs",)]
    _execute(server, "shop", full)
    assert _execute(server, "shop", without_key) == []
    _execute(server, "shop", publication, *user.strip().split(";\n"))
    dsn = f"host=127.0.0.1 port={server.port} user=reader dbname=shop sslmode=disable"
    _, check = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"```\n(PostgreSQL.*?)```", PAGE, re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(check, "prerequisites.md", "exec"), {"dsn": dsn})
    assert out.getvalue() == printed.replace("PostgreSQL 18", f"PostgreSQL {server.version}")
    lake = tmp_path / "lake"
    mirror = Mirror(dsn, "to_lake", ["shop"], lake, seconds=0.5)
    with mirror, Following(mirror) as following:
        following.until(lambda: following.loaded() == 2 and points(lake))
        _execute(server, "shop", "DELETE FROM logs WHERE line = 'a'", "INSERT INTO orders VALUES (2)")
        following.until(lambda: current_of(lake, "public.logs")["line"].to_pylist() == ["b"])
        following.until(lambda: sorted(current_of(lake, "public.orders")["id"].to_pylist()) == [1, 2])
    _execute(server, "shop", "CREATE TABLE bare (line text)")
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match="REPLICA IDENTITY"):
        _execute(server, "shop", "UPDATE bare SET line = 'a'")
