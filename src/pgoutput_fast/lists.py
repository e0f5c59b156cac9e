"""One text where a list is meant: Python would take its letters for the list."""

from __future__ import annotations

__all__ = ["expect_list"]


class _NotAListError(TypeError, ValueError):
    """A text where a list is meant: of the wrong type, and a value that several callers have always refused as such."""


def expect_list(argument: str, value: object, of: str = "names") -> None:
    """That an argument is not a single text, or bytes, in place of a list of them.

    Args:
        argument: what it is called.
        value: what was given; of anything else but text and bytes nothing is expected here.
        of: what it is a list of.

    Raises:
        TypeError: if it is. It is a ValueError, too.

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
