"""Files of a mirror with JSON that is nested very deeply: each is an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import CaptureError
from pgoutput_fast.mirror import MirrorError
from support.mirrors import Place, expect_equal, place

__all__ = ["place"]

pytestmark = pytest.mark.few_servers

_NESTED = "[" * 100_000 + "]" * 100_000
_DEEP = f'{{"format": 1, "deep": {_NESTED}}}'


def _prepare(place: Place, **more: Any) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run(**more)


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_json_that_is_nested_deeply_is_an_error_that_names_the_file(place: Place, format: str) -> None:
    _prepare(place, format=format)
    files = [path for path in sorted(place.target.rglob("*.json")) if "_delta_log" not in path.parts]
    files = [path for path in files if path.parent.name != "_versions"]
    assert len(files) > 5
    said: dict[Path, str] = {}
    for path in files:
        before = path.read_bytes()
        path.write_text(_DEEP)
        try:
            place.run(format=format)
        except (ValueError, MirrorError, CaptureError) as problem:
            said[path] = str(problem)
            path.write_bytes(before)
    for path in files:
        assert f"{path.name} is damaged" in said.get(path, ""), path
    place.run(format=format)


@pytest.mark.parametrize("whole", [True, False])
def test_a_version_of_a_table_with_deeply_nested_json_stops_the_table(place: Place, whole: bool) -> None:
    """The whole file, or the statistics in it."""
    _prepare(place, format="parquet")
    path = max(place.target.rglob("_versions/*.json"))
    before = path.read_bytes()
    values = json.loads(before)
    for each in values["files"]:
        each["statistics"] = _NESTED
    path.write_text(_DEEP if whole else json.dumps(values))
    place.database.execute("INSERT INTO t VALUES (2)")
    with place.mirror(format="parquet") as mirror:
        mirror.run(until_lsn="now")
        (status,) = mirror.status()
        assert f"{path.name} is not what the mirror wrote" in str(status.error)
        path.write_bytes(before)
        mirror.reload("public.t")
        mirror.run(until_lsn="now")
    expect_equal(place, "public.t", format="parquet")
