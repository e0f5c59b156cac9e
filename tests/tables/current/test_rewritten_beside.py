"""Files of current tables that another thread writes anew, while merges go on."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pgoutput_fast.merge import compaction, local
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.key_files import KeyFiles
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.merge.units import JoinUnit, UnitResult
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.table import DataFile
from support import numbered
from support.current_tables import RandomEffects, open_files, settle
from support.forms import and_slow
from support.marked import inline, mark_rows, read_with_delta_rs
from support.readers import expect_model, rows_of_iceberg

NAME = "public.orders"


class Gate:
    """Holds the other thread after it has written files, until it is opened or the work is given up."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written, self._open = threading.Event(), threading.Event()
        self.problem: Exception | None = None
        run = JoinUnit.run

        def held(unit: JoinUnit, store: Any, files: Any, check: Any) -> UnitResult:
            result = run(unit, store, files, check)
            self.written.set()
            while not self._open.wait(0.01):
                check()
            if self.problem is not None:
                raise self.problem
            return result

        patch.setattr(JoinUnit, "run", held)

    def open(self) -> None:
        assert self.written.wait(240)
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(local, "_REST", 0)
    made = Gate(monkeypatch)
    yield made
    made._open.set()


def _open(format: str, place: Path, file_bytes: int = 100, **more: Any) -> LocalMerge:
    return open_files(format, place, NAME, file_bytes, "on_read", settled=False, **more)


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LocalMerge:
    """The ids from 0 to 999, in ten files. Every file has keys when it was searched."""
    loaded = numbered.load(_open(request.param, tmp_path))
    loaded.keys = KeyFiles(loaded.table.store, loaded.table.files, least_rows=1, rows_a_key=0)
    return loaded


def _files(table: LocalMerge) -> list[DataFile]:
    now = table.table.now()
    assert now is not None
    return list(now.files)


def _marked(table: LocalMerge) -> list[int]:
    return sorted(file.deleted.count for file in _files(table) if file.deleted)


def _expect(table: LocalMerge, ids: set[int]) -> None:
    """The same rows for this package and for two independent readers, and no file that the table does not need."""
    place = Path(str(table.table.store))
    assert numbered.ids(table) == sorted(ids)
    if (place / NAME / "_delta_log").exists():
        import polars as pl

        read = [read_with_delta_rs(place / NAME), pl.read_delta(str(place / NAME)).to_arrow()]
    else:
        read = rows_of_iceberg(place, NAME)
    for rows in read:
        assert sorted(rows["id"].to_pylist()) == sorted(ids)
    found = table.find(numbered.keys(*range(0, 1000, 7)), [])
    assert sorted(found["id"].to_pylist()) == sorted(ids & set(range(0, 1000, 7)))


def _expect_clean(table: LocalMerge) -> None:
    """After a vacuum, the directory has what the table needs, and keys of its files alone."""
    table.vacuum()
    while table._compaction is not None:  # begun by the vacuum
        settle(table)
        table.vacuum()
    directory = Path(str(table.table.store)) / NAME
    needed = table.table._table.needed(table.table.now())
    assert {each.name for each in directory.glob("*.parquet")} <= needed
    assert {each.name.removesuffix(".arrow") for each in directory.glob("_keys/*")} <= needed
    assert not list(directory.glob(".*.parquet.*"))


def test_rows_that_are_marked_meanwhile(table: LocalMerge, gate: Gate) -> None:
    """They are marked in the new file, in their new places, and its keys are there before any search."""
    table.apply(numbered.effect(range(100, 111)), 2)
    before = {file.name for file in _files(table)}
    table.apply(numbered.effect([111, 250], [150, 199, 2000]), 3)
    left = {*range(1000), 2000} - {*range(100, 112), 250}
    _expect(table, left)
    assert _marked(table) == [1, 14]
    gate.open()
    settle(table)
    assert _marked(table) == [1, 3]
    assert len(before - {file.name for file in _files(table)}) == 1
    assert (table.position(), table.commit_rewritten()) == (3, False)
    _expect(table, left)
    (new,) = (file for file in _files(table) if file.name not in before and file.deleted)
    keys = Path(str(table.table.store)) / NAME / "_keys" / f"{new.name}.arrow"
    assert pa.ipc.open_file(keys.read_bytes()[:-4]).read_all()["id"].to_pylist() == list(range(111, 200))
    # Later effects, and another process, go on with it.
    table.apply(numbered.effect([112], [150, 113]), 4)
    _expect(table, left - {112})
    again = _open("delta" if "delta" in str(type(table.table._table)).lower() else "iceberg", keys.parents[2])
    again.apply(numbered.effect([114], [115]), 5)
    settle(again)
    _expect(again, left - {112, 114})
    _expect_clean(again)


