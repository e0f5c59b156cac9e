"""`make soak` in small: a transaction of a million rows, 190 MB while it waits, with 8 MB to wait in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

SOAK = ROOT / "fuzz" / "soak_committed.py"
ARGUMENTS = ["--rows", "1000000", "--batch", "20000", "--memory-limit", "8000000"]


pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SOAK), *ARGUMENTS, *arguments], capture_output=True, text=True, timeout=240
    )


def test_memory_is_bounded_whatever_waits(tmp_path: Path) -> None:
    done = run("--limit", "180", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
    figures = dict(line.strip().split(": ") for line in done.stdout.splitlines())
    assert int(figures["pieces"].replace(",", "")) > 50 + 20
    assert int(figures["rows of the largest piece"].replace(",", "")) < 100_000


@pytest.mark.slow
def test_the_soak_can_fail() -> None:
    done = run("--limit", "180", "--memory-limit", "1000000000")
    assert done.returncode == 1
    assert "more than 180 MB" in done.stdout
