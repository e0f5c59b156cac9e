"""The fenced and indented code blocks of pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "blocks_of"]

_HEADING = re.compile(r"#+ +(.*)")
_FENCE = re.compile(r"( *)```(\w*)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        heading: the heading above it.
        language: that of its fence; `indented` for a block without one.
        text: the code.
    """

    heading: str
    language: str
    text: str


def blocks_of(page: Path) -> Iterator[Block]:
    """The code blocks of a page, from top to bottom. Indented paragraphs of a list are not code."""
    lines = page.read_text().splitlines()
    heading, at, in_list = "", 0, False
    while at < len(lines):
        line, begin = lines[at], at
        at += 1
        if fence := _FENCE.match(line):
            while lines[at] != f"{fence[1]}```":
                at += 1
            yield Block(heading, fence[2], _text(lines[begin + 1 : at]))
            at += 1
        elif line.startswith("    ") and not in_list:
            while at < len(lines) and (not lines[at] or lines[at].startswith("    ")):
                at += 1
            yield Block(heading, "indented", _text(lines[begin:at]))
        elif found := _HEADING.match(line):
            heading, in_list = found[1], False
        elif line and not line.startswith(" "):
            in_list = _ITEM.match(line) is not None


def _text(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"
