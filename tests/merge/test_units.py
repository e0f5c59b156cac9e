"""Effects in the memory of this process and in files between tasks have the same units, and make the same files."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.merge import local
from pgoutput_fast.merge import plan as plans
from pgoutput_fast.merge.commit import commit
from pgoutput_fast.merge.compaction import compact, to_compact
from pgoutput_fast.merge.effect.effect import COMMIT_LSN, Effect, current_schema
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.merge.plan import MergePlan
from pgoutput_fast.merge.search import Search
from pgoutput_fast.merge.stored_effect import MemoryBatches, store_effect
from pgoutput_fast.merge.units import MergedTable, RewriteUnit
from pgoutput_fast.spark.tasks.current.batch_file import write_batches
from pgoutput_fast.spark.tasks.current.jobs import packed, unpacked
from pgoutput_fast.spark.tasks.current.merge_units import RunUnit
from pgoutput_fast.spark.tasks.current.reduce import effect_files
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.data_files import NewFiles
from pgoutput_fast.tables.table import DataFile, Version
from support import numbered
from support.buckets import opened_bucket
from support.current_tables import KEYS, SLOW_KEYS, RandomEffects, delta_table, open_table
from support.forms import and_slow

# ---- units in tasks ---------------------------------------------------------------------------------------------------


def _halves(effect: Effect, dice: random.Random) -> list[Effect]:
    """The effect on some keys, and that on the others."""
    gone, rows = (
        np.array([dice.random() < 0.5 for _ in range(each.num_rows)], np.bool_)
        for each in (effect.gone, effect.rows)
    )
    return [
        Effect(effect.key, effect.truncated, effect.gone.filter(pa.array(a)), effect.rows.filter(pa.array(b)))
        for a, b in ((gone, rows), (~gone, ~rows))
    ]


def _apply_in_tasks(
    table: LocalMerge,
    place: Path | str,
    parts: list[Effect],
    position: int,
    units: int,
    scratch: Path | None = None,
) -> MergePlan:
    """What `spark.merge` does, without Spark."""
    files = table.table
    before = files.now()
    schema = files.schema_with(before, parts[0].rows.schema)
    identity = parts[0].key or tuple(name for name in parts[0].rows.column_names if name != COMMIT_LSN)
    effects = tuple(
        effect_files(str(scratch or f"{place}/scratch"), part, identity, schema) for part in parts
    )
    plan = MergePlan(files, before, parts[0].key, identity, schema, effects, units)
    results = [_run(place, unit) for unit in plan.rewrites]
    results += [_run(place, unit) for unit in plan.new_rows(results)]
    with NewFiles(files.store, files.files, files.file_bytes) as new:
        new.written = [file for result in results for file in result.added]
        commit(files, new, before, schema, position, plan.removed(results), plan.deleted(results))
    while (
        files.marks and (after := files.now()) is not None and (units_left := to_compact(files, after, 1)[:2])
    ):
        compact(files, after, units_left, partial(_run_all, place, units_left))
    return plan


def _run_all(place: Path | str, units: list[Any], new: NewFiles) -> list[Any]:
    results = [_run(place, unit) for unit in units]
    new.written = [file for result in results for file in result.added]
    return results


def _run(place: Path | str, unit: Any) -> Any:
    return unpacked(packed(unpacked(packed(RunUnit(str(place), 4_000, unit)))()))


def _rows_of_files(place: Path, table: LocalMerge) -> list[str]:
    """Of each file. pyiceberg lists files in any order."""
    version = table.table.now()
    assert version is not None
    files = [pq.read_table(place / table.table.files / file.name).to_pylist() for file in version.files]
    return sorted(map(repr, files))


@pytest.mark.parametrize(
    ("kind", "key"),
    and_slow(
        [*(("delta", key) for key in [*KEYS, None] if key not in SLOW_KEYS), ("marked", "numeric")],
        [
            *(("delta", key) for key in SLOW_KEYS),
            *((kind, key) for kind in ("iceberg", "marked") for key in ("text and int8", None)),
        ],
    ),
    ids=str,
)
@pytest.mark.parametrize("units", and_slow([3], [1]))
def test_this_process_and_tasks_do_the_same(
    kind: str, key: str | None, units: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows, columns and positions; and if the plan is the same, the same versions and files."""
    monkeypatch.setattr(local, "_REST", 0)
    effects, dice = RandomEffects(len(str(key)), key), random.Random(8)
    here, tasks = tmp_path / "here", tmp_path / "tasks"
    one, other = (open_table(kind, place) for place in (here, tasks))
    for position in range(10, 110, 10):
        effect = effects.next()
        one.apply(effect, position)
        _apply_in_tasks(other, tasks, [effect] if units == 1 else _halves(effect, dice), position, units)
        for table in (one, other):
            effects.model.assert_equal(table, effects.compared)
        assert one.position() == other.position()
        assert one.schema() == other.schema()
        if units == 1:
            assert one.version() == other.version()
            assert _rows_of_files(here, one) == _rows_of_files(tasks, other)


