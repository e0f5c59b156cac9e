"""The pages as a site: the navigation has every page, and a strict build finds nothing to warn of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.paths import DOCS, ROOT

pytest.importorskip("mkdocs")

import yaml

import mkdocs_hook

SETTINGS: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def _pages(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
        return
    for each in navigation.values() if isinstance(navigation, dict) else navigation:
        yield from _pages(each)


def test_the_navigation_has_each_page_once() -> None:
    beside = {each for each in mkdocs_hook.BESIDE if each.endswith(".md")}
    assert all((ROOT / each).is_file() for each in mkdocs_hook.BESIDE)
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | beside
    assert Counter(_pages(SETTINGS["nav"])) == Counter(there)


def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    done = _built(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    spark = (tmp_path / "spark.html").read_text()
    assert 'href="benchmarks/index.html#columns-on-spark"' in spark
    notes = (tmp_path / "benchmarks" / "NOTES.html").read_text()
    assert 'href="../mirror/concepts.html#memory"' in notes


@pytest.mark.parametrize(
    ("page", "link", "on_site"),
    [
        ("spark.md", "../benchmarks/README.md#planning", "benchmarks/README.md#planning"),
        ("spark.md", "capture.md#stores", "capture.md#stores"),
        ("spark.md", "#errors", "#errors"),
        ("spark.md", "https://example.org/a#b", "https://example.org/a#b"),
        ("benchmarks/NOTES.md", "../docs/mirror/concepts.md#memory", "../mirror/concepts.md#memory"),
        ("benchmarks/NOTES.md", "README.md", "README.md"),
        ("CHANGELOG.md", "docs/api.md", "api.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page: str, link: str, on_site: str) -> None:
    assert mkdocs_hook.with_links_of_site(f"[a]({link})", page) == f"[a]({on_site})"


def _built(settings: Path, into: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(settings), "-d", str(into)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
