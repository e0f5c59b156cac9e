"""If a mirror has too much to read, its capture waits: the disk does not fill, and nothing is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import find_slot
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror, status_of
from pgoutput_fast.mirror.follow import follow
from pgoutput_fast.mirror.follow.history import HistoryFiles
from pgoutput_fast.segments.names import bytes_after
from pgoutput_fast.storage.stores import open_store
from support import pg
from support.mirrors import Following, Place, expect_equal, history_of, opened

_MOST = 1_000_000
# Longer than a busy machine may leave the capture without a turn.
_TIMEOUT = 8.0


def _insert(place: Place, n: int) -> None:
    """About 8 MB of WAL, which can hardly be compressed."""
    place.database.execute(
        f"INSERT INTO t SELECT {n} * 4000 + g, (SELECT string_agg(md5(random()::text || g || h), '') "
        "FROM generate_series(1, 60) h) FROM generate_series(1, 4000) g"
    )


def _stands_still(place: Place, following: Following) -> int:
    """The bytes of all segments, when they have not changed for this time: what the capture had received is there."""
    found, since = _nbytes(place), time.monotonic()

    def is_same() -> bool:
        nonlocal found, since
        if (nbytes := _nbytes(place)) != found:
            found, since = nbytes, time.monotonic()
        return time.monotonic() - since > _TIMEOUT

    following.until(is_same)
    return found


def _nbytes(place: Place) -> int:
    return bytes_after(open_store(place.target / "_segments"), -1)


@pytest.mark.slow
def test_the_capture_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection lasts, although the server drops clients that it does not hear from for some seconds."""
    if not pg.installations():
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    caplog.set_level("INFO", "pgoutput_fast.mirror")
    gate, files = threading.Event(), follow.HistoryFiles
    gate.set()

    def slowly(*arguments: Any) -> HistoryFiles:
        gate.wait()
        return files(*arguments)

    monkeypatch.setattr(follow, "HistoryFiles", slowly)  # made for each segment
    newest = pg.installations()[max(pg.installations())]
    settings = {"wal_sender_timeout": f"{_TIMEOUT}s"}
    with Server(newest, settings) as server, opened(server, tmp_path) as place:
        place.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION mirrored FOR TABLE t"
        )
        with place.mirror(backlog_bytes=_MOST) as mirror:
            mirror.run(until_lsn="now")
            assert (mirror.metrics.backlog_bytes, mirror.metrics.paused) == (0, False)
            with Following(mirror) as following:
                try:
                    gate.clear()
                    for n in range(3):
                        _insert(place, n)
                    following.until(lambda: mirror.metrics.paused)
                    slot = find_slot(place.database.dsn, place.slot)
                    assert slot is not None
                    before = _stands_still(place, following)
                    for n in range(3, 8):
                        _insert(place, n)
                    end = time.monotonic() + _TIMEOUT
                    following.until(lambda: time.monotonic() > end)
                    assert _nbytes(place) == before
                    assert (mirror.metrics.backlog_bytes or 0) > _MOST
                    assert "pgoutput_fast_mirror_paused" in mirror.metrics.to_prometheus()
                    later = find_slot(place.database.dsn, place.slot)
                    assert later is not None
                    assert later.active_pid == slot.active_pid
                    reached = SegmentDirectory(place.target / "_segments").durable_lsn()
                    assert (later.confirmed_flush_lsn or 0) <= reached
                    assert (later.kept_bytes or 0) > 20_000_000
                finally:
                    gate.set()
                following.until(
                    lambda: (
                        not mirror.metrics.paused
                        and all(not each.lag_bytes for each in status_of(place.target, place.database.dsn))
                    )
                )
            place.run_in(mirror)
        said = [each.getMessage() for each in caplog.records]
        assert any("bytes of segments still to read, so the capture waits" in each for each in said)
        assert any("bytes of segments still to read: the capture goes on" in each for each in said)
        expect_equal(place, "public.t")
        ids = history_of(place.target, "public.t")["id"].to_pylist()
        assert len(ids) == len(set(ids)) == 8 * 4000


@pytest.mark.parametrize(
    ("given", "said"), [(0, "must be at least 1, not 0"), ("1 GB", "must be a whole number, not a str")]
)
def test_wrong_limits(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"backlog_bytes {said}"):
        Mirror("dbname=shop", "slot", ["mirrored"], tmp_path, backlog_bytes=given)
