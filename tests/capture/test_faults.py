"""Captures and what can go wrong around them, with real processes: nothing is lost, nothing comes twice, all is said."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, Limits, drop_slot, find_slot
from pgoutput_fast.capture.preparation import Preparation
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.segments import list_segments, read_segment
from support import pg
from support.capturing import (
    Running,
    Writers,
    committed,
    expect_exactly_once,
    now,
    prepare,
    stoppable,
    wait_until,
    waiting_walsender,
)
from support.forms import and_exhaustive, and_slow

pytestmark = pytest.mark.few_servers

SLOT = "faulty"


@contextlib.contextmanager
def _own(**settings: str | int | bool) -> Iterator[pg.Database]:
    """A server of the newest version with these settings, with the slot."""
    versions = sorted(pg.installations())
    if not versions:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    with Server(pg.installations()[versions[-1]], settings) as server:
        database = pg.Database(server)
        prepare(database, SLOT)
        yield database


@pytest.fixture
def own(servers: pg.Servers) -> Iterator[pg.Database]:
    with stoppable(servers, SLOT) as database:
        yield database


def _capture(database: pg.Database, directory: Path, **more: Any) -> Capture:
    limits = more.pop("limits", Limits(seconds=0.1))
    return Capture(database.dsn, SLOT, ["captured"], directory, limits=limits, **more)


def _until_captured(database: pg.Database, running: Running, capture: Capture) -> None:
    """Waits until segments have everything that committed until now. One segment may end within a transaction."""
    lsn = now(database)
    wait_until(lambda: running.failed or (capture.metrics.confirmed_lsn or 0) >= lsn)


def _is_told_to_end(pid: int) -> bool:
    """Whether SIGTERM waits for a process that stands still."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    waiting = re.findall(r"(?:SigPnd|ShdPnd):\s+([0-9a-f]+)", status)
    return any(int(each, 16) >> (signal.SIGTERM - 1) & 1 for each in waiting)


# ---- servers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("through", "oldest"),
    and_exhaustive(and_slow([("walsender", False)], [("sql", True)]), [("walsender", True), ("sql", False)]),
    ids=["walsender-newest", "sql-oldest", "walsender-oldest", "sql-newest"],
)
def test_a_server_that_crashes_under_load(
    servers: pg.Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture, through: Any, oldest: bool
) -> None:
    """The full form takes PGOUTPUT_FAST_CRASHES=30."""
    with stoppable(servers, SLOT, oldest=oldest) as own:
        _crash(own, tmp_path, caplog, through)


def _crash(own: pg.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, through: Any) -> None:
    crashes = int(os.environ.get("PGOUTPUT_FAST_CRASHES", "2"))
    capture = _capture(own, tmp_path, through=through)
    with Running(capture) as running:
        with Writers(own, tolerant=True):
            for k in range(crashes):
                # What came before the last crash may still be written behind it, so segments alone do not show that the
                # capture has connected again.
                wait_until(lambda: running.failed or capture.metrics.sessions > k)  # noqa: B023
                before = len(list(tmp_path.glob("*.parquet")))
                wait_until(lambda: running.failed or len(list(tmp_path.glob("*.parquet"))) > before + 1)  # noqa: B023
                own.server.crash()
                time.sleep(0.3)
                own.server.start()
        # A record that the crash cut off still says how long it was: no server reads past it before so much new WAL
        # is there.
        own.execute("INSERT INTO noted SELECT g, repeat('z', 1900) FROM generate_series(1, 20) g")
        lsn = now(own)
        wait_until(lambda: running.failed or (capture.metrics.confirmed_lsn or 0) >= lsn)
    assert running.failed is None
    expect_exactly_once(own, tmp_path)
    assert capture.metrics.sessions > crashes
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    warned = [
        each for each in warned if not each.startswith("max_slot_wal_keep_size: ")
    ]  # what the check at the start says
    assert len(warned) >= crashes
    assert all(
        re.match(
            r"the capture tries again in [\d.]+ s: \S|the capture lost its connection and connects again: \S|the server says: \S",
            each,
        )
        for each in warned
    )


