"""Publications that are missing, go, come again or change: no change is passed over without a word."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import Capture, CaptureError, Limits, create_slot, drop_slot, find_slot
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.postgres.plugin import plugin_options
from pgoutput_fast.postgres.walsender import Walsender
from pgoutput_fast.segments import Segment, list_segments, read_segment
from support import pg
from support.capturing import Running, drop_when_free, expect_exactly_once, now, slot, wait_until

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]  # a fixture

through_both = pytest.mark.parametrize("through", ["walsender", "sql"])
_MADE = "CREATE PUBLICATION captured FOR TABLE counted, noted"


# What follows from the capture alone need not be tried with every server.
_FEW = (10, 15, 18)


def _few(database: pg.Database) -> None:
    if database.version not in _FEW:
        pytest.skip(f"tried on {', '.join(map(str, _FEW))}")


def _stands(database: pg.Database, slot: str) -> int:
    found = find_slot(database.dsn, slot)
    assert found is not None
    assert found.confirmed_flush_lsn is not None
    return found.confirmed_flush_lsn


def _kinds(segment: Segment) -> list[int]:
    return read_segment(segment.path)["kind"].to_pylist()


def _capture(database: pg.Database, slot: str, directory: Path, **more: Any) -> Capture:
    return Capture(database.dsn, slot, ["captured"], directory, limits=Limits(seconds=0.2), **more)


@through_both
def test_one_that_is_missing(database: pg.Database, slot: str, tmp_path: Path, through: Any) -> None:
    """Nothing is confirmed, and no slot is made that would be older than its publication."""
    database.execute("INSERT INTO counted VALUES (1, 1)")
    before = _stands(database, slot)
    began = time.monotonic()
    capture = Capture(database.dsn, slot, ["captured", 'No "such"'], tmp_path, through=through)
    with pytest.raises(
        CaptureError, match=r'publication No "such": it does not exist\. .* PUBLICATION "No ""such"""'
    ):
        capture.run(until_lsn=now(database))
    assert _stands(database, slot) == before
    with pytest.raises(CaptureError, match="publication nope: it does not exist"):
        Capture(database.dsn, f"{slot}_new", ["nope"], tmp_path / "new", through=through).run()
    assert find_slot(database.dsn, f"{slot}_new") is None
    assert time.monotonic() - began < 240  # it is not tried again for five minutes
    # Nothing was begun by that.
    _capture(database, slot, tmp_path, through=through).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


@pytest.mark.unsanitized
def test_the_command_says_which_is_missing(database: pg.Database, slot: str, tmp_path: Path) -> None:
    database.execute("INSERT INTO counted VALUES (1, 1)")
    before = _stands(database, slot)
    _few(database)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pgoutput_fast", "capture", "--dsn", database.dsn, "--slot", slot),
            *("--publication", "nope", "--path", str(tmp_path), "--until", "now"),
        ],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "pgoutput-fast: the capture cannot begin: publication nope: it does not exist" in run.stderr
    assert _stands(database, slot) == before


@through_both
def test_a_slot_that_is_older_than_its_publication(
    database: pg.Database, slot: str, tmp_path: Path, through: Any
) -> None:
    """It cannot give what was changed before; 18 would pass that over."""
    database.execute("DROP PUBLICATION captured")
    drop_slot(database.dsn, slot)
    create_slot(database.dsn, slot)
    database.execute("INSERT INTO counted VALUES (1, 1)", _MADE, "INSERT INTO counted VALUES (2, 1)")
    before = _stands(database, slot)
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(
            CaptureError, match=r"captured.* The slot is older than the publication.* a new slot"
        ):
            _capture(database, slot, tmp_path, through=through).run(until_lsn=now(database))
        assert _stands(database, slot) == before
    assert time.monotonic() - began < 240  # it is not tried again for five minutes
    # Before its error an old server sends the Begin, which may be in a segment by then.
    assert {kind for each in list_segments(tmp_path) for kind in _kinds(each)} <= {0, ord("B")}
    # With nothing in between, nothing is lacking.
    drop_when_free(database.dsn, slot)
    database.execute("DROP PUBLICATION captured", "TRUNCATE counted")
    create_slot(database.dsn, slot)
    database.execute(_MADE, "INSERT INTO counted VALUES (3, 1)")
    _capture(database, slot, tmp_path / "new", through=through).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path / "new")


