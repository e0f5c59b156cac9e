"""Current Iceberg tables with rows that are marked deleted: by other programs, and by merges."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import DataFileContent, ManifestContent

from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.tables.table import ConflictError, DataFile, OutcomeUnknownError
from support import numbered
from support.current_tables import RandomEffects, iceberg_table, names_of
from support.forms import and_slow
from support.iceberg_deletes import commit_deletes, delete_rows, vector
from support.iceberg_files import open_table
from support.readers import expect_model, rows_of_iceberg

NAME = "public.orders"


def _opened(place: Path) -> Any:
    return open_table(place, NAME)


def _expect(table: LocalMerge, place: Path, ids: set[int], native: bool = True) -> None:
    assert numbered.ids(table) == sorted(ids)
    for rows in rows_of_iceberg(place, NAME, native):
        assert sorted(rows["id"].to_pylist()) == sorted(ids)


def _marked(table: LocalMerge) -> list[DataFile]:
    now = table.table.now()
    assert now is not None
    return [file for file in now.files if file.deleted is not None]


def _file(table: LocalMerge, number: int) -> str:
    """The name of a file of the current version, by its place in the order of writing."""
    return sorted(names_of(table))[number]


def _deletes(place: Path) -> set[str]:
    """The files of deletes in the directory, by their columns."""
    files = (place / NAME).glob("*.parquet")
    return {each.name for each in files if pq.read_schema(each).names == ["file_path", "pos"]}


@pytest.fixture
def marking(tmp_path: Path) -> LocalMerge:
    """The ids from 0 to 999, in ten files that stay while few of their rows are updated or deleted."""
    return numbered.load(iceberg_table(tmp_path, NAME, file_bytes=100, merge="on_read"))


# ---- merges on read --------------------------------------------------------------------------------------------------


def test_files_stay_while_their_rows_are_marked(marking: LocalMerge, tmp_path: Path) -> None:
    before = names_of(marking)
    marking.apply(numbered.effect([5, 950], [150, 2000]), 2)
    _expect(marking, tmp_path, (set(range(1000)) | {2000}) - {5, 950})
    assert before < names_of(marking)
    assert len(names_of(marking) - before) == 1
    assert len(_deletes(tmp_path)) == 3
    # Another effect replaces the deletes of a file by one that has all.
    marking.apply(numbered.effect([6], [151, 950]), 3)
    _expect(marking, tmp_path, (set(range(1000)) | {2000}) - {5, 6})
    assert before < names_of(marking)
    assert sorted(file.deleted.count for file in _marked(marking) if file.deleted) == [1, 2, 2]
    assert all(len(file.deleted.files) == 1 for file in _marked(marking))  # type: ignore[union-attr]
    assert marking.table.read(1).num_rows == 1000
    assert marking.table.read(2).num_rows == 999
    found = marking.find(numbered.keys(5, 150, 151, 950, 152), ["text"]).sort_by("id")
    assert found["text"].to_pylist() == ["new", "new", "x", "new"]
    # Spark would read the files themselves.
    assert marking.table.open().files is None
    assert marking.table.open(1).files is not None


def test_a_snapshot_and_its_manifests(marking: LocalMerge, tmp_path: Path) -> None:
    marking.apply(numbered.effect([5, 950], [150, 2000]), 2)
    marking.apply(numbered.effect([6], [151]), 3)
    table = _opened(tmp_path)
    assert table.format_version == 2
    snapshot = table.current_snapshot()
    assert (snapshot.sequence_number, snapshot.parent_snapshot_id) == (3, table.snapshots()[1].snapshot_id)
    known = {
        "pgoutput-fast.mirror-position": "3",
        "added-data-files": "1",
        "added-delete-files": "2",
        "added-position-deletes": "4",
        "removed-delete-files": "2",
        "removed-position-deletes": "2",
        "total-delete-files": "3",
        "total-position-deletes": "5",
    }
    assert {name: snapshot.summary[name] for name in known} == known
    (manifest,) = (each for each in snapshot.manifests(table.io) if each.content == ManifestContent.DELETES)
    counts = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    assert (*counts, manifest.min_sequence_number) == (2, 1, 2, 2)


def test_many_marks_rewrite_a_file(marking: LocalMerge, tmp_path: Path) -> None:
    """Above ten per cent of its rows. Its deletes leave the table with it."""
    before = names_of(marking)
    marking.apply(numbered.effect(range(100, 110)), 2)
    assert names_of(marking) == before
    marking.apply(numbered.effect([110]), 3)
    assert len(before - names_of(marking)) == 1
    assert not _marked(marking)
    # In a snapshot of its own, which readers of changes ignore.
    table = _opened(tmp_path)
    snapshot, before_it = table.current_snapshot(), table.metadata.snapshots[-2]
    assert [each.summary.operation.value for each in (before_it, snapshot)] == ["overwrite", "replace"]
    assert [each.summary["pgoutput-fast.mirror-position"] for each in (before_it, snapshot)] == ["3", "3"]
    assert snapshot.summary["total-delete-files"] == "0"
    assert snapshot.summary["deleted-data-files"] == "1"
    _expect(marking, tmp_path, set(range(1000)) - set(range(100, 111)))
    marking.apply(numbered.effect([], [2000]), 4)
    assert marking.vacuum() > 0
    assert not _deletes(tmp_path)


@pytest.mark.slow
def test_parts_of_one_commit(marking: LocalMerge, tmp_path: Path) -> None:
    parts = [
        numbered.effect([5, 250], [150, 2000]),
        numbered.effect([6, 2000], [150, 250, 3000]),
        numbered.effect(range(100, 108), [3000]),
    ]
    marking.apply_parts(parts, 2)
    assert marking.version() == 2
    _expect(marking, tmp_path, (set(range(1000)) | {3000}) - {5, 6, *range(100, 108)})
    assert sorted(file.deleted.count for file in _marked(marking) if file.deleted) == [1, 2, 9]


@pytest.mark.slow
def test_a_table_that_is_loaded_again_has_no_deletes(marking: LocalMerge, tmp_path: Path) -> None:
    marking.apply(numbered.effect([5]), 2)
    marking.apply(numbered.effect([], [2000]), 3)  # adds files only
    _expect(marking, tmp_path, (set(range(1000)) | {2000}) - {5})
    numbered.load(marking, 50)
    _expect(marking, tmp_path, set(range(50)))
    assert not _marked(marking)
    assert _opened(tmp_path).current_snapshot().summary["total-delete-files"] == "0"


def _disturbed(place: Path, what: str) -> None:
    """Another program deletes all rows, or adds rows, which a mirror refuses. Then the table is rolled back."""
    table, other = _opened(place), iceberg_table(place, NAME)
    rows, before, position = table.scan().to_arrow(), table.current_snapshot().snapshot_id, other.position()
    if not rows.num_rows:
        return
    {"append": table.append, "overwrite": table.overwrite, "delete": lambda _: table.delete()}[what](rows)
    if what == "delete":
        assert (other.position(), other.read().num_rows) == (position, 0)
    else:
        with pytest.raises(ValueError, match="is not a table of a mirror, or something else changed it"):
            other.position()
    _opened(place).manage_snapshots().rollback_to_snapshot(before).commit()


@pytest.mark.slow
@pytest.mark.parametrize("key", ["int8", None, "text and int8", "text", "numeric", "timestamptz"], ids=str)
def test_both_merges_do_what_a_model_does(key: str | None, tmp_path: Path) -> None:
    """In turn, in one table, with restarts and vacuums, and with changes of others that are rolled back."""
    effects, dice = RandomEffects(len(str(key)) + 1, key), random.Random(9)
    table, marks, lost = (
        iceberg_table(tmp_path, NAME, file_bytes=4_000, merge="on_read", most_marked=0.3),
        0,
        0,
    )
    for position in range(1, 46):
        before = set() if table.position() is None else {file.name for file in _marked(table)}
        table.apply(effects.next(), position)
        after = {file.name for file in _marked(table)}
        marks, lost = marks + len(after - before), lost + len(before - after)
        effects.model.assert_equal(table, effects.compared)
        if position % 5 == 0:
            expect_model(effects, "iceberg", tmp_path)
        if dice.random() < 0.3:
            merge = dice.choice(["on_read", "on_read", "on_write"])
            table = iceberg_table(tmp_path, NAME, file_bytes=4_000, merge=merge, most_marked=0.3)
        if dice.random() < 0.3:
            _disturbed(tmp_path, dice.choice(["append", "overwrite", "delete"]))
            effects.model.assert_equal(table, effects.compared)
        if dice.random() < 0.2:
            table.vacuum(dice.choice([1, 3]))
            effects.model.assert_equal(table, effects.compared)
    expect_model(effects, "iceberg", tmp_path)
    assert min(marks, lost) > 2
    table.vacuum()
    own = {each.name for each in (tmp_path / NAME).glob("*.parquet")}
    files = _marked(table)
    assert own == names_of(table) | {name for file in files for name, _ in file.deleted.files}  # type: ignore[union-attr]


# ---- rows that other programs marked ---------------------------------------------------------------------------------


def _path(table: LocalMerge, number: int) -> str:
    """The path of a file, as the table names it."""
    return f"file://{table.table.store.at(f'{NAME}/{_file(table, number)}')}"


def test_rows_that_others_marked_are_not_read(marking: LocalMerge, tmp_path: Path) -> None:
    """By one file of deletes for two files of rows, and by another one for one of them, in part again."""
    two, three = _path(marking, 2), _path(marking, 3)
    first = delete_rows(_opened(tmp_path), {two: [0, 5, 99], three: [1]})
    delete_rows(_opened(tmp_path), {two: [5, 6]}, "more.parquet")
    left = set(range(1000)) - {200, 205, 206, 299, 301}
    for table in (marking, iceberg_table(tmp_path, NAME)):
        _expect(table, tmp_path, left, native=False)
        assert (table.position(), table.version()) == (1, 3)
        assert table.table.read(2).num_rows == 996
        found = table.find(numbered.keys(200, 201, 206, 299, 300), ["text"])
        assert sorted(found["id"].to_pylist()) == [201, 300]
    # The first file stays while a file of rows needs it.
    marking.apply(numbered.effect([207]), 2)
    _expect(marking, tmp_path, left - {207}, native=False)
    assert marking.vacuum() > 0
    _expect(marking, tmp_path, left - {207}, native=False)
    assert first.exists()
    numbered.load(marking, 50)
    _expect(marking, tmp_path, set(range(50)))
    assert _opened(tmp_path).current_snapshot().summary["total-delete-files"] == "0"


@pytest.mark.slow
def test_a_file_with_rows_that_others_marked_is_rewritten(tmp_path: Path) -> None:
    table = numbered.load(iceberg_table(tmp_path, NAME, file_bytes=100))
    delete_rows(_opened(tmp_path), {_path(table, 2): [0, 5, 99], _path(table, 3): [1]})
    table.apply(numbered.effect([7, 206, 299, 300], [201, 2000]), 2)
    _expect(table, tmp_path, (set(range(1000)) | {2000}) - {7, 200, 205, 206, 299, 300, 301})
    assert not _marked(table)
    assert _opened(tmp_path).current_snapshot().summary["total-delete-files"] == "0"


def test_vectors_of_version_3_are_read(marking: LocalMerge, tmp_path: Path) -> None:
    path = _path(marking, 2)
    vector(_opened(tmp_path), path, [0, 5, 99])
    left = set(range(1000)) - {200, 205, 299}
    assert numbered.ids(marking) == sorted(left)
    assert sorted(_opened(tmp_path).scan().to_arrow()["id"].to_pylist()) == sorted(left)
    found = marking.find(numbered.keys(205, 206, 299, 300), ["text"])
    assert sorted(found["id"].to_pylist()) == [206, 300]


def test_tables_of_version_3_are_not_written(marking: LocalMerge, tmp_path: Path) -> None:
    """pyiceberg reads them."""
    marking.apply(numbered.effect([205]), 2)
    file = Path(_opened(tmp_path).metadata_location.removeprefix("file://"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "format-version": 3, "next-row-id": 0}))
    upgraded = iceberg_table(tmp_path, NAME, merge="on_read")
    assert numbered.ids(upgraded) == sorted(set(range(1000)) - {205})
    for effect in (numbered.effect([206]), numbered.effect([], [2000])):
        with pytest.raises(
            ValueError, match="has version 3 of Iceberg's format, which this package does not write"
        ):
            upgraded.apply(effect, 3)
    assert upgraded.position() == 2


def test_equality_deletes_are_refused(marking: LocalMerge, tmp_path: Path) -> None:
    place = tmp_path / NAME / "equal.parquet"
    pq.write_table(pa.table({"id": [5]}), place)
    commit_deletes(_opened(tmp_path), place, 1, content=DataFileContent.EQUALITY_DELETES)
    says = rf"has equality deletes, which this package does not read: file:{place}\. Let the program"
    for table in (marking, iceberg_table(tmp_path, NAME)):
        with pytest.raises(ValueError, match=says):
            table.read()
        with pytest.raises(ValueError, match=says):
            table.apply(numbered.effect([6]), 2)


@pytest.mark.slow
def test_deletes_elsewhere_are_refused(marking: LocalMerge, tmp_path: Path) -> None:
    place = tmp_path / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [_path(marking, 0)], "pos": [1]}), place)
    commit_deletes(_opened(tmp_path), place, 1)
    with pytest.raises(ValueError, match="it has files that a mirror does not know"):
        marking.read()


@pytest.mark.slow
def test_deletes_of_files_that_are_gone(marking: LocalMerge, tmp_path: Path) -> None:
    """Another program rewrites a file, and leaves its deletes in the manifests. Some readers read all of them."""
    marking.apply(numbered.effect([205]), 2)
    deletes = _deletes(tmp_path)
    table = _opened(tmp_path)
    lost = {each.file_path for task in table.scan().plan_files() for each in task.delete_files}
    (task,) = (each for each in table.scan().plan_files() if each.delete_files)
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(
            snapshot_properties={"pgoutput-fast.mirror-position": "2"}
        ).overwrite() as snapshot,
    ):
        snapshot.delete_data_file(task.file)
    left = set(range(1000)) - set(range(200, 300))
    _expect(marking, tmp_path, left)
    marking.vacuum()
    assert _deletes(tmp_path) == deletes
    assert len(lost) == 1
    # The next deletes take them away.
    marking.apply(numbered.effect([305]), 3)
    marking.vacuum()
    _expect(marking, tmp_path, left - {305})
    assert _deletes(tmp_path).isdisjoint(deletes)


# ---- damage ----------------------------------------------------------------------------------------------------------


def _read(table: LocalMerge) -> Any:
    return table.read()


def _find(table: LocalMerge) -> Any:
    return table.find(numbered.keys(206), ["text"])


def _apply(table: LocalMerge) -> Any:
    return table.apply(numbered.effect([206]), 3)


@pytest.mark.parametrize("use", and_slow([_read], [_find, _apply]))
@pytest.mark.parametrize("damage", and_slow(["gone", "cut"], ["other columns", "too far"]))
def test_damaged_deletes(
    damage: str, use: Callable[[LocalMerge], Any], marking: LocalMerge, tmp_path: Path
) -> None:
    """The error names the file."""
    marking.apply(numbered.effect([205]), 2)
    (name,) = _deletes(tmp_path)
    file, path = tmp_path / NAME / name, _path(marking, 2)
    data = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(data[:-100])
    elif damage == "other columns":
        pq.write_table(pa.table({"id": [205]}), file)
    elif damage == "too far":
        pq.write_table(pa.table({"file_path": [path], "pos": [100]}), file)
    for table in (marking, iceberg_table(tmp_path, NAME, merge="on_read")):
        with pytest.raises((FileNotFoundError, ValueError), match=name):
            use(table)
        assert table.position() == 2
    file.unlink(missing_ok=True)
    file.write_bytes(data)
    use(marking)


@pytest.mark.slow
def test_a_damaged_vector(marking: LocalMerge, tmp_path: Path) -> None:
    place = vector(_opened(tmp_path), _path(marking, 2), [0, 5])
    place.write_bytes(place.read_bytes()[:-20])
    with pytest.raises(ValueError, match=rf"the position deletes in {place} are damaged"):
        marking.read()


# ---- conflicts, unknown outcomes, versions ---------------------------------------------------------------------------


def test_marks_upon_another_commit_do_nothing(marking: LocalMerge, tmp_path: Path) -> None:
    before, name = marking.table.now(), _file(marking, 2)
    iceberg_table(tmp_path, NAME, merge="on_read").apply(numbered.effect([205]), 2)
    with pytest.raises(ConflictError):
        marking.table.commit(before, numbered.SCHEMA, 3, [], [], {name: np.array([6])})
    _expect(marking, tmp_path, set(range(1000)) - {205})
    # The catalog notices the other commit, too. An effect is applied to what that made.
    marking.table.now()
    other = iceberg_table(tmp_path, NAME, merge="on_read")
    commit = marking.table._table._commit

    def late(*arguments: Any) -> None:
        marking.table._table._commit = commit  # type: ignore[method-assign]
        other.apply(numbered.effect([207]), 3)
        commit(*arguments)

    marking.table._table._commit = late  # type: ignore[method-assign]
    marking.apply(numbered.effect([208]), 4)
    _expect(marking, tmp_path, set(range(1000)) - {205, 207, 208})
    # The deletes of the attempts that failed go with a vacuum.
    assert len(_deletes(tmp_path)) > 1
    marking.vacuum()
    assert len(_deletes(tmp_path)) == 1
    _expect(marking, tmp_path, set(range(1000)) - {205, 207, 208})


@pytest.mark.parametrize("made", and_slow([True], [False]))
def test_an_unknown_outcome(
    made: bool, marking: LocalMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of the commit stay, and the next run finds out."""
    catalog = marking.table._table._catalog  # type: ignore[attr-defined]
    commit = catalog.commit_table

    def failing(*arguments: Any) -> Any:
        if made:
            commit(*arguments)
        raise CommitStateUnknownException("the connection is gone")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "commit_table", failing)
        with pytest.raises(OutcomeUnknownError, match="the connection is gone"):
            marking.apply(numbered.effect([205], [2000]), 2)
    left = (set(range(1000)) | {2000}) - {205}
    _expect(marking, tmp_path, left if made else set(range(1000)))
    marking.apply(numbered.effect([205], [2000]), 2)
    _expect(marking, tmp_path, left)
    assert (marking.position(), marking.version()) == (2, 2)
    marking.vacuum()
    assert len(_deletes(tmp_path)) == 1
    _expect(marking, tmp_path, left)


