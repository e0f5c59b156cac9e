"""docs/operating.md: its commands run, its options exist, and the messages that it quotes are those of the package."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
import signal
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pgoutput_fast.capture import create_slot, find_slot
from pgoutput_fast.cli.app import app
from pgoutput_fast.cli.main import main
from support import pg
from support.capturing import drop_when_free
from support.mirrors import current_of
from support.paths import DOCS, ROOT, SOURCE

PAGE = (DOCS / "operating.md").read_text()


def _blocks(kind: str) -> list[str]:
    """Those in lists, too, without their indentation."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^\1```", PAGE, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


LAGS, LOOK_AT_SLOTS, DROP, STATUS = _blocks("python")
FAILOVER_SLOT, REPAIR, RELOAD = _blocks("sh")
OPEN_TRANSACTIONS, SYNCED = _blocks("sql")


@pytest.fixture
def database(servers: pg.Servers) -> Iterator[pg.Database]:
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    try:
        yield database
    finally:
        drop_when_free(database.dsn, "to_lake")
        database.drop()


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Those that the command sets are not those of the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _commands() -> Any:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def _options(words: list[str]) -> dict[str, Any]:
    """{parameter: value} of a command, which does not run."""
    given: dict[str, Any] = _commands()[words[0]].make_context(words[0], words[1:]).params
    return given


def _mirrored(command: str, dsn: str, *more: str) -> tuple[int, str]:
    """(exit status, error) of a command of the page."""
    words = shlex.split(command)
    assert words[:2] == ["pgoutput-fast", "mirror"]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return main([*words[1:], "--dsn", dsn, *more]), said.getvalue()


def _printed(code: str, dsn: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "operating.md", "exec"), {"dsn": dsn})
    return out.getvalue()


@pytest.mark.slow
def test_the_runbook(database: pg.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = REPAIR.replace(" --repair", "")
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION shop FOR ALL TABLES",
    )
    assert _mirrored(plain, database.dsn) == (0, "")
    assert "to_lake reserved" in _printed(LOOK_AT_SLOTS, database.dsn)
    assert re.fullmatch(
        r"public\.orders: follows at .* bytes behind .*\npublic\.other: follows .*\n",
        _printed(LAGS, database.dsn),
    )
    database.execute(*OPEN_TRANSACTIONS.strip().split(";\n"))
    assert _printed(STATUS, database.dsn) == ""
    # A publication is made again, and a table changed in between.
    database.execute(
        "DROP PUBLICATION shop", "INSERT INTO orders VALUES (1)", "CREATE PUBLICATION shop FOR ALL TABLES"
    )
    status, said = _mirrored(plain, database.dsn)
    assert status == 1
    assert "changes from a time when a publication did not exist" in said
    # The slot is lost, and a table is altered.
    assert _printed(DROP, database.dsn) == ""
    database.execute("ALTER TABLE orders ALTER id TYPE text")
    status, said = _mirrored(plain, database.dsn)
    assert (status, "(--repair) makes another slot" in said) == (1, True)
    # The table is repaired. Its history cannot take the new type, and the status tells a script so.
    status, said = _mirrored(REPAIR, database.dsn)
    assert (status, "public.orders did not take what committed up to now" in said) == (1, True)
    assert current_of("lake", "public.orders")["id"].to_pylist() == ["1"]
    shown = _printed(STATUS, database.dsn)
    assert shown.startswith("public.orders: follow")
    assert "A column cannot change its type in this way" in shown
    assert _mirrored(RELOAD, database.dsn) == (0, "")
    assert _printed(STATUS, database.dsn) == ""
    # What the mirror remembers is lost.
    (tmp_path / "lake" / "_mirror").rename(tmp_path / "lost")
    status, said = _mirrored(plain, database.dsn)
    assert (status, "exists, and this mirror did not make it" in said) == (1, True)


def test_a_slot_for_failover(database: pg.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    if database.version < 17:
        pytest.skip("failover slots came with 17")
    create_slot(database.dsn, "to_lake")
    monkeypatch.setenv("PGOUTPUT_FAST_DSN", database.dsn)
    assert main(shlex.split(FAILOVER_SLOT)[1:]) == 0
    found = find_slot(database.dsn, "to_lake")
    assert found is not None
    assert found.failover
    assert [row[:3] for row in database.execute(SYNCED) if row[0] == "to_lake"] == [("to_lake", False, False)]


def test_services_get_options_that_exist() -> None:
    (unit,) = (block for block in _blocks("ini") if "ExecStart" in block)
    started = re.search(r"^ExecStart=(.*?[^\\])$", unit, re.DOTALL | re.MULTILINE)
    assert started is not None
    words = shlex.split(started[1].replace("\\\n", " "))
    assert words[0].endswith("/bin/pgoutput-fast")
    given = _options(words[1:])
    assert [given[name] for name in ("slot", "publication", "target")] == ["to_lake", ["shop"], "/lake/shop"]
    deployment = next(block for block in _blocks("yaml") if "Deployment" in block)
    given = _options(["mirror", *re.findall(r"^ +- (--\S+)$", deployment, re.MULTILINE)])
    assert given["target"] == "s3://lake/shop?region=eu-central-1"
    compose = next(block for block in _blocks("yaml") if "services:" in block)
    given = _options(["mirror", *re.findall(r"^ +- (--\S+)$", compose, re.MULTILINE)])
    assert given["target"] == "/lake/shop"


def test_the_image_has_an_extra_and_a_program_that_exist() -> None:
    (image,) = _blocks("dockerfile")
    entry = re.search(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)
    extra = re.search(r"\[(\w+)\]", image)
    assert entry is not None
    assert extra is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    program, command = json.loads(entry[1])
    assert program in project["scripts"]
    assert command in _commands()
    assert "typer" in " ".join(project["optional-dependencies"][extra[1]])


def test_each_option_that_the_page_names_exists() -> None:
    known = " ".join(
        option for name in ("mirror", "capture") for each in _commands()[name].params for option in each.opts
    )
    prose = re.sub(r"^ *```.*?^ *```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"--[a-z][a-z-]+", prose))
    assert len(named) > 10
    assert {option for option in named if not re.search(rf"{option}\b", known)} == set()


def test_messages_that_the_page_quotes_exist() -> None:
    """A value that a message has, such as the name of the slot, is no part of the comparison."""
    prose = re.sub(r"^ *```.*?^ *```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`\n]*`|^    .*$", "", prose, flags=re.MULTILINE)
    quoted = [" ".join(each.split()) for each in re.findall(r'"([^"]*)"', prose) if len(each) > 12]
    assert len(quoted) > 5
    texts = "\n".join(_texts())
    missing = [
        each
        for each in quoted
        if not all(part.strip(" .") in texts for part in re.split(r"\bto_lake\b|\.\.\.", each))
    ]
    assert missing == []


def _texts() -> Iterator[Any]:
    for folder in ("base", "capture", "mirror", "postgres", "tables"):
        for path in (SOURCE / "pgoutput_fast" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
