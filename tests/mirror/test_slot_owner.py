"""The slot of a mirror, and somebody else who wants it: they are refused, and the mirror notices another reader."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, create_slot, drop_slot, find_slot
from pgoutput_fast.mirror import SlotLostError, status_of
from pgoutput_fast.spark.source.stream_capture import OwnCapture
from support.capturing import freed, now, wait_until
from support.forms import and_slow
from support.mirrors import Following, Place, current_of, expect_equal, place

__all__ = ["place"]


@pytest.fixture
def mirrored(place: Place) -> Place:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    place.database.execute("INSERT INTO t VALUES (1)")
    place.run()
    read = f"SELECT total_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = '{place.slot}'"
    wait_until(lambda: place.database.execute(read) == [(True,)])
    freed(place.database.dsn, place.slot)
    return place


@pytest.mark.parametrize("directory", and_slow(["target"], ["another"]))
def test_a_capture_wants_it(mirrored: Place, tmp_path: Path, directory: str) -> None:
    """Between two runs of the mirror. It goes on behind that as if nothing had been."""
    path = mirrored.target if directory == "target" else tmp_path / "segments"
    database = mirrored.database
    before = find_slot(database.dsn, mirrored.slot)
    assert before is not None
    said = "is the target of a mirror" if directory == "target" else "another client has read from it"
    with pytest.raises(CaptureError, match=said):
        Capture(database.dsn, mirrored.slot, ["mirrored"], path).run(until_lsn=now(database))
    found = find_slot(database.dsn, mirrored.slot)
    assert found is not None
    assert found.confirmed_flush_lsn == before.confirmed_flush_lsn
    database.execute("INSERT INTO t VALUES (2)")
    mirrored.run()
    expect_equal(mirrored, "public.t")


@pytest.mark.slow
def test_a_stream_of_spark_wants_it(mirrored: Place, tmp_path: Path) -> None:
    given = {"dsn": mirrored.database.dsn, "slot": mirrored.slot, "publication": "mirrored"}
    capture = OwnCapture({**given, "path": str(tmp_path / "segments")})
    with pytest.raises(
        CaptureError, match=r"another client has read from it.* in the option capture of a stream"
    ):
        capture.catch_up()
    mirrored.run()


@pytest.mark.slow
def test_follow_wants_it_while_the_mirror_runs(mirrored: Place) -> None:
    """It does not wait for the end of the mirror, to take the slot then."""
    database, slot = mirrored.database, mirrored.slot
    before = find_slot(database.dsn, slot)
    assert before is not None
    with mirrored.mirror() as mirror, Following(mirror) as following:
        following.until(lambda: _active(mirrored))
        with pytest.raises(
            CaptureError, match=f"a capture or a mirror reads slot {slot}. A slot has one reader"
        ):
            next(pgo.follow(database.dsn, slot, ["mirrored"]))
        database.execute("INSERT INTO t VALUES (2)")
        following.until(lambda: current_of(mirrored.target, "public.t").num_rows == 2)
    mirrored.run()
    expect_equal(mirrored, "public.t")


def test_follow_wants_the_slot_of_a_capture_through_sql(mirrored: Place, tmp_path: Path) -> None:
    """Nobody uses the slot between two peeks."""
    database, slot = mirrored.database, f"{mirrored.slot}_sql"
    create_slot(database.dsn, slot)
    capture = Capture(database.dsn, slot, ["mirrored"], tmp_path / "segments", through="sql")
    stop = threading.Event()
    thread = threading.Thread(target=lambda: capture.run(stop=stop))
    thread.start()
    try:
        owners = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        wait_until(lambda: database.execute(owners) != [(0,)] and not _active(mirrored, slot))
        with pytest.raises(CaptureError, match=f"a capture or a mirror reads slot {slot}"):
            next(pgo.follow(database.dsn, slot, ["mirrored"]))
    finally:
        stop.set()
        thread.join()
        drop_slot(database.dsn, slot)


def _active(place: Place, slot: str | None = None) -> bool:
    found = find_slot(place.database.dsn, slot or place.slot)
    return found is not None and found.active_pid is not None


def test_somebody_has_moved_it(mirrored: Place) -> None:
    """The status tells it, whoever asks, and no run goes on before a repair."""
    database, name = mirrored.database, mirrored.slot
    database.execute(
        "INSERT INTO t VALUES (2)", f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())"
    )
    (stored,) = status_of(mirrored.target, database.dsn)
    assert stored.state == "stopped"
    assert f"somebody else has advanced slot {name}" in str(stored.error)
    assert "--repair" in str(stored.error)
    with mirrored.mirror() as mirror:
        assert mirror.status()[0].error == stored.error
        with pytest.raises(SlotLostError, match="somebody else has advanced"):
            mirror.run(until_lsn="now")
        database.execute(f"SELECT pg_drop_replication_slot('{name}')")
        mirror.repair()
        assert mirror.status()[0].state == "follow"
    expect_equal(mirrored, "public.t")
