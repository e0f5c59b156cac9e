"""Histories: appended once, joined from time to time, and cleaned of what a killed process left."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.mirror import MirrorBusyError
from pgoutput_fast.mirror.follow import history
from pgoutput_fast.mirror.follow.history import AppendTable, HistoryFiles
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta import joining
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import OutcomeUnknownError
from support.buckets import opened_bucket
from support.current_tables import forget_statistics

DIRECTORY = "history/public.t"


def _rows(*ids: int, **more: pa.Array) -> pa.Table:
    return pa.table({"_seq": pa.array(ids, pa.int64()), "id": pa.array(ids, pa.int32()), **more})


def _read(target: Path, *columns: str) -> list[dict[str, object]]:
    rows = deltalake.DeltaTable(str(target / DIRECTORY)).to_pyarrow_table(columns=list(columns) or None)
    return pa.table(rows).sort_by("id").to_pylist()


def _append(target: Path, table: AppendTable, position: int, *rows: pa.Table) -> None:
    with HistoryFiles(open_store(target), "0123") as files:
        for each in rows:
            files.add(table, each)
        written, schema = files.of(table)
        assert schema is not None
        table.commit(written, position, schema)


def test_a_new_column_after_dates_that_python_lacks(tmp_path: Path) -> None:
    """A range of dates is a struct. An OPTIMIZE gives it bounds."""
    table = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions())
    far = pa.array([10_000_000], pa.int32()).cast(pa.date32())
    span = pa.StructArray.from_arrays([far, far], ["lower", "upper"])
    for number in (1, 2):
        _append(tmp_path, table, number * 100, _rows(number, span=span))
    deltalake.DeltaTable(str(tmp_path / DIRECTORY)).optimize.compact()
    table = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions())
    _append(tmp_path, table, 300, _rows(3, span=span, note=pa.array(["x"])))
    assert [row["note"] for row in _read(tmp_path, "id", "note")] == [None, None, "x"]


def test_files_without_a_count_of_rows(tmp_path: Path) -> None:
    """As another program may write them: without statistics in the log."""
    table = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions())
    for number in (1, 2):
        sent = {"_change_type": pa.array(["insert"]), "_commit_lsn": pa.array([number * 100])}
        _append(tmp_path, table, number * 100, _rows(number, **sent))
    forget_statistics(tmp_path / DIRECTORY)
    table = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions())
    assert table.count() == 2
    assert table.after(0)["id"].to_pylist() == [1, 2]


def test_columns_that_are_added_in_between(tmp_path: Path) -> None:
    table = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions())
    assert table.position() is None
    _append(tmp_path, table, 100, _rows(1))
    note = pa.array(["x"])
    _append(tmp_path, table, 200, _rows(2), _rows(3, note=note), _rows(4))
    assert [row["note"] for row in _read(tmp_path)] == [None, None, "x", None]
    assert AppendTable(open_store(tmp_path), DIRECTORY, TableOptions()).position() == 200
    with HistoryFiles(open_store(tmp_path), "0123") as files:
        files.add(table, _rows(5, note=note))
        with pytest.raises(ValueError, match="its column 'note' is string, and the rows have int64"):
            files.add(table, _rows(6, note=pa.array([7])))
        files.add(table, _rows(7, other=pa.array([1])))
        with pytest.raises(ValueError, match="its column 'other' was int64 and became string"):
            files.add(table, _rows(8, other=pa.array(["a"])))
        written, schema = files.of(table)
        assert schema is not None
        table.commit(written, 300, schema)
    assert [row["id"] for row in _read(tmp_path)] == [1, 2, 3, 4, 5, 7]


def test_files_that_are_not_committed_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    table = AppendTable(store, DIRECTORY, TableOptions())
    _append(tmp_path, table, 100, _rows(1))
    failed = HistoryFiles(store, "0123")
    failed.add(table, _rows(2))
    failed.add(table, _rows(3, note=pa.array(["x"])))  # closes the first file
    failed.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert len(list((tmp_path / DIRECTORY).glob("*.parquet"))) == 1
    killed = HistoryFiles(store, "4567")
    killed.add(table, _rows(4))
    killed.of(table)
    assert len(list((tmp_path / DIRECTORY).glob("*.parquet"))) == 2
    table.remove_orphans(["0123"])
    assert len(list((tmp_path / DIRECTORY).glob("*.parquet"))) == 2
    table.remove_orphans(["4567"])
    assert len(list((tmp_path / DIRECTORY).glob("*.parquet"))) == 1
    assert [row["id"] for row in _read(tmp_path)] == [1]


def test_a_commit_that_comes_late() -> None:
    """A store reports an error, and makes the commit later, perhaps while another process has the table open."""
    with opened_bucket("late-history") as bucket:
        store = open_store(bucket.uri % "lake")

        def append(position: int, run: str) -> None:
            with HistoryFiles(store, run) as files:
                files.add(table, _rows(position))
                written, schema = files.of(table)
                assert schema is not None
                table.commit(written, position, schema)

        def opened() -> AppendTable:
            return AppendTable(store, DIRECTORY, TableOptions())

        table = opened()
        append(1, "0123")
        bucket.delay("_delta_log/")
        with pytest.raises(OSError, match="RequestTimeout") as caught:
            append(2, "4567")
        assert is_outage(caught.value, local=False), "the mirror would not try again"
        table = opened()
        assert table.position() == 1
        bucket.arrive()
        # This object has read the version before, and it is the only one that looks for files of the run.
        table.remove_orphans(["0123", "4567"])
        table = opened()
        assert table.position() == 2
        assert {file.name for file in table.files()} <= {
            each.rpartition("/")[2] for each in store.names(DIRECTORY)
        }
        # Another one, which never came.
        bucket.delay("_delta_log/")
        with pytest.raises(OutcomeUnknownError):
            append(3, "89ab")
        opened().remove_orphans(["89ab"])
        assert len([each for each in store.names(DIRECTORY) if each.endswith(".parquet")]) == 2


def test_two_processes_append(tmp_path: Path) -> None:
    """Only one of them does, whenever the other one has looked at the table."""
    first, second = (AppendTable(open_store(tmp_path), DIRECTORY, TableOptions()) for _ in range(2))
    _append(tmp_path, first, 100, _rows(1))
    with pytest.raises(MirrorBusyError, match="another process mirrors into it"):
        _append(tmp_path, second, 100, _rows(1))
    first, second = (AppendTable(open_store(tmp_path), DIRECTORY, TableOptions()) for _ in range(2))
    assert first.fitted(_rows(2).schema) == second.fitted(_rows(2).schema)  # both look
    _append(tmp_path, first, 200, _rows(2))
    with pytest.raises(MirrorBusyError, match="another process mirrors into it"):
        _append(tmp_path, second, 200, _rows(2))
    with pytest.raises(MirrorBusyError, match="another process mirrors into it"):
        _append(tmp_path, second, 300, _rows(3))
    assert [row["id"] for row in _read(tmp_path)] == [1, 2]


def test_small_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table goes on while another thread joins them."""
    monkeypatch.setattr(history, "_MOST_COMMITS", 12)
    table, gate, threads = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions()), threading.Event(), []
    write = joining.joined

    def waiting(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        assert gate.wait(60)
        return write(*arguments)

    monkeypatch.setattr(joining, "joined", waiting)
    for n in range(20):
        _append(tmp_path, table, 100 + n, _rows(n))
    assert len(_uris(tmp_path)) == 20
    gate.set()
    threads[0].join()
    _append(tmp_path, table, 120, _rows(20))
    assert len(_uris(tmp_path)) == 21 - 12 + 1
    for n in range(21, 25):
        _append(tmp_path, table, 100 + n, _rows(n))
    table.end_joining()
    assert len(_uris(tmp_path)) < 6
    assert len(threads) == 2
    assert [row["id"] for row in _read(tmp_path)] == list(range(25))
    assert AppendTable(open_store(tmp_path), DIRECTORY, TableOptions()).position() == 124


def test_the_files_of_short_runs_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a mirror that a timer starts."""
    monkeypatch.setattr(history, "_MOST_COMMITS", 12)
    for n in range(60):
        table = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions())
        _append(tmp_path, table, 100 + n, _rows(n))
        table.end_joining()
        assert len(_uris(tmp_path)) <= 20
    assert [row["id"] for row in _read(tmp_path)] == list(range(60))


@pytest.mark.parametrize("vacuum", [False, True])
def test_another_program_joins_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vacuum: bool
) -> None:
    monkeypatch.setattr(history, "_MOST_COMMITS", 12)
    table, gate, write = (
        AppendTable(open_store(tmp_path), DIRECTORY, TableOptions()),
        threading.Event(),
        joining.joined,
    )

    def waiting(*arguments: Any) -> Any:
        assert gate.wait(60)
        return write(*arguments)

    monkeypatch.setattr(joining, "joined", waiting)
    for n in range(14):
        _append(tmp_path, table, 100 + n, _rows(n))
    other = deltalake.DeltaTable(str(tmp_path / DIRECTORY))
    other.optimize.compact()
    if vacuum:
        other.vacuum(0, enforce_retention_duration=False, dry_run=False)
    gate.set()
    table.end_joining()
    _append(tmp_path, table, 200, _rows(14))
    assert [row["id"] for row in _read(tmp_path)] == list(range(15))
    assert not list((tmp_path / DIRECTORY).glob("part-joined-*"))


def _uris(target: Path) -> list[str]:
    return deltalake.DeltaTable(str(target / DIRECTORY)).file_uris()


@pytest.mark.parametrize(("seconds", "stay"), [(0.1, False), (10.0, True)])
def test_a_log_does_not_grow_for_ever(seconds: float, stay: bool, tmp_path: Path) -> None:
    """Two hours are twelve thousand commits for one, and seven hundred for the other."""
    options = TableOptions(history_seconds=seconds)
    log = tmp_path / DIRECTORY / "_delta_log"
    for number in range(1, 31):
        _append(tmp_path, AppendTable(open_store(tmp_path), DIRECTORY, options), number, _rows(number))
        if number == 15:
            then = time.time() - 7200
            for each in log.iterdir():
                os.utime(each, (then, then))
    assert (log / f"{5:020d}.json").exists() == stay
    table = AppendTable(open_store(tmp_path), DIRECTORY, options)
    assert table.position() == 30
    assert [row["id"] for row in _read(tmp_path, "id")] == list(range(1, 31))


def test_a_history_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It has its LSN where tables of `write_tables` have an ordinal. From the next commit on it also has a place of its own."""
    store = open_store(tmp_path)
    _append(tmp_path, AppendTable(store, DIRECTORY, TableOptions()), 100, _rows(1))
    rows = pa.table(deltalake.DeltaTable(str(tmp_path / DIRECTORY)).to_pyarrow_table())
    shutil.rmtree(tmp_path / DIRECTORY)
    before = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("pgoutput_fast", 200)])
    deltalake.write_deltalake(tmp_path / DIRECTORY, rows, commit_properties=before)
    table = AppendTable(store, DIRECTORY, TableOptions())
    assert table.position() == 200
    other = AppendTable(store, DIRECTORY, TableOptions())
    _append(tmp_path, table, 300, _rows(2, note=pa.array(["x"])))
    with pytest.raises(MirrorBusyError, match="another process mirrors into it"):
        _append(tmp_path, other, 300, _rows(2))
    assert AppendTable(store, DIRECTORY, TableOptions()).position() == 300
    found = deltalake.DeltaTable(str(tmp_path / DIRECTORY))
    assert found.transaction_version("pgoutput_fast.mirror") == 300
    assert found.transaction_version("pgoutput_fast") == 300, "an earlier version would append changes again"
    assert [row["id"] for row in _read(tmp_path)] == [1, 2]
    # The earlier version goes on, and then this one.
    before = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("pgoutput_fast", 400)])
    more = _rows(4, note=pa.array(["z"]))
    deltalake.write_deltalake(tmp_path / DIRECTORY, more, mode="append", commit_properties=before)
    table = AppendTable(store, DIRECTORY, TableOptions())
    assert table.position() == 400, "this version would append changes again"
    _append(
        tmp_path, table, 500, _rows(3, more=pa.array(["y"]))
    )  # a commit for the column, and one for the rows
    assert AppendTable(store, DIRECTORY, TableOptions()).position() == 500
    found.update_incremental()
    assert found.transaction_version("pgoutput_fast") == 500


