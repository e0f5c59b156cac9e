"""`write_raw` and `table_sink` with many tables: drivers, workers and executors are killed, payloads are damaged.

No row is there twice, none is lost, and the next run leaves no file that no table has. `PGOUTPUT_FAST_KILLS`: as in
`test_table_faults`.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from support.current_streams import batch_of
from support.forms import and_exhaustive, and_slow
from support.lakes import (
    CLUSTER,
    assert_whole,
    data_files,
    make_dump,
    make_segments,
    running,
    settled,
    tables_of,
    wait_for,
)

KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "1"))
TABLES = 12
NAMES = {f"public.t{k}" for k in range(TABLES)}
# What a run changes in a directory, beside the files of the tasks.
STEPS = ("pgoutput_fast.storage.stores", "_Directory.write,_Directory.rename,_Directory.remove")
_RUN, _TAG, _TAGGED = (
    f"pgoutput_fast.spark.{name}" for name in ("tables.run", "tagging.tag", "dataframes.tagged")
)


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stored") / "segments"
    make_segments(directory, tables=TABLES, rows=2)
    return directory


@pytest.fixture(scope="module")
def dump(segments: Path) -> Path:
    make_dump(segments.with_name("dump"), segments)
    return segments.with_name("dump")


@pytest.fixture(scope="module")
def undisturbed(
    spark: Any, segments: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, pa.Table]]:
    """The tables, in a format."""

    @cache
    def of(format: str) -> dict[str, pa.Table]:
        target = tmp_path_factory.mktemp("undisturbed")
        pgspark.write_tables(segments, target, format=format)
        found = tables_of(format, target)
        assert found.keys() == NAMES
        return found

    return of


def _job(dump: Path, lake: Path, format: str, **more: Any) -> dict[str, Any]:
    arguments = {"format": format, "order_by": "place"}
    return {"source": str(dump), "target": str(lake), "call": "write_raw", "arguments": arguments, **more}


# ---- the driver -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "kill"),
    and_slow(
        [("parquet", (_RUN, "Run.commit", TABLES // 2))],
        [
            ("parquet", (_TAG, "_Source.summaries", -1)),
            ("parquet", (_TAGGED, "Untagged._known", -1)),
            ("delta", (_RUN, "Run.commit", -TABLES // 2)),
            ("delta", (_RUN, "Progress.save", 1)),
            ("delta", (_RUN, "Progress.save", -1)),
            ("iceberg", (_RUN, "Run.commit", TABLES // 2)),
            ("iceberg", (_RUN, "Run.commit", -TABLES)),
        ],
    ),
    ids=str,
)
def test_a_driver_killed_at_a_step(
    spark: Any, dump: Path, undisturbed: Any, tmp_path: Path, format: str, kill: Any
) -> None:
    lake = tmp_path / "lake"
    with running(_job(dump, lake, format, kill=kill), spark) as driver:
        assert driver.ended() == -9, driver.errors()
    pgspark.write_raw(dump, lake, order_by="place", format=format, spark=spark)
    settled(spark)
    assert_whole(format, lake, undisturbed(format))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["write_raw", "write_tables"])
def test_a_driver_killed_at_every_step(
    spark: Any, segments: Path, dump: Path, undisturbed: Any, tmp_path: Path, way: str
) -> None:
    """The same call, or `write_tables` of segments, goes on from there."""
    expected = dict(list(undisturbed("parquet").items())[:2])
    for step in itertools.count(1):
        lake = tmp_path / str(step)
        job = _job(dump, lake, "parquet", kill=(*STEPS, step))
        job["arguments"]["tables"] = list(expected)
        with running(job, spark) as driver:
            code = driver.ended()
        if way == "write_raw":
            pgspark.write_raw(dump, lake, order_by="place", tables=list(expected), spark=spark)
        else:
            pgspark.write_tables(segments, lake, list(expected))
        settled(spark)
        assert_whole("parquet", lake, expected)
        if code == 0:
            break
        assert code == -9, driver.errors()
    assert step > 10


@pytest.mark.slow
def test_a_driver_killed_at_random_moments(spark: Any, dump: Path, undisturbed: Any, tmp_path: Path) -> None:
    dice, lake = random.Random(KILLS), tmp_path / "lake"
    for n in range(2 * KILLS):
        with running(_job(dump, lake, "parquet")) as driver:
            driver.until("ready")
            if n % 2 == 0:
                wait_for(lambda: data_files(lake) or driver.process.poll() is not None)
            time.sleep(dice.random() * (0.05 if n % 2 == 0 else 4))
            driver.kill()
            driver.ended()
    pgspark.write_raw(dump, lake, order_by="place", spark=spark)
    settled(spark)
    assert_whole("parquet", lake, undisturbed("parquet"))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_another_way_goes_on(
    spark: Any, segments: Path, dump: Path, undisturbed: Any, tmp_path: Path, format: str
) -> None:
    """Each way in turn is killed amid its commits, and another one goes on, with the same target."""
    parts = sorted(segments.glob("*.parquet"))
    ends = [0, *(max(pq.read_table(each)["seq"].to_pylist()) + 1 for each in parts)]
    lake, rows = tmp_path / "lake", pq.read_table(dump).sort_by("place")
    kill = (_RUN, "Run.commit", 4)
    # Nothing in the target says that the payloads of a dump are those of segments.
    jobs: list[dict[str, Any]] = [
        {"source": str(tmp_path / "one"), "kill": kill},
        _job(tmp_path / "dump", lake, format, kill=kill),
        # From the first message: which tables the job before has continued is not known.
        {"source": str(segments), "batches": [[0, ends[3] - 1]], "kill": kill},
        _job(dump, lake, format),
    ]
    (tmp_path / "one").mkdir()
    (tmp_path / "dump").mkdir()
    (tmp_path / "one" / parts[0].name).write_bytes(parts[0].read_bytes())
    pq.write_table(rows.slice(0, ends[2]), tmp_path / "dump" / "0.parquet")
    for job in jobs:
        whole = {"target": str(lake), "arguments": {"format": format}, **job}
        with running(whole, spark) as driver:
            assert driver.ended() == (-9 if "kill" in job else 0), driver.errors()
        settled(spark)
    assert_whole(format, lake, undisturbed(format))


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kill",
    and_slow(
        [(_RUN, "Run.commit", TABLES + 5)],
        [((_RUN, "Progress.save", 2),), ((_RUN, "Progress.save", -2),), ((_RUN, "Run.end", -2),)],
    ),
    ids=str,
)
def test_a_batch_of_a_sink_that_is_killed(
    spark: Any, segments: Path, undisturbed: Any, tmp_path: Path, kill: Any
) -> None:
    """The second one. Spark runs it again, with a new sink, and then the others."""
    ends = [max(pq.read_table(each)["seq"].to_pylist()) for each in sorted(segments.glob("*.parquet"))]
    batches = [[first, last] for first, last in zip([0, *(each + 1 for each in ends)], ends, strict=False)]
    lake = tmp_path / "lake"
    job = {"source": str(segments), "target": str(lake), "batches": batches, "kill": kill}
    with running({**job, "arguments": {"format": "delta"}}, spark) as driver:
        assert driver.ended() == -9, driver.errors()
    sink = pgspark.table_sink(lake, format="delta")
    for number, (first, last) in enumerate(batches[1:], 1):
        sink(batch_of(spark, segments, first, last), number)
    settled(spark)
    assert_whole("delta", lake, undisturbed("delta"))


# ---- workers and executors ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("format", and_exhaustive(["parquet"], ["delta"]))
def test_workers_killed_while_they_write(dump: Path, undisturbed: Any, tmp_path: Path, format: str) -> None:
    job = _job(dump, tmp_path / "lake", format, conf={"spark.master": "local[2,4]"}, worker=True)
    with running(job) as driver:
        assert driver.until("stopped") in ("stopped 1", "stopped 2")
        driver.until("done")
    assert_whole(format, tmp_path / "lake", undisturbed(format))


def _ways(segments: Path, dump: Path, lake: Path) -> dict[str, dict[str, Any]]:
    """Jobs that write the same tables."""
    ends = [-1, *(max(pq.read_table(each)["seq"].to_pylist()) for each in sorted(segments.glob("*.parquet")))]
    raw = _job(dump, lake, "parquet")
    batches = [[first + 1, last] for first, last in itertools.pairwise(ends)]
    return {
        "files": raw,
        "quarantine": {**raw, "arguments": {"order_by": "place", "on_error": "quarantine"}},
        "shuffled": {**raw, "arguments": {"order_by": "place", "partitions": 5}},
        "sink": {"source": str(segments), "target": str(lake), "batches": batches},
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param("worker", "files", marks=pytest.mark.slow),
        *(
            pytest.param(kind, way, marks=pytest.mark.exhaustive)
            for kind in ("worker", "executor")
            for way in ("files", "quarantine", "shuffled", "sink")
            if (kind, way) != ("worker", "files")
        ),
    ],
)
def test_tasks_that_are_disturbed_in_each_pass(
    segments: Path, dump: Path, undisturbed: Any, tmp_path: Path, kind: str, way: str
) -> None:
    """When it has its first result, and so its files, each task loses its worker or its executor, and runs again."""
    marks, home = tmp_path / "marks", tmp_path / "home"
    marks.mkdir()
    home.mkdir()
    job = _ways(segments, dump, tmp_path / "lake")[way] | {"tasks": [kind, str(marks)]}
    job |= (
        {"conf": {"spark.master": "local[2,4]"}} if kind == "worker" else {"conf": CLUSTER, "home": str(home)}
    )
    with running(job) as driver:
        driver.until("done")
    jobs = {each.name.partition("-")[0] for each in marks.iterdir()}
    assert len(jobs) >= {"files": 2, "quarantine": 3, "shuffled": 2, "sink": 4}[way]
    assert_whole("parquet", tmp_path / "lake", undisturbed("parquet"))


# ---- two writers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_writers(spark: Any, dump: Path, undisturbed: Any, tmp_path: Path) -> None:
    """The second one is refused, also in the middle of the first one's job."""
    lake = tmp_path / "lake"
    hold = tmp_path / "hold"
    hold.touch()
    job = _job(dump, lake, "parquet", conf={"spark.master": "local[2,4]"}, worker=True, hold=str(hold))
    with running(job) as driver:
        driver.until("ready")
        wait_for(lambda: data_files(lake) or driver.process.poll() is not None)
        with pytest.raises(RuntimeError, match=r"another process .*writes tables to|writes tables to"):
            pgspark.write_raw(dump, lake, order_by="place", spark=spark)
        hold.unlink()
        driver.until("done")
    assert_whole("parquet", lake, undisturbed("parquet"))


