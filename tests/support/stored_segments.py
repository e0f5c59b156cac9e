"""A directory of segments."""

from __future__ import annotations

from pathlib import Path

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import Writer
from pgoutput_fast.segments import write_segment
from support.segment_streams import ORDERS, SOURCE


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days with two segments each, and files that are not segments."""
    root, state = tmp_path_factory.mktemp("store [1]"), None
    writer = Writer()
    for n in range(4):
        directory = root / f"day={n // 2}"
        directory.mkdir(exist_ok=True)
        wal = writer.begin(100 + n, 1000 * n + 1000, n)
        wal += writer.change(ORDERS, "insert", new=[str(n), f"note {n}"])
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
        tagged, state = pgo.tag(wal, state)
        write_segment(directory, tagged, state, source=SOURCE)
        (directory / ".hidden.parquet").write_bytes(b"never finished")
        (directory / "_SUCCESS").write_bytes(b"")
    return root
