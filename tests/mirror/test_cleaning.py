"""Files that no point needs are removed from time to time, however short the runs are."""

from __future__ import annotations

import time

from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
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