@pytest.mark.slow
def test_vacuum_keeps_the_deletes_of_kept_versions(marking: LocalMerge, tmp_path: Path) -> None:
    for position in range(2, 7):
        marking.apply(numbered.effect([position]), position)
    other = tmp_path / NAME / "deletes-of-another-program.parquet"
    other.write_bytes(b"of a DELETE that has not committed yet")
    assert marking.vacuum(3) > 0
    other.unlink()
    assert len(_deletes(tmp_path)) == 3
    for version in (4, 5, 6):
        assert marking.table.read(version).num_rows == 1001 - version
    with pytest.raises(FileNotFoundError):
        marking.table.read(3)
    assert len(list((tmp_path / NAME / "metadata").glob("*.avro"))) <= 3 * 3
    assert marking.vacuum(3) == 0


@pytest.mark.slow
def test_a_vacuum_after_a_rollback(marking: LocalMerge, tmp_path: Path) -> None:
    """The current version is older than others."""
    for position in range(2, 5):
        marking.apply(numbered.effect([position]), position)
    table = _opened(tmp_path)
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[1].snapshot_id).commit()
    assert (marking.position(), marking.version()) == (2, 2)
    marking.vacuum()
    _expect(marking, tmp_path, set(range(1000)) - {2})
    marking.apply(numbered.effect([3]), 3)
    marking.vacuum()
    _expect(marking, tmp_path, set(range(1000)) - {2, 3})
    assert len(_deletes(tmp_path)) == 1


@pytest.mark.slow
def test_a_vacuum_after_deletes_of_others(marking: LocalMerge, tmp_path: Path) -> None:
    """Their snapshot has no position of its own."""
    delete_rows(_opened(tmp_path), {_path(marking, 2): [5]})
    marking.vacuum()
    _expect(marking, tmp_path, set(range(1000)) - {205}, native=False)
    assert (marking.position(), marking.version()) == (1, 2)
