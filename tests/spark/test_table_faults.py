"""Tables written by drivers, workers and executors that are killed, and on disks that are full: no row twice, none lost.

`PGOUTPUT_FAST_KILLS` says how often the tests of random moments kill; `make soak` does so many times.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.spark.tables import run as runs
from pgoutput_fast.tables.parquet import ParquetTable
from support.disks import small_disk
from support.forms import and_slow
from support.lake_driver import write_stream
from support.lakes import (
    assert_whole,
    data_files,
    make_segments,
    problem_of,
    python_workers,
    running,
    settled,
    tables_of,
    wait_for,
)
from support.spark_features import AVAILABLE_NOW

KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "1"))
DRIVER = pytest.mark.classic("a driver of its own, on a classic Spark")
SOAK = pytest.mark.skipif(KILLS < 2, reason="make soak does this")
FORMATS = ["parquet", "delta"]
BOUNDED = ["parquet", pytest.param("delta", marks=SOAK)]
_RUN, _STORES = "pgoutput_fast.spark.tables.run", "pgoutput_fast.storage.stores"


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


@DRIVER
@pytest.mark.parametrize(
    ("format", "kill"),
    [
        ("parquet", (_RUN, "Run.commit", 1)),  # all files are there, and no table
        pytest.param("parquet", (_RUN, "Run.commit", 3), marks=SOAK),
        pytest.param("parquet", (_STORES, "_Directory.rename", -2), marks=pytest.mark.slow),
        pytest.param("parquet", (_RUN, "Run.end", 1), marks=SOAK),
        pytest.param("delta", (_RUN, "Run.commit", -1), marks=pytest.mark.slow),
        pytest.param("delta", (_RUN, "end_marker", -1), marks=SOAK),
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


@pytest.mark.slow
@DRIVER
@pytest.mark.parametrize("format", BOUNDED)
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


@DRIVER
@pytest.mark.parametrize(
    ("format", "batch"),
    [pytest.param("parquet", 2, marks=pytest.mark.exhaustive), pytest.param("delta", 1, marks=SOAK)],
)
def test_a_stream_killed_between_commit_and_checkpoint(
    spark: Any, stored: Path, undisturbed: Any, tmp_path: Path, format: str, batch: int
) -> None:
    """With its JVM, right after the function of foreachBatch returned."""
    _killed_stream(spark, stored, undisturbed[format], tmp_path, format, [{"batch": batch}])


@DRIVER
@SOAK
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
    pgspark.register(spark)
    write_stream(spark, job, pgspark.table_sink(job["target"], format=format), group=False)
    assert_whole(format, place / "lake", expected)


# ---- workers and executors ------------------------------------------------------------------------------------------


@pytest.mark.slow
@DRIVER
@pytest.mark.parametrize("format", BOUNDED)
def test_workers_killed_while_they_write(stored: Path, undisturbed: Any, tmp_path: Path, format: str) -> None:
    """Spark gives a task four attempts here."""
    job = {
        "source": str(stored),
        "target": str(tmp_path / "lake"),
        "arguments": {"format": format},
        "conf": {"spark.master": "local[2,4]"},
        "worker": True,
    }
    with running(job) as driver:
        assert driver.until("stopped") in ("stopped 1", "stopped 2")
        driver.until("done")
    assert_whole(format, tmp_path / "lake", undisturbed[format])


@DRIVER
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("format", BOUNDED)
def test_a_stream_whose_workers_are_killed_in_each_batch(
    stored: Path, undisturbed: Any, tmp_path: Path, format: str
) -> None:
    """Each of the four batches is committed once."""
    lake, batches = tmp_path / "lake", 4 if AVAILABLE_NOW else 1
    job = {
        "source": str(stored),
        "target": str(lake),
        "checkpoint": str(tmp_path / "checkpoint"),
        "arguments": {"format": format},
        "conf": {"spark.master": "local[2,4]"},
        "worker": True,
    }
    with running(job) as driver:
        for _ in range(batches):
            assert driver.until("stopped") in ("stopped 1", "stopped 2")
        driver.until("done")
    assert_whole(format, lake, undisturbed[format])
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]"))) == batches


@DRIVER
@pytest.mark.timeout(900)
@SOAK
@pytest.mark.parametrize("format", FORMATS)
def test_a_cluster_whose_executor_is_killed(
    spark: Any, stored: Path, undisturbed: Any, tmp_path: Path, format: str
) -> None:
    """Its Python worker has written a file, and goes on."""
    conf = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executorEnv.PYTHONPATH": str(Path(pgo.__file__).parents[1]),
    }
    (tmp_path / "home").mkdir()
    job = {
        "source": str(stored),
        "target": str(tmp_path / "lake"),
        "arguments": {"format": format},
        "conf": conf,
        "home": str(tmp_path / "home"),
        "executor": True,
    }
    with running(job) as driver:
        driver.until("stopped")
        driver.until("done")
    pgspark.write_tables(stored, tmp_path / "lake", format=format)
    assert_whole(format, tmp_path / "lake", undisturbed[format])


# ---- disks ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments whose tables need some 8 MB, a fourth of them in the first one."""
    directory = tmp_path_factory.mktemp("wide") / "segments"
    make_segments(directory, width=4_000)
    return directory


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as place:
        yield place


