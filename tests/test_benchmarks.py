"""The benchmarks run, and what they compare agrees; how fast anything is, is not tested here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_report_at_a_tiny_scale(tmp_path: Path) -> None:
    readme = (ROOT / "benchmarks" / "README.md").read_bytes()
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--scale", "0.004", "--rounds", "1"],
        cwd=ROOT,
        env={**os.environ, "PGOUTPUT_FAST_BENCH_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for label in (
        "wide text: 1,485 messages",
        "wide binary",
        "pgbench",
        "| decode ",
        "timestamptz",
        "us/call",
        "streamed, through files",
    ):
        assert label in run.stdout
    assert (ROOT / "benchmarks" / "README.md").read_bytes() == readme