# ---- damaged payloads -----------------------------------------------------------------------------------------------

DAMAGES = {
    "empty": lambda payload: b"",
    "null": lambda payload: None,
    "unknown": lambda payload: b"\xff" + payload[1:],
    "cut": lambda payload: payload[: len(payload) - 3],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tag", "partitions"),
    [
        pytest.param("null", b"I", 1000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)]),
        ("null", b"I", 100),
        ("empty", b"I", 20),
        ("unknown", b"I", 20),
        ("cut", b"I", 20),
        ("cut", b"R", 20),
        ("cut", b"B", 20),
        ("cut", b"C", 20),
    ],
)
def test_one_damaged_payload(
    spark: Any, dump: Path, undisturbed: Any, tmp_path: Path, kind: str, tag: bytes, partitions: int
) -> None:
    """In one of many partitions: an error that names it, or a reject. Everything else is there."""
    rows = pq.read_table(dump).sort_by("place")
    payloads = rows["payload"].to_pylist()
    of_tag = [k for k, payload in enumerate(payloads) if payload[:1] == tag]
    at = of_tag[len(of_tag) // 2]
    payloads[at] = DAMAGES[kind](payloads[at])
    bad = tmp_path / "bad.parquet"
    pq.write_table(rows.set_column(1, "payload", pa.array(payloads, pa.binary())), bad)
    given = {"order_by": "place", "partitions": partitions, "spark": spark}
    lake = tmp_path / "lake"
    with pytest.raises(Exception, match=rf"message {at}[ ,:]|place = {at}\b"):
        pgspark.write_raw(bad, lake, **given)
    settled(spark)
    assert not data_files(lake)
    pgspark.write_raw(bad, lake, on_error="quarantine", **given)
    found = tables_of("parquet", lake)
    rejects = [
        row for name, table in found.items() if name.startswith("_rejects/") for row in table.to_pylist()
    ]
    assert at in {row["seq"] for row in rejects}
    assert len({(row["seq"], row["column"]) for row in rejects}) == len(rejects)
    # One decoder in quarantine says which rows there are.
    options = pgo.Options(on_error="quarantine", transactions="committed")
    decoded = pgo.decode([b"" if each is None else each for each in payloads], options=options)
    for name, wanted in undisturbed("parquet").items():
        kept = decoded.table(name)["_seq"].to_pylist()
        assert found[name].to_pylist() == [row for row in wanted.to_pylist() if row["_seq"] in set(kept)], (
            name
        )
    assert {row["seq"] for row in rejects} == set(decoded.rejects["seq"].to_pylist())
    before = data_files(lake)
    pgspark.write_raw(bad, lake, on_error="quarantine", **given)
    assert data_files(lake) == before