def _remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def _contents(target: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in target.rglob("*") if each.is_file()}


def _first_of(wide: Path, place: Path) -> Path:
    """A directory with the first segment."""
    place.mkdir()
    shutil.copy(min(wide.glob("*.parquet")), place)
    return place


@pytest.mark.parametrize("format", ["delta", pytest.param("parquet", marks=pytest.mark.exhaustive)])
def test_a_disk_that_is_full(spark: Any, wide: Path, disk: Path, tmp_path: Path, format: str) -> None:
    lake, segments = disk / "lake", _first_of(wide, tmp_path / "segments")
    pgspark.write_tables(segments, lake, format=format)
    before = _contents(lake)
    shutil.copytree(wide, segments, dirs_exist_ok=True)
    with pytest.raises(Exception, match=r"No space left on device") as caught:
        pgspark.write_tables(segments, lake, format=format)
    assert f"There is no space for files of tables in {lake}." in problem_of(caught)
    assert "Make space, and run it again" in problem_of(caught)
    settled(spark)
    assert _contents(lake) == before
    _remount(disk, "ro")
    with pytest.raises(OSError, match=r"Read-only file system") as caught:
        pgspark.write_tables(segments, lake, format=format)
    assert f"This process may not write to {lake}." in problem_of(caught)
    _remount(disk, "rw,size=64m")
    pgspark.write_tables(segments, lake, format=format)
    pgspark.write_tables(wide, tmp_path / "other", format=format)
    assert_whole(format, lake, tables_of(format, tmp_path / "other"))


