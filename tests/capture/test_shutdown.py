"""A server that is shut down while it is captured waits for its walsenders' clients: not for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_fast.capture import Capture, Limits
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.segments import list_segments
from support import pg
from support.capturing import Running, expect_exactly_once, now, prepare, wait_until
from support.forms import and_slow

pytestmark = pytest.mark.few_servers


@pytest.mark.parametrize("oldest", and_slow([False], [True]), ids=["newest", "oldest"])
def test_a_fast_shutdown(tmp_path: Path, oldest: bool) -> None:
    versions = sorted(pg.installations())
    if not versions:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    # A walsender that waited for its timeout would take longer than a stop may take.
    settings = {"wal_sender_timeout": "600s"}
    with Server(pg.installations()[versions[0 if oldest else -1]], settings, timeout=240) as server:
        own = pg.Database(server)
        prepare(own, "shut")
        # Nothing would be written before the server is gone.
        capture = Capture(own.dsn, "shut", ["captured"], tmp_path, limits=Limits(seconds=200))
        with Running(capture) as running:
            wait_until(lambda: running.failed or own.execute("SELECT pid FROM pg_stat_replication"))
            own.execute("INSERT INTO counted VALUES (1, 1)")
            wait_until(lambda: running.failed or capture.metrics.waiting_messages)
            server.stop("fast")
            server.start()
            own.execute("INSERT INTO counted VALUES (2, 1)")
            wait_until(lambda: running.failed or capture.metrics.waiting_messages)
            running.stop()
        assert running.failed is None
        capture.run(until_lsn=now(own))
        expect_exactly_once(own, tmp_path)
        assert len(list_segments(tmp_path)) >= 2
