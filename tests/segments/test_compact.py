"""compact: the same rows in fewer files, once at each moment, whoever reads meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import retain
from pgoutput_fast.encode import Writer
from pgoutput_fast.segments import catalog as segment_catalogs
from pgoutput_fast.segments import (
    compact,
    compaction,
    list_segments,
    open_segment,
    read_segment,
    segment_catalog,
    segment_outcomes,
    write_segment,
)
from pgoutput_fast.segments.tail import SegmentStream
from pgoutput_fast.storage import stores
from support.forms import and_exhaustive, and_slow
from support.segment_streams import (
    SOURCE,
    MadeSegments,
    cut_stream,
    ids_in,
    made,
    names_in,
    ranges_in,
    rows_in,
    table_of,
)
from support.streams import RandomChoices, make_stream

__all__ = ["made"]


# ---- what a joined segment has -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", and_exhaustive(and_slow([0], range(1, 8)), range(8, 25)))
def test_a_joined_segment_is_as_if_it_was_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    relation_bytes, row_group_bytes = dice.choice([(300, 900), (100, 100), (1 << 20, 1 << 26), (2000, 400)])
    monkeypatch.setattr(compaction, "RELATION_BYTES", relation_bytes)
    monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", row_group_bytes)
    stream = make_stream(RandomChoices(seed), steps=60)
    size = len(stream.payloads)
    layout = {"relation_bytes": dice.choice([100, 1 << 20]), "row_group_bytes": dice.choice([150, 1 << 26])}
    paths = cut_stream(tmp_path, stream, {dice.randrange(1, size) for _ in range(12)} | {size - 1}, **layout)
    rows, outcomes, catalog = rows_in(tmp_path), segment_outcomes(tmp_path), segment_catalog(tmp_path)
    last = open_segment(paths[-2])
    done = compact(tmp_path, keep=1, grace=0, most_bytes=1 << 40)
    segments = list_segments(tmp_path)
    # A session's mark has the ordinal of the message behind it, so no ordinal is missing.
    assert [done.before, done.after, len(segments)] == [len(paths), 2, 2]
    assert rows_in(tmp_path).equals(rows)
    assert segment_outcomes(tmp_path).equals(outcomes)
    assert segment_catalog(tmp_path) == catalog
    joined = segments[0]
    assert joined.state == last.state
    assert joined.open_txns == last.open_txns
    assert joined.end_lsn == max(joined.end_lsn or 0, last.end_lsn or 0)
    # The same rows, written in one call.
    own = rows.filter(pa.compute.less_equal(rows.column("seq"), joined.last_seq))
    at_once = write_segment(
        tmp_path / "at_once.parquet", own, last.state, source=SOURCE,
        relation_bytes=relation_bytes, row_group_bytes=row_group_bytes,
    )  # fmt: skip
    expected = open_segment(at_once)
    assert [each.rows for each in joined.row_groups] == [each.rows for each in expected.row_groups]
    assert [each.relations for each in joined.row_groups] == [each.relations for each in expected.row_groups]
    assert [each.bare for each in joined.row_groups] == [each.bare for each in expected.row_groups]
    assert [each.txns for each in joined.row_groups] == [each.txns for each in expected.row_groups]
    assert (joined.start_lsn, joined.end_lsn) == (expected.start_lsn, expected.end_lsn)
    assert pq.read_table(joined.path, partitioning=None).equals(pq.read_table(at_once, partitioning=None))
    texts, others = (pq.read_metadata(path).metadata for path in (joined.path, at_once))
    assert texts.keys() - others.keys() == {b"pgoutput_fast.joined"}
    del others[b"pgoutput_fast.checksum"]
    assert {name: text for name, text in texts.items() if name in others} == others


def test_the_stream_goes_on_behind_a_joined_segment(made: MadeSegments, tmp_path: Path) -> None:
    """Also if it is the newest: a capture finds the state there."""
    for n in range(5):
        made.cut(made.commit(n), made.block(7, 100 + n))
    compact(tmp_path, keep=1, grace=0)
    (newest,) = tmp_path.glob(f"*-{list_segments(tmp_path)[1].last_seq:020}.parquet")
    newest.unlink()
    joined = list_segments(tmp_path)[-1]
    assert joined.open_txns == [joined.open_txns[0]]
    made.state = joined.state
    made.cut(made.stream_commit(7))
    assert ids_in(tmp_path) == [0, 1, 2, 3, 100, 101, 102, 103]


def test_what_is_joined(made: MadeSegments, tmp_path: Path) -> None:
    paths = [made.cut(made.commit(n)) for n in range(8)]
    size = max(path.stat().st_size for path in paths)
    for mistake in ({"keep": 0}, {"most_bytes": 0}, {"grace": -1}):
        with pytest.raises(ValueError, match=r"must be at least [01]( seconds)?, not"):
            compact(tmp_path, **mistake)
    for name, said in (
        ("keep", "a whole number"),
        ("most_bytes", "a whole number"),
        ("grace", "a timedelta or a number"),
    ):
        with pytest.raises(TypeError, match=f"{name} must be {said}"):
            compact(tmp_path, **{name: "1"})  # type: ignore[arg-type]
    assert compact(tmp_path, keep=8).joined == compact(tmp_path, most_bytes=size).joined == 0
    done = compact(tmp_path, keep=2, most_bytes=3 * size, grace=timedelta(0))
    assert (done.before, done.after, done.joined, done.removed, done.waiting) == (8, 4, 6, 6, 0)
    assert done.rows == sum(each.rows for each in list_segments(tmp_path)[:2])
    assert (
        done.bytes_before
        > done.bytes_after
        == sum(Path(each.path).stat().st_size for each in list_segments(tmp_path)[:2])
    )
    assert [Path(each.path) for each in list_segments(tmp_path)][2:] == paths[6:]
    # Not over a gap.
    paths[6].unlink()
    made.cut(made.commit(8))
    made.cut(made.commit(9))
    assert compact(tmp_path, keep=1, grace=0).after == 3
    assert ids_in(tmp_path) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    with pytest.raises(FileNotFoundError, match="no segments at"):
        compact(tmp_path / "nowhere")


def test_large_segments_are_seldom_written_again() -> None:
    written, sizes = 0, [1]
    for _ in range(2000):
        sizes.append(1)
        for begin, end in reversed(compaction._worthwhile(sizes, 10_000)):
            written += sum(sizes[begin:end])
            sizes[begin:end] = [sum(sizes[begin:end])]
    assert len(sizes) < 25
    assert written / 2000 < 20
    assert (
        compaction._worthwhile([50, 1, 60], 100) == [(1, 3)] or compaction._worthwhile([50, 1, 60], 100) == []
    )
    assert compaction._worthwhile([90, 1, 1, 90, 1, 1], 100) == [(1, 3), (4, 6)]


def test_rows_that_a_reader_can_hold(
    made: MadeSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(9):
        made.cut(made.commit(*range(10 * n, 10 * n + 10)))
    each = list_segments(tmp_path)[0]
    memory = each.rows * 80 + 1000
    monkeypatch.setattr(compaction, "_MOST_MEMORY", 3 * memory)
    compact(tmp_path, keep=1, grace=0)
    assert 3 <= len(names_in(tmp_path)) <= 5
    assert ids_in(tmp_path) == list(range(90))


def test_permissions_do_not_grow(tmp_path: Path) -> None:
    state, writer = None, Writer()
    for n in range(4):
        wal = writer.begin(n + 1, 100 * n + 100, 0) + writer.commit(100 * n + 100, 100 * n + 108, 0)
        tagged, state = pgo.tag(wal, state)
        write_segment(tmp_path, tagged, state, source=SOURCE, file_mode=0o600)
    compact(tmp_path, keep=1, grace=0)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.parquet")} == {0o600}


# ---- the catalog ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", and_exhaustive(and_slow([300], [2000]), [1 << 18]))
def test_footers_refer_to_what_is_there(
    made: MadeSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Tables by the dozen, sessions that forget, and footers without room: each joined segment knows its versions."""
    monkeypatch.setattr(segment_catalogs, "INLINE_BYTES", room)
    parts: list[int] = []
    for n in range(80):
        made.cut(*(made.commit(n, spec=table_of(20000 + (n * 7 + k) % 40, 3 + n % 5)) for k in range(3)))
        if n in (30, 60) and room < 1000:
            assert made.state is not None
            made.state, made.writer = made.state.forgetting(), Writer(4, streaming="on")
        if n % 20 == 19:
            before = [(each.last_seq, each.state) for each in list_segments(tmp_path)][-3:]
            rows, catalog = rows_in(tmp_path), segment_catalog(tmp_path)
            compact(tmp_path, keep=3, grace=0, most_bytes=60_000)
            assert rows_in(tmp_path).equals(rows)
            assert segment_catalog(tmp_path) == catalog
            assert [(each.last_seq, each.state) for each in list_segments(tmp_path)][-3:] == before
            parts.append(len(list((tmp_path / "_catalog").glob("*"))))
    for segment in list_segments(tmp_path):
        versions = {each.version for each in segment.catalog.relations}
        assert set(read_segment(segment.path).column("version").drop_null().to_pylist()) <= versions
        segment.known.check_parts()
    assert (parts[-1] > 0) == (room < 1 << 18)
    # Retention sweeps what is left, and the rest still has all that it needs.
    assert retain(tmp_path, older_than=0)
    assert [each.state for each in list_segments(tmp_path)] == [before[-1][1]]