def test_units_are_cut_by_size_and_have_only_their_files(tmp_path: Path) -> None:
    table = numbered.load(open_table("delta", tmp_path, file_bytes=100))
    before = table.table.now()
    assert before is not None
    assert len(before.files) == 10
    plan = _apply_in_tasks(table, tmp_path, [numbered.effect([5], [150, 950, 1000])], 2, 4)
    names = [[file.name for file in unit.version.files] for unit in plan.rewrites]
    # The effect has rows from 5 to 1000, so only a unit finds out that most files stay.
    assert len(names) >= 4
    assert sorted(name for part in names for name in part) == sorted(file.name for file in before.files)
    after = table.table.now()
    assert after is not None
    assert len({file.name for file in before.files} - {file.name for file in after.files}) == 3
    plan = _apply_in_tasks(table, tmp_path, [numbered.effect([], [2000])], 3, 4)
    assert plan.rewrites == []


def test_a_row_without_a_key_that_is_not_there(tmp_path: Path) -> None:
    effects, table = RandomEffects(3, None), open_table("delta", tmp_path)
    rows = effects.rows([0] * 5)
    nothing = rows.slice(0, 0).drop_columns([COMMIT_LSN])
    _apply_in_tasks(table, tmp_path, [Effect((), False, nothing, rows)], 1, 4)
    gone = pa.concat_tables([rows, rows]).drop_columns([COMMIT_LSN])
    with pytest.raises(ValueError, match="lacks rows that changes remove"):
        _apply_in_tasks(table, tmp_path, [Effect((), False, gone, rows.slice(0, 0))], 2, 4)
    assert (table.position(), table.read().num_rows) == (1, 5)


@pytest.mark.parametrize("units", [0, 1, 4])
@pytest.mark.parametrize("left", ["no file", "other rows"])
def test_a_row_without_a_key_that_no_file_can_have(left: str, units: int, tmp_path: Path) -> None:
    """By the bounds of the files, or because there are none."""
    effects, table = RandomEffects(3, None), open_table("delta", tmp_path)
    rows = effects.rows([0] * 5)
    nothing, none = rows.slice(0, 0).drop_columns([COMMIT_LSN]), rows.slice(0, 0)
    table.apply(Effect((), False, nothing, rows if left == "other rows" else none), 1)
    removed = effects.rows([7]).drop_columns([COMMIT_LSN])
    effect = Effect((), False, removed, none)
    apply = (
        partial(_apply_in_tasks, table, tmp_path, [effect], 2, units)
        if units
        else partial(table.apply, effect, 2)
    )
    with pytest.raises(ValueError, match="lacks rows that changes remove"):
        apply()
    assert table.position() == 1


@pytest.mark.parametrize("units", [1, 4])
def test_nulls_in_the_first_column_of_rows_without_a_key(units: int, tmp_path: Path) -> None:
    """The bounds of a column say nothing about nulls."""
    schema = current_schema(pa.schema({"n": pa.int64(), "text": pa.string()}))

    def rows(*numbers: int | None) -> pa.Table:
        return pa.Table.from_pylist([{"n": n, "text": "x", COMMIT_LSN: 1} for n in numbers], schema)

    table = open_table("delta", tmp_path)
    nothing = rows().drop_columns([COMMIT_LSN])
    table.apply(Effect((), False, nothing, rows(1, None, 3)), 1)
    table.apply(Effect((), False, nothing, rows(7, None, 9)), 2)
    gone = rows(None, 8, None).drop_columns([COMMIT_LSN])
    table.apply(Effect((), False, nothing, rows(8)), 3)
    _apply_in_tasks(table, tmp_path, [Effect((), False, gone, rows())], 4, units)
    assert sorted(table.read()["n"].to_pylist()) == [1, 3, 7, 9]


