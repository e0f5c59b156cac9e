"""Parameters of tests that some of the make targets leave out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["and_exhaustive", "and_slow"]


def and_exhaustive(plain: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Parameters of a test: `make test` runs it with the first ones, `make test-whole` with all. A tuple is several."""
    return _and_marked(plain, others, pytest.mark.exhaustive)


def and_slow(plain: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Parameters of a test: `make test` runs it with the first ones, `make test-long` with the others."""
    return _and_marked(plain, others, pytest.mark.slow)


def _and_marked(plain: Iterable[Any], others: Iterable[Any], mark: pytest.MarkDecorator) -> list[Any]:
    several = (each if isinstance(each, tuple) else (each,) for each in others)
    return [*plain, *(pytest.param(*each, marks=mark) for each in several)]
