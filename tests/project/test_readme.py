"""The README: its programs print what it says, and its figures are those of the benchmarks."""

import contextlib
import doctest
import importlib
import io
import re
from typing import Any

import pytest

import pgoutput_fast
from support import pg
from support.capturing import drop_when_free
from support.paths import ROOT

TEXT = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", TEXT, re.DOTALL)


def _printed(program: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "README.md", "exec"), names)
    return out.getvalue()


def test_each_program_says_what_it_prints() -> None:
    assert len(PROGRAMS) == TEXT.count("```python") == 2


def test_the_first_program_follows_a_server(servers: pg.Servers) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[newest])
    try:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), placed timestamptz)",
            "CREATE PUBLICATION shop FOR TABLE orders",
        )
        program, printed = PROGRAMS[0]
        assert _printed(program, {"dsn": database.dsn, "shop": database}) == printed
    finally:
        drop_when_free(database.dsn, "cache")
        database.drop()


def test_the_second_program_decodes_bytes() -> None:
    program, printed = PROGRAMS[1]
    assert _printed(program, {}) == printed


def test_the_figures_are_those_of_the_benchmarks() -> None:
    """They are rounded, and each run of the benchmarks has others. More than half away, they are wrong."""
    figures = (ROOT / "benchmarks" / "README.md").read_text().partition("### wide text")[2]
    for said, measured in (
        ("copy the bytes to new memory", "memcpy to new memory"),
        (r"\*\*`pgoutput_fast`\*\*", "decode"),
        ("read the same rows with pyarrow's CSV reader", r"pyarrow CSV reader .*?"),
        ("the loop that you would write first in Python", "plain Python"),
    ):
        here = re.search(rf"^\| {said} \| \**([\d.]+)", TEXT, re.MULTILINE)
        there = re.search(rf"^\| {measured} +\| ([\d.]+)", figures, re.MULTILINE)
        assert here is not None, said
        assert there is not None, measured
        assert 2 / 3 < float(here[1]) / float(there[1]) < 3 / 2, said


def test_pages_that_the_readme_names_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    "module",
    [
        "base.arguments",
        "cli.passwords",
        "cli.problems",
        "cli.screen",
        "catalog.relations",
        "decoding.result",
        "decoding.decoder",
        "encode.writer",
        "encode.values",
        "base.errors",
        "tables.directories",
        "decoding.framing",
        "catalog.formatting",
        "base.display",
        "postgres.session",
        "messages.describe",
        "messages.recvlogical",
        "messages.formatting",
        "protocol.lsn",
        "catalog.identifiers",
        "schema.options",
        "segments.segment",
        "segments.write",
        "decoding.state",
        "schema.evolution",
        "catalog.user_types",
        "merge.effect.net_effect",
        "merge.effect.key_groups",
        "merge.match",
        "merge.effect.origins",
        "merge.effect.column_names",
        "merge.effect.take",
        "merge.effect.unfilled",
    ],
)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"pgoutput_fast.{module}"))
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("name", [name for name in pgoutput_fast.__all__ if name != "TAGGED_SCHEMA"])
def test_every_public_name_has_an_example_of_its_own(name: str) -> None:
    assert ">>> " in (getattr(pgoutput_fast, name).__doc__ or "")
