"""A run that writes tables, without Spark: what the next run does after one that was killed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pgoutput_fast.spark.tables.run import Run, begin_run
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.tables.marker import left_runs
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.parquet import MANIFEST
from pgoutput_fast.tables.table import Ordinal

ROWS = pa.record_batch({"_seq": pa.array([1, 2, 3]), "id": pa.array([1, 2, 3])})
OPTIONS = TableOptions(None, None)


class _KilledError(BaseException):
    """Ends a run without its cleanup."""


def _write(run: Run, directory: str) -> None:
    """Commits a table."""
    schema = run.table(directory).in_files(None, ROWS.schema)
    with TableFiles(run.store, run.name, run.hidden) as files:
        files.add(directory, pa.RecordBatch.from_arrays(ROWS.columns, schema=schema))
    run.commit(directory, files.written, Ordinal(3), ROWS.schema, "append")


def _be_killed(target: Path, format: str) -> str:
    """A run is killed after its commit. Returns the directory of the table."""
    with begin_run(str(target), format, OPTIONS) as run:
        directory = "public.t"
        _write(run, directory)
        raise _KilledError(directory)


@pytest.mark.parametrize("format", ["delta", "iceberg", "parquet"])
@pytest.mark.parametrize("other", ["delta", "iceberg", "parquet"])
def test_a_run_of_another_format_leaves_the_files_of_one_that_was_killed(
    tmp_path: Path, format: str, other: str
) -> None:
    """It sees no table there, so it cannot know which of the files are in use."""
    store = open_store(tmp_path)
    with pytest.raises(_KilledError) as killed:
        _be_killed(tmp_path, format)
    (directory,) = killed.value.args
    (name,) = left_runs(store)
    unused = tmp_path / directory / f"part-{name}-00-00099.parquet"
    unused.write_bytes(b"")
    with begin_run(str(tmp_path), other, OPTIONS) as run:
        if other != format:
            with pytest.raises(ValueError, match="is a table of another format"):
                run.check_format(directory)
        _write(run, "public.u")
    assert (left_runs(store), unused.exists()) == (([name], True) if other != format else ([], False))
    # A run that can open the table removes what the table does not have, and only that.
    with begin_run(str(tmp_path), format, OPTIONS) as run:
        version = run.table(directory).version()
        assert version is not None
        assert [(tmp_path / directory / name).exists() for name in version.names] == [True]
    assert (left_runs(store), unused.exists()) == ([], False)


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_files_of_a_killed_run_in_a_table_that_is_damaged(tmp_path: Path, format: str) -> None:
    """They stay, as nobody knows which of them the table has, until it can be read again. Other tables go on."""
    with pytest.raises(_KilledError) as killed:
        _be_killed(tmp_path, format)
    (directory,) = killed.value.args
    (name,) = left_runs(open_store(tmp_path))
    unused = tmp_path / directory / f"part-{name}-00-00099.parquet"
    unused.write_bytes(b"")
    (mark,) = (
        path for path in (tmp_path / directory).rglob("*.json") if path.name in (MANIFEST, f"{0:020}.json")
    )
    content = mark.read_bytes()
    mark.write_bytes(b"{")
    files = sorted((tmp_path / directory).glob("*.parquet"))
    for other in ("public.u", "public.v"):
        with begin_run(str(tmp_path), format, OPTIONS) as run:
            _write(run, other)
        assert (left_runs(run.store), sorted((tmp_path / directory).glob("*.parquet"))) == ([name], files)
    mark.write_bytes(content)
    with begin_run(str(tmp_path), format, OPTIONS):
        pass
    assert left_runs(run.store) == []
    assert sorted((tmp_path / directory).glob("*.parquet")) == [each for each in files if each != unused]
