"""Files and functions named by a page, and those of them that do not exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = next(each for each in Path(__file__).resolve().parents if (each / "pyproject.toml").exists())
PACKAGE = ROOT / "src" / "pgoutput_fast"


class Named(NamedTuple):
    """A row of a table: a file, and names that are in it."""

    line: int
    file: str
    names: tuple[str, ...]


def named_places(page: Path) -> Iterator[Named]:
    """The rows of a page's tables whose last two cells are a file and names, both between backticks."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        cells = [each.strip() for each in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) >= 3 and re.fullmatch(r"`[\w./]+\.\w+`", cells[-2]):
            yield Named(number, cells[-2].strip("`"), tuple(re.findall(r"`([\w.]+)`", cells[-1])))


def path_of(file: str) -> Path:
    """The path of a file that a page names: one of the package, or one below the root of the repository."""
    path = PACKAGE / file
    return path if path.exists() else ROOT / file


def missing(page: Path) -> list[str]:
    """A sentence for each file and name of a page that does not exist."""
    found = []
    for each in named_places(page):
        where = f"{page.relative_to(ROOT)}:{each.line}"
        path = path_of(each.file)
        if not path.is_file():
            found.append(f"{where}: there is no file {each.file}")
            continue
        found += [f"{where}: {each.file} has no {name}" for name in each.names if not is_in(name, path)]
    return found


def is_in(name: str, path: Path) -> bool:
    """Whether a file defines a function, a class, a constant, or `Class.method`."""
    text = path.read_text()
    if path.suffix == ".py":
        return name in defined(ast.parse(text).body)
    outer, _, inner = name.rpartition(".")
    if outer:
        start = re.search(rf"^(?:cdef )?class {outer}\b", text, re.MULTILINE)
        if start is None:
            return False
        rest = text[start.end() :]
        end = re.search(r"\n(?=\S)", rest)
        text = rest[: end.start()] if end is not None else rest
    return (
        re.search(rf"^\s*(?:c?p?def|class|inline|template|void)\b.*?\b{inner}\b", text, re.MULTILINE)
        is not None
    )


def defined(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """The names defined by the statements of a module or class."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                found |= defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {prefix + each.id for each in targets if isinstance(each, ast.Name)}
    return found
