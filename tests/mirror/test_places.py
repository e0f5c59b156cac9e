"""Where a mirror writes: a relative target, paths that Delta tables cannot have, and directories with credentials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgoutput_fast.mirror import Mirror
from support.buckets import opened_bucket
from support.mirrors import Place, expect_equal, place

__all__ = ["place"]


def test_a_relative_target_and_another_working_directory(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with Mirror(place.database.dsn, place.slot, ["mirrored"], "lake", segments="segments") as mirror:
        mirror.run(until_lsn="now")
        place.database.execute("INSERT INTO t VALUES (2)")
        monkeypatch.chdir(tmp_path / "other")
        mirror.run(until_lsn="now")
    assert os.listdir(tmp_path / "other") == []
    place.target = tmp_path / "lake"
    expect_equal(place, "public.t")


@pytest.mark.parametrize("name", ["per%20cent", "back\\slash", "new\nline"])
def test_a_path_that_readers_of_delta_tables_do_not_find(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the target of a mirror, because readers of Delta tables"):
        Mirror("dbname=shop", "slot", ["mirrored"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_credentials_of_a_place_are_not_written_down(place: Place) -> None:
    """Many may read the target. The next mirror may have other credentials."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with opened_bucket("segments") as bucket:
        for n, secret in enumerate(("key:first-secret@", "key:second-secret@")):
            segments = (bucket.uri % "wal").replace("key:secret@", secret)
            place.database.execute(f"INSERT INTO t VALUES ({10 + n})")
            with place.mirror(segments=segments) as mirror:
                mirror.run(until_lsn="now")
    expect_equal(place, "public.t")
    assert not [
        path for path in place.target.rglob("*") if path.is_file() and b"-secret" in path.read_bytes()
    ]
