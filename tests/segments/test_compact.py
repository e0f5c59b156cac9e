"""compact: the same rows in fewer files, once at each moment, whoever writes, reads or dies meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, Limits, Retention, retain
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import (
    CompactBusyError,
    Source,
    compact,
    compaction,
    list_segments,
    open_segment,
    read_segment,
    segment_catalog,
    segment_outcomes,
    write_segment,
)
from pgoutput_fast.segments import catalog as segment_catalogs
from pgoutput_fast.segments.tail import SegmentStream
from pgoutput_fast.storage.lease import lock_file
from pgoutput_fast.storage.stores import open_store
from support import pg
from support.buckets import opened_bucket
from support.capturing import (
    PROCESS,
    Running,
    Writers,
    committed,
    expect_exactly_once,
    kill_often,
    now,
    slot,
    streaming_dsn,
    wait_until,
)
from support.forms import and_exhaustive, and_slow
from support.streams import RandomChoices, Stream, make_stream

__all__ = ["slot"]

SOURCE = Source("1", "shop", "slot")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


class _Stream:
    """Segments of a made-up stream."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = directory
        self.state: pgo.StreamState | None = None
        self.writer, self.lsn = Writer(4, streaming="on"), 0

    def cut(self, *parts: list[bytes]) -> Any:
        tagged, self.state = pgo.tag([message for part in parts for message in part], self.state)
        return write_segment(self.directory, tagged, self.state, source=SOURCE, end_lsn=self.lsn + 8)

    def commit(self, *ids: int, spec: RelationSpec = ORDERS) -> list[bytes]:
        self.lsn += 100
        wal = self.writer.begin(self.lsn, self.lsn, 0)
        for each in ids:
            values = [str(each), *("note" if c.type_oid == 25 else None for c in spec.columns[1:])]
            wal += self.writer.change(spec, "insert", new=values)
        return wal + self.writer.commit(self.lsn, self.lsn + 8, 0)

    def block(self, xid: int, *ids: int) -> list[bytes]:
        wal = self.writer.stream_start(xid)
        for each in ids:
            wal += self.writer.change(ORDERS, "insert", new=[str(each), "x"], xid=xid)
        return wal + self.writer.stream_stop()

    def stream_commit(self, xid: int) -> list[bytes]:
        self.lsn += 100
        return self.writer.stream_commit(xid, self.lsn, self.lsn + 8, 0)


@pytest.fixture
def made(tmp_path: Path) -> _Stream:
    return _Stream(tmp_path)


def _rows(directory: Path | str) -> pa.Table:
    return pa.concat_tables([read_segment(each.path) for each in list_segments(directory)]).combine_chunks()


def _ids(directory: Path) -> list[int]:
    found: list[int] = committed(directory).table("public.orders").column("id").to_pylist()
    return found


def _ranges(directory: Path | str) -> list[tuple[int, int]]:
    return [(each.first_seq, each.last_seq) for each in list_segments(directory)]


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.parquet"))


def _cut(directory: Path, stream: Stream, cuts: set[int], **layout: int) -> list[Path]:
    """Segments of a stream, cut there and where a session starts."""
    state, paths = pgo.StreamState(), []
    ends = sorted({*cuts, *stream.sessions, len(stream.payloads)} - {0})
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin in stream.sessions:
            decoder = pgo.Decoder(state=state)
            decoder.start_session()
            state = decoder.state
        tagged, state = pgo.tag(stream.payloads[begin:end], state, lsn=stream.lsns[begin:end])
        if tagged.num_rows:
            paths.append(Path(write_segment(directory, tagged, state, source=SOURCE, **layout)))
    return paths


# ---- what a joined segment has -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", and_exhaustive(and_slow(range(3), range(3, 8)), range(8, 25)))
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
    paths = _cut(tmp_path, stream, {dice.randrange(1, size) for _ in range(12)} | {size - 1}, **layout)
    rows, outcomes, catalog = _rows(tmp_path), segment_outcomes(tmp_path), segment_catalog(tmp_path)
    last = open_segment(paths[-2])
    done = compact(tmp_path, keep=1, grace=0, most_bytes=1 << 40)
    segments = list_segments(tmp_path)
    # A session's mark has the ordinal of the message behind it, so no ordinal is missing.
    assert [done.before, done.after, len(segments)] == [len(paths), 2, 2]
    assert _rows(tmp_path).equals(rows)
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


