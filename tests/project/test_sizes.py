"""Functions and classes stay small enough to read: a function has at most 60 lines of code, a class 250.

Docstrings, comments and empty lines do not count.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import ROOT, SOURCE

MOST_LINES = {"def": 60, "class": 250}

_OPENS = re.compile(r"(?:(?:cdef|cpdef|async)\s+)*(?:(class)\s+(\w+)|(?:def\s+|[\w\[\]*&. ]*?)(\w+)\()")


def _code_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields (number, indentation, line) of each line with code; a statement of several lines has one indentation."""
    lines = text.split("\n")
    counted: dict[int, int] = {}
    indentation, first, fresh = 0, True, True
    for token in tokenize.generate_tokens(io.StringIO(_tokenizable(text)).readline):
        if token.type in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            continue
        if token.type == tokenize.NEWLINE:
            fresh = True
            continue
        if fresh:
            indentation, fresh = token.start[1], False
            first = token.type == tokenize.STRING  # a statement that is only a string is a docstring
        if first and token.type == tokenize.STRING and token.line.strip().startswith(('"""', 'r"""')):
            continue
        for number in range(token.start[0], token.end[0] + 1):
            counted.setdefault(number, indentation)
    for number, at in sorted(counted.items()):
        yield number, at, lines[number - 1]


def _tokenizable(text: str) -> str:
    """C characters of Cython (c'x') and its operators are fine; only `&` and `?` in declarations need no change."""
    return text.replace("?", " ").replace("$", " ")


def too_long(text: str, most: dict[str, int]) -> Iterator[str]:
    """Yields a sentence for each function and class that has more lines of code than `most` allows."""
    open_blocks: list[tuple[int, str, str, int, list[int]]] = []

    def closed(until: int) -> Iterator[str]:
        while open_blocks and open_blocks[-1][0] >= until:
            _, kind, name, number, size = open_blocks.pop()
            if size[0] > most[kind]:
                yield f"{number}: {name} has {size[0]} lines of code, more than {most[kind]}"

    statement = -1
    for number, indentation, line in _code_lines(text):
        begins = len(line) - len(line.lstrip()) == indentation
        if begins:
            yield from closed(indentation)
            statement = number
        for each in open_blocks:
            each[4][0] += 1
        found = _OPENS.match(line.strip()) if begins else None
        if found and re.match(r"(async |cdef |cpdef )*(class|def|cdef|cpdef)\b", line.strip()):
            if line.strip().startswith("cdef extern"):
                continue
            kind = "class" if found[1] else "def"
            open_blocks.append((indentation, kind, found[2] or found[3], statement, [1]))
    yield from closed(0)


@pytest.mark.parametrize(
    "path",
    sorted({*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyx")}),
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_functions_and_classes_are_small(path: Path) -> None:
    found = [f"{path.relative_to(ROOT)}:{each}" for each in too_long(path.read_text(), MOST_LINES)]
    assert not found, "\n".join(found) + "\nsplit it into named steps"


def test_what_is_long_is_found() -> None:
    body = "".join(f"    x = {k}  # a comment\n\n" for k in range(4))
    most = {"def": 4, "class": 5}
    assert list(too_long(f'def f():\n    """A docstring\n    of lines."""\n{body}', most)) == [
        "1: f has 5 lines of code, more than 4"
    ]
    assert list(too_long(f"cdef int f(int64_t a,\n           int b) except? -1 nogil:\n{body}", most)) == [
        "1: f has 6 lines of code, more than 4"
    ]
    inner = "".join(f"    {line}\n" for line in f"def f(self):\n{body}".split("\n"))
    assert list(too_long(f"cdef class C:\n{inner}\n    a = 1\n", most)) == [
        "2: f has 5 lines of code, more than 4",
        "1: C has 7 lines of code, more than 5",
    ]
    assert not list(too_long(f"def f():\n    x = '''\n{body}'''\n", {"def": 20, "class": 1}))
