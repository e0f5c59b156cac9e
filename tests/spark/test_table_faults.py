"""Tables written by drivers, workers and executors that are killed, and on disks that are full: no row twice, none lost.

`PGOUTPUT_FAST_KILLS` says how often the tests of random moments kill; `make soak` does so many times.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast import spark as pgspark
from support.lakes import assert_whole, data_files, make_segments, running, settled, tables_of, wait_for

KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "1"))
FORMATS = ["parquet", "delta"]
_RUN, _MANIFEST = "pgoutput_fast.spark.tables.run", "pgoutput_fast.mirror.tables.manifest"
_STORES = "pgoutput_fast.storage.stores"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stored") / "segments"
    make_segments(directory)
    return directory


@pytest.fixture(scope="module")
def undisturbed(
    spark: Any, stored: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, pa.Table]]:
    """{format: tables}."""
    found = {}
    for format in FORMATS:
        target = tmp_path_factory.mktemp("undisturbed")
        pgspark.write_tables(stored, target, format=format)
        found[format] = tables_of(format, target)
        assert {each.num_rows for each in found[format].values()} == {600, 605}
    return found


# ---- the driver -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "kill"),
    [
        ("parquet", (_RUN, "Run.commit", 1)),  # all files are there, and no table
        ("parquet", (_RUN, "Run.commit", 3)),
        ("parquet", (_STORES, "_Directory.rename", -2)),
        ("parquet", (_RUN, "Run.end", 1)),
        ("delta", (_RUN, "Run.commit", -1)),
        ("delta", (_RUN, "end_marker", -1)),
    ],
    ids=str,
)
def test_a_driver_killed_at_a_step(
    spark: Any, stored: Path, undisturbed: Any, tmp_path: Path, format: str, kill: Any
) -> None:
    """The JVM goes on: its tasks outlive their driver."""
    job = {
        "source": str(stored),
        "target": str(tmp_path / "lake"),
        "arguments": {"format": format},
        "kill": kill,
    }
    with running(job, spark) as driver:
        assert driver.ended() == -9, driver.errors()
    assert list((tmp_path / "lake" / "_runs").iterdir())
    pgspark.write_tables(stored, tmp_path / "lake", format=format)
    settled(spark)
    assert_whole(format, tmp_path / "lake", undisturbed[format])


@pytest.mark.parametrize("format", FORMATS)
def test_a_driver_killed_at_random_moments(
    spark: Any, stored: Path, undisturbed: Any, tmp_path: Path, format: str
) -> None:
    dice, lake = random.Random(KILLS), tmp_path / "lake"
    job = {"source": str(stored), "target": str(lake), "arguments": {"format": format}}
    for n in range(KILLS):
        with running(job, spark) as driver:
            driver.until("ready")
            if n % 2 == 0:
                wait_for(lambda: data_files(lake) or driver.process.poll() is not None)
            time.sleep(dice.random() * (0.05 if n % 2 == 0 else 1.5))
            driver.kill()
            driver.ended()
        if n % 3 == 0:
            pgspark.write_tables(stored, lake, format=format)
            settled(spark)
            assert_whole(format, lake, undisturbed[format])
            shutil.rmtree(lake)


# ---- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "batch"), [("parquet", 2), ("delta", 1)])
def test_a_stream_killed_between_commit_and_checkpoint(
    spark: Any, stored: Path, undisturbed: Any, tmp_path: Path, format: str, batch: int
) -> None:
    """With its JVM, right after the function of foreachBatch returned."""
    _killed_stream(spark, stored, undisturbed[format], tmp_path, format, [{"batch": batch}])


@pytest.mark.skipif(KILLS < 2, reason="make soak does this")
@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_killed_at_random_moments(
    spark: Any, stored: Path, undisturbed: Any, tmp_path: Path, format: str
) -> None:
    dice = random.Random(KILLS)
    kills = [{"after": dice.random() * 5} for _ in range(KILLS)]
    _killed_stream(spark, stored, undisturbed[format], tmp_path, format, kills)


def _killed_stream(
    spark: Any, stored: Path, expected: Any, place: Path, format: str, kills: list[dict[str, Any]]
) -> None:
    job: dict[str, Any] = {
        "source": str(stored),
        "target": str(place / "lake"),
        "checkpoint": str(place / "checkpoint"),
        "arguments": {"format": format},
    }
    for kill in kills:
        with running({**job, **kill}) as driver:
            driver.until("ready")
            if "after" in kill:
                time.sleep(kill["after"])
                driver.kill()
            code = driver.ended()
            if code == 0:  # it was done before: begin anew
                assert_whole(format, place / "lake", expected)
                shutil.rmtree(place / "lake")
                shutil.rmtree(place / "checkpoint")
            else:
                assert code == -9, driver.errors()
    with running(job, spark) as driver:
        driver.until("done")
    assert_whole(format, place / "lake", expected)


# ---- workers and executors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_workers_killed_while_they_write(stored: Path, undisturbed: Any, tmp_path: Path, format: str) -> None:
    """Spark gives a task four attempts here."""
    job = {
        "source": str(stored),
        "target": str(tmp_path / "lake"),
        "arguments": {"format": format},
        "conf": {"spark.master": "local[2,4]"},
        "worker": 2,
    }
    with running(job) as driver:
        left = [driver.until("killed") for _ in range(2)]
        driver.until("done")
    assert all("/part-" in each.replace("/..", "/").replace("/.", "/") for each in left)
    assert_whole(format, tmp_path / "lake", undisturbed[format])
