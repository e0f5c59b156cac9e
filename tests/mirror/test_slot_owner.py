"""The slot of a mirror, and somebody else who wants it: a capture is refused, and the mirror notices another reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_fast.capture import Capture, CaptureError, find_slot
from pgoutput_fast.mirror import SlotLostError, status_of
from support.capturing import now, wait_until
from support.mirrors import Place, expect_equal, place

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
    return place


@pytest.mark.parametrize("directory", ["target", "another"])
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
