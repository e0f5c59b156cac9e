"""Current Delta tables with rows that are marked deleted: by other programs, and by merges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.tables.table import DataFile
from support import numbered
from support.current_tables import delta_table
from support.marked import inline, mark_rows, read_with_delta_rs


@pytest.fixture
def small(tmp_path: Path) -> LocalMerge:
    """The ids from 0 to 999, in ten files."""
    return numbered.load(delta_table(tmp_path, "t", file_bytes=100))


def _file(table: LocalMerge, number: int) -> DataFile:
    """A file of the current version, by its place in the order of writing."""
    now = table.table.now()
    assert now is not None
    return sorted(now.files, key=lambda file: file.name)[number]


def _expect(table: LocalMerge, place: Path, ids: set[int]) -> None:
    """The same rows for this package and for two independent readers."""
    assert numbered.ids(table) == sorted(ids)
    assert sorted(read_with_delta_rs(place).column("id").to_pylist()) == sorted(ids)
    assert sorted(pl.read_delta(str(place))["id"].to_list()) == sorted(ids)


# ---- rows that other programs marked ---------------------------------------------------------------------------------


def test_rows_that_others_marked_are_not_read(small: LocalMerge, tmp_path: Path) -> None:
    place, name = tmp_path / "t", _file(small, 2).name
    one, two = inline([0, 5, 99]), inline([0, 5, 6, 99])
    mark_rows(place, name, one)
    _expect(small, place, set(range(1000)) - {200, 205, 299})
    deltalake.DeltaTable(place).create_checkpoint()
    mark_rows(place, name, two, one)
    left = set(range(1000)) - {200, 205, 206, 299}
    for table in (small, delta_table(tmp_path, "t")):
        _expect(table, place, left)
        assert table.table.read(1).num_rows == 997
        assert table.table.read(0).num_rows == 1000
        found = table.find(numbered.keys(200, 201, 206, 299, 300), ["text"])
        assert sorted(found["id"].to_pylist()) == [201, 300]
        # Spark would read the files themselves.
        assert table.open().files is None
        assert table.open(0).files is not None


def test_a_vector_that_is_taken_back(small: LocalMerge, tmp_path: Path) -> None:
    place, vector = tmp_path / "t", inline([7])
    mark_rows(place, _file(small, 0).name, vector)
    _expect(small, place, set(range(1000)) - {7})
    deltalake.DeltaTable(place).restore(0)
    _expect(small, place, set(range(1000)))


def test_a_file_with_marked_rows_is_rewritten(small: LocalMerge, tmp_path: Path) -> None:
    """Its removal names its vector, or it would stay for every reader."""
    place = tmp_path / "t"
    mark_rows(place, _file(small, 2).name, inline([0, 5, 99]))
    mark_rows(place, _file(small, 3).name, inline([1]))
    small.apply(numbered.effect([7, 206, 299, 300], [201, 2000]), 2)
    left = (set(range(1000)) | {2000}) - {7, 200, 205, 206, 299, 300, 301}
    _expect(small, place, left)
    assert small.read().filter(pa.compute.field("text") == "new").num_rows == 2
    small.apply(numbered.effect([8], [200]), 3)
    _expect(small, place, (left | {200}) - {8})
    assert deltalake.DeltaTable(place).history(1)[0]["operation"] == "WRITE"


def test_columns_and_replacements_of_marked_tables(small: LocalMerge, tmp_path: Path) -> None:
    place = tmp_path / "t"
    mark_rows(place, _file(small, 2).name, inline([0, 5, 99]))
    effect = numbered.effect([7], [201])
    rows = effect.rows.append_column("more", pa.array(["m"]))
    small.apply(type(effect)(effect.key, False, effect.gone, rows), 2)
    _expect(small, place, set(range(1000)) - {7, 200, 205, 299})
    assert small.schema().names[-1] == "more"
    numbered.load(small, 5)
    _expect(small, place, set(range(5)))


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (["deletionVectors", "v2Checkpoint"], "it has v2Checkpoint, which this package does not know"),
        (["deletionVectors", "typeWidening"], "it has typeWidening, which this package does not know"),
    ],
    ids=str,
)
def test_unknown_features_beside_vectors(
    features: list[str], says: str, small: LocalMerge, tmp_path: Path
) -> None:
    mark_rows(tmp_path / "t", _file(small, 2).name, inline([0]), features=features)
    with pytest.raises(ValueError, match=says):
        small.read()


def test_histories_do_not_take_vectors(tmp_path: Path) -> None:
    from pgoutput_fast.storage.stores import open_store
    from pgoutput_fast.tables.delta.table import DeltaTable
    from pgoutput_fast.tables.table import Commit, CommitLsn

    table = DeltaTable(open_store(tmp_path), "t", "history")
    table.commit(Commit(None, numbered.SCHEMA, CommitLsn(1)))
    opened = deltalake.DeltaTable(tmp_path / "t")
    opened.alter.add_feature(deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(ValueError, match="it has deletionVectors, which this package does not know"):
        table.version()


# ---- damage ----------------------------------------------------------------------------------------------------------


def _read(table: LocalMerge) -> Any:
    return table.read()


def _find(table: LocalMerge) -> Any:
    return table.find(numbered.keys(205), ["text"])


def _apply(table: LocalMerge) -> Any:
    return table.apply(numbered.effect([205]), 2)


@pytest.mark.parametrize("use", [_read, _find, _apply])
def test_a_vector_whose_file_is_gone(
    use: Callable[[LocalMerge], Any], small: LocalMerge, tmp_path: Path
) -> None:
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "IjB3V2d3#qUP%s94R0WF",
        "offset": 1,
        "sizeInBytes": 36,
        "cardinality": 2,
    }
    mark_rows(tmp_path / "t", _file(small, 2).name, vector)
    with pytest.raises(
        (FileNotFoundError, ValueError), match="deletion_vector_899cef78-06b3-4c14-b024-03860e62cd40"
    ):
        use(small)
    assert small.position() == 1


def test_a_vector_without_its_file(small: LocalMerge, tmp_path: Path) -> None:
    place, name = tmp_path / "t", _file(small, 2).name
    mark_rows(place, name, inline([0]))
    # Another program removes the file without its vector: then it stays, for every reader.
    remove = deltalake.transaction.RemoveAction(name, True, 1, 1, {})
    opened = deltalake.DeltaTable(place)
    opened.create_write_transaction([remove], "append", opened.schema(), [])
    _expect(small, place, set(range(1000)) - {200})
    # Or it adds it again: then it is there twice.
    mark_rows(place, name, inline([1]), inline([2]))
    with pytest.raises(ValueError, match="has a deletion vector without its file"):
        small.read()
