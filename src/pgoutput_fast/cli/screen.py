"""Where commands write: tables and lines for a person, lines of JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["line", "objects", "table"]


def line(text: str, style: str = "") -> None:
    """Writes one line. Nothing in it is markup, and it is not cut.

    Args:
        text: the line.
        style: of rich; a pipe gets no colours.
    """
    _console().print(Text(text, style), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Writes a table that fits into the terminal. In a pipe, it has as much width as it needs.

    Args:
        columns: the names.
        rows: the cells; None becomes an empty one.
        right: the columns whose values are numbers.
    """
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        shown.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text("" if each is None else str(each)) for each in row))
    console = _console()
    console.print(shown, soft_wrap=not console.is_terminal)


def objects(each: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object a line."""
    for values in each:
        sys.stdout.write(json.dumps(values, default=str) + "\n")
    sys.stdout.flush()


def _console() -> Console:
    # A pipe has no width. rich would cut lines at 80 characters.
    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
