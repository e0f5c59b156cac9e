"""Refuses arguments that cannot be meant: a text in place of a list, and nothing where a command needs a value."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UsageError", "expect_given", "expect_list"]


class UsageError(ValueError):
    """The arguments of a command cannot be used."""


class _NotAListError(TypeError, ValueError):
    """A text in place of a list. It is a ValueError, too, because several callers have always raised that."""


def expect_list(argument: str, value: object, of: str = "names") -> None:
    """Checks that an argument is not a single text or bytes in place of a list.

    Args:
        argument: name of the argument.
        value: its value. Only text and bytes are refused here.
        of: what the list must contain.

    Raises:
        TypeError: if the value is text or bytes. The error is a ValueError, too.

    >>> expect_list("publications", ["shop"])
    >>> try:
    ...     expect_list("publications", "shop")
    ... except TypeError as error:
    ...     print(error)
    publications must be a list of names, not a str; for a single one put brackets around it: ["..."]
    """
    if isinstance(value, str | bytes | bytearray):
        kind = type(value).__name__
        single = ': ["..."]' if isinstance(value, str) else ""
        raise _NotAListError(
            f"{argument} must be a list of {of}, not a {kind}; for a single one put brackets around it{single}"
        )


def expect_given(values: Mapping[str, object]) -> None:
    """Checks that no argument of a command is missing, and names all that are.

    Args:
        values: {how the argument is written: its value}; None and empty values are missing.

    Raises:
        UsageError: if some are missing.

    >>> expect_given({"--slot": "orders"})
    >>> expect_given({"--slot": None, "--publication": []})
    Traceback (most recent call last):
    pgoutput_fast.arguments.UsageError: these arguments are missing: --slot, --publication
    """
    missing = [name for name, value in values.items() if value is None or value in ("", [], ())]
    if missing:
        what = "these arguments are" if len(missing) > 1 else "this argument is"
        raise UsageError(f"{what} missing: {', '.join(missing)}")
