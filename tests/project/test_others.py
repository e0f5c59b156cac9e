"""docs/peers.md, what others leave out: each row names a test that there is, and there is a date."""

from __future__ import annotations

import ast
import re

from support.paths import DOCS, ROOT

PAGE = (DOCS / "peers.md").read_text().partition("\n## What others leave out\n")[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _rows() -> list[str]:
    """The rows of the tables, without their heads."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [line for line in lines if not line.startswith(("|---", "| what"))]


def test_every_row_names_a_test() -> None:
    rows = _rows()
    assert len(rows) > 15
    assert [row for row in rows if len(_NAMED.findall(row.split("|")[-2])) != 1] == []


def test_the_tests_exist() -> None:
    for file, name in _NAMED.findall(PAGE):
        defined = ast.parse((ROOT / file).read_text()).body
        assert name in {each.name for each in defined if isinstance(each, ast.FunctionDef)}, f"{file}::{name}"


def test_no_test_of_these_is_left_out() -> None:
    """All tests of test_left_out.py are on the page."""
    text = (ROOT / "tests" / "mirror" / "test_left_out.py").read_text()
    there = {each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)}
    named = {name for file, name in _NAMED.findall(PAGE) if file.endswith("test_left_out.py")}
    assert {name for name in there if name.startswith("test_")} == named


def test_it_has_a_date() -> None:
    assert re.search(r"\bas of 20\d\d-\d\d-\d\d\b", PAGE)
