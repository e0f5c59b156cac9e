"""The benchmarks run, and what they compare agrees; how fast anything is, is not tested here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.spark import queries, section, wide_segments

ROOT = Path(__file__).parents[1]


def _run(cache: Path, *arguments: str) -> str:
    """What a benchmark prints; README.md stays as it is."""
    readme = (ROOT / "benchmarks" / "README.md").read_bytes()
    run = subprocess.run(
        [sys.executable, "-m", *arguments, "--scale", "0.004", "--rounds", "1"],
        cwd=ROOT,
        env={**os.environ, "PGOUTPUT_FAST_BENCH_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert (ROOT / "benchmarks" / "README.md").read_bytes() == readme
    return run.stdout


def test_report_at_a_tiny_scale(tmp_path: Path) -> None:
    printed = _run(tmp_path, "benchmarks")
    for label in (
        "wide text: 1,485 messages",
        "wide binary",
        "pgbench",
        "| decode ",
        "timestamptz",
        "us/call",
        "streamed, through files",
    ):
        assert label in printed


def test_spark_at_a_tiny_scale(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOUTPUT_FAST_BENCH_CACHE", str(tmp_path / "cache"))
    segments = tmp_path / "segments"
    segments.mkdir()
    rows, nbytes = wide_segments(segments, 2, 0.004)
    assert rows == 2 * 1480
    figures = section(spark, segments, 1, rows, nbytes).rows
    assert [row[0] for row in figures] == list(queries(spark, segments))
    assert all(float(cell) >= 0 for row in figures for cell in row[1:])
