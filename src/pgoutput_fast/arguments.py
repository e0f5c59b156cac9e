"""Refuses a single text as an argument that must be a list. Python would take the letters of the text as the list."""

from __future__ import annotations

__all__ = ["expect_list"]


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
