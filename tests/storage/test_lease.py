"""One process at a time writes into a directory or a store."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from pgoutput_fast.storage import lease as lease_module
from pgoutput_fast.storage.lease import Role, WriterLease, lock_file
from pgoutput_fast.storage.stores import Store, open_store
from support.buckets import Bucket, opened_bucket
from support.capturing import wait_until
from support.forms import and_slow


class BusyError(Exception):
    """Another process writes."""


ROLE = Role(
    "writes into", "stop it first", "run it again", BusyError, "_own/lock", "_own/writer.json", "_own/alive"
)
MARK = "_own/writer.json"
_HOLDER = """
import sys, time
from pgoutput_fast.storage import lease as lease_module
from pgoutput_fast.storage.lease import Role, WriterLease
from pgoutput_fast.storage.stores import open_store
place, seconds = sys.argv[1:]
role = Role("writes into", "stop it first", "run it again", OSError, "_own/lock", "_own/writer.json", "_own/alive")
with WriterLease(open_store(place), role, float(seconds)) as lease:
    print("acquired", flush=True)
    sys.stdin.readline()
    lease.check()
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with opened_bucket("leases") as found:
        yield found


@pytest.fixture
def uri(bucket: Bucket, request: pytest.FixtureRequest) -> str:
    return bucket.uri % request.node.name.replace("[", "-").replace("]", "")