def test_keys_that_are_written_before_the_commit(table: LocalMerge, gate: Gate) -> None:
    """They stay although a merge removes the keys of files that the table does not have."""
    table.apply(numbered.effect(range(100, 111)), 2)
    gate.open()
    assert table._compaction is not None
    (result,) = table._compaction.work.result() or ()
    table.apply(numbered.effect([950]), 3)  # writes the keys of another file
    assert table._compaction is None
    (new,) = result.added
    keys = Path(str(table.table.store)) / NAME / "_keys"
    assert f"{new.name}.arrow" in {each.name for each in keys.iterdir()}
    assert new.name in {file.name for file in _files(table)}


def test_short_files_that_are_joined(table: LocalMerge, gate: Gate) -> None:
    """One of them is gone when they are committed, because a merge has marked all of its rows."""
    table.table._file_bytes, table.table.most_marked = 40_000, 0.5
    table.apply(numbered.effect([], [5]), 2)
    assert gate.written.wait(240)
    table.apply(numbered.effect(range(100, 200), [6, 205, 206, 950]), 3)
    left = set(range(1000)) - set(range(100, 200))
    _expect(table, left)
    gate.open()
    settle(table)
    assert len(_files(table)) == 2
    assert _marked(table) == [104]
    _expect(table, left)
    _expect_clean(table)


def test_a_file_all_of_whose_rows_go_meanwhile(table: LocalMerge, gate: Gate) -> None:
    table.apply(numbered.effect(range(100, 111)), 2)
    table.apply(numbered.effect(range(111, 150), range(150, 200)), 3)
    count = len(_files(table))
    gate.open()
    settle(table)
    assert len(_files(table)) == count
    _expect(table, set(range(1000)) - set(range(100, 150)))
    _expect_clean(table)


@pytest.mark.parametrize("how", ["truncated", "replaced", "vacuum"])
def test_a_table_whose_rows_all_go_meanwhile(how: str, table: LocalMerge, gate: Gate) -> None:
    table.apply(numbered.effect(range(100, 111)), 2)
    assert gate.written.wait(240)
    left = set(range(50))
    if how == "truncated":
        truncate = numbered.effect([], left)
        table.apply(Effect(truncate.key, True, truncate.gone, truncate.rows), 3)
    elif how == "replaced":
        numbered.load(table, 50)
    else:
        left = set(range(1000)) - set(range(100, 111))
        table.vacuum()
        _expect(table, left)
    gate.open()
    settle(table)
    _expect(table, left)
    assert _marked(table) == []
    _expect_clean(table)


def test_a_new_column_meanwhile(table: LocalMerge, gate: Gate) -> None:
    table.apply(numbered.effect(range(100, 111)), 2)
    effect = numbered.effect([111], [150])
    rows = effect.rows.append_column("more", pa.array(["m"]))
    table.apply(Effect(effect.key, False, effect.gone, rows), 3)
    gate.open()
    settle(table)
    assert _marked(table) == [2]
    _expect(table, set(range(1000)) - set(range(100, 112)))
    assert table.find(numbered.keys(150, 151), ["more"]).sort_by("id")["more"].to_pylist() == ["m", None]


def test_a_wider_column_meanwhile(tmp_path: Path, gate: Gate) -> None:
    """The new file has the narrow one, and is not used."""
    narrow = pa.schema([pa.field("n", pa.int32()), *numbered.SCHEMA])
    for format in ("delta", "iceberg"):
        table = _open(format, tmp_path / format)
        rows = numbered.rows(range(1000)).add_column(0, "n", pa.array(range(1000), pa.int32())).cast(narrow)
        table.replace(rows.to_batches(max_chunksize=100), narrow, 1)
        table.apply(Effect(("id",), False, numbered.keys(*range(100, 111)), rows.slice(0, 0)), 2)
        wide = rows.slice(150, 1).set_column(0, "n", pa.array([1 << 40]))
        table.apply(Effect(("id",), False, numbered.keys(111), wide), 3)
        gate.open()
        settle(table)
        _expect(table, set(range(1000)) - set(range(100, 112)))
        assert table.find(numbered.keys(150), ["n"])["n"].to_pylist() == [1 << 40]
        _expect_clean(table)


