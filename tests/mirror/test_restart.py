"""A mirror that begins again: in the middle of a load, behind a capture, and with segments that were joined."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import Capture, find_slot
from pgoutput_fast.capture.confirmed_position import ConfirmedPosition
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.mirror import Mirror, MirrorError, points
from pgoutput_fast.mirror.errors import MirrorSegmentsGoneError
from pgoutput_fast.mirror.follow.expect_segments import expect_segments
from pgoutput_fast.mirror.state.mirror_state import Progress
from pgoutput_fast.segments import compact, list_segments
from pgoutput_fast.storage.stores import open_store
from support.capturing import drop_when_free, freed
from support.mirrors import Place, current_of, expect_equal, expect_replayed, place

__all__ = ["place"]


@pytest.fixture
def filled(place: Place) -> Place:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO u SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g",
        "CREATE PUBLICATION mirrored FOR TABLE t, u",
    )
    return place


def _expect_whole(place: Place) -> None:
    for table in ("public.t", "public.u"):
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])


def test_told_to_stop_during_the_first_load(filled: Place) -> None:
    stop = threading.Event()

    def progress(now: Any) -> None:
        stop.set()

    with filled.mirror(progress=progress) as mirror:
        mirror.run(stop=stop)
        mirror.run(stop=stop)  # it is told before it begins
    filled.database.execute("UPDATE t SET v = 'y' WHERE id < 10")
    filled.run()
    _expect_whole(filled)


@pytest.mark.slow
def test_told_to_stop_during_a_later_load(filled: Place) -> None:
    filled.run()
    stop = threading.Event()
    with filled.mirror(progress=lambda now: stop.set()) as mirror:
        for table in ("t", "u"):
            filled.database.execute(
                f"ALTER TABLE {table} ADD COLUMN w float8 DEFAULT random()",
                f"INSERT INTO {table} VALUES (0)",
            )
        mirror.run(until_lsn="now", stop=stop)
        assert mirror.status()[1].state == "load"  # perhaps the first one, too
    filled.run()
    _expect_whole(filled)


@pytest.mark.slow
def test_behind_a_capture(filled: Place) -> None:
    """Its slot and its segments are adopted."""
    dsn, segments = filled.database.dsn, filled.target / "_segments"
    Capture(dsn, filled.slot, ["mirrored"], segments).run(until_lsn="now")
    filled.database.execute("UPDATE t SET v = 'y' WHERE id < 10")
    Capture(dsn, filled.slot, ["mirrored"], segments).run(until_lsn="now")
    filled.database.execute("DELETE FROM u WHERE id < 10")
    freed(dsn, filled.slot)
    filled.run(adopt=True)
    _expect_whole(filled)
    filled.database.execute("UPDATE u SET v = 'y' WHERE id < 20", "INSERT INTO t VALUES (0, 'z')")
    filled.run()
    _expect_whole(filled)


def test_segments_of_somebody_else(filled: Place) -> None:
    segments = filled.target.parent / "segments"
    Capture(filled.database.dsn, filled.slot, ["mirrored"], segments).run(until_lsn="now")
    filled.database.execute("INSERT INTO t VALUES (0, 'z')")
    Capture(filled.database.dsn, filled.slot, ["mirrored"], segments).run(until_lsn="now")
    other = f"{filled.slot}_other"
    with (
        Mirror(filled.database.dsn, other, ["mirrored"], filled.target, segments=segments) as mirror,
        pytest.raises(MirrorError, match="has segments that this mirror did not write"),
    ):
        mirror.run(until_lsn="now")
    assert find_slot(filled.database.dsn, other) is None


@pytest.mark.slow
def test_segments_that_were_joined(filled: Place) -> None:
    """Also with a progress that lies in the middle of a joined segment."""
    filled.run()
    progress = filled.target / "_mirror" / "progress.json"
    older = ""
    for n in range(4):
        filled.database.execute(f"INSERT INTO t VALUES ({-n}, 'z')", f"UPDATE u SET v = '{n}' WHERE id < 5")
        filled.run()
        older = progress.read_text() if n == 1 else older
    segments = filled.target / "_segments"
    before = len(list_segments(segments))
    compact(segments)
    assert len(list_segments(segments)) < before
    progress.write_text(older)
    filled.database.execute("INSERT INTO t VALUES (-10, 'z')")
    filled.run()
    _expect_whole(filled)


@pytest.mark.slow
def test_files_that_no_point_needs_are_removed(filled: Place) -> None:
    """A mirror that was killed is followed by one that looks for them."""
    for n in range(4):
        filled.database.execute(f"UPDATE t SET v = '{n}'")
        filled.run(keep_points=2)
    (filled.target / "_mirror" / "run.json").write_text('{"run": "0123456789abcdef"}')
    left = filled.target / "history" / "public.t" / "part-0123456789abcdef-0-00001.parquet"
    left.write_bytes(b"")
    before = len(list((filled.target / "current" / "public.t").glob("*.parquet")))
    filled.run(keep_points=2)
    assert not left.exists()
    assert len(list((filled.target / "current" / "public.t").glob("*.parquet"))) < before
    found = points(filled.target)
    assert len(found) == 2
    for each in found:
        rows = current_of(filled.target, "public.t", each.versions["public.t"])
        assert len(set(rows["v"].to_pylist())) == 1
    with pytest.raises(Exception, match=r"(?i)no such file|not found|does not exist"):
        current_of(filled.target, "public.t", 0)
    _expect_whole(filled)


@pytest.mark.slow
def test_segments_that_somebody_removed(filled: Place) -> None:
    """All were applied. A capture would count messages from 0 again, and the mirror would take them as done."""
    filled.run()
    filled.database.execute("UPDATE t SET v = 'y'")
    filled.run()
    segments = filled.target / "_segments"
    shutil.rmtree(segments)
    filled.database.execute("UPDATE t SET v = 'z' WHERE id < 10")
    for _ in range(2):
        with (
            filled.mirror() as mirror,
            pytest.raises(MirrorSegmentsGoneError, match=r"_segments has no segments.*Restore .*--repair"),
        ):
            mirror.run(until_lsn="now")
    assert not list(segments.rglob("*.parquet"))  # nothing was captured
    drop_when_free(filled.database.dsn, filled.slot)
    with filled.mirror() as mirror:
        mirror.repair()
        filled.run_in(mirror)
    _expect_whole(filled)


def test_a_directory_that_somebody_emptied_before_a_table_had_changes(tmp_path: Path) -> None:
    store, at = open_store(tmp_path), Progress(-1, 0, 10)
    expect_segments(store, SegmentDirectory(tmp_path), at, 9)  # nothing was captured yet
    with pytest.raises(MirrorSegmentsGoneError, match="neither segments nor a position"):
        expect_segments(store, SegmentDirectory(tmp_path), at, 20)
    ConfirmedPosition(store).save(20, now=True)
    expect_segments(store, SegmentDirectory(tmp_path), at, 20)
