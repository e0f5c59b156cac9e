"""A server that lacks what segments have: brought back from a copy. It must be said, not gone on from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import Capture, CaptureError
from pgoutput_fast.demo.servers import Server
from support import pg
from support.capturing import now, prepare
from support.forms import and_slow

pytestmark = pytest.mark.few_servers


@pytest.mark.slow
@pytest.mark.parametrize("through", and_slow(["walsender"], ["sql"]))
def test_a_server_that_is_behind_the_segments(tmp_path: Path, through: Any) -> None:
    versions = sorted(pg.installations())
    if not versions:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    segments, copy = tmp_path / "segments", tmp_path / "copy"
    with Server(pg.installations()[versions[-1]]) as server:
        own = pg.Database(server)
        prepare(own, "restored")
        own.execute("INSERT INTO counted VALUES (1, 1)")
        capture = Capture(own.dsn, "restored", ["captured"], segments, through=through)
        capture.run(until_lsn=now(own))
        server.stop()
        _copy(server.data_directory, copy)
        server.start()
        # As far as it was when it was copied, it may be gone on with.
        capture.run(until_lsn=now(own))
        own.execute("INSERT INTO counted SELECT g, 1 FROM generate_series(1000, 1400) g")
        capture.run(until_lsn=now(own))
        server.stop()
        shutil.rmtree(server.data_directory)
        _copy(copy, server.data_directory)
        server.start()
        own.execute("INSERT INTO counted VALUES (2000, 1)")
        with pytest.raises(
            CaptureError,
            match=r"WAL of the server ends at 0/\w+, but .* has changes up to 0/\w+: .* older copy",
        ):
            capture.run(until_lsn=now(own))


def _copy(source: Path, target: Path) -> None:
    """With its owner, without whom the server would not start."""
    shutil.copytree(source, target, symlinks=True)
    for path in [source, *source.rglob("*")]:
        status = path.lstat()
        os.chown(target / path.relative_to(source), status.st_uid, status.st_gid, follow_symlinks=False)
