"""Rejects mistaken arguments: a text in place of a list, or a missing value of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["UsageError", "expect_count", "expect_given", "expect_kind", "expect_list", "kind_of"]


class UsageError(ValueError):
    """The arguments of a command are invalid."""


class _NotAListError(TypeError, ValueError):
    """A text in place of a list. It is also a ValueError, because several callers have always raised that."""


def expect_list(argument: str, value: object, of: str = "names") -> None:
    """Checks that an argument is not a single text or bytes in place of a list.

    Args:
        argument: name of the argument.
        value: its value. Only text and bytes are rejected here.
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


def kind_of(value: object) -> str:
    """The type of a value for errors.

    >>> kind_of(None), kind_of([]), kind_of(1)
    ('None', 'a list', 'an int')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def expect_count(argument: str, value: Any) -> None:
    """Checks that an argument is a positive integer.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is less than 1.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be a whole number, not {kind_of(value)}")
    if value < 1:
        raise ValueError(f"{argument} must be at least 1, not {value}")


def expect_kind(argument: str, value: object, kind: type, what: str) -> None:
    """Checks that an argument is None, or an instance of a class.

    Args:
        argument: name of the argument.
        value: its value.
        kind: the class.
        what: description of the class.

    Raises:
        TypeError: if it is neither.

    >>> try:
    ...     expect_kind("storage_options", "region", dict, "a dict of texts")
    ... except TypeError as error:
    ...     print(error)
    storage_options must be a dict of texts or None, not a str
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{argument} must be {what} or None, not {kind_of(value)}")


def expect_given(values: Mapping[str, object]) -> None:
    """Checks that no argument of a command is missing.

    Args:
        values: {argument as written: its value}; None and empty values are missing.

    Raises:
        UsageError: if some are missing, with their names.

    >>> expect_given({"--slot": "orders"})
    >>> expect_given({"--slot": None, "--publication": []})
    Traceback (most recent call last):
    pgoutput_fast.base.arguments.UsageError: these arguments are missing: --slot, --publication
    """
    missing = [name for name, value in values.items() if value is None or value in ("", [], ())]
    if missing:
        what = "these arguments are" if len(missing) > 1 else "this argument is"
        raise UsageError(f"{what} missing: {', '.join(missing)}")
