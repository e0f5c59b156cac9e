"""A package that is missing: a mirror says so before it makes a slot or a target."""

from __future__ import annotations

import sys

import pytest

from pgoutput_fast.capture import find_slot
from support.mirrors import Place, place

__all__ = ["place"]


@pytest.mark.parametrize(
    ("format", "module"),
    [
        ("delta", "deltalake"),
        ("iceberg", "pyiceberg"),
        ("duckdb", "duckdb"),
        ("ducklake", "duckdb_extension_ducklake"),
    ],
)
def test_nothing_is_left(place: Place, format: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE orders"
    )
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ImportError, match=f"a mirror with format='{format}' needs {module}: pip install '{module}"
    ):
        place.run(format=format)
    assert find_slot(place.database.dsn, place.slot) is None
    assert not place.target.exists()
