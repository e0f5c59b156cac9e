"""A slot that goes with its session, and what can be seen through it meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, find_slot, plugin_options, temporary_slot
from support import pg

pytestmark = pytest.mark.few_servers


def test_it_lives_for_a_block(database: pg.Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE seen (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE seen")
    with temporary_slot(database.dsn) as (slot, cursor):
        assert (slot.temporary, slot.plugin) == (True, "pgoutput")
        assert find_slot(database.dsn, slot.name) is not None
        database.execute("INSERT INTO seen VALUES (7)")
        options = plugin_options(cursor.connection.server_version, ["p"], two_phase=False)
        given = [text for pair in options.items() for text in pair]
        places = ", ".join(["%s"] * len(given))
        cursor.execute(
            f"SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, {places})",
            [slot.name, *given],
        )
        out = pgo.decode([bytes(data) for (data,) in cursor.fetchall()])
        assert out.table("public.seen")["id"].to_pylist() == [7]
        with pytest.raises(CaptureError, match="sends its changes to another client"):
            Capture(database.dsn, slot.name, ["p"], tmp_path).run(until_lsn=1, retry_seconds=0)
    deadline = time.monotonic() + 120
    while find_slot(database.dsn, slot.name) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(ValueError, match="a slot's name must have"), temporary_slot(database.dsn, "No"):
        pass
    database.execute("DROP PUBLICATION p", "DROP TABLE seen")
