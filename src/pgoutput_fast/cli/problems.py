"""Reports why a command failed: one line, and an exit status."""

from __future__ import annotations

from pgoutput_fast.base.display import error_text
from pgoutput_fast.base.extras import what_is_missing
from pgoutput_fast.base.stopping import STOPPED

__all__ = ["DONE", "INTERRUPTED", "PROBLEM", "WRONG_USAGE", "format_problem"]

# The exit statuses.
DONE, PROBLEM, WRONG_USAGE, INTERRUPTED = 0, 1, 2, STOPPED

# Calls suggested by errors, and the equivalent commands.
_COMMANDS = {"with drop_slot": "with pgoutput-fast slots drop"}


def format_problem(problem: BaseException) -> str:
    """The text of an error in one line, with its notes. For a missing module, how to install it.

    Suggested calls become the equivalent commands.

    >>> format_problem(ValueError("no such slot:\\n  orders\\n"))
    'no such slot: orders'
    >>> format_problem(ModuleNotFoundError("No module named 'duckdb'", name="duckdb"))
    "duckdb is missing: pip install 'pgoutput_fast[duckdb]'"
    >>> format_problem(ValueError("Connection refused\\n\\tIs the server running?"))
    'Connection refused. Is the server running?'
    >>> format_problem(KeyError("public.t is not published"))
    'public.t is not published'
    >>> format_problem(RuntimeError("drop it with drop_slot. Then repair the mirror"))
    'drop it with pgoutput-fast slots drop. Then repair the mirror'
    """
    if (text := what_is_missing(problem)) is not None:
        return text
    line = ""
    for part in filter(None, map(str.strip, error_text(problem).splitlines())):
        # libpq's sentences are lines without a full stop.
        stop = "." if line[-1:].isalnum() and part[0].isupper() else ""
        line = " ".join(f"{line}{stop} {part}".split())
    for call, command in _COMMANDS.items():
        line = line.replace(call, command)
    if "connection to server on socket" in line:  # where libpq looks without a host
        line += ". Name the server with --dsn, or in PGOUTPUT_FAST_DSN"
    return line