@pytest.mark.parametrize("units", and_slow([3], [1]))
@pytest.mark.parametrize(
    ("kind", "step"),
    [(pa.date32(), 1), (pa.timestamp("us"), 100_000_000_000), (pa.timestamp("us", "UTC"), 100_000_000_000)],
    ids=str,
)
def test_keys_that_python_lacks(
    kind: pa.DataType, step: int, units: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dates and times before the year 1 and after 9999. Many units write the new rows, each of them once."""
    monkeypatch.setattr(plans, "_NEW_ROWS_BYTES", 1)
    schema = current_schema(pa.schema({"day": kind, "text": pa.string()}))
    storage = pa.int32() if pa.types.is_date(kind) else pa.int64()

    def days(numbers: range) -> pa.Array:
        return pa.array([number * step for number in numbers], storage).cast(kind)

    def effect(gone: range, comes: range, text: str) -> Effect:
        count = len(comes)
        known = [days(comes), pa.array([text] * count), pa.array([1] * count, pa.int64())]
        rows = pa.table([*known, pa.nulls(count, schema.types[-1])], schema=schema)
        return Effect(("day",), False, pa.table({"day": days(gone)}), rows)

    table = open_table("delta", tmp_path)
    first, second = range(-800_000, 10_000_000, 10_000), range(-795_000, 10_000_000, 30_000)
    _apply_in_tasks(table, tmp_path, [effect(range(0), first, "x")], 1, units)
    gone, replaced = first[:100], first[-100:]
    parts = [effect(gone, second, "new"), effect(range(0), replaced, "replaced")]
    _apply_in_tasks(table, tmp_path, parts, 2, units)
    rows = table.read()
    found = zip(rows["day"].cast(storage).to_pylist(), rows["text"].to_pylist(), strict=True)
    expected = [(number * step, "x") for number in first[100:-100]]
    expected += [(number * step, "new") for number in second]
    expected += [(number * step, "replaced") for number in replaced]
    assert sorted(found) == sorted(expected)


def test_a_file_that_is_gone_is_no_failure_of_the_task(tmp_path: Path) -> None:
    """The driver looks whether another program has replaced it, and then plans again."""
    table = numbered.load(open_table("delta", tmp_path))
    (file,) = table.table.now().files
    (tmp_path / table.table.files / file.name).unlink()
    schema = numbered.SCHEMA
    effect = store_effect(numbered.effect([5]), ("id",), schema)
    plan = MergePlan(table.table, table.table.now(), ("id",), ("id",), schema, (effect,))
    (unit,) = plan.rewrites
    assert isinstance(_run(tmp_path, unit), FileNotFoundError)


@pytest.mark.slow
def test_a_commit_whose_answer_is_lost(tmp_path: Path) -> None:
    """The store has done it. So the files stay, and nothing is merged again."""
    with opened_bucket("lost-units") as bucket:
        target = bucket.uri % "lake"
        table = numbered.load(delta_table(target, "t", file_bytes=100), 300)
        bucket.lose_answers("_delta_log/")
        _apply_in_tasks(table, target, [numbered.effect([5], [150, 1000])], 2, 4, tmp_path)
        assert bucket.to_lose == 0
        assert (table.position(), table.version()) == (2, 1)
        assert numbered.ids(delta_table(target, "t")) == sorted({*range(300), 1000} - {5})


# ---- one unit ---------------------------------------------------------------------------------------------------------


def _file(place: Path, name: str, *ids: int) -> DataFile:
    (place / "t").mkdir(exist_ok=True)
    pq.write_table(numbered.rows(ids), place / "t" / name, row_group_size=2)
    return DataFile(name, len(ids), 1)


def _rewritten(place: Path, files: list[DataFile], effect: Effect) -> tuple[list[str], list[tuple[int, str]]]:
    """The names of rewritten files, and the rows of the new ones."""
    none = pa.nulls(len(files))
    version = Version(1, 1, numbered.SCHEMA, files, lambda _: (none, none))
    names = tuple(effect.identity)
    stored = store_effect(effect, names, numbered.SCHEMA)
    assert isinstance(stored.rows, MemoryBatches)
    table = MergedTable("it", "t", effect.key, names, numbered.SCHEMA)
    store = open_store(place)
    with NewFiles(store, "t", 1 << 20) as new:
        result = RewriteUnit(table, version, frozenset(), (stored,), False).run(store, new)
    rows = [row for file in result.added for row in pq.read_table(place / "t" / file.name).to_pylist()]
    return list(result.removed), [(row["id"], row["text"]) for row in rows]


def test_a_new_row_replaces_one_row(tmp_path: Path) -> None:
    """Also if a file has its key twice, or if two files have it."""
    files = [_file(tmp_path, "a", 1, 2, 3, 2), _file(tmp_path, "b", 2, 4), _file(tmp_path, "c", 5)]
    removed, rows = _rewritten(tmp_path, files, numbered.effect([3], [2]))
    assert removed == ["a", "b"]
    assert rows == [(1, "x"), (2, "new"), (4, "x")]


def test_copies_go_as_often_as_they_are_removed(tmp_path: Path) -> None:
    files = [_file(tmp_path, "a", 1, 1, 2), _file(tmp_path, "b", 1, 1), _file(tmp_path, "c", 1)]
    gone = numbered.rows([1, 1, 1]).drop_columns([COMMIT_LSN])
    removed, rows = _rewritten(tmp_path, files, Effect((), False, gone, numbered.rows([])))
    assert removed == ["a", "b"]
    assert rows == [(2, "x"), (1, "x")]


def test_of_equal_rows_only_so_many_go() -> None:
    search = Search(pa.table({"a": [1, 2, 1]}), keys=False)
    assert search.removed(pa.table({"a": [1, 3, 1, 2, 1]})).rows.tolist() == [0, 2, 3]
    assert search.removed(pa.table({"a": [1, 2]})).rows.tolist() == []
    search.check_complete("it")
    with pytest.raises(ValueError, match="it lacks rows that changes remove"):
        Search(pa.table({"a": [1]}), keys=False).check_complete("it")


def test_a_temporary_file_that_is_gone_is_no_file_of_the_table(tmp_path: Path) -> None:
    """Otherwise the error would say that the table is damaged."""
    file = write_batches(str(tmp_path), numbered.rows([1]).to_batches(), numbered.SCHEMA, "id")
    Path(file.path).unlink()
    with pytest.raises(RuntimeError, match=r"the temporary file .* is gone: another process"):
        list(file.read())