def test_the_stream_goes_on_behind_a_joined_segment(made: _Stream, tmp_path: Path) -> None:
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
    assert _ids(tmp_path) == [0, 1, 2, 3, 100, 101, 102, 103]


def test_what_is_joined(made: _Stream, tmp_path: Path) -> None:
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
    assert _ids(tmp_path) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
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


def test_rows_that_a_reader_can_hold(made: _Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(9):
        made.cut(made.commit(*range(10 * n, 10 * n + 10)))
    each = list_segments(tmp_path)[0]
    memory = each.rows * 80 + 1000
    monkeypatch.setattr(compaction, "_MOST_MEMORY", 3 * memory)
    compact(tmp_path, keep=1, grace=0)
    assert 3 <= len(_files(tmp_path)) <= 5
    assert _ids(tmp_path) == list(range(90))


def test_permissions_do_not_grow(tmp_path: Path) -> None:
    state, writer = None, Writer()
    for n in range(4):
        wal = writer.begin(n + 1, 100 * n + 100, 0) + writer.commit(100 * n + 100, 100 * n + 108, 0)
        tagged, state = pgo.tag(wal, state)
        write_segment(tmp_path, tagged, state, source=SOURCE, file_mode=0o600)
    compact(tmp_path, keep=1, grace=0)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.parquet")} == {0o600}


# ---- the catalog ---------------------------------------------------------------------------------------------------


def _table(oid: int, columns: int = 3) -> RelationSpec:
    names = ("id", *(f"column {k}" for k in range(columns)))
    return RelationSpec(
        oid, "public", f"t{oid}", tuple(ColumnSpec(name, 23, key=name == "id") for name in names)
    )


@pytest.mark.parametrize("room", and_exhaustive(and_slow([300], [2000]), [1 << 18]))
def test_footers_refer_to_what_is_there(
    made: _Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Tables by the dozen, sessions that forget, and footers without room: each joined segment knows its versions."""
    monkeypatch.setattr(segment_catalogs, "INLINE_BYTES", room)
    parts: list[int] = []
    for n in range(80):
        made.cut(*(made.commit(n, spec=_table(20000 + (n * 7 + k) % 40, 3 + n % 5)) for k in range(3)))
        if n in (30, 60) and room < 1000:
            assert made.state is not None
            made.state, made.writer = made.state.forgetting(), Writer(4, streaming="on")
        if n % 20 == 19:
            before = [(each.last_seq, each.state) for each in list_segments(tmp_path)][-3:]
            rows, catalog = _rows(tmp_path), segment_catalog(tmp_path)
            compact(tmp_path, keep=3, grace=0, most_bytes=60_000)
            assert _rows(tmp_path).equals(rows)
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


def test_small_segments_stay_for_readers(made: _Stream, tmp_path: Path) -> None:
    paths = [made.cut(made.commit(n)) for n in range(6)]
    stream = SegmentStream(str(tmp_path))
    end, planned = stream.end(), list_segments(tmp_path)
    rows = _rows(tmp_path)
    done = compact(tmp_path, keep=1, grace=600)
    assert (done.after, done.removed, done.waiting) == (2, 0, 5)
    assert len(_files(tmp_path)) == 7
    assert (
        len(list_segments(tmp_path))
        == len(list_segments([tmp_path / name for name in _files(tmp_path)]))
        == 2
    )
    assert list_segments(f"{tmp_path}/*.parquet") == list_segments(tmp_path)
    assert pa.concat_tables([read_segment(each.path) for each in planned]).equals(rows)
    assert _rows(tmp_path).equals(rows)
    assert len(stream.listed(fresh=True)) == 2
    # They do not go early, nor are they joined again.
    again = compact(tmp_path, keep=1, grace=600)
    assert (again.before, again.after, again.removed, again.waiting) == (2, 2, 0, 5)
    joined = Path(list_segments(tmp_path)[0].path)
    os.utime(joined, (time.time(), time.time() - 601))
    third = compact(tmp_path, keep=1, grace=600)
    assert (third.removed, third.waiting) == (5, 0)
    assert [Path(each.path) for each in list_segments(tmp_path)] == [joined, paths[5]]
    assert _rows(tmp_path).equals(rows)
    assert [each.last_seq + 1 for each in stream.footers(0, end)][-1] == end


def test_a_listing_that_is_a_moment_old(
    made: _Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments go between the listing and the reading of footers or outcomes."""
    for n in range(6):
        made.cut(made.commit(n))
    stream = SegmentStream(str(tmp_path))
    stream.listed(fresh=True)
    stream._next_listing = time.monotonic() + 3600
    outcomes, rows = segment_outcomes(tmp_path), _rows(tmp_path)
    from pgoutput_fast.segments import listing

    real, calls = listing.open_segments, []

    def open_late(files: Any, *wanted: Any) -> Any:
        if not calls:
            compact(tmp_path, keep=1, grace=0)
        calls.append(len(files))
        return real(files, *wanted)

    monkeypatch.setattr(listing, "open_segments", open_late)
    assert segment_outcomes(tmp_path).equals(outcomes)
    assert calls == [6, 1]
    found = stream.footers(2, 9)
    assert [(each.first_seq, each.last_seq) for each in found] == _ranges(tmp_path)[:1]
    assert _rows(tmp_path).equals(rows)
    with pytest.raises(FileNotFoundError):
        list_segments(tmp_path / "00000000000000000000-00000000000000000002.parquet")


def test_readers_see_each_row_once_at_each_moment(made: _Stream, tmp_path: Path) -> None:
    """Threads list and read all the time, while others write, join and remove."""
    for n in range(4):
        made.cut(made.commit(n), made.block(7, 1000 + n))
    stop, failed, seen, grace = threading.Event(), [], [0], 1.0

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
                if time.monotonic() - begun < grace:
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
    assert _ids(tmp_path) == [*range(count), *range(1000, 1000 + count)]


def test_segments_of_others_are_never_removed(made: _Stream, tmp_path: Path) -> None:
    paths = [made.cut(made.commit(n)) for n in range(5)]
    compact(tmp_path, keep=1)
    joined = next(iter(set(tmp_path.glob("*.parquet")) - set(paths)))
    other = _Stream(tmp_path / "other")
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


# ---- one at a time, and killed -------------------------------------------------------------------------------------


def test_one_at_a_time(made: _Stream, tmp_path: Path) -> None:
    for n in range(5):
        made.cut(made.commit(n))
    file = lock_file(tmp_path / ".compact.lock")
    assert file is not None
    with file, pytest.raises(CompactBusyError, match="another process compacts"):
        compact(tmp_path)
    assert compact(tmp_path, keep=1).joined == 4


_KILLED = """
import os, signal, sys
from pgoutput_fast.segments import compact
from pgoutput_fast.storage import stores
directory, at = sys.argv[1:]

def die(*arguments, **more):
    os.kill(os.getpid(), signal.SIGKILL)

if at == "before the first removal":
    stores._Directory.remove = die
elif at == "after two removals":
    real, done = stores._Directory.remove, []
    def remove(self, name):
        done.append(name)
        return real(self, name) if len(done) < 3 else die()
    stores._Directory.remove = remove
elif at == "before it appears":
    stores.publish = die
else:
    from pgoutput_fast.segments import compaction
    compaction.write_joined = die
compact(directory, keep=1, grace=0)
"""


@pytest.mark.parametrize(
    "at", ["before the first removal", "after two removals", "before it appears", "while it writes"]
)
def test_killed_and_called_again(made: _Stream, tmp_path: Path, at: str) -> None:
    for n in range(6):
        made.cut(made.commit(n))
    rows, outcomes = _rows(tmp_path), segment_outcomes(tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), at], capture_output=True, timeout=240
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    left = {"before the first removal": 7, "after two removals": 5}.get(at, 6)
    assert len(_files(tmp_path)) == left
    assert len(list_segments(tmp_path)) == (6 if left == 6 else 2)
    assert _rows(tmp_path).equals(rows)
    assert segment_outcomes(tmp_path).equals(outcomes)
    stream = SegmentStream(str(tmp_path))
    assert len(stream.footers(0, stream.end())) == len(list_segments(tmp_path))
    # A capture goes on, and so does the next compact.
    made.cut(made.commit(6))
    compact(tmp_path, keep=2, grace=0)
    assert len(_files(tmp_path)) == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".0")]
    assert _ids(tmp_path) == list(range(7))


