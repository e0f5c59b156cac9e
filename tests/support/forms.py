"""Short and long forms of tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["and_long"]


def and_long(plain: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Parameters of a test: `make test` runs it with the first ones, `make test-whole` with all. A tuple is several."""
    marked = (each if isinstance(each, tuple) else (each,) for each in others)
    return [*plain, *(pytest.param(*each, marks=pytest.mark.long) for each in marked)]
