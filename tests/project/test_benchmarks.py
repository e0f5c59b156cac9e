"""The benchmarks run, and what they compare agrees; how fast anything is, is not tested here."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import capture, formats, growth, guard, random_tables, segments, snapshot
from benchmarks.mirror import effect, live, load, merge, scan, updates, walsenders
from benchmarks.mirror.processes import ProcessTree
from benchmarks.mirror.systems import DebeziumSystem
from benchmarks.peers.installations import MissingError
from benchmarks.spark import columns as spark_columns
from benchmarks.spark import curve as spark_curve
from benchmarks.spark import many as spark_many
from benchmarks.spark import planning as spark_planning
from benchmarks.spark import raw as spark_raw
from benchmarks.spark import tables as spark_tables
from benchmarks.spark.queries import queries, section, wide_segments

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast._core.columns.column import use_vectors
from support import pg
from support.capturing import wait_until
from support.forms import and_slow
from support.paths import ROOT


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_settings_of_parquet_files_at_a_tiny_scale(tmp_path: Path) -> None:
    """It compares the rows of all variants before it times them."""
    printed = _run(tmp_path, "benchmarks.parquet")
    for label in ("Parquet: wide, 1,480 rows", "pgbench_history", "repeating texts", "| as chosen", "| lz4 "):
        assert label in printed


@pytest.mark.slow
def test_net_effects_at_a_tiny_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares each effect with what plain Python finds before it times anything."""
    monkeypatch.setenv("PGOUTPUT_FAST_BENCH_CACHE", str(tmp_path))
    figures = effect.section(0.004, 1).rows
    assert [row[0] for row in figures] == list(effect.CASES)
    assert all(float(cell.replace(",", "")) > 0 for row in figures for cell in row[1:])


@pytest.mark.slow
def test_merges_at_a_tiny_scale() -> None:
    """Each kind of table must have the right rows after the changes."""
    figures = merge.section((2_000,), 100).rows
    assert [row[0] for row in figures] == list(merge.KINDS)


def test_scans_at_a_tiny_scale() -> None:
    (row,) = scan.section(2_000, 3, 100).rows
    assert len(row) == 8