def test_a_capture_that_starts_leaves_its_file_alone(made: _Stream, tmp_path: Path) -> None:
    paths = [made.cut(made.commit(n)) for n in range(3)]
    joining = tmp_path / f".{compaction.name_of(0, 5)}.{'0' * 16}"
    part = tmp_path / "_catalog" / f".{'5'.zfill(20)}-{'0' * 64}.jsonl.zst.{'0' * 16}"
    own = tmp_path / f".{compaction.name_of(9, 12)}.{'0' * 16}"
    part.parent.mkdir()
    assert list_segments(tmp_path)[-1].last_seq == 9

    def left(*, running: bool) -> list[bool]:
        for path in (joining, part, own):
            path.write_bytes(b"unfinished")
        file = lock_file(tmp_path / ".compact.lock") if running else None
        with file or nullcontext(), SegmentDirectory(tmp_path).owned():
            return [path.exists() for path in (joining, part, own)]

    assert left(running=True) == [True, True, False]
    assert left(running=False) == [False, False, False]
    left(running=True)
    compact(tmp_path, keep=1)
    assert not joining.exists()
    assert not part.exists()
    assert all(path.exists() for path in paths)


# ---- retention -----------------------------------------------------------------------------------------------------


def test_retention_counts_from_the_rows(made: _Stream, tmp_path: Path) -> None:
    paths = [made.cut(made.commit(n)) for n in range(6)]
    at = time.time()
    for k, path in enumerate(paths):
        os.utime(path, (at, at - 3600 * (5 - k)))
    compact(tmp_path, keep=3)
    joined = list_segments(tmp_path)[0]
    assert joined.joined is not None
    assert joined.joined.written == pytest.approx(at - 3 * 3600)
    assert retain(tmp_path, older_than=timedelta(hours=3.5)) == []
    # The covered ones go before the joined one, so they never come back to light.
    order: list[str] = []
    store = type(open_store(tmp_path))
    real = store.remove

    def remove(self: Any, name: str) -> bool:
        order.append(name)
        return real(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "remove", remove)
        assert retain(tmp_path, older_than=timedelta(hours=2.5)) == [joined.path]
    assert order == [*(path.name for path in paths[:3]), Path(joined.path).name]
    assert _ids(tmp_path) == [3, 4, 5]