# ---- other programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["optimize", "optimize at the commit", "delete", "marks less"])
def test_another_program_changes_the_files_meanwhile(
    what: str, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did stays. The files are used if it only marked rows."""
    table, place, left = numbered.load(_open("delta", tmp_path)), tmp_path / NAME, set(range(1000))
    name = sorted(file.name for file in _files(table))[1]
    first = inline([50, 51])
    mark_rows(place, name, first)
    table.apply(numbered.effect(range(100, 110)), 2)
    left -= {*range(100, 110), 150, 151}
    assert gate.written.wait(240)
    (vector,) = (file.deleted for file in _files(table) if file.deleted)
    if what == "optimize":
        deltalake.DeltaTable(place).optimize.compact()
    elif what == "optimize at the commit":
        monkeypatch.setattr(compaction, "commit", _after(compaction.commit, deltalake.DeltaTable(place)))
    elif what == "delete":
        mark_rows(place, name, inline([*range(10), 50, 51, 60]), vector.to_json())  # type: ignore[attr-defined]
        left -= {160}
    else:
        mark_rows(place, name, inline([*range(10), 51]), vector.to_json())  # type: ignore[attr-defined]
        left |= {150}
    gate.open()
    table.apply(numbered.effect([], [300]), 3)
    settle(table)
    _expect(table, left)
    table.apply(numbered.effect([120], [301]), 4)
    settle(table)
    _expect(table, left - {120})
    _expect_clean(table)


def _after(commit: Any, other: deltalake.DeltaTable) -> Any:
    """A commit, before the first of which another program optimizes the table."""
    left = [other]

    def disturbed(*arguments: Any, **more: Any) -> None:
        if left:
            left.pop()
            other.update_incremental()
            other.optimize.compact()
        commit(*arguments, **more)

    return disturbed


def test_a_file_that_is_removed_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By an OPTIMIZE and a VACUUM."""
    monkeypatch.setattr(local, "_RESTS_UNTIL", {})
    table, place, run = numbered.load(_open("delta", tmp_path)), tmp_path / NAME, JoinUnit.run

    def late(*arguments: Any) -> UnitResult:
        other = deltalake.DeltaTable(place)
        other.optimize.compact()
        other.vacuum(0, dry_run=False, enforce_retention_duration=False)
        return run(*arguments)

    monkeypatch.setattr(JoinUnit, "run", late)
    table.apply(numbered.effect(range(100, 111)), 2)
    settle(table)
    assert "files cannot be rewritten now, which is tried again later" in caplog.text
    table.apply(numbered.effect([111]), 3)
    _expect(table, set(range(1000)) - set(range(100, 112)))


# ---- errors, and ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem", [OSError(28, "No space left on device"), ValueError("it is damaged"), MemoryError()]
)
def test_an_error_of_the_other_thread(
    problem: Exception, table: LocalMerge, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and merges go on. Some time later, the files are written again."""
    gate.problem = problem
    table.apply(numbered.effect(range(100, 111)), 2)
    gate.open()
    settle(table)
    assert "files cannot be rewritten now, which is tried again later" in caplog.text
    gate.problem = None
    table.apply(numbered.effect([111]), 3)
    settle(table)
    assert _marked(table) == [12]  # too early
    table._next_try, left = 0.0, set(range(1000)) - set(range(100, 113))
    table.apply(numbered.effect([112]), 4)
    settle(table)
    assert _marked(table) == []
    _expect(table, left)
    _expect_clean(table)


def test_work_that_is_given_up(table: LocalMerge, gate: Gate) -> None:
    """At once, or because it takes too long; and if it had ended already. No file of it stays."""
    left = set(range(1000))
    directory = Path(str(table.table.store)) / NAME
    for n in range(3):
        gone = range(100 * n, 100 * n + 11)
        left -= set(gone)
        table.apply(numbered.effect(gone), n + 2)
        assert gate.written.wait(240)
        if n == 0:
            table.give_up_rewriting()
        elif n == 1:
            assert table.commit_rewritten(within=0.01)
        else:
            gate.open()
            assert table._compaction is not None
            table._compaction.work.result()
            table.give_up_rewriting()
        assert _marked(table) == [11] * (n + 1)
        assert table._compaction is None
        gate.written.clear()
        assert {each.name for each in directory.glob("part-current-*")} == table.table._table.needed(
            table.table.now()
        ) - {each for each in table.table._table.needed(table.table.now()) if "/" in each}
    _expect(table, left)
    _expect_clean(table)
    settle(table)
    assert table.commit_rewritten(within=240) is False


def test_a_merge_waits_if_too_many_rows_are_marked(table: LocalMerge, gate: Gate) -> None:
    """Scans would take too long."""
    table.apply(numbered.effect(range(100, 111)), 2)
    assert gate.written.wait(240)
    table.apply(numbered.effect(range(111, 130)), 3)
    assert _marked(table) == [30]
    opening = threading.Timer(0.2, gate.open)
    opening.start()
    table.apply(numbered.effect([130]), 4)
    opening.join()
    assert _marked(table) == [20]
    settle(table)
    _expect(table, set(range(1000)) - set(range(100, 131)))


def test_one_thread_for_all_tables(tmp_path: Path, gate: Gate) -> None:
    one, other = (numbered.load(_open("delta", tmp_path / name)) for name in ("one", "other"))
    one.apply(numbered.effect(range(100, 121)), 2)
    assert gate.written.wait(240)
    gate.written.clear()
    other.apply(numbered.effect(range(100, 121)), 2)
    assert not gate.written.wait(0.3)
    other.give_up_rewriting()  # before its turn
    other.apply(numbered.effect([5]), 3)
    gate._open.set()
    for table in (one, other):
        settle(table)
        assert 21 not in _marked(table)


# ---- a model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "key"),
    and_slow(
        [("delta", "int8")],
        [
            *(("delta", key) for key in (None, "text and int8", "text", "float8")),
            *(("iceberg", key) for key in ("int8", None, "text")),
        ],
    ),
    ids=str,
)
def test_a_model_beside_another_thread(
    format: str, key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are committed after none, one or several effects. Restarts, vacuums and new columns lie between."""
    monkeypatch.setattr(local, "_REST", 0)
    monkeypatch.setattr(local, "_TOO_MANY", 100)
    effects, dice = RandomEffects(len(str(key)) + 3, key), random.Random(7)
    few: dict[str, Any] = {"file_bytes": 4_000, "most_marked": 0.05}
    table, run = _open(format, tmp_path, **few), JoinUnit.run
    turns, at_once = threading.Semaphore(0), False

    def slow(unit: JoinUnit, store: Any, files: Any, check: Any) -> UnitResult:
        result = run(unit, store, files, check)
        while not turns.acquire(timeout=0.01):
            check()
        return result

    monkeypatch.setattr(JoinUnit, "run", slow)
    moved = _counted(monkeypatch)
    for position in range(1, 41):
        table.keys = KeyFiles(table.table.store, table.table.files, least_rows=1, rows_a_key=0)
        if table._compaction is not None:
            table._compaction._keys = table.keys
        table.apply(effects.next(), position)
        effects.model.assert_equal(table, effects.compared)
        if dice.random() < 0.5 and table._compaction is not None:
            for _ in range(8):
                turns.release()
            table._compaction.work.result()
            while turns.acquire(blocking=False):
                pass
            at_once = not at_once
            if at_once:  # or the next effect commits it
                table.commit_rewritten()
                effects.model.assert_equal(table, effects.compared)
        if position % 20 == 0:
            expect_model(effects, format, tmp_path)
        if dice.random() < 0.1:
            table.give_up_rewriting()
            table = _open(format, tmp_path, **few)
        if dice.random() < 0.1:
            table.vacuum()
    monkeypatch.setattr(JoinUnit, "run", run)
    table.give_up_rewriting()
    expect_model(effects, format, tmp_path)
    assert sum(moved) > 2
    _expect_clean(table)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each commit has marked in new files."""
    moved, commit = list[int](), CurrentFileTable.commit

    def counting(table: Any, *arguments: Any, data_change: bool = True) -> None:
        if not data_change:
            moved.append(sum(map(len, arguments[-1].values())))
        commit(table, *arguments, data_change=data_change)

    monkeypatch.setattr(CurrentFileTable, "commit", counting)
    return moved
