"""A disk that is slower than the server: replies on time all the same, and bounded memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.capture import Capture, Limits, segment_directory
from pgoutput_fast.postgres import walsender
from pgoutput_fast.segments import list_segments, write_segment
from support import pg
from support.capturing import expect_exactly_once, now, slot, wait_until
from support.forms import and_slow

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]  # a fixture


def _newest_only(database: pg.Database) -> None:
    """What the client does is the same on every server, and takes seconds."""
    if database.version != max(pg.installations()):
        pytest.skip("tried on the newest server")


def _slow_disk(patch: pytest.MonkeyPatch, wait: Callable[[], object], most: int = 1 << 62) -> list[int]:
    """Each segment, or each of the first ones, waits first. Gives what Arrow has allocated meanwhile, in bytes."""
    seen: list[int] = []

    def write(*arguments: Any, **more: Any) -> Path:
        if len(seen) < most:
            wait()
        seen.append(pa.total_allocated_bytes())
        return write_segment(*arguments, **more)

    patch.setattr(segment_directory, "write_segment", write)
    return seen


def test_the_server_hears_of_it_while_a_segment_is_written(
    database: pg.Database,
    slot: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _newest_only(database)
    database.execute("INSERT INTO counted SELECT g, 1, repeat('x', 1900) FROM generate_series(1, 12000) g")
    # Twice a second.
    monkeypatch.setattr(walsender, "_STATUSES", 120)
    dsn = database.dsn + " options='-c wal_sender_timeout=60s'"
    heard = (
        "SELECT reply_time FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid "
        f"WHERE slot_name = '{slot}' AND reply_time IS NOT NULL"
    )

    def until_it_has_heard_often() -> None:
        """Until then, as many messages wait as may, and nobody reads."""
        times: set[Any] = set()
        wait_until(lambda: times.update(database.execute(heard)) or len(times) > 8)  # type: ignore[func-returns-value]

    _slow_disk(monkeypatch, until_it_has_heard_often, most=2)
    with caplog.at_level(logging.INFO, "pgoutput_fast.capture"):
        Capture(dsn, slot, ["captured"], tmp_path, limits=Limits(nbytes=1)).run(until_lsn=now(database))
    # One connection was enough.
    assert len([each for each in caplog.messages if each.startswith(f"the capture reads slot {slot} ")]) == 1
    expect_exactly_once(database, tmp_path)
    assert len(list_segments(tmp_path)) > 5  # more than may wait


@pytest.mark.parametrize("through", and_slow(["walsender"], ["sql"]))
def test_memory_is_bounded_however_slow_the_disk(
    database: pg.Database, slot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: Any
) -> None:
    _newest_only(database)
    database.execute("INSERT INTO counted SELECT g, 1, repeat('x', 1900) FROM generate_series(1, 40000) g")
    before = pa.total_allocated_bytes()
    seen = _slow_disk(monkeypatch, lambda: time.sleep(0.05))
    capture = Capture(
        database.dsn, slot, ["captured"], tmp_path, limits=Limits(nbytes=1 << 20), through=through
    )
    capture.run(until_lsn=now(database))
    assert len(seen) > 10
    # Four batches of 4 MiB wait, one is being read and one written, with copies made in between; 77 MB came.
    assert max(seen) - before < 40 << 20
    monkeypatch.undo()
    expect_exactly_once(database, tmp_path)