# ---- readers meanwhile ---------------------------------------------------------------------------------------------


def test_small_segments_stay_for_readers(made: MadeSegments, tmp_path: Path) -> None:
    paths = [made.cut(made.commit(n)) for n in range(6)]
    stream = SegmentStream(str(tmp_path))
    end, planned = stream.end(), list_segments(tmp_path)
    rows = rows_in(tmp_path)
    done = compact(tmp_path, keep=1, grace=600)
    assert (done.after, done.removed, done.waiting) == (2, 0, 5)
    assert len(names_in(tmp_path)) == 7
    assert (
        len(list_segments(tmp_path))
        == len(list_segments([tmp_path / name for name in names_in(tmp_path)]))
        == 2
    )
    assert list_segments(f"{tmp_path}/*.parquet") == list_segments(tmp_path)
    assert pa.concat_tables([read_segment(each.path) for each in planned]).equals(rows)
    assert rows_in(tmp_path).equals(rows)
    assert len(stream.listed(fresh=True)) == 2
    # They do not go early, nor are they joined again.
    again = compact(tmp_path, keep=1, grace=600)
    assert (again.before, again.after, again.removed, again.waiting) == (2, 2, 0, 5)
    joined = Path(list_segments(tmp_path)[0].path)
    os.utime(joined, (time.time(), time.time() - 601))
    third = compact(tmp_path, keep=1, grace=600)
    assert (third.removed, third.waiting) == (5, 0)
    assert [Path(each.path) for each in list_segments(tmp_path)] == [joined, paths[5]]
    assert rows_in(tmp_path).equals(rows)
    assert [each.last_seq + 1 for each in stream.footers(0, end)][-1] == end