@pytest.mark.newest_server
@through_both
@pytest.mark.parametrize("runs", [True, False], ids=["meanwhile", "between two runs"])
def test_one_that_was_not_there_for_some_changes(
    database: pg.Database, slot: str, tmp_path: Path, through: Any, runs: bool
) -> None:
    capture = _capture(database, slot, tmp_path, through=through)
    database.execute("INSERT INTO counted VALUES (1, 1)")
    capture.run(until_lsn=now(database))
    statements = (
        "DROP PUBLICATION captured",
        "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn",
        "INSERT INTO counted VALUES (2, 1)",
        _MADE,
        "INSERT INTO counted VALUES (3, 1)",
    )
    if runs:
        with Running(capture) as running:
            database.execute("UPDATE counted SET n = n + 1")
            lsn = now(database)
            wait_until(lambda: running.failed or _stands(database, slot) >= lsn)
            database.execute(statements[0])
            ((gone,),) = database.execute(statements[1])
            database.execute(*statements[2:])
            running.join()
        assert isinstance(running.failed, CaptureError), running.failed
        assert re.search(r"publication.*captured", str(running.failed))
        assert re.search(r"confirmed slot \w+ up to [0-9A-F]+/[0-9A-F]+ and no further", str(running.failed))
    else:
        database.execute(statements[0])
        ((gone,),) = database.execute(statements[1])
        database.execute(*statements[2:])
    for _ in range(2):
        with pytest.raises(
            CaptureError, match=r"or somebody dropped the publication.* create the publication first"
        ):
            capture.run(until_lsn=now(database))
        assert _stands(database, slot) < gone
    # What was there before is there.
    database.execute("DELETE FROM counted WHERE id > 1")
    expect_exactly_once(database, tmp_path)


@pytest.mark.newest_server
@through_both
def test_one_that_is_made_again_without_a_change_in_between(
    database: pg.Database, slot: str, tmp_path: Path, through: Any
) -> None:
    """It ends, for nobody can tell yet; and the next run, which the server tells, goes on."""
    _few(database)
    capture = _capture(database, slot, tmp_path, through=through)
    with Running(capture) as running:
        database.execute("INSERT INTO counted VALUES (1, 1)")
        lsn = now(database)
        wait_until(lambda: running.failed or _stands(database, slot) >= lsn)
        database.execute("BEGIN; DROP PUBLICATION captured; " + _MADE + "; COMMIT")
        running.join()
    assert isinstance(running.failed, CaptureError)
    assert re.search(
        r"dropped publication captured and created it again \(its oid was \d+ and is \d+\)",
        str(running.failed),
    )
    database.execute("INSERT INTO counted VALUES (2, 1)")
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


@pytest.mark.newest_server
@through_both
def test_one_that_goes_while_nothing_else_happens(
    database: pg.Database, slot: str, tmp_path: Path, through: Any
) -> None:
    with Running(_capture(database, slot, tmp_path, through=through)) as running:
        database.execute("INSERT INTO counted VALUES (1, 1)")
        lsn = now(database)
        wait_until(lambda: running.failed or _stands(database, slot) >= lsn)
        database.execute("DROP PUBLICATION captured")
        ((gone,),) = database.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        running.join()
    assert isinstance(running.failed, CaptureError)
    assert re.search(
        r"publication captured does not exist \(it had oid \d+\).*\(CREATE PUBLICATION captured",
        str(running.failed),
    )
    assert _stands(database, slot) < gone
    database.execute(_MADE, "INSERT INTO counted VALUES (2, 1)")
    _capture(database, slot, tmp_path, through=through).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


def test_what_is_heard_at_the_end_leaves_no_connection(database: pg.Database, slot: str) -> None:
    """From 18 on the server warns; who hears it may raise also while the stream is ended."""
    if database.version < 18:
        pytest.skip("before 18 that is an error of the server")

    def on_warning(code: str, text: str) -> None:
        raise CaptureError(text)

    database.execute("DROP PUBLICATION captured", "INSERT INTO counted VALUES (1, 1)")
    options = plugin_options(database.version * 10_000, ["captured"])
    sent = (
        "SELECT coalesce(max(sent_lsn - '0/0'::pg_lsn), 0) FROM pg_stat_replication JOIN pg_replication_slots "
        f"ON active_pid = pid WHERE slot_name = '{slot}'"
    )
    lsn = now(database)
    with (
        pytest.raises(CaptureError, match="skipped"),
        Walsender(database.dsn, slot, options, on_warning=on_warning) as sender,
    ):
        wait_until(lambda: database.execute(sent)[0][0] >= lsn)
    assert sender._connection.closed
    drop_when_free(database.dsn, slot)


