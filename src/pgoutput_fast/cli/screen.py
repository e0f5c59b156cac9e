"""The output of commands: tables and lines for a person, lines of JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["console", "line", "lsn_text", "objects", "size", "table"]


def line(text: str, style: str = "", *, error: bool = False) -> None:
    """Writes one line, without markup. It is wrapped between words on a terminal, but not in a pipe.

    Args:
        text: the line.
        style: style of rich; a pipe gets no colours.
        error: whether to write to standard error, for anything but results.
    """
    screen = console(error=error)
    screen.print(Text(text, style), soft_wrap=not screen.is_terminal)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Writes a table that fits into the terminal. In a pipe, it is as wide as necessary.

    Args:
        columns: the names.
        rows: the cells; None becomes an empty one.
        right: columns of numbers.
    """
    rich_table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        rich_table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        rich_table.add_row(*(Text("" if each is None else str(each)) for each in row))
    screen = console()
    if screen.is_terminal:
        screen.print(rich_table)
        return
    with screen.capture() as written:
        screen.print(rich_table, soft_wrap=True)
    # No trailing blanks: they disturb programs that compare or cut texts.
    sys.stdout.write("".join(f"{each.rstrip()}\n" for each in written.get().splitlines()))


def objects(each: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line."""
    for values in each:
        sys.stdout.write(json.dumps(values, default=str) + "\n")
    sys.stdout.flush()


def lsn_text(lsn: int | None) -> str | None:
    """An LSN in the server's format; None for none."""
    return None if lsn is None else format_lsn(lsn)


def size(nbytes: int) -> str:
    """A number of bytes for a person.

    >>> size(0), size(1), size(123_456_789)
    ('0 bytes', '1 byte', '123.5 MB')
    """
    return decimal(nbytes)


def console(*, error: bool = False) -> Console:
    """Returns a console of rich.

    Args:
        error: whether to use standard error.
    """
    # A pipe has no width, and rich would wrap lines at 80 characters.
    is_terminal = (sys.stderr if error else sys.stdout).isatty()
    return _Console(stderr=error, width=None if is_terminal else 10_000, highlight=False)


class _Console(Console):
    """A console that lets `main` handle a closed pipe. rich would end with an error."""

    def on_broken_pipe(self) -> None:
        """Reraises the error."""
        raise BrokenPipeError
