"""Retention: what goes is what nobody needs, and what stays is whole."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, Limits
from pgoutput_fast.capture.process import Settings
from pgoutput_fast.capture.retention import Consumers, Retention, retain
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.encode import Writer
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog
from support import pg
from support.capturing import Running, committed, drop_when_free, now, slot, streaming_dsn, wait_until
from support.segment_streams import MadeSegments, ids_in

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]

NOTHING = timedelta(0)


def _last(path: Path) -> int:
    return list_segments(path)[0].last_seq


def test_by_age(tmp_path: Path) -> None:
    stream = MadeSegments(tmp_path)
    paths = [stream.cut(stream.commit(n)) for n in range(5)]
    now = time.time()
    for k, path in enumerate(paths):
        os.utime(path, (now, now - 3600 * (4 - k)))
    assert retain(tmp_path, older_than=timedelta(days=1)) == []
    assert retain(tmp_path, older_than=timedelta(hours=2.5), dry_run=True) == paths[:2]
    assert [each.path for each in list_segments(tmp_path)] == paths
    assert retain(tmp_path, older_than=2.5 * 3600) == paths[:2]
    assert ids_in(tmp_path) == [2, 3, 4]
    # The newest says how the stream goes on.
    assert retain(tmp_path, older_than=NOTHING) == paths[2:4]
    assert retain(tmp_path, older_than=NOTHING) == []
    # The relation was described in the first segment, which is gone.
    assert ids_in(tmp_path) == [4]
    stream.cut(stream.commit(5))
    assert ids_in(tmp_path) == [4, 5]


def test_one_that_is_younger_keeps_those_behind_it(tmp_path: Path) -> None:
    stream = MadeSegments(tmp_path)
    paths = [stream.cut(stream.commit(n)) for n in range(4)]
    now = time.time()
    for k, path in enumerate(paths):
        os.utime(path, (now, now - (10 if k == 1 else 3600)))
    assert retain(tmp_path, older_than=60) == paths[:1]


def test_a_clock_that_jumped(tmp_path: Path) -> None:
    """All is old then, by the clock; but nothing has come since that would have made it old."""
    stream = MadeSegments(tmp_path)
    paths = [stream.cut(stream.commit(k)) for k in range(4)]
    for k, path in enumerate(paths):
        os.utime(path, (0, time.time() - 1000 * 86_400 - 3600 * (3 - k)))
    day, hours = timedelta(days=1), timedelta(minutes=90)
    assert retain(tmp_path, older_than=day, dry_run=True) == []
    assert retain(tmp_path, older_than=hours, dry_run=True) == paths[:2]
    # By the clock alone, where nothing is to stay.
    assert retain(tmp_path, older_than=NOTHING) == paths[:3]


def test_by_consumers(tmp_path: Path) -> None:
    stream = MadeSegments(tmp_path)
    paths = [stream.cut(stream.commit(n)) for n in range(5)]
    consumers = Consumers(tmp_path)
    assert retain(tmp_path, consumed=True) == []  # nobody is done with anything, for there is nobody
    consumers.set("slow", _last(paths[1]))
    assert retain(tmp_path, consumed=True, dry_run=True) == paths[:1]
    consumers.set("slow", _last(paths[1]) + 1)
    consumers.set("fast/../er.json", _last(paths[4]))
    assert consumers.positions() == {"slow": _last(paths[1]) + 1, "fast/../er.json": _last(paths[4])}
    assert retain(tmp_path, consumed=True, older_than=3600) == []
    assert retain(tmp_path, consumed=True) == paths[:2]
    consumers.set("slow", _last(paths[2]) - 1)
    assert retain(tmp_path, consumed=True) == []
    assert retain(tmp_path, consumed=True, older_than=NOTHING) == []
    assert consumers.forget("slow")
    assert not consumers.forget("slow")
    # Where it is, what it needs of the state is known.
    assert retain(tmp_path, consumed=True) == paths[2:4]
    consumers.forget("fast/../er.json")
    consumers.set("new", -1)
    stream.cut(stream.commit(5))
    assert retain(tmp_path, consumed=True, older_than=NOTHING) == []
    assert retain(tmp_path, older_than=NOTHING) == paths[4:]


def test_an_open_transaction_keeps_what_it_has(tmp_path: Path) -> None:
    stream = MadeSegments(tmp_path)
    paths = [
        stream.cut(stream.commit(0)),
        stream.cut(stream.commit(1), stream.block(900, 10)),
        stream.cut(stream.commit(2)),
        stream.cut(stream.block(900, 11), stream.commit(3)),
    ]
    paths.append(stream.cut(stream.commit(4)))
    assert retain(tmp_path, older_than=NOTHING, dry_run=True) == paths[:1]
    # It ends, but all that a consumer has yet to read needs is kept, where another stream overlaps with it, too.
    paths.append(stream.cut(stream.block(901, 20), stream.stream_commit(900)))
    paths.append(stream.cut(stream.block(901, 21), stream.commit(5)))
    paths.append(stream.cut(stream.stream_commit(901)))
    paths.append(stream.cut(stream.commit(6)))
    Consumers(tmp_path).set("lake", _last(paths[6]))
    assert retain(tmp_path, consumed=True) == paths[:1]
    assert ids_in(tmp_path) == [1, 2, 3, 4, 10, 11, 5, 20, 21, 6]
    assert retain(tmp_path, older_than=NOTHING) == paths[1:8]
    assert ids_in(tmp_path) == [6]


def test_a_plain_transaction_that_is_cut(tmp_path: Path) -> None:
    stream = MadeSegments(tmp_path)
    first, whole = stream.commit(100), stream.commit(*range(10))
    paths = [
        stream.cut(first),
        stream.cut(stream.commit(101), whole[:4]),
        stream.cut(whole[4:8]),
        stream.cut(whole[8:]),
        stream.cut(stream.commit(102)),
    ]
    assert retain(tmp_path, older_than=NOTHING, dry_run=True) == paths[:4]
    Consumers(tmp_path).set("lake", _last(paths[2]))
    assert retain(tmp_path, consumed=True) == paths[:1]
    assert sorted(ids_in(tmp_path)) == [*range(10), 101, 102]


def test_what_is_void_keeps_nothing(tmp_path: Path) -> None:
    """A stream whose session ended is sent again: its first rows may go as soon as the next session has begun."""
    stream = MadeSegments(tmp_path)
    paths = [stream.cut(stream.commit(0), stream.block(900, 10)), stream.cut(stream.commit(1))]
    decoder = pgo.Decoder(state=stream.state)
    decoder.start_session()
    stream.state = decoder.state
    stream.writer = Writer(4, streaming="on")
    paths.append(stream.cut(stream.block(900, 10, 11), stream.stream_commit(900)))
    paths.append(stream.cut(stream.commit(2)))
    assert retain(tmp_path, older_than=NOTHING) == paths[:3]
    assert ids_in(tmp_path) == [2]


def test_typed_files_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    """Its captures with `typed=True` wrote them. Retention kept the segments that they lacked."""
    stream = MadeSegments(tmp_path)
    paths = [stream.cut(stream.commit(n)) for n in range(3)]
    progress = tmp_path / "typed" / "_progress.json"
    progress.parent.mkdir()
    progress.write_text('{"last_seq": 2, "next_seq": 3}')
    (tmp_path / "typed" / "public.orders").mkdir()
    refused = rf"{tmp_path} has typed files, which this version does not write: .*pgspark\.write_tables.*remove {progress}"
    capture = Capture("", "slot", ["captured"], tmp_path)
    for _ in range(2):
        with pytest.raises(CaptureError, match=refused):
            capture.run()
        for dry_run in (False, True):
            with pytest.raises(ValueError, match=refused):
                retain(tmp_path, older_than=0, dry_run=dry_run)
    assert len(list_segments(tmp_path)) == 3
    progress.unlink()
    with SegmentDirectory(tmp_path).owned():
        assert retain(tmp_path, older_than=0) == paths[:2]


def test_typed_is_an_unknown_argument(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'typed'"):
        Capture("", "slot", ["captured"], tmp_path, typed=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"settings of the capture are wrong: .*'typed'"):
        Settings("", "slot", ("captured",), str(tmp_path), more={"typed": True}).capture()


def test_arguments_and_what_is_damaged(tmp_path: Path) -> None:
    stream = MadeSegments(tmp_path)
    for n in range(3):
        stream.cut(stream.commit(n))
    for wrong in ({}, {"older_than": None}, {"older_than": -1}):
        with pytest.raises(ValueError, match=r"say what to remove|cannot be negative"):
            retain(tmp_path, **wrong)
    for build in (lambda: Retention(), lambda: Retention(older_than=-1)):
        with pytest.raises(ValueError, match=r"say what to remove|cannot be negative"):
            build()
    consumers = Consumers(tmp_path)
    for position in (-2, 1 << 63, 1.0, True, None, "7"):
        with pytest.raises(ValueError, match="ordinal of a message"):
            consumers.set("lake", position)  # type: ignore[arg-type]
    for name in ("", "x" * 201, "é" * 40):
        with pytest.raises(ValueError, match="1 to 200 characters"):
            consumers.set(name, 0)
    assert consumers.positions() == {}
    consumers.set("lake", 10**9)
    for text in ("", "{}", '{"seq": null}', '{"seq": true}', "[]", "7"):
        (tmp_path / "_consumers" / "broken.json").write_text(text)
        with pytest.raises(ValueError, match=r"_consumers/broken\.json has no position"):
            retain(tmp_path, consumed=True)
    assert consumers.forget("broken")
    (tmp_path / "_consumers" / ".lake.json.0123456789abcdef").write_text("a process died here")
    assert consumers.positions() == {"lake": 10**9}
    assert json.loads((tmp_path / "_consumers" / "lake.json").read_text())["seq"] == 10**9
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"mine\.parquet does not have the name of a segment"):
        retain(tmp_path, consumed=True)
    assert retain(tmp_path / "none", older_than=0) == []


# ---- with servers ------------------------------------------------------------------------------------------------


@contextmanager
def _capturing(capture: Capture) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """A capture on a thread; gives what waits for something to become true."""

    def wait(condition: Callable[[], bool]) -> None:
        wait_until(lambda: running.failed or condition())
        assert running.failed is None

    with Running(capture) as running:
        yield wait
    assert running.failed is None


def _rows_by_commit(directory: Path) -> list[int]:
    """How many rows each transaction has that the segments say was committed."""
    changes = committed(directory).table("public.counted")
    sizes = changes.group_by("_commit_lsn").aggregate([("id", "count")]).sort_by("_commit_lsn")
    found: list[int] = sizes.column("id_count").to_pylist()
    return found


def _first_open(directory: Path, kind: str) -> int | None:
    segments = list_segments(directory)
    values = segments[-1].state.values if segments else None
    return min((each["txn"] for each in values[kind]), default=None) if values else None


@pytest.mark.newest_server
@pytest.mark.parametrize("kind", ["streamed", "prepared"])
def test_transactions_that_stay_open(database: pg.Database, slot: str, tmp_path: Path, kind: str) -> None:
    """They keep what they have, across removals and a restart; once they end, it goes, and nothing by half."""
    if database.version < (14 if kind == "streamed" else 15):
        pytest.skip("the server does not send such")
    insert = "INSERT INTO counted SELECT g, 1, repeat('x', 500) FROM generate_series({}, {}) g"
    fill = [f"INSERT INTO counted VALUES ({n}, 1), ({n} + 1, 1)" for n in range(-40, 0, 2)]
    limits = Limits(seconds=0.05, rows=300)
    name = slot if kind == "streamed" else f"{slot}_p"
    capture = Capture(
        streaming_dsn(database), name, ["captured"], tmp_path, limits=limits, two_phase=kind == "prepared"
    )

    def in_a_segment(statement: str, wait: Callable[[Callable[[], bool]], None]) -> None:
        """One of its own, so that there are many."""
        before = len(list_segments(tmp_path))
        database.execute(statement)
        wait(lambda: len(list_segments(tmp_path)) > before)

    with database.session() as connection, connection.cursor() as cursor:
        with _capturing(capture) as wait:
            # Enough behind it for segments that can go.
            wait(lambda: (tmp_path / ".lock").exists() and "since" in (tmp_path / ".lock").read_text())
            wait(
                lambda: bool(
                    database.execute(
                        f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
                    )
                )
            )
            for statement in fill[:5]:
                in_a_segment(statement, wait)
            cursor.execute("BEGIN")
            cursor.execute(insert.format(0, 299))
            if kind == "prepared":
                cursor.execute(f"PREPARE TRANSACTION '{name}'")
            database.execute(fill[5])
            wait(lambda: _first_open(tmp_path, kind) is not None)
            for statement in fill[6:10]:
                in_a_segment(statement, wait)
            begun = _first_open(tmp_path, kind)
            assert begun is not None
            wait(lambda: len([each for each in list_segments(tmp_path) if each.first_seq > begun]) > 2)
            assert retain(tmp_path, older_than=NOTHING)
            assert list_segments(tmp_path)[0].first_seq <= begun <= list_segments(tmp_path)[0].last_seq
            assert set(_rows_by_commit(tmp_path)) == {2}
            if kind == "streamed":
                cursor.execute(insert.format(300, 599))
                cursor.execute("COMMIT")
        if kind == "prepared":
            # Another session of the server: what was prepared before is not sent again.
            with _capturing(capture) as wait:
                database.execute(fill[10])
                wait(lambda: _rows_by_commit(tmp_path)[-1] == 2)
                retain(tmp_path, older_than=NOTHING)
                cursor.execute(f"COMMIT PREPARED '{name}'")
                wait(lambda: 300 in _rows_by_commit(tmp_path))
        capture.run(until_lsn=now(database))
        assert (600 if kind == "streamed" else 300) in _rows_by_commit(tmp_path)
        for statement in fill[11:14]:
            database.execute(statement)
            capture.run(until_lsn=now(database))
        assert retain(tmp_path, older_than=NOTHING)
        assert set(_rows_by_commit(tmp_path)) == {2}
        assert segment_catalog(tmp_path).named("public.counted")
        # The slot goes on from what is left.
        database.execute(fill[14])
        capture.run(until_lsn=now(database))
        changes = committed(tmp_path).table("public.counted")
        assert changes.column("id").to_pylist()[-2:] == [-12, -11]
        assert read_segment(list_segments(tmp_path)[0].path).num_rows
    if kind == "prepared":
        drop_when_free(database.dsn, name)


@pytest.mark.newest_server
def test_a_capture_that_cannot_remove_goes_on(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    capture = Capture(database.dsn, slot, ["captured"], tmp_path, retention=Retention(consumed=True))
    ends: list[int] = []
    for n in range(3):
        database.execute(f"INSERT INTO counted VALUES ({n}, 1)")
        capture.run(until_lsn=now(database))
        ends.append(list_segments(tmp_path)[-1].last_seq)
    assert len(list_segments(tmp_path)) == 3
    Consumers(tmp_path).set("lake", ends[1])
    (tmp_path / "_consumers" / "other.json").write_text("{")
    database.execute("INSERT INTO counted VALUES (3, 1)")
    capture.run(until_lsn=now(database))
    assert len(list_segments(tmp_path)) == 4
    assert "cannot remove old segments" in caplog.text
    assert "other.json has no position" in caplog.text
    Consumers(tmp_path).set("other", ends[2])
    database.execute("INSERT INTO counted VALUES (4, 1)")
    capture.run(until_lsn=now(database))
    assert [segment.last_seq for segment in list_segments(tmp_path)][:2] == ends[1:]
