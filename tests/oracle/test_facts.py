"""The table of docs/contributing/protocol.md: every fact has tests, and every test that it names is there."""

from __future__ import annotations

import re

from support.paths import DOCS, TESTS

PAGE = DOCS / "contributing" / "protocol.md"
FACTS = 27


def defined(pattern: str) -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob(pattern):
        found |= set(re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def test_every_fact_has_tests() -> None:
    rows = re.findall(r"^\| (\d+) \|(.+)\|(.+)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, FACTS + 1))
    for number, fact, tests in rows:
        assert fact.strip().endswith("."), number
        assert re.findall(r"`(test_\w+)`", tests), number


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8"))
    assert set(named) - defined("test_*.py") == set()
    assert len(named) == len(set(named))


def test_every_test_of_a_fact_is_on_the_page() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert defined("test_facts_*.py") - named == set()