@pytest.fixture(params=["directory", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "directory" else str(request.getfixturevalue("uri"))


@contextmanager
def _holder(place: str, seconds: float = 10_000.0) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lease, until it reads a line."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, place, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "acquired\n"
            yield process
        finally:
            process.kill()


def _names(store: Store) -> list[str]:
    return [entry.name for entry in store.entries("_own", recursive=True)]


# ---- directories and stores ------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(place: str) -> None:
    store = open_store(place)
    lease = WriterLease(store, ROLE)
    with lease:
        lease.check()
        with (
            pytest.raises(BusyError, match=r"process .*writes into .*: stop it first$") as caught,
            WriterLease(store, ROLE),
        ):
            pass
        assert "secret" not in str(caught.value)
        lease.check()
    with WriterLease(store, ROLE) as following:  # without a wait
        following.check()
    assert _names(store) == (["_own/lock"] if store.local else [])


def test_another_process_is_killed(place: str) -> None:
    """It ran on this machine, so nobody waits for it."""
    with _holder(place) as holder:
        with pytest.raises(BusyError, match="stop it first"), WriterLease(open_store(place), ROLE):
            pass
        holder.kill()
        holder.wait()
        before = time.monotonic()
        with WriterLease(open_store(place), ROLE, 10_000.0) as lease:
            lease.check()
        assert time.monotonic() - before < 120


@pytest.mark.parametrize("writers", and_slow([3], [2, 5]))
def test_writers_that_begin_at_the_same_time(place: str, writers: int) -> None:
    """At most one writes at any time. In each round, somebody succeeds."""
    writing, most, done = 0, 0, 0
    lock, dice = threading.Lock(), random.Random(writers)

    def write(seconds: float) -> None:
        nonlocal writing, most, done
        time.sleep(seconds)
        with suppress(BusyError), WriterLease(open_store(place), ROLE, 12.0) as lease:
            with lock:
                writing, done = writing + 1, done + 1
                most = max(most, writing)
            lease.check()
            time.sleep(0.3)
            lease.check()
            with lock:
                writing -= 1

    for number in range(1, 4):
        delays = [dice.random() * 0.05 * (number - 1) for _ in range(writers)]
        threads = [threading.Thread(target=write, args=(each,)) for each in delays]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert done >= number
    assert most == 1
    assert writing == 0


# ---- directories -----------------------------------------------------------------------------------------------------


def test_a_lock_file_that_its_holder_removed(tmp_path: Path) -> None:
    """A process that could not begin removes its directory. Whoever opened the lock file before has no lock."""
    path = tmp_path / "lock"
    first = lock_file(path)
    assert first is not None
    found: list[IO[str] | None] = []
    waiting = threading.Thread(target=lambda: found.append(lock_file(path, 60.0)))
    waiting.start()
    time.sleep(0.2)
    path.unlink()
    first.close()
    waiting.join()
    assert found[0] is not None
    with found[0]:
        assert path.exists()
        assert lock_file(path) is None


def test_a_wait_for_the_writer(place: str) -> None:
    with _holder(place, 1.0) as process:
        with pytest.raises(BusyError), WriterLease(open_store(place), ROLE, wait_seconds=0.3):
            pytest.fail("two writers")
        assert process.stdin is not None
        timer = threading.Timer(0.5, process.stdin.close)
        timer.start()
        try:
            with WriterLease(open_store(place), ROLE, wait_seconds=60) as lease:
                lease.check()
        finally:
            timer.join()


def test_writers_that_wait_for_each_other(place: str) -> None:
    """None of them gives up, and one at a time writes."""
    writing, seen = threading.Lock(), list[bool]()

    def write() -> None:
        with WriterLease(open_store(place), ROLE, 1.0, wait_seconds=60) as lease:
            seen.append(writing.acquire(blocking=False))
            time.sleep(0.1)
            lease.check()
            writing.release()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4


def test_a_wait_for_the_lock(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = WriterLease(store, ROLE), WriterLease(store, ROLE)
    assert not first.is_locked()
    first.acquire()
    assert second.is_locked()
    timer = threading.Timer(0.3, first.release)
    timer.start()
    second.acquire(wait_seconds=60.0)
    timer.join()
    with pytest.raises(BusyError, match="another process writes into"):
        first.acquire(wait_seconds=0.1)
    assert (tmp_path / "_own/lock").read_text().startswith(f"{os.getpid()} since ")
    second.release()
    assert not (tmp_path / "_own/lock").read_text()


# ---- stores ----------------------------------------------------------------------------------------------------------


def test_without_a_heartbeat_the_next_process_takes_it(uri: str) -> None:
    """The process is suspended. When it goes on, it may not write any more."""
    with _holder(uri, 2.0) as holder:
        holder.send_signal(signal.SIGSTOP)
        with WriterLease(open_store(uri), ROLE, 2.0) as lease:
            lease.check()
            holder.send_signal(signal.SIGCONT)
            time.sleep(1)
            lease.check()
            _, said = holder.communicate("go on\n")
            assert f"process {os.getpid()} on " in said
            assert "now, because this process wrote no heartbeat for 2 seconds. This process ends" in said
            lease.check()


def test_a_suspended_process_does_not_hinder_others(uri: str) -> None:
    """Its heartbeat goes on, but another process has the lease."""
    store = open_store(uri)
    with _holder(uri, 2.0) as holder:
        holder.send_signal(signal.SIGSTOP)
        with WriterLease(store, ROLE, 2.0):
            holder.send_signal(signal.SIGCONT)
            wait_until(lambda: len(store.names("_own/alive")) == 2)
        for _ in range(3):
            with WriterLease(store, ROLE, 2.0):
                pass


def test_who_asks_and_was_killed(uri: str) -> None:
    """On this machine it counts as dead at once, on another one without a heartbeat."""
    store = open_store(uri)
    dead = {"token": "0" * 32, "host": "h", "pid": 2**22, "since": "now", "asks": True, "count": 1}
    lease = WriterLease(store, ROLE, 2.0)
    with lease:
        mark = json.loads(store.read(MARK))
    for machine, least in ((mark["machine"], 0.0), ("another", 1.9)):
        store.put(f"_own/alive/{'0' * 32}", json.dumps({**dead, "machine": machine}).encode())
        before = time.monotonic()
        with WriterLease(store, ROLE, 2.0):
            assert store.names("_own/alive") != [f"_own/alive/{'0' * 32}"]
        assert time.monotonic() - before >= least
        assert _names(store) == []


@contextmanager
def _beating(
    store: Store, token: str, content: Callable[[int], bytes], seconds: float = math.inf
) -> Iterator[None]:
    """Another process lives for so long: whoever looks for its heartbeat finds a new one, however late a thread is."""
    entries, count, until = store.entries, itertools.count(1), time.monotonic() + seconds

    def listed(*arguments: Any, **more: Any) -> Any:
        if time.monotonic() < until:
            store.put(f"_own/alive/{token}", content(next(count)))
        else:
            store.remove(f"_own/alive/{token}")
        return entries(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "entries", listed)
        yield


def test_who_asks_and_lives(uri: str) -> None:
    """The lesser token goes first."""
    store = open_store(uri)
    other = {"host": "h", "pid": 7, "machine": "another", "since": "now", "asks": True}

    def asks(token: str) -> Callable[[int], bytes]:
        return lambda count: json.dumps({**other, "token": token, "count": count}).encode()

    with (
        _beating(store, "0" * 32, asks("0" * 32)),
        pytest.raises(BusyError, match=r"process 7 on h \(since now\) writes into"),
        WriterLease(store, ROLE, 2.0),
    ):
        pass
    store.remove(f"_own/alive/{'0' * 32}")
    begun = time.monotonic()
    with _beating(store, "g" * 32, asks("g" * 32), 3.0), WriterLease(store, ROLE, 2.0):
        assert time.monotonic() - begun >= 3.0


def test_a_heartbeat_that_a_store_takes_long_for(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it so long. Its file goes."""
    monkeypatch.setattr(lease_module, "_BEAT_SECONDS", 0.05)
    store, late, ended = open_store(uri), list[threading.Thread](), threading.Event()
    put = store.put

    def slow(name: str, content: bytes) -> None:
        if threading.current_thread().name == "heartbeat":
            late.append(threading.current_thread())
            ended.wait(120)
        put(name, content)

    monkeypatch.setattr(store, "put", slow)
    with WriterLease(store, ROLE):
        wait_until(lambda: late)
    ended.set()
    late[0].join(120)
    assert not late[0].is_alive()
    assert _names(store) == []


def test_a_takeover(uri: str) -> None:
    """A proof beside the store says that the other one may not write. Neither waits, and the mark stays."""
    store = open_store(uri)
    first, second = WriterLease(store, ROLE), WriterLease(store, ROLE)
    first.acquire(takeover=True)
    first.check()
    second.acquire(takeover=True)
    second.check()
    with pytest.raises(
        BusyError, match=rf"process {os.getpid()} on .* \(since .*\) writes into .* now\. This process ends"
    ):
        first.check()
    first.acquire(takeover=True)
    first.check()
    first.release()
    assert _names(store) == [MARK]


def test_a_mark_that_somebody_changed(uri: str) -> None:
    store = open_store(uri)
    with WriterLease(store, ROLE, 2.0) as lease:
        store.remove(MARK)
        with pytest.raises(BusyError, match=r"somebody removed .*writer\.json.*run it again"):
            lease.check()
        store.put(MARK, b"[" * 100_000)
        with pytest.raises(BusyError, match=r"writer\.json is damaged: run it again"):
            lease.check()
    store.put(MARK, json.dumps({"token": 1}).encode())
    with (
        pytest.raises(
            ValueError, match=r"writer\.json is damaged: remove it, if no other process writes into"
        ),
        WriterLease(store, ROLE, 2.0),
    ):
        pass
    assert _names(store) == [MARK]


# ---- processes of earlier versions -----------------------------------------------------------------------------------


def test_a_mirror_of_an_earlier_version(uri: str) -> None:
    """Its heartbeat is a number. It is respected while it lives, and after it the lease is free."""
    store = open_store(uri)
    token = "7" * 32
    mark = {"token": token, "host": "h", "pid": 7, "machine": "another", "since": "now"}
    store.put(MARK, json.dumps(mark).encode())
    with (
        _beating(store, token, lambda count: b"%d" % count),
        pytest.raises(BusyError, match=r"process 7 on h \(since now\) writes into .*: stop it first"),
        WriterLease(store, ROLE, 10.0),
    ):
        pass
    with WriterLease(store, ROLE, 2.0) as lease:
        assert token not in "".join(_names(store))
        # Such a mirror finds these names in the mark, and waits for another content of the heartbeat.
        found = json.loads(store.read(MARK))
        assert {"token", "host", "pid", "machine", "since"} <= found.keys()
        first = store.read(f"_own/alive/{found['token']}")
        wait_until(lambda: store.read(f"_own/alive/{found['token']}") != first)
        store.put(MARK, json.dumps(mark).encode())
        with pytest.raises(BusyError, match="process 7 on h"):
            lease.check()
    # It was killed, and has left its heartbeat: nobody asks.
    store.remove(MARK)
    store.put("_own/alive/left", b"3")
    with WriterLease(store, ROLE, 10_000.0):
        pass


def test_a_compact_of_an_earlier_version(uri: str) -> None:
    """It has no heartbeat: it counts as alive for an hour."""
    store = open_store(uri)
    mark = {"token": "another", "host": "elsewhere", "pid": 7, "at": time.time() - 3500}
    store.put(MARK, json.dumps(mark).encode())
    with (
        pytest.raises(BusyError, match=r"process 7 on elsewhere .*If it was killed, remove .*writer\.json"),
        WriterLease(store, ROLE),
    ):
        pass
    store.put(MARK, json.dumps({**mark, "at": time.time() - 3700}).encode())
    with WriterLease(store, ROLE):
        found = json.loads(store.read(MARK))
        assert time.time() - found["at"] < 600  # it finds the time there
