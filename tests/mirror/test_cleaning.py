"""Files that no point needs are removed from time to time, however short the runs are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables import files as table_files
from support.buckets import opened_bucket
from support.mirrors import Place, expect_equal, place

__all__ = ["place"]


def test_short_runs_clean_up(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t VALUES (1, 0)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    state, files = MirrorState(open_store(place.target)), place.target / "current" / "public.t"
    with place.mirror(keep_points=1) as mirror:
        place.run_in(mirror)
    begun = state.cleaned()
    assert begun is not None
    for number in (1, 2):
        place.database.execute(f"UPDATE t SET n = {number}")
        if number == 2:
            state.set_cleaned(time.time() - 3600)
        place.run(keep_points=1)
        # Without the cleaning there would be three. The point of before may still need its version.
        assert len(list(files.glob("*.parquet"))) <= 2
    assert (state.cleaned() or 0) > begun
    expect_equal(place, "public.t")


@pytest.mark.slow
def test_files_of_a_killed_run_in_a_store(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay while a commit may still add them. Later runs remove them."""
    place.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE t")
    with opened_bucket("left") as bucket:
        place.target = bucket.uri % "mine"
        place.run()
        store, orphan = open_store(place.target), "history/public.t/part-killed-1-00001.parquet"
        unused = "current/public.t/part-current-0123456789abcdef-00001.parquet"
        state = MirrorState(store)
        for name in (orphan, unused):
            store.put(name, b"rows")
        state.set_run("killed")
        for _ in range(2):
            state.set_cleaned(time.time() - 3600)
            place.run()
            assert list(state.left_runs()) == ["killed"]
            assert {orphan, unused} <= {each.name for each in store.entries(recursive=True)}
        # A clock that was ahead does not keep them for ever.
        state.set_left_runs({"killed": time.time() + 1e9})
        state.set_cleaned(time.time() - 3600)
        state.set_run("killed")
        place.run()
        assert state.left_runs()["killed"] <= time.time()
        # The hour counts from when a run has noticed it.
        monkeypatch.setattr(table_files, "LATE_SECONDS", 0.0)
        state.set_cleaned(time.time() - 3600)
        place.run()
        assert state.left_runs() == {}
        assert not {orphan, unused} & {each.name for each in store.entries(recursive=True)}


@pytest.mark.parametrize("runs", ['["killed"]', "5", '{"killed": "x"}', "null"])
def test_an_edited_file_of_runs_is_an_error(tmp_path: Path, runs: str) -> None:
    (tmp_path / "_mirror").mkdir()
    (tmp_path / "_mirror" / "left.json").write_text(f'{{"runs": {runs}}}')
    with pytest.raises(ValueError, match=r"left\.json is damaged: restore it"):
        MirrorState(open_store(tmp_path)).left_runs()
