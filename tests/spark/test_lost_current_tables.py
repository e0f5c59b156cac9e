"""Current tables that are lost while the query's checkpoint is there: they do not begin in the middle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import spark as pgspark
from pgoutput_fast.mirror import at
from pgoutput_fast.segments import list_segments
from support.current_streams import batch_of
from support.lakes import make_segments
from support.mirrors import current_of


def _batch(spark: Any, directory: Path, first: int, last: int) -> Any:
    """As a query gives it that began with the first message."""
    return batch_of(spark, directory, first, last).selectExpr("*", "0L AS began")


def _lengths(lake: Path) -> dict[str, int]:
    return {name: current_of(lake, name).num_rows for name in at(lake)}


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["current/public.t1", "current", "."])
def test_a_table_that_is_lost(spark: Any, tmp_path: Path, lost: str) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    make_segments(segments, txns=20, segments=2)
    first, second = list_segments(segments)
    sink = pgspark.current_sink(lake)
    sink(_batch(spark, segments, 0, first.last_seq), 0)
    before = _lengths(lake)
    shutil.copytree(lake, tmp_path / "copy")
    shutil.rmtree(lake / lost)
    # The first sink has the table open, and finds out when it commits.
    messages = ["is damaged: .* load the table again", "is gone, and a new one would lack earlier changes"]
    if lost == ".":
        messages = ["has no record of earlier messages"] * 2
    for again, message in zip((sink, pgspark.current_sink(lake)), messages, strict=True):
        with pytest.raises(ValueError, match=message):
            again(_batch(spark, segments, second.first_seq, second.last_seq), 1)
    shutil.rmtree(lake, ignore_errors=True)
    shutil.copytree(tmp_path / "copy", lake)
    pgspark.current_sink(lake)(_batch(spark, segments, second.first_seq, second.last_seq), 1)
    after = _lengths(lake)
    assert after.keys() == before.keys() == {"public.t0", "public.t1", "public.t2"}
    assert all(after[name] > before[name] > 0 for name in before)
