"""Checks the arguments of a mirror before any work."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from pgoutput_fast.base.arguments import expect_count, expect_kind, kind_of
from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.catalog.patterns import check_patterns
from pgoutput_fast.schema.options import Options

__all__ = ["expect_arguments", "expect_bool", "expect_place"]

# Slot names that PostgreSQL accepts.
_SLOT = re.compile(r"[a-z0-9_]{1,63}")


def expect_arguments(given: Mapping[str, Any]) -> None:
    """Checks arguments of `Mirror`.

    Args:
        given: {name of the argument: value}.

    Raises:
        TypeError: if a value has a wrong type.
        ValueError: if a number is too small.

    >>> expect_arguments({"seconds": 1, "threads": 2, "options": None})
    >>> expect_arguments({"threads": 0})
    Traceback (most recent call last):
    ...
    ValueError: threads must be at least 1, not 0
    >>> expect_arguments({"in_step": "no"})
    Traceback (most recent call last):
    ...
    TypeError: in_step must be True or False, not a str
    """
    for name, value in given.items():
        _CHECKS[name](name, value)


def expect_bool(name: str, value: object) -> None:
    """Checks that a value is True or False: any non-empty text would count as True.

    Raises:
        TypeError: if it is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {kind_of(value)}")


def expect_place(name: str, value: object) -> None:
    """Checks that a value is a path or a URI.

    Raises:
        TypeError: if it is neither.
        ValueError: if it is empty: it would stand for the working directory.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path or a URI, not {kind_of(value)}")
    if not os.fspath(value):
        raise ValueError(f'{name} is empty: give a path or a URI. "." is the working directory')


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {kind_of(value)}")


def _text_or_dict(name: str, value: object) -> None:
    if not isinstance(value, str | Mapping):
        raise TypeError(f"{name} must be a str or a dict, not {kind_of(value)}")


def _slot(name: str, value: object) -> None:
    _text(name, value)
    if _SLOT.fullmatch(str(value)) is None:
        raise ValueError(
            f"{name} cannot be {value!r}: the name of a slot has 1 to 63 small letters (a to z), digits and underscores"
        )


def _seconds(name: str, value: Any, *, zero: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {kind_of(value)}")
    if not (value >= 0 if zero else value > 0):
        raise ValueError(f"{name} must {'not be negative' if zero else 'be positive'}")


def _optional(check: Callable[[str, object], None]) -> Callable[[str, object], None]:
    return lambda name, value: None if value is None else check(name, value)


def _of(kind: type, what: str) -> Callable[[str, object], None]:
    return lambda name, value: expect_kind(name, value, kind, what)


def _callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function or None, not {kind_of(value)}")


def _snapshot(name: str, value: object) -> None:
    _text(name, value)
    if value not in ("shared", "ranges"):
        raise ValueError(f"{name} must be 'shared' or 'ranges', not {value!r}")


_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "dsn": _text,
    "slot": _slot,
    "target": expect_place,
    "segments": _optional(expect_place),
    "seconds": _seconds,
    "merge_seconds": _optional(_seconds),
    "merge": _text_or_dict,
    "options": _of(Options, "an Options"),
    "tables": _optional(check_patterns),
    "exclude": check_patterns,
    "adopt": expect_bool,
    "failover": expect_bool,
    "retention": _of(Retention, "a Retention"),
    "keep_points": expect_count,
    "keep_seconds": _optional(_seconds),
    "in_step": expect_bool,
    "threads": expect_count,
    "snapshot": _snapshot,
    "progress": _optional(_callable),
    "storage_options": _of(Mapping, "a dict"),
    "backlog_bytes": _optional(expect_count),
    "retry_seconds": lambda name, value: _seconds(name, value, zero=True),
    "iceberg_catalog": _of(Mapping, "a dict"),
    "namespace": _text,
    "trust_widening": expect_bool,
    "rename_columns": expect_bool,
    "metrics_file": _optional(expect_place),
    "metrics_address": _optional(_text),
}
