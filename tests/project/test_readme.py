"""The README's first screen is a real decode of real bytes: run it, and see that it prints what the page says."""

import contextlib
import doctest
import importlib
import io
import re

import pytest

import pgoutput_fast
from support.paths import ROOT


def test_readme_example_prints_what_it_says() -> None:
    text = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(import pgoutput_fast.*?)```", text, re.DOTALL)
    printed = re.search(r"```\n(insert.*?)```", text, re.DOTALL)
    assert code is not None
    assert printed is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code[1], "README.md", "exec"), {})
    assert out.getvalue() == printed[1]


def test_pages_that_the_readme_names_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    "module",
    [
        "arguments",
        "cli.passwords",
        "cli.problems",
        "cli.screen",
        "programs",
        "catalog.relations",
        "decoding.result",
        "decoding.decoder",
        "encode.writer",
        "encode.values",
        "errors",
        "decoding.framing",
        "catalog.shown",
        "display",
        "postgres.session",
        "messages.describe",
        "messages.recvlogical",
        "messages.shown",
        "protocol.lsn",
        "catalog.identifiers",
        "schema.options",
        "segments.segment",
        "segments.write",
        "decoding.state",
        "schema.evolution",
        "catalog.user_types",
        "mirror.effect.net_effect",
        "mirror.effect.key_groups",
        "mirror.effect.row_codes",
        "mirror.effect.origins",
        "mirror.effect.cancelled",
        "mirror.effect.column_names",
        "mirror.effect.take",
        "mirror.effect.unfilled",
    ],
)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"pgoutput_fast.{module}"))
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("name", [name for name in pgoutput_fast.__all__ if name != "TAGGED_SCHEMA"])
def test_every_public_name_has_an_example_of_its_own(name: str) -> None:
    assert ">>> " in (getattr(pgoutput_fast, name).__doc__ or "")
