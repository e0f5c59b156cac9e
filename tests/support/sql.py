"""The SQL statements in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.paths import SOURCE

FILES = sorted(SOURCE.rglob("*.py"))
_IS_SQL = re.compile(
    r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE|COPY|CREATE|ALTER|DROP|CALL|DO|PREPARE|EXECUTE|EXPLAIN|VALUES|MERGE|TRUNCATE"
    r"|LOCK|SET|SHOW)\s|\(*pg_catalog\.\w+\(|.*(::[a-z]|\bOPERATOR\()",
    re.DOTALL,
)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each literal except docstrings; `{}` replaces the values in f-strings."""
    tree = ast.parse(source)
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(node.value)
        if isinstance(node, ast.JoinedStr):
            parts.update(each for each in node.values if isinstance(each, ast.Constant))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(e.value) if isinstance(e, ast.Constant) else "{}" for e in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.lineno, node.value


def statements(path: Path) -> Iterator[tuple[int, str]]:
    return ((line, text) for line, text in literals(path.read_text()) if _IS_SQL.match(text))
