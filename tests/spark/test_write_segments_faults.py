"""Segments that Spark writes, and everything that stops it, at any moment."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import encode, segments
from pgoutput_fast import spark as pgspark
from pgoutput_fast.segments import list_segments
from pgoutput_fast.spark.tagging import segments as tagging
from support.disks import small_disk
from support.forms import and_exhaustive
from support.interleaved import everything
from support.lakes import CLUSTER, running, settled, wait_for
from support.segment_streams import SOURCE
from support.spark_segments import assert_as_one_task, dumped, few_tasks, rows_in
from support.tagged_rows import in_order

__all__ = ["few_tasks"]

# What the driver changes in a directory.
STEPS = ("pgoutput_fast.storage.stores", "_Directory.write,_Directory.rename,_Directory.remove")


@pytest.mark.slow
def test_a_driver_killed_at_every_step(spark: Any, tmp_path: Path) -> None:
    """Readers see a beginning of the stream at any time, and the same call again writes the rest."""
    stream = everything()
    dump = dumped(tmp_path / "dump", stream.payloads)
    wal = pgspark.tag(dump, "place", spark=spark)
    expected = in_order(wal.toArrow().to_pylist())
    job: Any = {"source": str(dump), "call": "write_segments", "arguments": {"segment_bytes": 300}}
    step = partly = 0
    for step in itertools.count(1):
        directory = tmp_path / str(step)
        with running({**job, "target": str(directory), "kill": (*STEPS, step)}, spark) as driver:
            code = driver.ended()
        rows = rows_in(directory) if code else expected
        assert rows == expected[: len(rows)]
        partly += 0 < len(rows) < len(expected)
        pgspark.write_segments(wal, directory, segment_bytes=300)
        settled(spark)
        assert_as_one_task(directory, wal)
        if code == 0:
            break
        assert code == -9, driver.errors()
    assert step > 4
    assert partly > 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", and_exhaustive(["worker"], ["executor"]))
def test_tasks_that_are_disturbed(spark: Any, tmp_path: Path, kind: str) -> None:
    """After its first segment, each task loses its worker or its executor, and runs again."""
    stream = everything()
    dump, directory = dumped(tmp_path / "dump", stream.payloads), tmp_path / "segments"
    (tmp_path / "marks").mkdir()
    (tmp_path / "home").mkdir()
    job: Any = {"source": str(dump), "target": str(directory), "call": "write_segments"}
    job |= {"arguments": {"segment_bytes": 150}, "tasks": [kind, str(tmp_path / "marks")]}
    # In a Spark of its own, since this one does not try again.
    job |= {"conf": {"spark.master": "local[2,4]"}} if kind == "worker" else {"conf": CLUSTER}
    job |= {} if kind == "worker" else {"home": str(tmp_path / "home")}
    with running(job) as driver:
        driver.until("done")
    jobs = {each.name.partition("-")[0] for each in (tmp_path / "marks").iterdir()}
    assert len(jobs) == 2
    assert_as_one_task(directory, pgspark.tag(dump, "place", spark=spark), 150)


@pytest.mark.slow
def test_a_disk_that_is_full(spark: Any, tmp_path: Path) -> None:
    """Nothing is there then, and the call can be repeated."""
    writer = encode.Writer()
    payloads = [
        writer.message(100 + k, "p", random.Random(k).randbytes(100_000), transactional=False)[0]
        for k in range(100)
    ]
    dump = dumped(tmp_path / "dump", payloads)
    wal = pgspark.tag(dump, "place", spark=spark)
    with small_disk(tmp_path) as disk:
        with pytest.raises(PySparkException, match="No space left on device"):
            pgspark.write_segments(wal, disk / "segments", segment_bytes=1 << 20)
        # A task that Spark is still stopping may leave a hidden file.
        assert not [each for each in os.listdir(disk / "segments") if not each.startswith(".")]
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        settled(spark)
        pgspark.write_segments(wal, disk / "segments", segment_bytes=1 << 20)
        assert_as_one_task(disk / "segments", wal, 1 << 20)


def test_another_process_writes_meanwhile(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment stays, and the call says so."""
    payloads, directory = everything().payloads, tmp_path / "segments"
    wal = pgspark.tag(dumped(tmp_path / "dump", payloads), "place", spark=spark)
    rows, state = pgo.tag(payloads[:5])
    written: list[Any] = []

    def other() -> None:
        wait_for(lambda: list(directory.glob(".*.unpublished.*")))
        written.append(segments.write_segment(directory, rows, state, source=SOURCE))

    publish = tagging._publish

    def publish_late(*given: Any) -> bool:
        writing.result()  # however long the other one takes
        return publish(*given)

    monkeypatch.setattr(tagging, "_publish", publish_late)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(other)
        with pytest.raises(FileExistsError, match="another process wrote segments"):
            pgspark.write_segments(wal, directory, segment_bytes=1)
    assert [segment.path for segment in list_segments(directory)] == written
    assert not list(directory.glob(".*.unpublished.*"))


def test_two_calls_at_the_same_time(spark: Any, tmp_path: Path) -> None:
    """At most one of them goes on at a time, the segments are a beginning of the stream, and the next call ends it."""
    wal = pgspark.tag(dumped(tmp_path / "dump", everything().payloads), "place", spark=spark)
    directory, expected = tmp_path / "segments", in_order(wal.toArrow().to_pylist())

    def write(_: int) -> Exception | None:
        try:
            pgspark.write_segments(wal, directory, segment_bytes=100)
        except Exception as problem:
            return problem
        return None

    with ThreadPoolExecutor() as pool:
        problems = [each for each in pool.map(write, range(2)) if each is not None]
    for each in problems:
        assert "another process wrote segments" in str(each), each
    rows = rows_in(directory)
    assert rows == expected[: len(rows)]
    pgspark.write_segments(wal, directory, segment_bytes=100)
    assert_as_one_task(directory, wal, 100)
