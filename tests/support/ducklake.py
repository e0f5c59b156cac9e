"""Whether tests of DuckLake can run: the extension needs an older DuckDB than the other tests."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

__all__ = ["LAKE", "lakes"]

# `make test-ducklake` sets the variable: there a test that cannot load the extension fails.
LAKE = pytest.mark.skipif(
    "PGOUTPUT_FAST_DUCKLAKE" not in os.environ and find_spec("duckdb_extension_ducklake") is None,
    reason="duckdb_extension_ducklake is not installed: make test-ducklake runs it",
)


def lakes(*parameters: object) -> list[object]:
    """Parameters of tests of all formats: `ducklake`, followed by others; `()` for none."""
    return [
        pytest.param("ducklake", *(each if isinstance(each, tuple) else (each,)), marks=LAKE)
        for each in parameters
    ]
