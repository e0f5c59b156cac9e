"""docs/contributing/add-a-sink.md names files and functions that exist."""

from __future__ import annotations

from support.named_places import ROOT, missing, named_places

PAGE = ROOT / "docs" / "contributing" / "add-a-sink.md"


def test_functions_that_the_page_names_exist() -> None:
    assert len(list(named_places(PAGE))) > 8
    found = missing(PAGE)
    assert not found, "\n" + "\n".join(found)


def test_the_readme_has_the_page() -> None:
    assert "(docs/contributing/add-a-sink.md)" in (ROOT / "README.md").read_text()