@pytest.mark.parametrize("whole", and_slow([True], [False]), ids=["server", "walsender"])
def test_a_server_that_pauses_for_longer_than_its_timeout(tmp_path: Path, whole: bool) -> None:
    with _own(wal_sender_timeout="1s") as own, Running(_capture(own, tmp_path)) as running:
        with Writers(own):
            wait_until(lambda: running.failed or list(tmp_path.glob("*.parquet")))
            pids = [waiting_walsender(own, SLOT)]
            if whole:
                children = f"/proc/{own.server.pid}/task/{own.server.pid}/children"
                pids = [own.server.pid or 0, *map(int, Path(children).read_text().split())]
            for each in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGSTOP)
            time.sleep(2.5)
            for each in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGCONT)
        lsn = now(own)
        wait_until(
            lambda: running.failed or (getattr(find_slot(own.dsn, SLOT), "confirmed_flush_lsn", 0)) >= lsn
        )
        running.stop()
        assert running.failed is None
        expect_exactly_once(own, tmp_path)


def test_an_outage_has_its_own_time(
    own: pg.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that ran for longer than an outage may take, and loses its connection only then."""
    stop, failed, real, passed = threading.Event(), [], time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed[0])

    def run() -> None:
        try:
            _capture(own, tmp_path, receive_timeout=None).run(stop=stop, retry_seconds=300)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        # The slot is in use a moment before the capture takes its connection for a working one. A segment shows that it does.
        own.execute("INSERT INTO counted VALUES (1, 1)")
        wait_until(lambda: failed or list(tmp_path.glob("*.parquet")))
        before = len(list(tmp_path.glob("*.parquet")))
        passed[0] = 301.0
        own.execute(
            f"SELECT pg_terminate_backend({waiting_walsender(own, SLOT)})",
            "INSERT INTO counted VALUES (2, 1)",
        )
        wait_until(lambda: failed or len(list(tmp_path.glob("*.parquet"))) > before)
    finally:
        stop.set()
        thread.join(240)
    assert not failed
    expect_exactly_once(own, tmp_path)


# ---- slots ---------------------------------------------------------------------------------------------------------


def test_a_slot_that_is_dropped_underneath(own: pg.Database, tmp_path: Path) -> None:
    capture = _capture(own, tmp_path)
    with Running(capture) as running:
        own.execute("INSERT INTO counted VALUES (1, 1)")
        _until_captured(own, running, capture)

        def dropped() -> bool:
            own.execute(
                f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
            )
            with contextlib.suppress(psycopg2.errors.ObjectInUse):
                return drop_slot(own.dsn, SLOT)
            return False

        wait_until(dropped)
        running.join()
    assert isinstance(running.failed, CaptureError)
    assert re.search("slot faulty is gone, .* Create a new slot, load the tables again", str(running.failed))
    expect_exactly_once(own, tmp_path)


def test_a_slot_that_is_dropped_before_its_connection(
    own: pg.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the capture looked at it."""
    find_start = Preparation.find_start

    def find_and_drop(preparation: Preparation) -> Any:
        start = find_start(preparation)
        drop_slot(own.dsn, SLOT)
        return start

    _capture(own, tmp_path).run(until_lsn="now")
    monkeypatch.setattr(Preparation, "find_start", find_and_drop)
    with pytest.raises(CaptureError, match=r"slot faulty is gone, .* Create a new slot"):
        _capture(own, tmp_path).run(until_lsn="now")


def test_a_slot_that_is_invalidated_underneath(tmp_path: Path) -> None:
    if max(pg.installations(), default=0) < 13:
        pytest.skip("slots are invalidated since 13")
    with _own(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB") as own:
        capture = _capture(own, tmp_path)
        with Running(capture) as running:
            own.execute("INSERT INTO counted VALUES (1, 1)")
            _until_captured(own, running, capture)
            expect_exactly_once(own, tmp_path)
            pid = waiting_walsender(own, SLOT)
            os.kill(pid, signal.SIGSTOP)
            try:
                for _ in range(4):
                    own.execute("INSERT INTO noted VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = 'y'")
                    own.execute("SELECT pg_switch_wal()")
                # It ends the walsender and waits for that.
                checkpoint = threading.Thread(target=own.execute, args=("CHECKPOINT",))
                checkpoint.start()
                wait_until(lambda: _is_told_to_end(pid))
            finally:
                os.kill(pid, signal.SIGCONT)
            checkpoint.join(240)
            running.join()
        assert isinstance(running.failed, CaptureError)
        assert re.search(r"invalidated slot faulty \(.*\): .* are lost\. Drop the slot", str(running.failed))


# ---- transactions --------------------------------------------------------------------------------------------------


def test_a_rollback_before_the_reconnect(own: pg.Database, tmp_path: Path) -> None:
    """No abort is ever sent for what the first connection had streamed."""
    capture = _capture(own, tmp_path)
    with own.session() as connection:
        connection.autocommit = False
        with Running(capture) as running, connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO counted SELECT g, 1, repeat('x', 300) FROM generate_series(1, 3000) g"
            )
            own.execute("INSERT INTO counted VALUES (9000, 1)")
            # Its last rows are not sent: they are less than the memory of the server's decoding.
            wait_until(
                lambda: (
                    running.failed
                    or (capture.metrics.open_transactions == 1 and capture.metrics.messages > 2000)
                )
            )
        assert running.failed is None
        connection.rollback()
    own.execute("INSERT INTO counted VALUES (9001, 1)")
    capture.run(until_lsn=now(own))
    expect_exactly_once(own, tmp_path)
    kinds = [kind for each in list_segments(tmp_path) for kind in read_segment(each.path)["kind"].to_pylist()]
    assert kinds.count(ord("I")) > 1000
    assert kinds.count(ord("A")) == 0
    assert committed(tmp_path).table("public.counted").num_rows == 2


# Not what getrusage says: that begins with the memory of the process that forked this one.
_LARGE = """
import re, sys
from pathlib import Path
from pgoutput_fast.capture import Capture, Limits
dsn, slot, directory, lsn, through = sys.argv[1:]
Capture(dsn, slot, ["captured"], directory, through=through).run(until_lsn=int(lsn))
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_a_large_transaction(tmp_path: Path, through: str) -> None:
    """The full form takes PGOUTPUT_FAST_LARGE=10000000."""
    rows = int(os.environ.get("PGOUTPUT_FAST_LARGE", "200000"))
    with _own(logical_decoding_work_mem="64MB") as own:
        own.execute(f"INSERT INTO counted SELECT g, 1, repeat('x', 100) FROM generate_series(1, {rows}) g")
        run = subprocess.run(
            [sys.executable, "-c", _LARGE, own.dsn, SLOT, str(tmp_path), str(now(own)), through],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    seen = np.zeros(rows + 1, np.int64)
    for segment in list_segments(tmp_path):
        (batch,) = read_segment(segment.path).combine_chunks().to_batches()
        changes = pgo.decode_tagged(
            batch, segment.catalog, pgo.Options(columns={"public.counted": ["id"]})
        ).changes
        for each in changes:
            seen += np.bincount(each.batch.column("id").to_numpy(), minlength=rows + 1)
    assert seen[0] == 0
    assert (seen[1:] == 1).all()
    # The memory in use is the size of a few segments.
    print(f"{through}: {run.stdout.strip()} MB")
    assert int(run.stdout) < 1200


# ---- disks ---------------------------------------------------------------------------------------------------------

_UNTIL = """
import sys
from pgoutput_fast.capture import Capture, Limits
dsn, slot, directory, lsn = sys.argv[1:]
Capture(dsn, slot, ["captured"], directory, limits=Limits(rows=2000)).run(until_lsn=int(lsn))
"""
_ADVICE = "There is no space for another segment in .*. Nothing is lost"


def _fill(database: pg.Database) -> int:
    # What does not compress.
    database.execute(
        "INSERT INTO counted SELECT g, 1, (SELECT string_agg(md5(random()::text || g || h), '') FROM generate_series(1, 20) h) "
        "FROM generate_series(1, 8000) g"
    )
    return now(database)


def test_a_disk_that_is_full(own: pg.Database, tmp_path: Path) -> None:
    """A small file system that only the captures see, which is full, and then larger."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if not shutil.which("unshare") or subprocess.run([*unshare, *mount], capture_output=True).returncode:
        pytest.skip("nobody may mount here; see the test of files that must not grow")
    lsn = _fill(own)
    script = f"""
        set -e
        {" ".join(mount)}
        if "$@"; then echo "it fitted"; exit 1; fi
        ls -A {disk}
        mount -o remount,size=64m {disk}
        "$@"
        cp -r {disk} {copy}
    """
    command = [sys.executable, "-c", _UNTIL, own.dsn, SLOT, str(disk), str(lsn)]
    run = subprocess.run([*unshare, "sh", "-c", script, "sh", *command], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "No space left on device" in run.stderr
    assert re.search(_ADVICE, run.stderr)
    # Nothing half-written stays and takes the rest.
    assert all(
        re.fullmatch(r"\.lock|_acknowledged\.json|\d+-\d+\.parquet", name) for name in run.stdout.split()
    )
    expect_exactly_once(own, copy)


@pytest.mark.slow
def test_files_that_must_not_grow(own: pg.Database, tmp_path: Path) -> None:
    lsn = _fill(own)
    command = [sys.executable, "-c", _UNTIL, own.dsn, SLOT, str(tmp_path), str(lsn)]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
    run = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert run.returncode == 1
    assert "File too large" in run.stderr
    assert re.search(_ADVICE, run.stderr)
    subprocess.run(command, check=True)
    expect_exactly_once(own, tmp_path)


def test_a_directory_that_cannot_be_fsynced(
    own: pg.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment has its name, and nobody knows whether a crash would take it: it is not confirmed as it is."""
    end = _fill(own)
    fsync, failed, after = os.fsync, threading.Event(), threading.Event()

    def failing(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            if list(tmp_path.glob("*.parquet")) and not failed.is_set():
                failed.set()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if failed.is_set():
                after.set()
        fsync(descriptor)

    def confirmed() -> int:
        found = find_slot(own.dsn, SLOT)
        assert found is not None
        return found.confirmed_flush_lsn or 0

    monkeypatch.setattr(os, "fsync", failing)
    before = confirmed()
    with pytest.raises(OSError, match="Input/output"):
        _capture(own, tmp_path).run(until_lsn=end)
    assert failed.is_set()
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    assert confirmed() == before
    assert not after.is_set()
    _capture(own, tmp_path).run(until_lsn=end)
    assert after.is_set(), "it was made sure of before it was confirmed"
    wait_until(lambda: confirmed() >= end)
    expect_exactly_once(own, tmp_path)


def test_what_a_killed_capture_was_writing_goes(own: pg.Database, tmp_path: Path) -> None:
    own.execute("INSERT INTO counted VALUES (1, 1)")
    left = [f".{0:020}-{9:020}.parquet.{'ab' * 8}", f".{10:020}-{19:020}.parquet.{'01' * 8}"]
    other = [".hidden", f"{0:020}.parquet.x", f".{0:020}-{9:020}.parquet.{'xy' * 8}"]
    for name in [*left, *other]:
        (tmp_path / name).write_bytes(b"PAR1")
    _capture(own, tmp_path).run(until_lsn=now(own))
    assert not any((tmp_path / name).exists() for name in left)
    assert all((tmp_path / name).exists() for name in other)
    expect_exactly_once(own, tmp_path)


# ---- clocks --------------------------------------------------------------------------------------------------------


def test_clocks_that_jump(own: pg.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's wall clock goes back and forth by years. The age of segments, statuses and retries do not follow it."""
    began, real = time.monotonic(), time.time
    jumps = iter(range(10**9))

    def jumping() -> float:
        return real() + (-1) ** next(jumps) * 3e8

    monkeypatch.setattr(time, "time", jumping)
    capture = _capture(own, tmp_path, log_seconds=0.1)
    with Running(capture) as running:
        for k in range(3):
            own.execute(f"INSERT INTO counted VALUES ({k}, 1)")
            wait_until(lambda: running.failed or len(list(tmp_path.glob("*.parquet"))) > k)  # noqa: B023
        own.execute(
            f"SELECT pg_terminate_backend({waiting_walsender(own, SLOT)})",
            "INSERT INTO counted VALUES (9, 1)",
        )
        wait_until(lambda: running.failed or len(list(tmp_path.glob("*.parquet"))) > 3)
        _until_captured(own, running, capture)
        seen = capture.metrics
    assert running.failed is None
    assert seen.lag_seconds is not None
    assert 0 <= seen.lag_seconds <= time.monotonic() - began
    expect_exactly_once(own, tmp_path)
