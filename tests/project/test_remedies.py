"""An error that says "load the table again" names the command that does it, or what else the user does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT

SOURCE = ROOT / "src" / "pgoutput_fast"
_ADVICE = re.compile(
    r"\bloads? (it|them|(the|a|that|each) (table|target)s?) (\w+ )?again\b(?! and again)", re.IGNORECASE
)
# A command, or the name of a constant that has one. `write_tables` and the snapshot of Spark have options.
_NAMES = re.compile(r"pgoutput-fast \w+|\{(RELOAD|LOAD)\}|mode='overwrite'|snapshot_seconds")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module without its docstrings. An f-string has {NAME} in the place of a name."""
    tree = ast.parse(path.read_text())
    parts = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(node.value)  # a docstring
        elif isinstance(node, ast.JoinedStr):
            parts.update(ast.walk(node))
            yield node.lineno, "".join(map(_part, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.lineno, node.value


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    return f"{{{ast.unparse(node.value)}}}"


def test_an_advice_to_load_again_names_the_command() -> None:
    advice = [
        (f"{path.relative_to(SOURCE)}:{line}", text)
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in _texts(path)
        if _ADVICE.search(text)
    ]
    assert len(advice) > 8
    assert [place for place, text in advice if not _NAMES.search(text)] == []