@pytest.mark.parametrize("step", ["count_rows", "content_of_joined", "write_joined", "read_back"])
def test_retention_while_segments_are_joined(
    made: _Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What it removed does not come back."""
    monkeypatch.setattr(segment_catalogs, "INLINE_BYTES", 300)
    for n in range(6):
        made.cut(made.commit(n, spec=_table(20000 + n)), made.commit(n))
    real = getattr(compaction, step)

    def late(*arguments: Any) -> Any:
        assert len(retain(tmp_path, older_than=0)) == 5
        return real(*arguments)

    monkeypatch.setattr(compaction, step, late)
    done = compact(tmp_path, keep=1, grace=0)
    assert (done.before, done.joined) == (6, 0)
    assert _ids(tmp_path) == [5]
    assert len(_files(tmp_path)) == 1


def test_retention_waits_until_a_joined_segment_has_its_name(
    made: _Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        made.cut(made.commit(n))
    removed: list[Any] = []
    thread = threading.Thread(target=lambda: removed.append(retain(tmp_path, older_than=0)))
    real = compaction._expect_members

    def check(*arguments: Any) -> None:
        real(*arguments)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()

    monkeypatch.setattr(compaction, "_expect_members", check)
    assert compact(tmp_path, keep=1).joined == 5
    thread.join()
    assert [len(each) for each in removed] == [1]
    assert len(_files(tmp_path)) == 1
    assert _ids(tmp_path) == [5]


# ---- a capture meanwhile -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.unsanitized
def test_a_capture_writes_meanwhile(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """It is killed and started again, too, and applies retention in the end."""
    if database.version != max(pg.installations()):
        pytest.skip("tried on the newest server")
    dsn, stop, failed, done = streaming_dsn(database), threading.Event(), [], []

    def join() -> None:
        while not stop.is_set():
            try:
                done.append(compact(tmp_path, keep=2, grace=0.5))
            except BaseException as problem:
                failed.append(problem)
                return
            stop.wait(0.05)

    thread = threading.Thread(target=join)
    thread.start()
    try:
        with Writers(database):
            arguments = [sys.executable, "-c", PROCESS, dsn, slot, str(tmp_path)]
            kill_often(arguments, tmp_path, 3, random.Random(5))
            with Running(Capture(dsn, slot, ["captured"], tmp_path, limits=Limits(seconds=0.05))) as capture:
                wait_until(lambda: failed or sum(each.joined for each in done) > 40)
        Capture(dsn, slot, ["captured"], tmp_path).run(until_lsn=now(database))
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert capture.failed is None
    expect_exactly_once(database, tmp_path)
    compact(tmp_path, keep=1, grace=0)
    expect_exactly_once(database, tmp_path)
    assert len(_files(tmp_path)) < 10  # each is much larger than the next one
    database.execute("INSERT INTO counted VALUES (-7, 1, '')")
    Capture(dsn, slot, ["captured"], tmp_path, retention=Retention(older_than=3600)).run(
        until_lsn=now(database)
    )
    expect_exactly_once(database, tmp_path)


# ---- an object store -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A URI with a place for the path."""
    with opened_bucket("joined") as opened:
        yield opened.uri


def test_in_a_store(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = bucket % f"wal/{tmp_path.name}"
    made = _Stream(place)
    for n in range(6):
        made.cut(made.commit(n))
    rows, store = _rows(place), open_store(place)
    mark = {"token": "another", "host": "elsewhere", "pid": 7, "at": time.time()}
    store.put("_compact.json", json.dumps(mark).encode())
    with pytest.raises(CompactBusyError, match="7 on elsewhere") as caught:
        compact(place)
    assert "secret" not in str(caught.value)
    store.put("_compact.json", json.dumps({**mark, "at": time.time() - 7200}).encode())
    assert compact(place, keep=1).waiting == 5
    assert len(store.names()) == 7
    assert _rows(place).equals(rows)
    done = compact(place, keep=1, grace=0)
    assert (done.before, done.after, done.removed) == (2, 2, 5)
    assert len(store.names()) == 2
    made.cut(made.commit(6))
    assert made.state is not None
    assert [each.state for each in list_segments(place)][-1] == made.state
    assert _rows(place).slice(0, rows.num_rows).equals(rows)
    # Another process joined other segments with some of the same messages.
    for n in range(7, 10):
        made.cut(made.commit(n))
    real, ranges = compaction.footer_texts, _ranges(place)

    def meanwhile(*arguments: Any) -> Any:
        (first, _), (_, last) = ranges[1], ranges[5]
        name = compaction.name_of(first, last - 1)
        store.put(name, store.read(store.names()[0].rpartition("/")[2]))
        return real(*arguments)

    monkeypatch.setattr(compaction, "footer_texts", meanwhile)
    with pytest.raises(CompactBusyError, match=r"have the same messages\. No segment was removed"):
        compact(place, keep=1)
    assert len([name for name in store.names() if name.endswith(".parquet")]) == 8


def test_a_damaged_segment_is_named_and_nothing_is_changed(made: _Stream, tmp_path: Path) -> None:
    for n in range(5):
        made.cut(made.commit(n))
    path = sorted(tmp_path.glob("*.parquet"))[1]
    good = path.read_bytes()
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), other)
    changed = good[:30] + bytes(50) + good[80:]
    for content in (changed, good[:-40], b"", other.getvalue().to_pybytes()):
        path.write_bytes(content)
        before = {name: (tmp_path / name).read_bytes() for name in _files(tmp_path)}
        with pytest.raises(
            (ValueError, OSError), match=rf"(?s){path.name}.*\. Nothing was changed: compact left it"
        ):
            compact(tmp_path, keep=1, grace=0)
        assert {name: (tmp_path / name).read_bytes() for name in _files(tmp_path)} == before
    path.write_bytes(good)
    assert compact(tmp_path, keep=1, grace=0).joined == 4