def test_an_optimize_while_all_rows_are_replaced(tmp_path: Path) -> None:
    """Rows of the files that it joins do not stay beside the new ones."""
    table = AppendTable(open_store(tmp_path), DIRECTORY, TableOptions())
    for n in range(3):
        _append(tmp_path, table, 100 + n, _rows(n))
    table.fitted(_rows(1).schema)  # reads the table
    deltalake.DeltaTable(str(tmp_path / DIRECTORY)).optimize.compact()
    with HistoryFiles(open_store(tmp_path), "0123", replace=True) as files:
        files.add(table, _rows(7))
        written, schema = files.of(table)
    assert schema is not None
    with pytest.raises(
        RuntimeError, match=r"something else changed .* during the commit, which did nothing: run it again"
    ):
        table.commit(written, 200, schema, replace=True)
    assert [row["id"] for row in _read(tmp_path)] == [0, 1, 2]
    table.commit(written, 200, schema, replace=True)
    assert [row["id"] for row in _read(tmp_path)] == [7]


def test_a_listing_that_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call reads the table again. It does not take it for a table without files."""
    store = open_store(tmp_path)
    table = AppendTable(store, DIRECTORY, TableOptions())
    _append(tmp_path, table, 100, _rows(1))
    (file,) = table.files()
    fails = [True]

    def failing(self: deltalake.DeltaTable, *arguments: Any, **more: Any) -> Any:
        if fails.pop() if fails else False:
            raise deltalake.exceptions.DeltaError("the store is away")
        return actions(self, *arguments, **more)

    actions = deltalake.DeltaTable.get_add_actions
    table = AppendTable(store, DIRECTORY, TableOptions())
    monkeypatch.setattr(deltalake.DeltaTable, "get_add_actions", failing)
    with pytest.raises(ValueError, match="the store is away"):
        table.files()
    assert table.files() == [file]
    assert not fails