@pytest.mark.newest_server
@through_both
def test_one_that_is_altered(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, through: Any
) -> None:
    """That is allowed, and said."""
    _few(database)
    with Running(_capture(database, slot, tmp_path, through=through)) as running:
        database.execute("INSERT INTO counted VALUES (1, 1)")
        wait_until(lambda: running.failed or list_segments(tmp_path))
        for k, (statement, said) in enumerate(
            (
                ("ALTER PUBLICATION captured DROP TABLE noted", "no longer published: public.noted"),
                ("ALTER PUBLICATION captured ADD TABLE noted", "now also published: public.noted"),
                ("ALTER PUBLICATION captured SET (publish = 'insert')", "pubdelete was True and is False"),
            ),
            2,
        ):
            database.execute(statement, f"INSERT INTO counted VALUES ({k}, 1)")
            wait_until(lambda: running.failed or said in caplog.text)  # noqa: B023
        lsn = now(database)
        wait_until(lambda: running.failed or _stands(database, slot) >= lsn)
        assert running.failed is None
    expect_exactly_once(database, tmp_path)
    said = [each.getMessage() for each in caplog.records if "altered publication" in each.getMessage()]
    assert len(said) == 3
    assert said[0].startswith("somebody altered publication captured: ")


def test_what_a_check_finds_is_said_once(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table without a key is in the way of its writers, not of the capture: a note of the first start."""
    caplog.set_level(logging.INFO)
    _few(database)
    database.execute(
        "CREATE TABLE keyless (id int)",
        "ALTER PUBLICATION captured ADD TABLE keyless",
        "INSERT INTO keyless VALUES (1)",
    )
    try:
        with Running(_capture(database, slot, tmp_path)) as running:
            # One segment may end within a transaction.
            lsn = now(database)
            wait_until(lambda: running.failed or _stands(database, slot) >= lsn)
            before = len(list_segments(tmp_path))
            database.execute(
                f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'",
                "INSERT INTO counted VALUES (1, 1)",
            )
            wait_until(lambda: running.failed or len(list_segments(tmp_path)) > before)
        assert running.failed is None
        _capture(database, slot, tmp_path).run(until_lsn=now(database))
        said = [each for each in caplog.records if each.getMessage().startswith("public.keyless: ")]
        assert [each.levelno for each in said] == [logging.INFO]
    finally:
        database.execute("DROP TABLE keyless")


@pytest.mark.newest_server
@through_both
def test_a_server_that_cannot_be_asked_is_acknowledged_nothing(
    database: pg.Database, slot: str, tmp_path: Path, through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session that looks is ended as often as it comes: the capture waits. Once it may look, it goes on."""
    _few(database)
    database.execute("INSERT INTO counted VALUES (1, 1)")
    before = _stands(database, slot)
    ended = threading.Event()
    cuts: list[int] = []
    check = Watch.check

    def cut(self: Watch, meanwhile: Any = lambda: None) -> None:
        if self._known and not ended.is_set():
            cuts.append(self._connection.info.backend_pid)
            database.execute(f"SELECT pg_terminate_backend({cuts[-1]})")
        check(self, meanwhile)

    monkeypatch.setattr(Watch, "check", cut)
    capture = _capture(database, slot, tmp_path, through=through)
    with Running(capture) as running:
        wait_until(lambda: running.failed or (list_segments(tmp_path) and len(cuts) > 2))
        assert running.failed is None
        assert _stands(database, slot) == before
        ended.set()
        lsn = now(database)
        wait_until(lambda: running.failed or _stands(database, slot) >= lsn)
    assert running.failed is None
    expect_exactly_once(database, tmp_path)


@pytest.mark.unsanitized
def test_a_query_that_captures_by_itself_says_so(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Its capture is a process of its own, and what that ends with is the query's error."""
    pytest.importorskip("pyspark")
    from pgoutput_fast.spark.source.stream_capture import OwnCapture

    _few(database)
    database.execute("INSERT INTO counted VALUES (1, 1)")
    before = _stands(database, slot)
    given = {"dsn": database.dsn, "slot": slot, "publication": "nope", "path": str(tmp_path)}
    with pytest.raises(CaptureError, match=r"ended with an error: .* publication nope: it does not exist"):
        OwnCapture(given).catch_up()
    assert _stands(database, slot) == before
