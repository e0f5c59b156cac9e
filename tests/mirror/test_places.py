"""Where a mirror writes: a relative target, paths that Delta tables cannot have, and directories with credentials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgoutput_fast.mirror import Mirror, at, fresh, fresh_batches, points, status_of
from support.buckets import opened_bucket
from support.current_tables import KINDS
from support.forms import and_slow
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


def test_a_uri_with_a_single_slash_is_no_directory() -> None:
    for target in ("s3:/bucket/lake", "dbfs:/lake"):
        with pytest.raises(ValueError, match="If you mean a directory of this machine with this name"):
            Mirror("dbname=shop", "lake", ["shop"], target)
        with pytest.raises(ValueError, match="If you mean a directory of this machine with this name"):
            Mirror("dbname=shop", "lake", ["shop"], "lake", segments=target)


@pytest.mark.slow
@pytest.mark.parametrize("format", and_slow(["delta"], [each for each in KINDS if each != "delta"]))
def test_readers_with_a_relative_target(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    monkeypatch.chdir(tmp_path)
    place.target = "lake"
    place.run(format=format)
    place.database.execute("INSERT INTO t VALUES (2)")
    place.run(format=format)
    assert [each.state for each in status_of("lake", place.database.dsn)] == ["follow"]
    (point,) = points("lake")[-1:]
    assert at("lake") == at("lake", point.position) == {"public.t": point.versions["public.t"]}
    assert sorted(fresh("lake", "public.t")["id"].to_pylist()) == [1, 2]
    assert sorted(fresh("lake", "public.t", position=point.position)["id"].to_pylist()) == [1, 2]
    with fresh_batches("lake", "public.t", ["id"]) as reader:
        assert reader.read_all().num_rows == 2


@pytest.mark.parametrize("name", ["per%20cent", "back\\slash", "new\nline"])
def test_a_path_that_readers_of_delta_tables_do_not_find(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the target, because readers of delta tables"):
        Mirror("dbname=shop", "slot", ["mirrored"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format", "name"),
    [("iceberg", "what?"), ("iceberg", "number#1"), ("duckdb", "what?"), ("ducklake", "what?")],
)
def test_a_path_that_readers_of_a_format_do_not_find(tmp_path: Path, format: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be the target, because readers of {format} tables"):
        Mirror("dbname=shop", "slot", ["mirrored"], tmp_path / name, format=format)
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
