"""What a command says when it cannot do its work: one line, and an exit status."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DONE", "INTERRUPTED", "PROBLEM", "WRONG_USAGE", "UsageError", "expect_given", "said"]

# The exit statuses. 130 is what a shell gives for a program that Ctrl-C has ended.
DONE, PROBLEM, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


class UsageError(Exception):
    """The arguments cannot be used."""


def expect_given(values: Mapping[str, object]) -> None:
    """Checks that no argument is missing, and names all that are.

    Args:
        values: {how the argument is written: its value}; None and empty values are missing.

    Raises:
        UsageError: if some are missing.

    >>> expect_given({"--slot": "orders"})
    >>> expect_given({"--slot": None, "--publication": []})
    Traceback (most recent call last):
    pgoutput_fast.cli.problems.UsageError: these arguments are missing: --slot, --publication
    """
    missing = [name for name, value in values.items() if value is None or value in ("", [], ())]
    if missing:
        what = "these arguments are" if len(missing) > 1 else "this argument is"
        raise UsageError(f"{what} missing: {', '.join(missing)}")


def said(problem: BaseException) -> str:
    """The text of an error in one line, with its notes.

    >>> said(ValueError("no such slot:\\n  orders\\n"))
    'no such slot: orders'
    """
    text = str(problem).strip() or type(problem).__name__
    return " ".join(" ".join([text, *getattr(problem, "__notes__", [])]).split())
