"""A directory as a growing stream: footers are read once, and again where somebody has captured anew."""

from __future__ import annotations

import os
from pathlib import Path

import pgoutput_fast as pgo
from pgoutput_fast.encode import Writer
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.segments.tail import SegmentStream


def _write(directory: Path, database: str) -> Path:
    tagged, state = pgo.tag(Writer().begin(7, 100, 0))
    return Path(write_segment(directory, tagged, state, source=Source("1", database, "slot")))


def test_a_segment_that_was_captured_anew_is_read_again(tmp_path: Path) -> None:
    path = _write(tmp_path, "shop")
    os.utime(path, (1000, 1000))
    stream = SegmentStream(str(tmp_path))
    (named,) = stream.listed(fresh=True)
    footer = stream.open([named])[0]
    assert footer.source.database == "shop"
    assert stream.listed(fresh=True) == [named]
    assert stream.open([named])[0] is footer
    path.unlink()
    _write(tmp_path, "other")
    assert stream.listed(fresh=True) == [named]
    assert stream.open([named])[0].source.database == "other"
