"""Links between the pages lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.named_places import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeated = sum(
            each == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", each) is not None for each in found
        )
        found.add(f"{slug}-{repeated}" if repeated else slug)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    text = re.sub(r"`[^`\n]*`", "", path.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists():
            broken.append(f"{path.relative_to(ROOT)}: there is no {link}")
        elif anchor and anchor not in anchors(target.read_text()):
            broken.append(f"{path.relative_to(ROOT)}: {link} leads to no heading")
    assert not broken, "\n" + "\n".join(broken)


def test_anchors_are_those_of_github() -> None:
    text = "# A page\n## `make test`, and *more*\n```\n# no heading\n```\n## Twice\n## Twice\n"
    assert anchors(text) == {"a-page", "make-test-and-more", "twice", "twice-1"}
