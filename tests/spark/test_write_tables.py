"""Tables written by the executors: the same rows as one process decodes, once, whatever is killed and repeated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import Writer
from pgoutput_fast.segments import write_segment
from pgoutput_fast.spark.tables import run as runs
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables import parquet
from pgoutput_fast.tables.options import TableOptions
from support.forms import and_exhaustive, and_slow
from support.lakes import running, settled
from support.written_tables import (
    DIRECTORIES,
    FORMATS,
    NAMES,
    PAYLOADS,
    SOURCE,
    TABLES,
    assert_same,
    expected,
    place_of,
    random_cuts,
    read,
    stored,
    write_segments,
)

__all__ = ["stored"]


@pytest.fixture(scope="module")
def wanted_of(spark: Any, stored: Path) -> Callable[..., pa.Table]:
    """Gives what a table of the stored segments must have: (name, transactions) -> rows."""
    wal = spark.read.parquet(str(stored))
    return functools.cache(lambda name, transactions="committed": expected(wal, name, transactions))


@pytest.mark.parametrize(
    ("format", "transactions", "tagged"),
    and_slow(
        [("parquet", "as_sent", True), ("delta", "committed", False)],
        [("delta", "committed", True), ("iceberg", "committed", False), ("parquet", "committed", False)],
    ),
)
def test_all_tables_equal_their_changes(
    spark: Any,
    stored: Path,
    wanted_of: Callable[..., pa.Table],
    tmp_path: Path,
    format: str,
    transactions: Any,
    tagged: bool,
) -> None:
    wal = spark.read.parquet(str(stored))
    written = pgspark.write_tables(
        wal if tagged else stored, tmp_path, format=format, transactions=transactions
    )
    directories = [place_of(format, each) for each in DIRECTORIES]
    assert [row.table for row in written] == sorted(
        directories, key=lambda each: NAMES[directories.index(each)]
    )
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        wanted = wanted_of(name, transactions)
        got = read(format, tmp_path, directory)
        assert_same(got, wanted)
        (row,) = (each for each in written if each.table == place_of(format, directory))
        seqs = wanted.column("_seq").to_pylist()
        assert (row.rows, row.first, row.last) == (wanted.num_rows, min(seqs), max(seqs))
        assert row.files == len(list((tmp_path / place_of(format, directory)).glob("*.parquet")))
    left = {each.name for each in tmp_path.iterdir() if each.name not in directories}
    assert left - {"_catalog.db"} == {
        "_lock",
        "_progress.json",
        "_runs",
        "_rejects",
    }  # infinity has no Arrow form
    assert not list((tmp_path / "_runs").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "transactions"),
    and_exhaustive([("parquet", "committed")], [("delta", "as_sent"), ("iceberg", "committed")]),
)
def test_a_source_that_grows_adds_what_is_new(
    spark: Any, tmp_path: Path, format: str, transactions: Any
) -> None:
    segments, target = tmp_path / "segments", tmp_path / "lake"
    for _ in write_segments(segments, random_cuts(5, 4)):
        late = target / DIRECTORIES[1] / ".part-00-00-00001.parquet"  # of a speculative task that ended late
        if format == "parquet" and target.exists():
            late.write_bytes(b"")
        before: set[str] = set()
        for _again in range(2):
            written = pgspark.write_tables(segments, target, format=format, transactions=transactions)
            files = {str(each) for each in target.rglob("*.parquet")}
            assert not _again or (files == before and all(row.rows == 0 for row in written))
            before = files
    assert not late.exists()
    wal = spark.read.parquet(str(segments))
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        assert_same(read(format, target, directory), expected(wal, name, transactions))


class _KilledError(BaseException):
    """Stands for a process that ends at once: no handler of errors runs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "format",
    ["delta", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("parquet", "iceberg"))],
)
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: Any,
    stored: Path,
    wanted_of: Callable[..., pa.Table],
    tmp_path: Path,
    format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed before and after each step of each commit: the next run ends with the right tables and no other file."""
    wanted = {directory: wanted_of(name) for name, directory in zip(NAMES[:2], DIRECTORIES[:2], strict=True)}
    for at in range(40):
        target = tmp_path / str(at)
        steps = iter(range(1000))

        def step(function: Any) -> Any:
            def counted(*args: Any, **keywords: Any) -> Any:
                if next(steps) == at:  # noqa: B023
                    raise _KilledError
                return function(*args, **keywords)

            return counted

        with monkeypatch.context() as patch:
            patch.setattr(runs.Run, "commit", step(runs.Run.commit))
            patch.setattr(runs, "_remove_orphans", step(runs._remove_orphans))
            patch.setattr(parquet.ParquetTable, "_write", step(parquet.ParquetTable._write))
            patch.setattr(SqlCatalog, "commit_table", step(SqlCatalog.commit_table))
            store = type(open_store(target))
            patch.setattr(store, "rename", step(store.rename))
            patch.setattr(runs, "_clean_up", lambda *_: None)
            try:
                pgspark.write_tables(stored, target, NAMES[:2], format=format)
                break
            except _KilledError:
                pass
        pgspark.write_tables(stored, target, NAMES[:2], format=format)
        for directory, rows in wanted.items():
            assert_same(read(format, target, directory), rows)
            with runs.begin_run(str(target), format, TableOptions()) as run:
                known = run.table(place_of(format, directory)).known
                assert known is not None
            assert known.names == {
                each.name
                for each in (target / place_of(format, directory)).iterdir()
                if each.suffix == ".parquet"
            }
        assert not list((target / "_runs").iterdir())
    assert at >= (15 if format == "parquet" else 4)


@pytest.mark.slow
@pytest.mark.classic("the process shares the JVM of the session")
@pytest.mark.parametrize(
    "call", [pytest.param(2, marks=pytest.mark.exhaustive, id="before"), pytest.param(-1, id="after")]
)
def test_a_process_killed_at_a_commit_of_iceberg(
    spark: Any, stored: Path, wanted_of: Callable[..., pa.Table], tmp_path: Path, call: int
) -> None:
    """Another process, ended by SIGKILL: the files are there, and the catalog has them, or has not."""
    job = {
        "source": str(stored),
        "target": str(tmp_path / "lake"),
        "arguments": {"format": "iceberg"},
        "kill": ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", call),
    }
    with running(job, spark) as driver:
        assert driver.ended() == -9, driver.errors()
    settled(spark)
    assert list((tmp_path / "lake" / "_runs").iterdir())
    pgspark.write_tables(stored, tmp_path / "lake", format="iceberg")
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        assert_same(read("iceberg", tmp_path / "lake", directory), wanted_of(name))
    with runs.begin_run(str(tmp_path / "lake"), "iceberg", TableOptions()) as run:
        for directory in (place_of("iceberg", each) for each in DIRECTORIES):
            files = {each.name for each in (tmp_path / "lake" / directory).glob("*.parquet")}
            known = run.table(directory).known
            assert known is not None
            assert files == known.names


def test_an_error_leaves_the_target_as_it_was(spark: Any, tmp_path: Path) -> None:
    segments, target = tmp_path / "segments", tmp_path / "lake"
    cuts = write_segments(segments, random_cuts(3, 3))
    next(cuts)
    pgspark.write_tables(segments, target)
    before = {str(each): each.read_bytes() for each in target.rglob("*") if each.is_file()}
    next(cuts)
    newest = max(segments.glob("*.parquet"))
    content = bytearray(newest.read_bytes())
    content[4:4000] = b"\0" * 3996
    newest.write_bytes(content)
    with pytest.raises(Exception, match=r"."):
        pgspark.write_tables(segments, target)
    assert {str(each): each.read_bytes() for each in target.rglob("*") if each.is_file()} == before


@pytest.mark.parametrize("format", FORMATS)
def test_modes(spark: Any, stored: Path, tmp_path: Path, format: str) -> None:
    pgspark.write_tables(stored, tmp_path, ["public.t2"], format=format, mode="error")
    first = read(format, tmp_path, DIRECTORIES[2])
    with pytest.raises(ValueError, match=r"public\.t2 exists: use mode='append' or mode='overwrite'"):
        pgspark.write_tables(stored, tmp_path, ["public.t2"], format=format, mode="error")
    (row,) = pgspark.write_tables(
        stored, tmp_path, ["public.t2"], format=format, mode="overwrite", transactions="as_sent"
    )
    assert row.rows == first.num_rows
    assert_same(read(format, tmp_path, DIRECTORIES[2]), first)
    assert not (tmp_path / DIRECTORIES[0]).exists()


def test_a_table_of_another_stream_or_schema_is_refused(spark: Any, stored: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    list(write_segments(longer, [0, len(PAYLOADS)]))
    shorter = tmp_path / "shorter"
    next(write_segments(shorter, [0, 300, len(PAYLOADS)]))
    pgspark.write_tables(longer, tmp_path / "lake")
    with pytest.raises(ValueError, match=r"it is not the stream that the table was written from"):
        pgspark.write_tables(shorter, tmp_path / "lake")
    late = tmp_path / "late"
    pgspark.write_tables(shorter, tmp_path / "gap")
    list(write_segments(late, [0, 300, 400, len(PAYLOADS)]))
    for each in sorted(late.glob("*.parquet"))[:2]:
        each.unlink()
    with pytest.raises(ValueError, match=r"the changes in between are gone"):
        pgspark.write_tables(late, tmp_path / "gap")
    pgspark.write_tables(shorter, tmp_path / "types")
    before = {str(each): each.read_bytes() for each in (tmp_path / "types").rglob("*") if each.is_file()}
    with pytest.raises(
        ValueError, match=r"has another schema: its column 'price' is string, and the rows have double"
    ):
        pgspark.write_tables(longer, tmp_path / "types", options=pgo.Options(numeric="float64"))
    assert {
        str(each): each.read_bytes() for each in (tmp_path / "types").rglob("*") if each.is_file()
    } == before


def test_what_was_rejected_is_written_beside(spark: Any, tmp_path: Path) -> None:
    writer = Writer()
    wal = writer.begin(1, 100, 0)
    wal += writer.change(TABLES[0], "insert", new=["1", "good", None, None])
    wal += writer.change(TABLES[0], "insert", new=["x", "bad", None, None])
    wal += writer.commit(100, 108, 0)
    tagged, state = pgo.tag(wal)
    (tmp_path / "segments").mkdir()
    write_segment(tmp_path / "segments", tagged, state, source=SOURCE)
    with pytest.raises(Exception, match=r"public\.t0"):
        pgspark.write_tables(tmp_path / "segments", tmp_path / "lake")
    (row,) = pgspark.write_tables(
        tmp_path / "segments", tmp_path / "lake", options=pgo.Options(on_error="quarantine")
    )
    assert row.rows == 1
    rejects = pq.read_table(next((tmp_path / "lake" / "_rejects" / "public.t0").glob("part-*.parquet")))
    assert [each["relation"] for each in rejects.to_pylist()] == ["public.t0"]


@pytest.mark.parametrize(
    ("exclude", "left"),
    and_slow(
        [(["public.t1", "A.*"], [0, 2])],
        [
            (["public.t?"], [3]),
            (['"a.b"."o""dd é"', "public.none"], [0, 1, 2]),
            (['"public"."t*"'], [0, 1, 2, 3]),
        ],
    ),
)
def test_tables_that_are_left_out(
    spark: Any, stored: Path, tmp_path: Path, exclude: list[str], left: list[int]
) -> None:
    written = pgspark.write_tables(stored, tmp_path, exclude=exclude)
    assert sorted(row.table for row in written) == sorted(DIRECTORIES[k] for k in left)
    every = pgspark.write_tables(stored, tmp_path)  # and what was left out comes later
    assert {row.table for row in every if row.rows} == {
        each for k, each in enumerate(DIRECTORIES) if k not in left
    }
    with pytest.raises(KeyError, match="exclude= names all of them"):
        pgspark.write_tables(stored, tmp_path, exclude=["*"])
    for wrong in ("t1", "public.Legacy Data", '"public".*'):
        with pytest.raises(ValueError, match="which is no qualified name"):
            pgspark.write_tables(stored, tmp_path, exclude=[wrong])


def test_wrong_arguments(spark: Any, stored: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"tables must be a list of names"):
        pgspark.write_tables(stored, tmp_path, "public.t0")
    with pytest.raises(ValueError, match=r"format must be one of 'parquet', 'delta', 'iceberg', not 'orc'"):
        pgspark.write_tables(stored, tmp_path, format="orc")
    with pytest.raises(ValueError, match=r"mode must be one of"):
        pgspark.write_tables(stored, tmp_path, mode="ignore")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"public\.t0"):
        pgspark.write_tables(stored, tmp_path / "new", ["public.missing"])
    assert not (tmp_path / "new").exists()
    (tmp_path / "public.t1").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "public.t1" / "mine.parquet")
    pgspark.write_tables(stored, tmp_path / "delta", format="delta")
    with pytest.raises(ValueError, match=r"is a table of another format: use format='delta'"):
        pgspark.write_tables(stored, tmp_path / "delta")
    with pytest.raises(ValueError, match=r"public\.t1 has no position: something else wrote it"):
        pgspark.write_tables(stored, tmp_path, ["public.t1"])
    with (
        runs.begin_run(str(tmp_path), "parquet", TableOptions()),
        pytest.raises(RuntimeError, match=r"another process writes tables"),
    ):
        pgspark.write_tables(stored, tmp_path, ["public.t0"])


def test_files_stay_near_their_size(spark: Any, stored: Path, tmp_path: Path) -> None:
    (row,) = pgspark.write_tables(stored, tmp_path, ["public.t1"], file_bytes=1)
    assert row.files >= 1
    assert read("parquet", tmp_path, DIRECTORIES[1]).num_rows == row.rows
