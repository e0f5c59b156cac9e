"""Capture into segments, on every server, with real processes that are killed: every committed change exactly once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import format_lsn
from pgoutput_fast.capture import (
    Capture,
    CaptureError,
    Limits,
    Snapshot,
    check,
    create_slot,
    drop_slot,
    find_slot,
)
from pgoutput_fast.segments import list_segments
from support import pg
from support.capturing import (
    PROCESS,
    Writers,
    drop_when_free,
    expect_exactly_once,
    freed,
    kill_often,
    now,
    slot,
    streaming_dsn,
    wait_until,
)
from support.forms import and_slow

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]  # a fixture


def test_a_backlog_and_what_comes_later(database: pg.Database, slot: str, tmp_path: Path) -> None:
    database.execute("INSERT INTO counted SELECT g, 1 FROM generate_series(1, 2000) g")
    capture = Capture(database.dsn, slot, ["captured"], tmp_path, limits=Limits(rows=500))
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)
    newest = list_segments(tmp_path)[-1]
    assert newest.end_lsn is not None
    # A busy server may take a moment to read what the capture confirmed at its end.
    wait_until(lambda: (_confirmed(database, slot) or 0) >= (newest.end_lsn or 0))
    # Nothing new: no segment, and the slot lets go of what others write.
    database.execute(
        "CREATE TABLE unpublished AS SELECT 'x' AS x",
        "DROP TABLE unpublished",
    )
    lsn = now(database)
    capture.run(until_lsn=lsn)
    if database.version >= 15:  # before, a transaction of other tables comes as Begin and Commit
        assert list_segments(tmp_path)[-1] == newest
    wait_until(lambda: (_confirmed(database, slot) or 0) >= lsn)
    database.execute("UPDATE counted SET n = n + 1 WHERE id <= 700")
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


def test_a_directory_without_segments_is_told_once(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a first start, or all segments are lost."""
    found = find_slot(database.dsn, slot)
    assert found is not None
    with caplog.at_level("INFO", "pgoutput_fast.capture"):
        for _ in range(2):
            Capture(database.dsn, slot, ["captured"], tmp_path).run(until_lsn=now(database))
    told = [each for each in caplog.messages if "has no segments" in each]
    assert told == [
        f"{tmp_path} has no segments yet. The first one begins at {format_lsn(found.confirmed_flush_lsn or 0)}, the "
        f"position of slot {slot}: earlier commits are not captured"
    ]
    assert not [each for each in caplog.messages if "somebody has read" in each]


def _confirmed(database: pg.Database, slot: str) -> int | None:
    found = find_slot(database.dsn, slot)
    assert found is not None
    return found.confirmed_flush_lsn