@pytest.mark.exhaustive
def test_live_mirrors_at_a_tiny_scale() -> None:
    """All tables must have what the server has. With CI=true, Debezium must be there; else it runs if it is installed."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("adbc_driver_postgresql")
    debezium = os.environ.get("CI") == "true" or DebeziumSystem.is_installed()
    try:
        _, figures = live.measured(2000, 1, 200, 1.0, 200, debezium=debezium)
    except LookupError as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))
    backlog, steady, loads = figures
    assert [len(each.rows) for each in figures] == [5 + 2 * debezium, 6 + 2 * debezium, 2]
    assert all(float(cell.replace(",", "")) >= 0 for row in backlog.rows for cell in row[2:])
    assert all(0 <= float(row[2]) <= float(row[3]) <= float(row[4]) for row in steady.rows)
    assert all(float(row[1]) > 0 for row in loads.rows)


@pytest.mark.exhaustive
def test_loads_at_a_tiny_scale() -> None:
    try:
        figures = load.section(0.01).rows
    except (MissingError, LookupError) as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))
    assert len(figures) == 5


@pytest.mark.slow
def test_walsenders_at_a_tiny_scale() -> None:
    try:
        rows = walsenders.section(40_000).rows
    except LookupError as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))
    assert [row[0] for row in rows][:2] == ["all tables", "half of the tables"]
    assert len(rows) == 5


@pytest.mark.exhaustive
def test_updates_at_a_tiny_scale() -> None:
    """As live mirrors."""
    debezium = os.environ.get("CI") == "true" or DebeziumSystem.is_installed()
    try:
        figures = updates.section(2000, 200, debezium=debezium).rows
    except LookupError as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))
    assert len(figures) == 3 + debezium
    assert all(float(cell.replace(",", "")) > 0 for row in figures for cell in row[2:])


def test_the_commands_of_the_page_exist() -> None:
    commands = set(
        re.findall(r"python -m (benchmarks[\w.]*)", (ROOT / "benchmarks" / "README.md").read_text())
    )
    assert "benchmarks.spark_tables" in commands
    for each in sorted(commands):
        found = importlib.util.find_spec(each)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{each}.__main__")
        assert found is not None, each


@pytest.mark.exhaustive
def test_tables_on_spark_at_a_tiny_scale(spark: Any, tmp_path: Path) -> None:
    """Each way writes every row; the benchmark counts them."""
    (tmp_path / "segments").mkdir()
    rows, nbytes = wide_segments(tmp_path / "segments", 2, 0.004)
    compared = spark_tables.section(spark, tmp_path / "segments", 1, rows, nbytes)
    assert [row[0] for row in compared.rows] == [*spark_tables.ways(spark, tmp_path / "segments")]
    assert len(spark_tables.ten_tables(spark, tmp_path / "tables", 1, 0.004, 1).rows) == 2
    scaled = spark_tables.scaling(spark, tmp_path / "more", 0.004, (1, 2))
    assert all(float(row[-1]) > 20 for row in scaled.rows)


@pytest.mark.slow
def test_many_tables_on_spark_at_a_tiny_scale(spark: Any, tmp_path: Path) -> None:
    pgspark.register(spark)
    found = spark_many.section(spark, tmp_path, 6, 1, ["delta"])
    assert [row[:2] for row in found.rows] == [
        ["delta, first batch", "6"],
        ["delta, table_sink", "1"],
        ["delta, table_sink", "5"],
        ["delta, write_tables, nothing new", "0"],
    ]


@pytest.mark.exhaustive
def test_raw_payloads_on_spark_at_a_tiny_scale(spark: Any, tmp_path: Path) -> None:
    """Each way writes the same tables, or as many rows; the benchmark compares them."""
    pgspark.register(spark)
    found = spark_raw.section(spark, tmp_path, "pgbench", 2, 0.004, 1)
    figures = {row[0]: dict(zip(spark_raw.COLUMNS, row[1:], strict=True)) for row in found.rows}
    assert len(figures) == 13
    assert all((float(row[-1]) > 20) == (spark_raw.JSON not in row[0]) for row in found.rows)
    # An identity gives back what it gets; write_raw sends no payload back, and with paths gets none.
    moved, paths, once = (
        figures[f"{label}, as_sent"] for label in (spark_raw.IDENTITY, spark_raw.PATHS, spark_raw.ONCE)
    )
    assert 1 < float(moved["to Python"]) < float(moved["back"]) + 0.05
    assert float(paths["to Python"]) < 0.1
    assert float(once["to Python"]) > 1 > 10 * float(once["back"])


@pytest.mark.slow
def test_capture_at_a_tiny_scale() -> None:
    try:
        version, figures = capture.measure(2000, 1)
    except LookupError as problem:
        pytest.skip(str(problem))
    table = capture.section(2000, version, figures)
    assert [row[0] for row in table.rows] == list(figures)
    assert len(figures) == 5
    assert all(float(cell.replace(",", "")) >= 0 for row in table.rows for cell in row[1:])


@pytest.mark.slow
def test_formats_at_a_tiny_scale() -> None:
    installation = list(pg.installations().values())[-1]
    figures = formats.measure(installation, 300, 1)
    assert figures.keys() == formats.TABLES.keys()
    assert all(each.decode > 0 for costs in figures["wide"].values() for each in costs)
    assert "arrays" in str(formats.section(installation.version, figures))


@pytest.mark.slow
def test_random_tables_at_a_tiny_scale() -> None:
    levels = [level for level in random_tables.LEVELS if use_vectors(level) == level] or ["portable"]
    found = [each for seed in range(3) for each in random_tables.figures(seed, 60_000, 1, levels)]
    assert len({each.table for each in found}) == 3
    # Each case, and what it could be at most.
    assert len(found) == 3 * 2 * 2 * len(levels)
    assert sum(each.case.endswith(random_tables.UNCONVERTED) for each in found) == len(found) // 2
    assert "median" in str(random_tables.section(found))
    assert ElementTree.fromstring(random_tables.chart(found)).tag.endswith("svg")


@pytest.mark.slow
def test_snapshot_at_a_tiny_scale() -> None:
    pytest.importorskip("adbc_driver_postgresql")
    try:
        spent = snapshot.measure(2000, 1)
    except LookupError as problem:
        pytest.skip(str(problem))
    assert set(spent) == {"snapshot", "received only", "ADBC", "server"}
    assert [len(measured.rounds) for measured in spent.values()] == [1, 1, 1, 1]


@pytest.mark.exhaustive
def test_spark_at_a_tiny_scale(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOUTPUT_FAST_BENCH_CACHE", str(tmp_path / "cache"))
    segments = tmp_path / "segments"
    segments.mkdir()
    rows, nbytes = wide_segments(segments, 2, 0.004)
    assert rows == 2 * 1480
    figures = section(spark, segments, 1, rows, nbytes).rows
    assert [row[0] for row in figures] == list(queries(spark, segments))
    assert all(float(cell) >= 0 for row in figures for cell in row[1:])


@pytest.mark.exhaustive
def test_columns_on_spark_at_a_tiny_scale(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOUTPUT_FAST_BENCH_CACHE", str(tmp_path / "cache"))
    segments = tmp_path / "segments"
    segments.mkdir()
    rows, _ = wide_segments(segments, 1, 0.004)
    figures = spark_columns.section(spark, segments, 1, rows).rows
    assert [row[0] for row in figures] == list(spark_columns.queries(spark, segments))
    assert all(float(cell) >= 0 for row in figures for cell in row[1:])


@pytest.mark.exhaustive
def test_the_curve_at_a_tiny_scale(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOUTPUT_FAST_BENCH_CACHE", str(tmp_path / "cache"))
    points = []
    for times in (1, 2):
        directory = tmp_path / str(times)
        directory.mkdir()
        points += spark_curve.measure(spark, directory, times, wide_segments(directory, times, 0.004)[1])
    assert [p.tasks > 0 for p in points] == [True] * 6
    assert all(p.worker > 20 for p in points)  # Python alone has as much
    # What describes relations, and what ends transactions.
    assert [p.shuffled > 0 for p in points] == [True, True, False] * 2
    assert len(spark_curve.table(points).rows) == 6
    paper = spark_curve.on_paper(points)
    assert 'changes(transactions="committed")' in paper
    drawn = ElementTree.fromstring(spark_curve.chart(points))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == 6


def test_the_guard_tells_what_takes_more() -> None:
    known = {"wide text": 1000, "pgbench": 500}
    assert guard.compare(known, {"wide text": 1025, "pgbench": 400}) == []
    (told,) = guard.compare(known, {"wide text": 1050, "pgbench": 500})
    assert told.startswith("wide text: 1050 instructions a message, +5.0%: it took 1000")


def test_the_guard_tells_what_grows_faster_than_its_input() -> None:
    assert guard.uneven({"columns": (100, 105), "open streams": (900, 500)}) == []
    (told,) = guard.uneven({"columns": (100, 105), "open streams": (500, 900)})
    assert told.startswith("open streams: 900 instructions a unit in a long stream, 500 in a short one")


def test_the_guard_says_when_it_does_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert guard.main([]) == 0
    assert capsys.readouterr().out.startswith("bench-guard: NOT RUN, as valgrind is not installed")


# Streams of boundaries and Relations only.
_NO_CHANGES = {"transactions", "prepared of one name", "Relations in subtransactions", "bad boundaries"}


@pytest.mark.parametrize("name", guard.FLAT)
def test_the_guards_streams_are_as_long_as_they_say(name: str) -> None:
    for make in guard.FLAT[name][:2]:
        shape = make()
        decoder = pgo.Decoder(shape.options)
        decoder.decode(shape.known)
        changes, messages = 0, 0
        for call in shape.calls:
            changes += sum(each.batch.num_rows for each in decoder.decode(call).changes)
            messages += len(call)
        assert decoder.state.next_seq == len(shape.known) + messages
        assert changes > 0 or name in _NO_CHANGES


@pytest.mark.parametrize(
    "name",
    and_slow(
        [
            "prepared transactions of one name",
            "Relations in subtransactions, rolled back",
            "relations of a Truncate, tagged",
        ],
        ["bad boundaries, with as many relations and streams"],
    ),
)
def test_nothing_grows_with_what_is_open(name: str) -> None:
    """Sixteen times as much of it, and a message takes as long: quadratic, it would take up to sixteen times as long."""
    curve = growth.CURVES[name]
    # One measurement may mislead, because other programs use the caches, too. What grows misses this each time.
    assert any(growth.measure(curve, 8_000) < 4 * growth.measure(curve, 500) for _ in range(3))


@pytest.mark.slow
def test_segments_of_streams_that_know_little() -> None:
    points = [
        growth.Point(name, length, cost)
        for name, curve in segments.CURVES.items()
        for length, cost in segments.measure(curve, (1, 4))
    ]
    assert all(point.cost > 0 for point in points)
    assert segments.table(points).count("\n") == 2 + len(segments.CURVES)


def test_growth_over_short_streams() -> None:
    points = [
        growth.Point(name, length, growth.measure(curve, length))
        for name, curve in growth.CURVES.items()
        for length in curve.bounded[:2]
    ]
    assert all(point.cost > 0 for point in points)
    assert growth.table(points).count("\n") == 2 + len(growth.CURVES)
    drawn = ElementTree.fromstring(growth.chart(points))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == len(growth.CURVES)


@pytest.mark.slow
def test_planning_at_a_tiny_scale(tmp_path: Path, spark: Any) -> None:
    pgspark.register(spark)
    table = spark_planning.measure(spark, tmp_path, [3], 1)
    assert len(table.rows) == 7
    assert all(float(row[1]) >= 0 for row in table.rows)


def test_what_a_process_uses_counts_its_children() -> None:
    child = "sum(range(3_000_000)); b = bytearray(50_000_000); import time; time.sleep(1000)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent]) as process, ProcessTree(process.pid, 0.05) as tree:
        wait_until(lambda: tree.peak > 50_000_000)
        assert tree.cpu > 0
        for pid in tree._pids():
            os.kill(pid, signal.SIGKILL)
