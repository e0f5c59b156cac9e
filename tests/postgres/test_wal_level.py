"""What a server must write into its WAL: from PostgreSQL 19 on, `wal_level = replica` is sufficient."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import psycopg2
import pytest

import pgoutput_fast as pgo
from mirror.test_failover import Pair
from pgoutput_fast.capture import Capture, CaptureError, check, create_slot, drop_slot
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import MirrorError
from pgoutput_fast.protocol.lsn import format_lsn
from support import pg
from support.capturing import drop_when_free, now, wait_until
from support.forms import and_slow
from support.mirrors import Following, expect_equal, opened

FIRST = 19
MINIMAL = {"wal_level": "minimal", "max_wal_senders": 0, "max_replication_slots": 1}

_LOST = "SELECT invalidation_reason FROM pg_replication_slots WHERE slot_name = 'own'"


def _newest() -> Any:
    if max(pg.installations(), default=0) < FIRST:
        pytest.skip("no PostgreSQL that decodes with wal_level = replica")
    return pg.installations()[max(pg.installations())]


def _problems(dsn: str) -> dict[str, str]:
    return {each.subject: each.advice for each in check(dsn, []).findings if "wal_level" in each.subject}


def _create_on_standby(pair: Pair) -> None:
    """The standby waits for a record of the primary, about the transactions that run there."""
    thread = threading.Thread(target=create_slot, args=(pair.standby.dsn, "own"))
    thread.start()
    while thread.is_alive():
        pair.execute(pair.primary, "SELECT pg_log_standby_snapshot()")
        thread.join(0.2)


@pytest.mark.unsanitized
def test_replica_is_sufficient(tmp_path: Path) -> None:
    """A mirror makes the first slot; then there is follow, and a capture of its own."""
    with Server(_newest(), {"wal_level": "replica"}) as server, opened(server, tmp_path) as place:
        dsn, slot = place.database.dsn, f"{place.slot}_2"
        place.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            "CREATE PUBLICATION mirrored FOR TABLE t",
        )
        assert "wal_level" not in _problems(dsn)
        place.run()
        place.database.execute("INSERT INTO t VALUES (2)")
        place.run()
        expect_equal(place, "public.t")
        create_slot(dsn, slot)
        place.database.execute("INSERT INTO t VALUES (3)")
        Capture(dsn, slot, ["mirrored"], tmp_path / "segments").run(until_lsn="now")
        # The server may need a moment to notice that the capture has ended.
        wait_until(lambda: not place.database.execute("SELECT pid FROM pg_stat_replication"))
        place.database.execute("INSERT INTO t VALUES (4)")
        for decoded, acknowledge in pgo.follow(dsn, slot, ["mirrored"]):
            assert decoded.table("public.t")["id"].to_pylist() == [4]
            acknowledge()
            break
        drop_when_free(dsn, slot)


@pytest.mark.parametrize("version", and_slow([19], [18]))
def test_what_is_too_little_is_refused(version: int, tmp_path: Path) -> None:
    if version not in pg.installations():
        pytest.skip(f"no PostgreSQL {version}")
    settings = MINIMAL if version >= FIRST else {"wal_level": "replica"}
    with Server(pg.installations()[version], settings) as server, opened(server, tmp_path) as place:
        place.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE t"
        )
        enough = "replica or logical" if version >= FIRST else "logical"
        advice = _problems(place.database.dsn)["wal_level"]
        assert advice == f"Set wal_level = {enough} and restart the server"
        with place.mirror() as mirror, pytest.raises(MirrorError, match="wal_level: it is"):
            mirror.run(until_lsn="now")
        with pytest.raises(CaptureError, match="wal_level: it is"):
            Capture(place.database.dsn, "s", ["mirrored"], tmp_path / "segments").run(until_lsn="now")


@pytest.mark.slow
@pytest.mark.unsanitized
@pytest.mark.parametrize("room", [1, 0])
def test_slots_that_are_made_again_keep_decoding_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """A repair was interrupted, and its slot goes: a copy takes its place meanwhile, if it can.

    A first load that was interrupted keeps its slot, and waits for room for another one.
    """
    caplog.set_level(logging.WARNING, "pgoutput_fast")
    settings = {"wal_level": "replica", "max_replication_slots": 2 + room}
    with Server(_newest(), settings) as server, opened(server, tmp_path) as place:
        place.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            "CREATE PUBLICATION mirrored FOR TABLE t, u",
            "SELECT pg_create_physical_replication_slot('standby')",
        )

        def ended() -> int:
            return server.log_tail(10_000).count("logical decoding is disabled because")

        stop = threading.Event()
        with place.mirror(progress=lambda now: stop.set()) as mirror:
            mirror.run(stop=stop)
            assert mirror.unfinished
            assert place.database.execute("SHOW effective_wal_level") == [("logical",)]
        with place.mirror() as mirror, Following(mirror) as following:
            if not room:
                following.until(lambda: "all replication slots are in use" in caplog.text)
                place.database.execute("SELECT pg_drop_replication_slot('standby')")
            following.until(lambda: following.loaded() == 2)
        if not room:
            place.database.execute("SELECT pg_create_physical_replication_slot('standby')")
        assert "last logical slot" not in caplog.text
        assert not ended()

        place.database.execute(f"SELECT pg_drop_replication_slot('{place.slot}')")
        wait_until(lambda: place.database.execute("SHOW effective_wal_level") == [("replica",)])
        wait_until(ended)
        before = ended()
        caplog.clear()
        stop.clear()
        with place.mirror(progress=lambda now: stop.set()) as mirror:
            assert mirror.repair(stop=stop) == []
        place.database.execute("INSERT INTO t VALUES (2)")
        with place.mirror() as mirror:
            assert [each.table for each in mirror.repair()] == ["public.t", "public.u"]
        place.run()
        assert ("last logical slot" in caplog.text) == (not room)
        assert ended() == before or not room
        expect_equal(place, "public.t")
        slots = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'logical'"
        wait_until(lambda: place.database.execute(slots) == [(place.slot,)])


@pytest.mark.unsanitized
@pytest.mark.slow
def test_a_load_that_begins_again_leaves_a_standby_its_slots(tmp_path: Path) -> None:
    installation = _newest()
    if not (installation.bindir / "pg_basebackup").exists():
        pytest.skip("this PostgreSQL has no pg_basebackup")
    with contextlib.closing(Pair(installation, tmp_path, wal_level="replica")) as pair:
        pair.start()
        with opened(pair.primary, tmp_path) as place:
            place.database.execute(
                "CREATE TABLE t (id int PRIMARY KEY)",
                "INSERT INTO t VALUES (1)",
                "CREATE PUBLICATION mirrored FOR TABLE t",
            )
            stop = threading.Event()
            with place.mirror(progress=lambda now: stop.set()) as mirror:
                mirror.run(stop=stop)
            _create_on_standby(pair)
            place.run()  # with another slot
            end = format_lsn(now(place.database))
            replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn"
            wait_until(lambda: pair.execute(pair.standby, replayed) == [(True,)])
            assert pair.execute(pair.standby, _LOST) == [(None,)]


@pytest.mark.slow
def test_a_standby_decodes_while_its_primary_has_a_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And it loses its slots with the last slot of the primary, which a warning says before."""
    installation = _newest()
    if not (installation.bindir / "pg_basebackup").exists():
        pytest.skip("this PostgreSQL has no pg_basebackup")
    with contextlib.closing(Pair(installation, tmp_path, wal_level="replica")) as pair:
        pair.start()
        primary, standby = pair.primary.dsn, pair.standby.dsn
        assert "Create a logical slot on the primary" in _problems(standby)["effective_wal_level"]
        create_slot(primary, "first")
        wait_until(lambda: not _problems(standby))
        _create_on_standby(pair)
        create_slot(primary, "second")
        with caplog.at_level(logging.WARNING, "pgoutput_fast"):
            drop_slot(primary, "first")
            assert "last logical slot" not in caplog.text
            drop_slot(primary, "second")
        assert "slot second is the last logical slot" in caplog.text
        wait_until(lambda: pair.execute(pair.standby, _LOST) == [("wal_level_insufficient",)])
        wait_until(lambda: "effective_wal_level" in _problems(standby))
        with pytest.raises(psycopg2.Error):
            create_slot(standby, "other")
