"""Files of a mirror with JSON that is nested very deeply: each is an error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_fast.capture import CaptureError
from pgoutput_fast.mirror import MirrorError
from support.mirrors import Place, place

__all__ = ["place"]

pytestmark = pytest.mark.few_servers

_DEEP = f'{{"format": 1, "deep": {"[" * 100_000 + "]" * 100_000}}}'


def test_json_that_is_nested_deeply_is_an_error_that_names_the_file(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    files = [path for path in sorted(place.target.rglob("*.json")) if "_delta_log" not in path.parts]
    assert len(files) > 5
    said: dict[Path, str] = {}
    for path in files:
        before = path.read_bytes()
        path.write_text(_DEEP)
        try:
            place.run()
        except (ValueError, MirrorError, CaptureError) as problem:
            said[path] = str(problem)
            path.write_bytes(before)
    for path in files:
        assert f"{path.name} is damaged" in said.get(path, ""), path
    place.run()
