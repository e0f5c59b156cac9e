"""One mirror at a time writes into a target in a store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pgoutput_fast.mirror import MirrorBusyError
from pgoutput_fast.mirror.service.lease import Lease
from pgoutput_fast.storage.stores import Store, open_store
from support.buckets import Bucket, opened_bucket

_HOLDER = """
import sys, time
from pgoutput_fast.mirror.service.lease import Lease
from pgoutput_fast.storage.stores import open_store
Lease(open_store(sys.argv[1]), 2.0).claim()
print("claimed", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with opened_bucket("leases") as found:
        yield found


@pytest.fixture
def store(bucket: Bucket, request: pytest.FixtureRequest) -> Store:
    return open_store(bucket.uri % request.node.name)


def test_a_lease_and_its_end(store: Store) -> None:
    # It gives a sign of life every five seconds.
    lease = Lease(store, 10_000.0)
    lease.claim()
    lease.check()
    assert sorted(store.names("_mirror")) == ["_mirror/writer.json"]
    with pytest.raises(MirrorBusyError, match=rf"process {os.getpid()} on .* mirrors into .*: stop it first"):
        Lease(store, 10_000.0).claim()
    lease.check()
    lease.end()
    assert store.entries("_mirror", recursive=True) == []
    following = Lease(store, 10_000.0)
    following.claim()  # nobody waits
    with pytest.raises(MirrorBusyError, match="mirrors into"):
        lease.check()
    following.end()


def test_without_a_sign_of_life_the_next_one_takes_it(bucket: Bucket, store: Store) -> None:
    """The process stands still. When it goes on, it may not write any more."""
    uri = bucket.uri % "test_without_a_sign_of_life_the_next_one_takes_it"
    with subprocess.Popen([sys.executable, "-c", _HOLDER, uri], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        holder.send_signal(signal.SIGSTOP)
        lease = Lease(store, 2.0)
        lease.claim()
        lease.check()
        holder.send_signal(signal.SIGCONT)
        time.sleep(1)
        lease.check()
        lease.end()
        holder.kill()


def test_a_process_of_this_machine_that_was_killed(bucket: Bucket, store: Store) -> None:
    """Nobody waits for it."""
    uri = bucket.uri % "test_a_process_of_this_machine_that_was_killed"
    with subprocess.Popen([sys.executable, "-c", _HOLDER, uri], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        holder.kill()
    lease = Lease(store, 10_000.0)
    lease.claim()
    lease.end()


def test_files_that_somebody_changed(store: Store) -> None:
    lease = Lease(store, 2.0)
    lease.claim()
    store.remove("_mirror/writer.json")
    with pytest.raises(MirrorBusyError, match=r"somebody removed .*writer\.json.*run the mirror again"):
        lease.check()
    lease.end()
    store.put("_mirror/writer.json", json.dumps({"token": 1}).encode())
    with pytest.raises(ValueError, match=r"writer\.json is damaged: remove it, if no other process"):
        Lease(store, 2.0).claim()