def test_a_listing_that_is_a_moment_old(
    made: MadeSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments go between the listing and the reading of footers or outcomes."""
    for n in range(6):
        made.cut(made.commit(n))
    stream = SegmentStream(str(tmp_path))
    stream.listed(fresh=True)
    stream._next_listing = time.monotonic() + 3600
    outcomes, rows = segment_outcomes(tmp_path), rows_in(tmp_path)
    from pgoutput_fast.segments import footers

    real, calls = footers.open_segments, []

    def open_late(files: Any, *wanted: Any) -> Any:
        if not calls:
            compact(tmp_path, keep=1, grace=0)
        calls.append(len(files))
        return real(files, *wanted)

    monkeypatch.setattr(footers, "open_segments", open_late)
    assert segment_outcomes(tmp_path).equals(outcomes)
    assert calls == [6, 1]
    found = stream.footers(2, 9)
    assert [(each.first_seq, each.last_seq) for each in found] == ranges_in(tmp_path)[:1]
    assert rows_in(tmp_path).equals(rows)
    with pytest.raises(FileNotFoundError):
        list_segments(tmp_path / "00000000000000000000-00000000000000000002.parquet")


def test_readers_see_each_row_once_at_each_moment(
    made: MadeSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads list and read all the time, while others write, join and remove."""
    for n in range(4):
        made.cut(made.commit(n), made.block(7, 1000 + n))
    stop, failed, seen, grace = threading.Event(), [], [0], 1.0
    late, publish = [0.0], stores.publish

    def published(hidden: Path, target: Path) -> None:
        """The small files stay for a while after the last write of the joined one, which appears after an fsync."""
        publish(hidden, target)
        late[0] = max(late[0], time.time() - target.stat().st_mtime)

    monkeypatch.setattr(stores, "publish", published)

    def read() -> None:
        stream = SegmentStream(str(tmp_path))
        while not stop.is_set():
            begun = time.monotonic()
            try:
                segments = list_segments(tmp_path)
                seqs = (
                    pa.concat_tables([read_segment(each.path) for each in segments]).column("seq").to_pylist()
                )
                assert seqs == list(range(seqs[-1] + 1))
                end = stream.end()
                found = stream.footers(0, end)
                assert sum(each.last_seq + 1 - each.first_seq for each in found) == end
                seen[0] += 1
            except FileNotFoundError as problem:
                # On a busy machine a read may take longer than the small files stay.
                if time.monotonic() - begun < grace - late[0]:
                    failed.append(problem)
                    return
            except BaseException as problem:
                failed.append(problem)
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    count = 4
    # Long enough for files to go that a joined one covers; on a busy machine until enough was read, too.
    enough = time.monotonic() + 4
    while (time.monotonic() < enough or seen[0] < 10) and not failed:
        for _ in range(5):
            made.cut(made.commit(count), made.block(7, 1000 + count))
            count += 1
        compact(tmp_path, keep=2, grace=grace)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    made.cut(made.stream_commit(7))
    assert ids_in(tmp_path) == [*range(count), *range(1000, 1000 + count)]


def test_segments_of_others_are_never_removed(made: MadeSegments, tmp_path: Path) -> None:
    paths = [made.cut(made.commit(n)) for n in range(5)]
    compact(tmp_path, keep=1)
    joined = next(iter(set(tmp_path.glob("*.parquet")) - set(paths)))
    other = MadeSegments(tmp_path / "other")
    Path(other.directory).mkdir()
    foreign = Path(shutil.move(other.cut(other.commit(1), other.commit(2)), tmp_path))
    assert foreign not in paths
    os.utime(joined, (0, 0))
    for call in (
        lambda: compact(tmp_path, keep=1),
        lambda: list_segments(tmp_path),
        lambda: SegmentStream(str(tmp_path)).footers(0, 5),
    ):
        with pytest.raises(ValueError, match="they come from different captures"):
            call()
    assert foreign.exists()
