"""Capture into an object store: what is there is whole, and one writer at a time. The store is a server that speaks S3."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, Consumers, Limits, find_slot, retain
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import (
    Segment,
    Source,
    list_segments,
    newest_segment,
    open_segment,
    read_segment,
    write_segment,
)
from pgoutput_fast.storage import stores as segment_stores
from pgoutput_fast.storage.stores import open_store
from support import pg
from support.buckets import opened_bucket
from support.capturing import (
    PROCESS,
    Running,
    Writers,
    expect_exactly_once,
    now,
    slot,
    streaming_dsn,
    wait_until,
)
from support.paths import TESTS

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
SOURCE = Source("1", "shop", "slot")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A URI with a place for the path."""
    with opened_bucket("captured") as opened:
        yield opened.uri


@pytest.fixture
def prefix(bucket: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URI of a place of its own, where nothing is."""
    return bucket % f"wal/{tmp_path.name}"


def _wal(n: int, note: str = "x") -> list[bytes]:
    writer = Writer()
    wal = writer.begin(n + 1, 100 * n + 100, 0) + writer.change(ORDERS, "insert", new=[str(n), note])
    return wal + writer.commit(100 * n + 100, 100 * n + 108, 0)


def _names(uri: str) -> list[str]:
    return [entry.name for entry in open_store(uri).entries(recursive=True)]


def test_segments_are_written_there(prefix: str) -> None:
    assert newest_segment(prefix) is None
    state, paths = None, []
    for n in range(4):
        tagged, state = pgo.tag(_wal(n), state)
        paths.append(write_segment(prefix, tagged, state, source=SOURCE))
    assert [each.path for each in list_segments(prefix)] == paths
    newest = newest_segment(prefix)
    assert newest is not None
    assert (newest.path, newest.state) == (paths[3], state)
    assert newest == open_segment(paths[3])
    assert read_segment(paths[2]).column("payload").to_pylist() == _wal(2)
    apart = write_segment(prefix.replace("?", "/apart/one.parquet?"), *pgo.tag(_wal(0)), source=SOURCE)
    assert open_segment(apart).rows == 4
    with pytest.raises(FileExistsError, match=r"s3://captured/.*one\.parquet exists"):
        write_segment(apart, *pgo.tag(_wal(0)), source=SOURCE)
    with pytest.raises(ValueError, match="does not follow") as caught:
        write_segment(prefix, *pgo.tag(_wal(0)), source=SOURCE)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="segments of one source only"):
        write_segment(prefix, *pgo.tag(_wal(4), state), source=Source("2", "shop", "slot"))
    assert len(list_segments(prefix)) == 4


def test_consumers_and_retention_there(prefix: str) -> None:
    state, paths = None, []
    for n in range(4):
        tagged, state = pgo.tag(_wal(n), state)
        paths.append(write_segment(prefix, tagged, state, source=SOURCE))
    consumers = Consumers(prefix)
    assert consumers.positions() == {}
    consumers.set("a lake/1", list_segments(prefix)[2].last_seq)
    consumers.set("b", 10**6)
    consumers.set("b", 10**6 + 1)
    assert consumers.positions() == {"a lake/1": list_segments(prefix)[2].last_seq, "b": 10**6 + 1}
    assert retain(prefix, consumed=True, older_than=timedelta(days=1)) == []
    assert retain(prefix, consumed=True) == paths[:2]
    assert [each.path for each in list_segments(prefix)] == paths[2:]
    assert consumers.forget("b")
    assert not consumers.forget("b")


def test_nothing_is_there_before_it_is_whole(prefix: str) -> None:
    """Whatever interrupts the writing of it. A stream into a store would leave what it had."""
    store = open_store(prefix)

    def interrupted(kind: type[BaseException]) -> None:
        with store.write("file") as file:
            file.write(b"half")
            raise kind

    for kind in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(kind):
            interrupted(kind)
        assert _names(prefix) == []
    with store.write("file") as file:
        file.write(b"whole")
    assert store.read("file") == b"whole"
    with pytest.raises(FileExistsError, match="file exists"), store.write("file") as file:
        file.write(b"another")
    store.put("file", b"a third")
    assert store.read("file") == b"a third"
    with pytest.raises(FileNotFoundError):
        store.read("none")


_WRITER = """
import random, sys
sys.path.append(sys.argv[2])
import pgoutput_fast as pgo
from pgoutput_fast.segments import write_segment
from capture.test_store import SOURCE, _wal
tagged, state = pgo.tag(_wal(0, random.Random(1).randbytes(20_000_000).hex()))
print("tagged", flush=True)
write_segment(sys.argv[1], tagged, state, source=SOURCE)
"""


@pytest.mark.slow
def test_killed_while_it_uploads(prefix: str) -> None:
    boto3 = pytest.importorskip("boto3")
    endpoint = urlsplit(prefix).query.partition("endpoint_override=")[2].partition("&")[0]
    s3 = boto3.client(
        "s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret",
    )  # fmt: skip
    arguments = [sys.executable, "-c", _WRITER, prefix, str(TESTS)]
    for _ in range(10):
        process = subprocess.Popen(arguments)
        try:
            wait_until(
                lambda: (
                    process.poll() is not None  # noqa: B023
                    or s3.list_multipart_uploads(Bucket="captured").get("Uploads")
                )
            )
        finally:
            process.kill()
            process.wait()
        # What it had sent may still be on its way; whatever of it arrives, half a file does not appear.
        for _ in range(20):
            names = _names(prefix)  # before the look at the newest: the rest may arrive between the two
            if newest_segment(prefix) is not None:
                break
            assert names == []
            time.sleep(0.1)
        else:
            break
        # A busy machine let it send all before the kill.
        assert [each.rows for each in list_segments(prefix)] == [4]
        for name in _names(prefix):
            open_store(prefix).remove(name)
    else:
        pytest.fail("it always sends all before the kill")
    subprocess.run(arguments, check=True)
    newest = newest_segment(prefix)
    assert newest is not None
    assert newest.rows == 4


def test_two_that_write_at_the_same_time(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between one's look and the end of its upload another one's appears, of the same name or of other ordinals."""
    send, store = segment_stores._Remote._send, open_store(prefix)
    first, state = pgo.tag(_wal(0))
    write_segment(prefix, first, state, source=SOURCE)
    for theirs in (_wal(1), _wal(1)[:2]):
        name = f"{4:020}-{3 + len(theirs):020}.parquet"
        write_segment(
            prefix.replace("?", f"/aside/{name}?"),
            *pgo.tag(theirs, state),
            source=SOURCE,
            end_lsn=len(theirs),
        )
        other = store.read(f"aside/{name}")

        def late(self: Any, content: Any, inside: str, name: str = name, other: bytes = other) -> None:
            send(self, content, inside)
            with monkeypatch.context() as patch:
                patch.setattr(segment_stores._Remote, "_send", send)
                store.put(name, other)

        tagged, after = pgo.tag(_wal(1), state)
        with monkeypatch.context() as patch:
            patch.setattr(segment_stores._Remote, "_send", late)
            with pytest.raises(FileExistsError, match="another process wrote messages of 4 to 7"):
                write_segment(prefix, tagged, after, source=SOURCE, end_lsn=4)
        assert store.read(name) == other
        for name in _names(prefix)[1:]:
            store.remove(name)


# ---- with servers ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_server(request: pytest.FixtureRequest) -> None:
    if "database" in request.fixturenames:
        database = request.getfixturevalue("database")
        if database.version != max(pg.installations()):
            pytest.skip("what the store does is the same for all servers")


@pytest.mark.slow
def test_a_capture_that_is_killed(database: pg.Database, slot: str, prefix: str) -> None:
    """It goes on from the newest segment in the store; what committed is there once."""
    dice = random.Random(database.version)
    arguments = [sys.executable, "-c", PROCESS, streaming_dsn(database), slot, prefix]
    with Writers(database):
        for _ in range(2):
            before = len(_names(prefix))
            process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 120
            while (
                process.poll() is None
                and time.monotonic() < deadline
                and len(_names(prefix)) < before + dice.randrange(2, 4)
            ):
                time.sleep(0.01)
            time.sleep(dice.random() * 0.1)
            process.send_signal(signal.SIGKILL)
            _, said = process.communicate()
            assert process.returncode == -signal.SIGKILL, said
    capture = Capture(streaming_dsn(database), slot, ["captured"], prefix)
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, prefix)
    assert len(list_segments(prefix)) > 2
    found, newest = find_slot(database.dsn, slot), newest_segment(prefix)
    assert found is not None
    assert newest is not None
    assert (found.confirmed_flush_lsn or 0) >= (newest.end_lsn or 0)


