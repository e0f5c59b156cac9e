"""docs/guarantees.md: each promise names a test that exists."""

from __future__ import annotations

import ast
import re

from support.paths import DOCS, ROOT

PAGE = (DOCS / "guarantees.md").read_text()
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [line.strip("|").split("|") for line in lines if not line.startswith(("|---", "| you can rely"))]


def test_every_promise_names_a_test() -> None:
    rows = _rows()
    assert len(rows) > 40
    for promise, tests in rows:
        assert re.fullmatch(rf" {_NAMED.pattern}(, {_NAMED.pattern})* ", tests), promise


def test_the_tests_exist() -> None:
    named = _NAMED.findall(PAGE)
    for file in sorted({file for file, _ in named}):
        body = ast.parse((ROOT / file).read_text()).body
        there = {each.name for each in body if isinstance(each, ast.FunctionDef)}
        assert {name for of, name in named if of == file} <= there, file