def test_a_slot_that_somebody_else_reads(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused, unless it is adopted: the server cannot tell a capture's slot from one that nobody needs."""
    database.execute("INSERT INTO counted VALUES (1, 1)")
    Capture(database.dsn, slot, ["captured"], tmp_path / "one").run(until_lsn=now(database))
    if database.version < 14:
        pytest.skip("servers count what a slot has sent since 14")
    read = f"SELECT total_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = '{slot}'"
    wait_until(lambda: database.execute(read) == [(True,)])
    before = _confirmed(database, slot)
    with pytest.raises(CaptureError, match=r"another client has read from it.*another name.*--adopt"):
        Capture(database.dsn, slot, ["captured"], tmp_path / "two").run(until_lsn=now(database))
    assert _confirmed(database, slot) == before
    lsn = now(database)
    Capture(database.dsn, slot, ["captured"], tmp_path / "two", adopt=True).run(until_lsn=lsn)
    # From then on it is the slot of this capture.
    Capture(database.dsn, slot, ["captured"], tmp_path / "two").run(until_lsn=lsn)


def test_a_slot_that_sends_to_somebody_else(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """A capture that begins does not wait until that client makes a pause."""
    stop = threading.Event()
    first = Capture(database.dsn, slot, ["captured"], tmp_path / "one")
    thread = threading.Thread(target=first.run, kwargs={"stop": stop})
    thread.start()
    try:
        wait_until(lambda: (found := find_slot(database.dsn, slot)) is not None and found.active_pid)
        with pytest.raises(CaptureError, match="of the server sends its changes to another client"):
            Capture(database.dsn, slot, ["captured"], tmp_path / "two").run(until_lsn=now(database))
    finally:
        stop.set()
        thread.join()


@pytest.mark.newest_server
@pytest.mark.unsanitized
def test_inspect_reads_nothing_from_a_slot(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """So a capture may begin behind it, and the changes come again."""
    database.execute("INSERT INTO counted VALUES (1, 1)")
    before = _confirmed(database, slot)
    arguments = ["inspect", "--slot", slot, "--publication", "captured", "--dsn", database.dsn]
    done = subprocess.run(
        [sys.executable, "-m", "pgoutput_fast", *arguments], capture_output=True, check=True
    )
    assert b"Insert" in done.stdout
    assert _confirmed(database, slot) == before
    Capture(database.dsn, slot, ["captured"], tmp_path).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


def test_an_acknowledgement_that_never_arrived(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Segments that are ahead of the slot: what they have is not taken twice."""
    database.execute("INSERT INTO counted SELECT g, 1 FROM generate_series(1, 50) g")
    capture = Capture(database.dsn, slot, ["captured"], tmp_path)
    capture.run(until_lsn=now(database))
    drop_when_free(database.dsn, slot)
    create_slot(database.dsn, slot)
    # The other way round: a copy of the directory that a slot of an older position continues.
    older = f"{slot}_o"
    create_slot(database.dsn, older)
    try:
        other = tmp_path / "other"
        database.execute("UPDATE counted SET n = n + 1")
        lsn = now(database)
        Capture(database.dsn, slot, ["captured"], other).run(until_lsn=lsn)
        first = [segment.path.read_bytes() for segment in list_segments(other)]
        drop_when_free(database.dsn, slot)
        # As if the first capture had died before it could say what it had stored.
        database.execute(
            f"SELECT pg_drop_replication_slot('{older}')"
        ) if database.version < 12 else database.execute(
            f"SELECT pg_copy_logical_replication_slot('{older}', '{slot}')",
            f"SELECT pg_drop_replication_slot('{older}')",
        )
        if database.version >= 12:
            Capture(database.dsn, slot, ["captured"], other).run(until_lsn=lsn)
            assert [segment.path.read_bytes() for segment in list_segments(other)] == first
    finally:
        drop_when_free(database.dsn, older)


def test_two_captures_into_one_directory(database: pg.Database, slot: str, tmp_path: Path) -> None:
    stop = threading.Event()
    capture = Capture(database.dsn, slot, ["captured"], tmp_path)
    thread = threading.Thread(target=capture.run, kwargs={"stop": stop})
    thread.start()
    try:
        while not (tmp_path / ".lock").exists() or not (tmp_path / ".lock").read_text():
            time.sleep(0.02)
        with pytest.raises(CaptureError, match="another process captures into"):
            Capture(database.dsn, slot, ["captured"], tmp_path).run()
    finally:
        stop.set()
        thread.join()


def test_slots_that_are_gone_or_not_ours(database: pg.Database, slot: str, tmp_path: Path) -> None:
    database.execute("INSERT INTO counted VALUES (1, 1)")
    Capture(database.dsn, slot, ["captured"], tmp_path).run(until_lsn=now(database))
    with pytest.raises(CaptureError, match="segments of another source"):
        Capture(database.dsn, slot, ["captured", "other"], tmp_path).run()
    drop_when_free(database.dsn, slot)
    with pytest.raises(CaptureError, match=r"slot \w+ is gone, but .* has segments of it"):
        Capture(database.dsn, slot, ["captured"], tmp_path).run()


@pytest.mark.parametrize("through", and_slow(["walsender"], ["sql"]))
@pytest.mark.parametrize("how", ["made anew", "read by somebody"])
@pytest.mark.parametrize("first", ["a segment", "nothing yet"])
def test_slots_that_somebody_else_moved(
    database: pg.Database, slot: str, tmp_path: Path, through: Any, how: str, first: str
) -> None:
    """What committed meanwhile is in nobody's segments: that must be said, not passed over."""
    if database.version < 11:
        pytest.skip("such slots cannot be told apart on PostgreSQL 10")
    capture = Capture(database.dsn, slot, ["captured"], tmp_path, through=through)
    if first == "a segment":
        database.execute("INSERT INTO counted VALUES (1, 1)")
    capture.run(until_lsn=now(database))
    capture.run(until_lsn=now(database))  # which is nothing to be alarmed by
    if how == "made anew":
        drop_when_free(database.dsn, slot)
        database.execute("INSERT INTO counted VALUES (2, 1)")
        create_slot(database.dsn, slot)
    else:
        options = "'proto_version', '1', 'publication_names', 'captured'"
        freed(database.dsn, slot)
        database.execute(
            "INSERT INTO counted VALUES (2, 1)",
            f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, {options})",
        )
    with pytest.raises(
        CaptureError, match=r"somebody else read from the slot, or dropped it and created it again"
    ):
        capture.run(until_lsn=now(database))
    if first == "a segment":
        (tmp_path / "_acknowledged.json").write_text("{")
        with pytest.raises(CaptureError, match=r"_acknowledged.json is damaged: it has no position"):
            capture.run()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_what_was_prepared_may_be_streamed_again(
    database: pg.Database, slot: str, tmp_path: Path, end: str
) -> None:
    """Short of memory, a later session streams it a second time, and says no more of it than how it ended."""
    if database.version < 15:
        pytest.skip("prepared transactions are sent since 15")
    drop_slot(database.dsn, slot)
    create_slot(database.dsn, slot, two_phase=True)
    capture = Capture(streaming_dsn(database), slot, ["captured"], tmp_path)
    filler = "repeat('x', 300)"
    database.execute(
        "BEGIN",
        f"INSERT INTO counted SELECT g, 1, {filler} FROM generate_series(1, 400) g",
        f"PREPARE TRANSACTION '{slot}'",
    )
    capture.run(until_lsn=now(database))
    database.execute(f"INSERT INTO counted SELECT g, 1, {filler} FROM generate_series(1001, 1400) g")
    capture.run(until_lsn=now(database))
    database.execute(f"{end} PREPARED '{slot}'")
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)
    assert list_segments(tmp_path)[-1].state.open_txns == []


def test_modes_of_files(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """The umask decides, or fewer permissions that the caller chose. Temporary files have no others."""
    if database.version != max(pg.installations()):
        pytest.skip("tried on the newest server")
    database.execute("INSERT INTO counted VALUES (1, 1)")
    before = os.umask(0o022)
    try:
        Capture(database.dsn, slot, ["captured"], tmp_path / "a").run(until_lsn=now(database))
        database.execute("UPDATE counted SET n = 2")
        Capture(database.dsn, slot, ["captured"], tmp_path / "a", file_mode=0o640).run(
            until_lsn=now(database)
        )
        with Snapshot(database.dsn, ["captured"]) as snapshot:
            snapshot.load_to(tmp_path / "b" / "c")
        with Snapshot(database.dsn, ["captured"]) as snapshot:
            snapshot.load_to(tmp_path / "b" / "d", file_mode=0o600)
            with pytest.raises(ValueError, match="such as 0o640"):
                snapshot.load_to(tmp_path / "b" / "e", file_mode=640)
    finally:
        os.umask(before)

    def modes(*patterns: str) -> list[set[str]]:
        return [{oct(path.stat().st_mode & 0o777) for path in tmp_path.glob(each)} for each in patterns]

    first, second = sorted(path.name for path in (tmp_path / "a").glob("*.parquet"))
    assert modes("a", f"a/{first}", f"a/{second}") == [{"0o755"}, {"0o644"}, {"0o640"}]
    assert modes("b/c", "b/c/*", "b/c/*/*") == [{"0o755"}, {"0o755", "0o644"}, {"0o644"}]
    assert modes("b", "b/d", "b/d/p*", "b/d/*/*") == [{"0o755"}, {"0o700"}, {"0o700"}, {"0o600"}]


def test_a_connection_that_is_cut(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            Capture(streaming_dsn(database), slot, ["captured"], tmp_path, limits=Limits(seconds=0.2)).run(
                stop=stop
            )
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        cuts = n = 0
        deadline = time.monotonic() + 240
        while not failed and cuts < 3 and time.monotonic() < deadline:
            rows = f"SELECT g, 1, repeat('x', 500) FROM generate_series({n * 100}, {n * 100 + 99}) g"
            database.execute(f"INSERT INTO counted {rows}")
            n += 1
            if n % 8 == 0:
                active = f"FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
                ((cut,),) = database.execute(f"SELECT count(pg_terminate_backend(active_pid)) {active}")
                cuts += cut
            time.sleep(0.01)
        assert cuts == 3 or failed
        lsn = now(database)
        deadline = time.monotonic() + 240
        while not failed and time.monotonic() < deadline:
            found = find_slot(database.dsn, slot)
            if found is not None and (found.confirmed_flush_lsn or 0) >= lsn:
                break
            time.sleep(0.1)
    finally:
        stop.set()
        thread.join()
    assert not failed
    expect_exactly_once(database, tmp_path)


@pytest.mark.newest_server
@pytest.mark.parametrize("prepares", and_slow([False], [True]), ids=["plain", "prepared"])
def test_killed_at_random_moments(database: pg.Database, slot: str, tmp_path: Path, prepares: bool) -> None:
    """The full form takes PGOUTPUT_FAST_KILLS=50."""
    if prepares:
        if database.version < 15:
            pytest.skip("prepared transactions are sent since 15")
        drop_slot(database.dsn, slot)
        create_slot(database.dsn, slot, two_phase=True)
    kills = int(os.environ.get("PGOUTPUT_FAST_KILLS", "2"))
    arguments = [sys.executable, "-c", PROCESS, streaming_dsn(database), slot, str(tmp_path)]
    with Writers(database, prepares=prepares):
        kill_often(arguments, tmp_path, kills, random.Random(database.version))
    Capture(streaming_dsn(database), slot, ["captured"], tmp_path).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)
    assert len(list_segments(tmp_path)) > kills


@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_a_slot_is_made_only_if_it_can_be_used(database: pg.Database, tmp_path: Path, through: Any) -> None:
    """A slot that nobody reads fills the server's disk."""
    name = f"unmade_{through}"
    database.execute("CREATE PUBLICATION unmade")
    arguments: dict[str, Any] = {"through": through, "overrides": {"binry": "true"}}
    with pytest.raises(ValueError, match="pgoutput has no option 'binry'"):
        Capture(database.dsn, name, ["unmade"], tmp_path, **arguments).run(until_lsn="now")
    with pytest.raises(ValueError, match="pgoutput has no option 'binry'"):
        next(iter(pgo.follow(database.dsn, name, ["unmade"], overrides=arguments["overrides"])))
    assert find_slot(database.dsn, name) is None
    database.execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    try:
        message = f"slot {name} is a physical slot, perhaps that of a standby: choose another name"
        with pytest.raises(CaptureError, match=message):
            Capture(database.dsn, name, ["unmade"], tmp_path, through=through).run(until_lsn="now")
        with pytest.raises(CaptureError, match=message):
            next(iter(pgo.follow(database.dsn, name, ["unmade"])))
        found = [each for each in check(database.dsn, ["unmade"], slot=name).findings if name in each.subject]
        assert [(each.level, each.advice) for each in found] == [("error", "Choose another name")]
    finally:
        database.execute(f"SELECT pg_drop_replication_slot('{name}')", "DROP PUBLICATION unmade")


def test_a_capture_that_cannot_begin_leaves_no_directory(database: pg.Database, tmp_path: Path) -> None:
    """A directory that was there stays, and so does one with anything in it."""
    database.execute("CREATE PUBLICATION begun")
    name = f"{database.name}_begun"
    away = f"{database.dsn} port=1"
    for dsn, publication in ((away, "begun"), (database.dsn, "wrong")):
        with pytest.raises(Exception, match=r"\w"):
            Capture(dsn, name, [publication], tmp_path / "above" / "segments").run(
                until_lsn=1, retry_seconds=0
            )
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "above" / "segments").mkdir(parents=True)
    with pytest.raises(CaptureError, match="wrong"):
        Capture(database.dsn, name, ["wrong"], tmp_path / "above" / "segments").run(until_lsn=1)
    assert (tmp_path / "above" / "segments").exists()
    try:
        Capture(database.dsn, name, ["begun"], tmp_path / "good").run(until_lsn="now")
        assert (tmp_path / "good").exists()
    finally:
        drop_when_free(database.dsn, name)
        database.execute("DROP PUBLICATION begun")
