"""compact while others compact, capture, or remove segments; killed; in a store; on damaged segments."""

from __future__ import annotations

import contextlib
import json
import os
import random
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

from pgoutput_fast.capture import Capture, Limits, Retention, retain
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.segments import (
    CompactBusyError,
    compact,
    compaction,
    list_segments,
    segment_outcomes,
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
    expect_exactly_once,
    kill_often,
    now,
    slot,
    streaming_dsn,
    wait_until,
)
from support.forms import and_slow
from support.segment_streams import (
    MadeSegments,
    ids_in,
    made,
    names_in,
    ranges_in,
    rows_in,
    table_of,
)

__all__ = ["made", "slot"]


# ---- one at a time, and killed -------------------------------------------------------------------------------------


def test_one_at_a_time(made: MadeSegments, tmp_path: Path) -> None:
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
    "at",
    and_slow(["after two removals", "before it appears"], ["before the first removal", "while it writes"]),
)
def test_killed_and_called_again(made: MadeSegments, tmp_path: Path, at: str) -> None:
    for n in range(6):
        made.cut(made.commit(n))
    rows, outcomes = rows_in(tmp_path), segment_outcomes(tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), at], capture_output=True, timeout=240
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    left = {"before the first removal": 7, "after two removals": 5}.get(at, 6)
    assert len(names_in(tmp_path)) == left
    assert len(list_segments(tmp_path)) == (6 if left == 6 else 2)
    assert rows_in(tmp_path).equals(rows)
    assert segment_outcomes(tmp_path).equals(outcomes)
    stream = SegmentStream(str(tmp_path))
    assert len(stream.footers(0, stream.end())) == len(list_segments(tmp_path))
    # A capture goes on, and so does the next compact.
    made.cut(made.commit(6))
    compact(tmp_path, keep=2, grace=0)
    assert len(names_in(tmp_path)) == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".0")]
    assert ids_in(tmp_path) == list(range(7))


def test_a_capture_that_starts_leaves_its_file_alone(made: MadeSegments, tmp_path: Path) -> None:
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


def test_retention_counts_from_the_rows(made: MadeSegments, tmp_path: Path) -> None:
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
    assert ids_in(tmp_path) == [3, 4, 5]


@pytest.mark.parametrize("step", ["count_rows", "content_of_joined", "write_joined", "read_back"])
def test_retention_while_segments_are_joined(
    made: MadeSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What it removed does not come back."""
    monkeypatch.setattr(segment_catalogs, "INLINE_BYTES", 300)
    for n in range(6):
        made.cut(made.commit(n, spec=table_of(20000 + n)), made.commit(n))
    real = getattr(compaction, step)

    def late(*arguments: Any) -> Any:
        assert len(retain(tmp_path, older_than=0)) == 5
        return real(*arguments)

    monkeypatch.setattr(compaction, step, late)
    done = compact(tmp_path, keep=1, grace=0)
    assert (done.before, done.joined) == (6, 0)
    assert ids_in(tmp_path) == [5]
    assert len(names_in(tmp_path)) == 1


def test_retention_waits_until_a_joined_segment_has_its_name(
    made: MadeSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        made.cut(made.commit(n))
    removed: list[Any] = []
    thread = threading.Thread(target=lambda: removed.append(retain(tmp_path, older_than=0)))
    real = compaction.removal_lock

    @contextlib.contextmanager
    def held(store: Any) -> Iterator[None]:
        with real(store):
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
            yield

    monkeypatch.setattr(compaction, "removal_lock", held)
    assert compact(tmp_path, keep=1).joined == 5
    thread.join()
    assert [len(each) for each in removed] == [1]
    assert len(names_in(tmp_path)) == 1
    assert ids_in(tmp_path) == [5]


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
    assert len(names_in(tmp_path)) < 10  # each is much larger than the next one
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
    made = MadeSegments(place)
    for n in range(6):
        made.cut(made.commit(n))
    rows, store = rows_in(place), open_store(place)
    mark = {"token": "another", "host": "elsewhere", "pid": 7, "at": time.time()}
    store.put("_compact.json", json.dumps(mark).encode())
    with pytest.raises(CompactBusyError, match="7 on elsewhere") as caught:
        compact(place)
    assert "secret" not in str(caught.value)
    store.put("_compact.json", json.dumps({**mark, "at": time.time() - 7200}).encode())
    assert compact(place, keep=1).waiting == 5
    assert len(store.names()) == 7
    assert rows_in(place).equals(rows)
    done = compact(place, keep=1, grace=0)
    assert (done.before, done.after, done.removed) == (2, 2, 5)
    assert len(store.names()) == 2
    made.cut(made.commit(6))
    assert made.state is not None
    assert [each.state for each in list_segments(place)][-1] == made.state
    assert rows_in(place).slice(0, rows.num_rows).equals(rows)
    # Another process joined other segments with some of the same messages.
    for n in range(7, 10):
        made.cut(made.commit(n))
    real, ranges = compaction.footer_texts, ranges_in(place)

    def meanwhile(*arguments: Any) -> Any:
        (first, _), (_, last) = ranges[1], ranges[5]
        name = compaction.name_of(first, last - 1)
        store.put(name, store.read(store.names()[0].rpartition("/")[2]))
        return real(*arguments)

    monkeypatch.setattr(compaction, "footer_texts", meanwhile)
    with pytest.raises(CompactBusyError, match=r"have the same messages\. No segment was removed"):
        compact(place, keep=1)
    assert len([name for name in store.names() if name.endswith(".parquet")]) == 8


def test_a_damaged_segment_is_named_and_nothing_is_changed(made: MadeSegments, tmp_path: Path) -> None:
    for n in range(5):
        made.cut(made.commit(n))
    path = sorted(tmp_path.glob("*.parquet"))[1]
    good = path.read_bytes()
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), other)
    changed = good[:30] + bytes(50) + good[80:]
    for content in (changed, good[:-40], b"", other.getvalue().to_pybytes()):
        path.write_bytes(content)
        before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
        with pytest.raises(
            (ValueError, OSError), match=rf"(?s){path.name}.*\. Nothing was changed: compact left it"
        ):
            compact(tmp_path, keep=1, grace=0)
        assert {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)} == before
    path.write_bytes(good)
    assert compact(tmp_path, keep=1, grace=0).joined == 4
