"""A user may run OPTIMIZE and VACUUM on histories and on current tables in Delta while the mirror writes into them."""

from __future__ import annotations

import contextlib

import deltalake
import pytest
from deltalake.exceptions import CommitFailedError

from pgoutput_fast.mirror import points
from support import counters
from support.counters import TABLE, Counting, expect_counted
from support.mirrors import Following, Place, place

__all__ = ["place"]

_ROUNDS = 12


@pytest.mark.slow
def test_while_the_mirror_runs(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them meets commits of the mirror. No change is lost, and none comes twice."""
    place.database.execute(*counters.SCHEMA)
    place.run(seconds=0.2)
    done = 0
    # A segment each half second: on a busy machine, the mirror would fall ever further behind with more of them.
    with place.mirror(seconds=1.0) as mirror:
        with Counting(place.database), Following(mirror) as following:
            for _ in range(_ROUNDS):
                before = points(place.target)[-1]
                for kind in ("history", "current"):
                    table = deltalake.DeltaTable(str(place.target / kind / TABLE))
                    with contextlib.suppress(CommitFailedError):  # the mirror was first
                        # A small current table is one file: only this writes it again.
                        table.optimize.z_order(["id"]) if kind == "current" else table.optimize.compact()
                        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
                        done += 1
                following.until(lambda: points(place.target)[-1] != before)  # noqa: B023
        place.database.execute("UPDATE counted SET n = n + 1")
        place.run_in(mirror)
    assert done >= _ROUNDS // 2
    assert "is stopped" not in caplog.text
    expect_counted(place)
    # OPTIMIZE of somebody else is among the commits.
    for kind in ("history", "current"):
        commits = deltalake.DeltaTable(str(place.target / kind / TABLE)).history()
        assert any(each["operation"] == "OPTIMIZE" for each in commits)
