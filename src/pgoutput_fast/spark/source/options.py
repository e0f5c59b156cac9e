"""Values of options of `format("pgoutput")`, and the options that also have the name that Spark's sources give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

__all__ = ["SPARK_NAMES", "byte_count", "emitted", "name_given", "offset", "option_of", "positive"]

# This package's names of options -> Spark's names.
SPARK_NAMES = {
    "max_segments": "maxFilesPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "starting": "startingOffsets",
}
_EMITTED = ("rows", "upserts", "files")
_BYTES = re.compile(r"([0-9]+)(?:([kmgtp]?)b?)?", re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
# The most that the JVM takes.
_MOST_NUMBER, _MOST_BYTES = (1 << 31) - 1, (1 << 63) - 1
_T = TypeVar("_T")


def option_of(given: Mapping[str, str], name: str, parse: Callable[[str, str], _T]) -> _T | None:
    """Returns the value of an option that has two names; None if it is not given.

    Args:
        given: the options, in lower case.
        name: this package's name.
        parse: parses a value; its arguments are the name that the user wrote, and the text.

    Raises:
        ValueError: if both names are given, with different values; and as `parse`.
    """
    names = (name, SPARK_NAMES[name])
    values = {each: parse(each, given[each.lower()]) for each in names if each.lower() in given}
    if len(set(values.values())) > 1:
        raise ValueError(f"options {names[0]} and {names[1]} are one option with two values: leave one out")
    return next(iter(values.values()), None)


def name_given(given: Mapping[str, str], name: str) -> str:
    """Returns the name under which an option is given."""
    return name if name in given else SPARK_NAMES[name]


def positive(name: str, text: str) -> int:
    """Parses a number of at least 1.

    Raises:
        ValueError: for another text.
    """
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_NUMBER:
        raise ValueError(
            f"option {name} must be a number of at least 1 and at most {_MOST_NUMBER}, not {text!r}"
        )
    return int(text)


def byte_count(name: str, text: str) -> int:
    """Parses a number of bytes, which may have a suffix as in Spark's settings.

    Raises:
        ValueError: for another text, or no bytes.

    >>> [byte_count("max_bytes", text) for text in ("1000", "64k", "1MB", "2g")]
    [1000, 65536, 1048576, 2147483648]
    """
    found = _BYTES.fullmatch(text.strip().lower())
    nbytes = int(found[1]) * 1024 ** _POWERS[found[2] or ""] if found is not None else 0
    if not 1 <= nbytes <= _MOST_BYTES:
        raise ValueError(f"option {name} must be a number of bytes, such as 1000000, 64m or 1g, not {text!r}")
    return nbytes


def emitted(given: Mapping[str, str]) -> str:
    """Returns what the source gives: the value of the option `emit`.

    Args:
        given: the options, in any case.

    Raises:
        ValueError: for another text.
    """
    emit = next((text for key, text in given.items() if key.lower() == "emit"), _EMITTED[0])
    if emit not in _EMITTED:
        raise ValueError(f"option emit must be {', '.join(map(repr, _EMITTED))}, not {emit!r}")
    return emit


def offset(name: str, text: str, *, words: tuple[str, ...] = ("earliest", "latest")) -> str:
    """Returns a position in the stream: one of some words, or the ordinal of a message.

    Raises:
        ValueError: for another text.
    """
    if text not in words and not text.isdecimal():
        raise ValueError(
            f"option {name} must be {', '.join(words)} or the ordinal of a message, not {text!r}"
        )
    return text