@pytest.mark.parametrize("format", and_slow(["parquet"], ["delta"]))
def test_a_disk_that_is_full_at_the_commit(
    spark: Any, stored: Path, undisturbed: Any, disk: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two tables, and between the steps of one commit."""
    lake, filler = disk / "lake", disk / "filler"

    def fill(function: Any, number: int) -> Any:
        calls = itertools.count(1)

        def filled(*arguments: Any) -> Any:
            if next(calls) == number:
                with suppress(OSError), filler.open("wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
            return function(*arguments)

        return filled

    for owner, name, number in ((runs.Run, "commit", 2), (ParquetTable, "_write", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fill(getattr(owner, name), number))
            if format == "delta" and owner is ParquetTable:
                continue
            with pytest.raises(Exception, match=r"No space left on device|os error 28") as caught:
                pgspark.write_tables(stored, lake, format=format)
        assert "There is no space for files of tables" in problem_of(caught)
        filler.unlink()
        pgspark.write_tables(stored, lake, format=format)
        assert_whole(format, lake, undisturbed[format])
        shutil.rmtree(lake)


def _limit_workers(spark: Any, limit: tuple[int, int]) -> None:
    """Limits the size of the files of the workers, and of Spark's daemon, whose children have its limit."""
    for each in python_workers(spark):
        with suppress(ProcessLookupError):  # after an error in a task, its worker ends
            resource.prlimit(each, resource.RLIMIT_FSIZE, limit)


@pytest.mark.classic("it finds the workers by the process of the JVM")
def test_files_that_must_not_grow(spark: Any, wide: Path, tmp_path: Path) -> None:
    """As with a quota; a limit that the workers have for a while."""
    lake, segments = tmp_path / "lake", _first_of(wide, tmp_path / "segments")
    pgspark.write_tables(segments, lake)
    before = _contents(lake)
    shutil.copytree(wide, segments, dirs_exist_ok=True)
    own = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        _limit_workers(spark, (100_000, own[1]))
        with pytest.raises(Exception, match=r"File too large") as caught:
            pgspark.write_tables(segments, lake)
    finally:
        _limit_workers(spark, own)
    assert f"There is no space for files of tables in {lake}." in problem_of(caught)
    settled(spark)
    assert _contents(lake) == before
    assert all(row.rows for row in pgspark.write_tables(segments, lake))


def test_a_target_that_is_no_directory(spark: Any, stored: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            NotADirectoryError, match=r"the target .* is a file, or lies below one: give a directory"
        ):
            pgspark.write_tables(stored, target)
    assert (tmp_path / "file").read_text() == "mine"


# ---- bad input ------------------------------------------------------------------------------------------------------


def _change_a_byte(path: Path) -> None:
    """In a page of payloads."""
    metadata, content = pq.read_metadata(path), bytearray(path.read_bytes())
    group = metadata.row_group(metadata.num_row_groups - 1)
    columns = [group.column(k) for k in range(group.num_columns)]
    (payload,) = (each for each in columns if each.path_in_schema == "payload")
    content[payload.data_page_offset + payload.total_compressed_size // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("format", FORMATS)
def test_segments_that_are_damaged(spark: Any, stored: Path, tmp_path: Path, format: str) -> None:
    lake, segments = tmp_path / "lake", _first_of(stored, tmp_path / "segments")
    pgspark.write_tables(segments, lake, format=format)
    before, second = _contents(lake), sorted(stored.glob("*.parquet"))[1]
    path = segments / second.name
    for change, message in (
        (_change_a_byte, r"cannot be read: .*If the file is damaged, put a good copy in its place"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), r"is damaged"),
        (lambda path: path.write_bytes(b""), r"is damaged"),
        (lambda path: pq.write_table(pa.table({"a": [1]}), path), r"is not a segment"),
    ):
        shutil.copy(second, path)
        change(path)
        with pytest.raises(Exception, match=rf"(?s){path.name} {message}"):
            pgspark.write_tables(segments, lake, format=format)
        settled(spark)
        assert _contents(lake) == before


def test_files_of_others_in_the_target(spark: Any, stored: Path, tmp_path: Path) -> None:
    place = tmp_path / "public.t1"
    place.mkdir()
    pq.write_table(pa.table({"a": [1]}), place / "mine.parquet")
    before = _contents(tmp_path)
    for mode, message in (
        ("append", r"public\.t1 has no position: something else wrote it"),
        ("error", r"public\.t1 exists"),
        ("overwrite", r"public\.t1 has files that write_tables did not write, such as mine\.parquet"),
    ):
        with pytest.raises(ValueError, match=message):
            pgspark.write_tables(stored, tmp_path, mode=mode)  # type: ignore[arg-type]
        assert {**_contents(tmp_path), str(tmp_path / "_lock"): b""} == {
            **before,
            str(tmp_path / "_lock"): b"",
        }
    pgspark.write_tables(stored, tmp_path, ["public.t0"])
    with pytest.raises(ValueError, match=r"public\.t0 is a table of another format: use format='parquet'"):
        pgspark.write_tables(stored, tmp_path, ["public.t0"], format="delta")


def test_rejects_of_each_table(spark: Any, tmp_path: Path) -> None:
    """Each table's rejects are written once, whatever tables a run writes."""
    segments = tmp_path / "segments"
    make_segments(segments, txns=20, price="no number")
    options = pgo.Options(on_error="quarantine")
    for tables in (["public.t0"], ["public.t1"], ["public.t0", "public.t1"], None):
        pgspark.write_tables(segments, tmp_path / "lake", tables, options=options)
    found = tables_of("parquet", tmp_path / "lake")
    for name in ("public.t0", "public.t1", "public.t2"):
        rejects = found[f"_rejects/{name}"]
        assert set(rejects["relation"].to_pylist()) == {name}
        assert rejects.num_rows == 20 * 10
    pgspark.write_tables(segments, tmp_path / "lake", ["public.t2"], options=options, mode="overwrite")
    again = tables_of("parquet", tmp_path / "lake")
    assert {name: rows.num_rows for name, rows in again.items()} == {
        name: rows.num_rows for name, rows in found.items()
    }