@pytest.mark.slow
def test_one_captures_at_a_time(database: pg.Database, slot: str, prefix: str) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            Capture(database.dsn, slot, ["captured"], prefix, limits=Limits(seconds=0.05)).run(stop=stop)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while "_writer.json" not in _names(prefix):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # The slot is the lock.
        with pytest.raises(psycopg2.errors.ObjectInUse):
            Capture(database.dsn, slot, ["captured"], prefix).run(retry_seconds=0.5)
        # Somebody has taken the slot over, and this one has not noticed yet.
        open_store(prefix).put("_writer.json", b'{"token": "another", "host": "h", "pid": 7, "since": "now"}')
        database.execute("INSERT INTO counted VALUES (1, 1)")
        thread.join(240)
        assert not thread.is_alive()
    finally:
        stop.set()
        thread.join()
    (problem,) = failed
    assert isinstance(problem, CaptureError)
    assert "process 7 on h (since now) captures into s3://captured/" in str(problem)
    assert list_segments(prefix) == []
    # Its changes were not confirmed.
    Capture(database.dsn, slot, ["captured"], prefix).run(until_lsn=now(database))
    expect_exactly_once(database, prefix)
    # A segment that another one finished after the slot had been taken from it: it is gone on from there.
    copied = Capture(database.dsn, slot, ["captured"], prefix, limits=Limits(seconds=0.2))
    thread = threading.Thread(target=copied.run, kwargs={"until_lsn": None, "stop": stop})
    stop.clear()
    thread.start()
    try:
        newest = newest_segment(prefix)
        assert newest is not None
        # It has begun behind the newest segment.
        wait_until(lambda: not thread.is_alive() or copied.metrics.running)
        tagged, state = pgo.tag(_wal(10**6), newest.state)
        late = write_segment(prefix, tagged, state, source=newest.source, end_lsn=newest.end_lsn)
        database.execute("INSERT INTO counted VALUES (2, 1)")
        deadline = time.monotonic() + 120
        while (end := newest_segment(prefix)) is None or end.path == late:
            assert time.monotonic() < deadline
            assert thread.is_alive()
            time.sleep(0.1)
        lsn = now(database)
        wait_until(lambda: not thread.is_alive() or (copied.metrics.confirmed_lsn or 0) >= lsn)
    finally:
        stop.set()
        thread.join()
    assert len({each.first_seq for each in list_segments(prefix)}) == 3
    expect_exactly_once(database, prefix)


