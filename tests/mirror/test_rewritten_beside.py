"""Mirrors whose files of current tables are written anew by another thread."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.merge.units import JoinUnit, UnitResult
from pgoutput_fast.mirror import Mirror, at, fresh
from pgoutput_fast.mirror.follow import registry
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from support.capturing import wait_until
from support.forms import and_slow
from support.mirrors import Following, Place, expect_equal, place

__all__ = ["place"]

TABLE = "public.keyed"
_COMPACTION = "pgoutput_fast.merge.compaction"
FORMATS = and_slow(["delta"], ["iceberg"])
# How long the end of a mirror waits for the other thread, so that a busy machine has done its work.
_END_SECONDS = 240.0


@pytest.fixture
def keyed(place: Place) -> Place:
    place.database.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, v int)",
        "INSERT INTO keyed SELECT n, 0 FROM generate_series(1, 600) n",
        "CREATE PUBLICATION mirrored FOR TABLE keyed",
    )
    return place


def _update(place: Place, first: int, count: int) -> None:
    place.database.execute(f"UPDATE keyed SET v = v + 1 WHERE id BETWEEN {first} AND {first + count - 1}")


def _now(place: Place, format: str) -> Any:
    current: Any = open_current_table(format, open_store(place.target), TABLE, TableOptions())
    return current.table.now()


def _marked(place: Place, format: str) -> int:
    return sum(file.deleted.count for file in _now(place, format).files if file.deleted is not None)


def _expect_files(place: Place, format: str) -> None:
    """No unfinished file, and no other one than versions have."""
    expect_equal(place, TABLE, format=format)
    with place.mirror(format=format, merge="on_read", keep_points=1) as mirror:
        _update(place, 1, 1)
        place.run_in(mirror)
        run: Any = mirror._run
        for each in run.tables:
            each.clean(None)
    current: Any = open_current_table(format, open_store(place.target), TABLE, TableOptions())
    needed = current.table._table.needed(current.table.now())
    directory = place.target / "current" / TABLE
    assert {each.name for each in directory.glob("*.parquet")} <= needed
    assert not list(directory.glob(".*.parquet.*"))


@pytest.mark.newest_server
@pytest.mark.parametrize("format", FORMATS)
def test_files_are_written_anew_while_nothing_changes(keyed: Place, format: str) -> None:
    """The commit needs no further change, and points of before stay readable."""
    keyed.run(format=format, merge="on_read")
    with keyed.mirror(format=format, merge="on_read") as mirror, Following(mirror):
        _update(keyed, 1, 200)
        wait_until(lambda: fresh(keyed.target, TABLE)["v"].to_pylist().count(1) == 200)
        wait_until(lambda: len(_now(keyed, format).files) == 2 and not _marked(keyed, format))
        _update(keyed, 100, 10)
        wait_until(lambda: fresh(keyed.target, TABLE)["v"].to_pylist().count(2) == 10)
        run: Any = mirror._run
        (table,) = run.tables
        wait_until(lambda: table.version == _now(keyed, format).number)
    assert TABLE in at(keyed.target)
    _expect_files(keyed, format)


@pytest.mark.newest_server
@pytest.mark.parametrize("format", FORMATS)
def test_a_mirror_that_ends_meanwhile(keyed: Place, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits some seconds for the files, or gives them up. The next run goes on either way."""
    keyed.run(format=format, merge="on_read")
    run, slow = JoinUnit.run, [True]

    def held(unit: JoinUnit, store: Any, files: Any, check: Any) -> UnitResult:
        result = run(unit, store, files, check)
        while slow[0]:
            check()
            time.sleep(0.01)
        return result

    monkeypatch.setattr(JoinUnit, "run", held)
    monkeypatch.setattr(registry, "_END_SECONDS", 0.1)
    with keyed.mirror(format=format, merge="on_read") as mirror:
        _update(keyed, 1, 200)
        keyed.run_in(mirror)
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert _marked(keyed, format) == 200
    expect_equal(keyed, TABLE, format=format)
    slow[0] = False
    monkeypatch.setattr(registry, "_END_SECONDS", _END_SECONDS)
    _update(keyed, 300, 10)
    keyed.run(format=format, merge="on_read")
    assert _marked(keyed, format) == 0
    # After an error, nothing waits.
    slow[0] = True
    _update(keyed, 400, 150)
    mirror = keyed.mirror(format=format, merge="on_read")
    with pytest.raises(RuntimeError, match="on purpose"):
        _fail_after(keyed, mirror)
    assert _marked(keyed, format) == 150
    monkeypatch.undo()
    _expect_files(keyed, format)


def _fail_after(place: Place, mirror: Mirror) -> None:
    with mirror:
        place.run_in(mirror)
        raise RuntimeError("on purpose")


@pytest.mark.newest_server
def test_an_error_of_the_other_thread(
    keyed: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "_END_SECONDS", _END_SECONDS)
    keyed.run(merge="on_read")

    def failing(*_: Any) -> UnitResult:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(JoinUnit, "run", failing)
        with keyed.mirror(merge="on_read") as mirror:
            for n in range(3):
                _update(keyed, 1 + 50 * n, 50)
                keyed.run_in(mirror)
    assert caplog.text.count("files cannot be rewritten now, which is tried again later") == 1
    assert _marked(keyed, "delta") == 150
    _update(keyed, 300, 1)
    keyed.run(merge="on_read")
    assert _marked(keyed, "delta") == 0
    _expect_files(keyed, "delta")


@pytest.mark.slow
@pytest.mark.newest_server
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_killed_while_another_thread_writes_files_anew(keyed: Place, format: str) -> None:
    """Before and after it has written them, before the commit, and after it."""
    keyed.run(format=format, merge="on_read")
    kills = [
        ["pgoutput_fast.merge.units", "JoinUnit.run", 1],
        ["pgoutput_fast.merge.units", "JoinUnit.run", -1],
        [_COMPACTION, "compact", 1],
        [_COMPACTION, "commit", 1],
        [_COMPACTION, "commit", -1],
        [_COMPACTION, "compact", -1],
    ]
    for n, kill in enumerate(kills):
        _update(keyed, 1 + 90 * n, 90)
        limits = {"pgoutput_fast.mirror.follow.registry": {"_END_SECONDS": _END_SECONDS}}
        keyed.killed(kill, "--format", format, "--merge", "on_read", limits=limits)
        ids = fresh(keyed.target, TABLE)["id"].to_pylist()
        assert sorted(ids) == list(range(1, 601))
    keyed.run(format=format, merge="on_read")
    _expect_files(keyed, format)
