"""The captured messages of tests/fixtures/."""

from __future__ import annotations

from pathlib import Path

from support import pg
from support.paths import FIXTURES

FILES = sorted(FIXTURES.glob("*.txt"))


def read(path: Path) -> list[pg.Payload]:
    lines = (
        line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    )
    return [(int(lsn, 16), bytes.fromhex(data)) for lsn, data in lines]