@pytest.mark.slow
def test_another_capture_goes_on_meanwhile(
    database: pg.Database, slot: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of a second capture, as when one replaces another. The second one waits for the slot."""
    first = Capture(database.dsn, slot, ["captured"], prefix, limits=Limits(seconds=0.05))
    with Running(first) as running:
        database.execute("INSERT INTO counted VALUES (0, 1)")
        wait_until(lambda: running.failed or newest_segment(prefix))
        newest, numbers = SegmentDirectory.newest, itertools.count(1)

        def confirmed() -> int:
            found = find_slot(database.dsn, slot)
            assert found is not None
            return found.confirmed_flush_lsn or 0

        def newest_and_more(self: SegmentDirectory) -> Segment | None:
            found = newest(self)
            if threading.current_thread() is threading.main_thread():
                before = confirmed()
                database.execute(f"INSERT INTO counted VALUES ({next(numbers)}, 1)")
                wait_until(lambda: running.failed or confirmed() > before)
            return found

        monkeypatch.setattr(SegmentDirectory, "newest", newest_and_more)
        with pytest.raises(psycopg2.errors.ObjectInUse):
            Capture(database.dsn, slot, ["captured"], prefix).run(retry_seconds=0.5)
        monkeypatch.undo()
        assert running.failed is None
        lsn = now(database)
        wait_until(lambda: running.failed or (first.metrics.confirmed_lsn or 0) >= lsn)
    expect_exactly_once(database, prefix)


def test_a_store_that_is_away(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For a while, and for too long."""
    moto = pytest.importorskip("moto.server")
    from pyarrow import fs

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        uri = f"s3://key:secret@away/%s?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
        s3, _ = fs.FileSystem.from_uri(uri % "" + "&allow_bucket_creation=true")
        s3.create_dir("away")
        uri %= tmp_path.name
        capture = Capture(database.dsn, slot, ["captured"], uri, limits=Limits(seconds=0.1))
        with Running(capture) as running:
            database.execute("INSERT INTO counted VALUES (1, 1)")
            wait_until(lambda: running.failed or capture.metrics.segments)
            server.stop()
            database.execute("INSERT INTO counted VALUES (2, 1)")
            wait_until(lambda: running.failed or "again" in caplog.text)
            server = moto.ThreadedMotoServer(ip_address=host, port=port, verbose=False)
            server.start()
            lsn = now(database)
            wait_until(lambda: running.failed or (capture.metrics.confirmed_lsn or 0) >= lsn)
        assert running.failed is None
        expect_exactly_once(database, uri)
        assert len(list_segments(uri)) >= 2
        failed: list[BaseException] = []
        # The server may need a moment to notice that the first one has ended.
        walsenders = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()"
        wait_until(lambda: not database.execute(walsenders))

        def run() -> None:
            try:
                capture.run(retry_seconds=0.5)
            except BaseException as problem:
                failed.append(problem)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: failed or capture.metrics.running)
        server.stop()
        database.execute("INSERT INTO counted VALUES (3, 1)")
        thread.join(240)
        assert [type(each) for each in failed] == [OSError]
    finally:
        server.stop()
