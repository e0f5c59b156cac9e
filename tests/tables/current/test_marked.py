"""Current Delta tables with rows that are marked deleted: by other programs, and by merges."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.merge import local
from pgoutput_fast.merge.effect.effect import Effect, current_schema
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.storage import stores
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta.log import read_state
from pgoutput_fast.tables.delta.table import DeltaTable
from pgoutput_fast.tables.formats import FORMATS
from pgoutput_fast.tables.options import Merge, TableOptions
from pgoutput_fast.tables.table import Commit, CommitLsn, ConflictError, DataFile, OutcomeUnknownError
from support import numbered
from support.buckets import Bucket, opened_bucket
from support.current_tables import RandomEffects, delta_table, names_of
from support.forms import and_slow
from support.marked import inline, mark_rows, read_with_delta_rs
from support.readers import expect_model


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


def test_unknown_features_beside_vectors(small: LocalMerge, tmp_path: Path) -> None:
    features = ["deletionVectors", "typeWidening"]
    mark_rows(tmp_path / "t", _file(small, 2).name, inline([0]), features=features)
    with pytest.raises(ValueError, match="it has typeWidening, which this package does not know"):
        small.read()


def test_histories_do_not_take_vectors(tmp_path: Path) -> None:
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


# ---- merges on read --------------------------------------------------------------------------------------------------


@pytest.fixture
def marking(tmp_path: Path) -> LocalMerge:
    """The same ids, in files that stay while few of their rows are updated or deleted."""
    return numbered.load(delta_table(tmp_path, "t", file_bytes=100, merge="on_read"))


def _vector_files(place: Path) -> set[str]:
    return {f"{each.parent.name}/{each.name}" for each in place.glob("_vectors/*")}


def test_files_stay_while_their_rows_are_marked(marking: LocalMerge, tmp_path: Path) -> None:
    place, before = tmp_path / "t", names_of(marking)
    marking.apply(numbered.effect([5, 950], [150, 2000]), 2)
    _expect(marking, place, (set(range(1000)) | {2000}) - {5, 950})
    assert before < names_of(marking)
    assert len(names_of(marking) - before) == 1
    assert len(_vector_files(place)) == 1
    # Another effect has vectors with all marked rows.
    marking.apply(numbered.effect([6], [151, 950]), 3)
    _expect(marking, place, (set(range(1000)) | {2000}) - {5, 6})
    assert before < names_of(marking)
    counts = {file.name: file.deleted.count for file in marking.table.now().files if file.deleted}
    assert sorted(counts.values()) == [1, 2, 2]
    assert marking.table.read(1).num_rows == 999
    found = marking.find(numbered.keys(5, 150, 151, 950, 152), ["text"]).sort_by("id")
    assert found["text"].to_pylist() == ["new", "new", "x", "new"]
    assert deltalake.DeltaTable(place).transaction_version("pgoutput_fast.mirror") == 3


def test_protocol_and_properties(marking: LocalMerge, tmp_path: Path) -> None:
    """Only what vectors need is added."""
    marking.apply(numbered.effect([5]), 2)
    table = deltalake.DeltaTable(tmp_path / "t")
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["deletionVectors"]
    assert sorted(protocol.writer_features) == ["appendOnly", "deletionVectors", "invariants"]
    known = {"delta.checkpointInterval": "10", "delta.enableDeletionVectors": "true"}
    assert table.metadata().configuration == known
    entry = (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").read_text()
    marking.apply(numbered.effect([6]), 3)
    following = (tmp_path / "t" / "_delta_log" / f"{2:020d}.json").read_text()
    for action in ("protocol", "metaData"):
        assert f'{{"{action}"' in entry
        assert f'{{"{action}"' not in following


@pytest.mark.parametrize(
    "key", and_slow(["int8"], [None, "text and int8", "text", "numeric", "float8", "timestamptz"]), ids=str
)
def test_both_merges_do_what_a_model_does(key: str | None, tmp_path: Path) -> None:
    """In turn, in one table, with restarts, and OPTIMIZE, VACUUM and checkpoints of delta-rs between them."""
    effects, dice, place = RandomEffects(len(str(key)) + 1, key), random.Random(8), tmp_path / "t"
    kinds: list[Merge] = ["on_read", "on_read", "on_write"]
    few = {"file_bytes": 4_000, "most_marked": 0.3}
    table, marks, lost = delta_table(tmp_path, "t", merge="on_read", **few), 0, 0
    for position in range(1, 61):
        before = (
            None
            if table.position() is None
            else {file.name: file.deleted for file in table.table.now().files}
        )
        table.apply(effects.next(), position)
        marked = {file.name for file in table.table.now().files if file.deleted is not None}
        marks += sum(before is not None and before.get(name) is None for name in marked)
        lost += len({name for name, deleted in (before or {}).items() if deleted is not None} - marked)
        if position % 6 == 0:
            expect_model(effects, "delta", tmp_path, "t")
        effects.model.assert_equal(table, effects.compared)
        if dice.random() < 0.3:
            table = delta_table(tmp_path, "t", merge=dice.choice(kinds), **few)
        if dice.random() < 0.2:
            theirs = deltalake.DeltaTable(place)
            dice.choice([table.vacuum, theirs.create_checkpoint, theirs.optimize.compact, theirs.vacuum])()
            effects.model.assert_equal(table, effects.compared)
    expect_model(effects, "delta", tmp_path, "t")
    assert marks >= 5
    assert lost > 2
    table.vacuum()
    known = {file.name for file in table.table.now().files}
    known |= {file.deleted.file for file in table.table.now().files if file.deleted}
    # Files of an OPTIMIZE stay for a week.
    own = {each.name for each in place.iterdir() if each.name.startswith(("part-current-", "."))}
    assert own | _vector_files(place) <= known


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_the_change_data_feed_of_delta(merge: Merge, tmp_path: Path) -> None:
    """With marks, it has the rows that changed. Otherwise, it has all rows of the files that were written anew."""
    table = numbered.load(delta_table(tmp_path, "t", file_bytes=100, merge=merge))
    deltalake.DeltaTable(tmp_path / "t").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    table.apply(numbered.effect([5], [150, 2000]), 2)
    opened = deltalake.DeltaTable(tmp_path / "t")
    feed = pa.table(opened.load_cdf(starting_version=opened.version()).read_all())
    changes = sorted(
        (row["_change_type"], row["id"]) for row in feed.select(["_change_type", "id"]).to_pylist()
    )
    if merge == "on_read":
        assert changes == [("delete", 5), ("delete", 150), ("insert", 150), ("insert", 2000)]
    else:
        assert len(changes) == 200 + 200
    _expect(table, tmp_path / "t", (set(range(1000)) | {2000}) - {5})


def test_joined_and_rewritten_files_are_not_in_the_change_data_feed(tmp_path: Path) -> None:
    """They are in commits of their own, which keep the position. The feed has what each effect did."""
    place, ids = tmp_path / "t", set(range(1000))
    table = numbered.load(delta_table(tmp_path, "t", file_bytes=40_000, merge="on_read"))
    deltalake.DeltaTable(place).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    wanted, versions = list[tuple[str, int]](), list[int]()
    for position in range(2, 32):
        gone, comes = range(20 * position, 20 * position + 11), [5, 1000 + position]
        table.apply(numbered.effect(gone, comes), position)
        new = [each for each in comes if each not in ids]
        wanted += [("delete", each) for each in (*gone, 5)] + [("insert", each) for each in (5, *new)]
        ids = (ids | set(comes)) - set(gone)
        versions.append(table.version() or 0)
        assert table.position() == position
    steps = np.diff(versions).tolist()
    assert set(steps) == {1, 2}
    opened = deltalake.DeltaTable(place)
    feed = pa.table(opened.load_cdf(starting_version=2).read_all())
    changes = [(row["_change_type"], row["id"]) for row in feed.select(["_change_type", "id"]).to_pylist()]
    assert sorted(changes) == sorted(wanted)
    _expect(table, place, ids)


# ---- other programs, and errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["optimize", "delete"])
def test_others_do_not_overwrite_marks(marking: LocalMerge, tmp_path: Path, what: str) -> None:
    """delta-rs plans a change of files in which rows are marked before it commits."""
    place = tmp_path / "t"
    marking.apply(numbered.effect([5]), 2)
    stale = deltalake.DeltaTable(place)
    marking.apply(numbered.effect([6]), 3)
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        stale.optimize.compact() if what == "optimize" else stale.delete("id = 7")
    _expect(marking, place, set(range(1000)) - {5, 6})


def test_an_optimize_of_marked_files(marking: LocalMerge, tmp_path: Path) -> None:
    place = tmp_path / "t"
    marking.apply(numbered.effect([5], [150]), 2)
    deltalake.DeltaTable(place).optimize.compact()
    assert not any(file.deleted for file in marking.table.now().files)
    marking.apply(numbered.effect([6], [151]), 3)
    _expect(marking, place, set(range(1000)) - {5, 6})
    assert any(file.deleted for file in marking.table.now().files)


def _fails(*_: Any) -> None:
    raise OSError(5, "the disk is gone")


def test_an_entry_that_cannot_be_written(
    marking: LocalMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of the commit stays."""
    place = tmp_path / "t"
    before = {each for each in place.rglob("*") if each.is_file()}
    publish = stores.publish

    def failing(hidden: Path, target: Path) -> None:
        publish(hidden, target) if target.suffix != ".json" else _fails()

    with monkeypatch.context() as patch:
        patch.setattr(stores, "publish", failing)
        with pytest.raises(OSError, match="the disk is gone") as caught:
            marking.apply(numbered.effect([5], [2000]), 2)
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert {each for each in place.rglob("*") if each.is_file()} == before
    marking.apply(numbered.effect([5], [2000]), 2)
    _expect(marking, place, (set(range(1000)) | {2000}) - {5})


def test_an_entry_that_may_be_lost(
    marking: LocalMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, but its directory cannot be made durable. All files of the commit stay."""
    place, fsync = tmp_path / "t", stores.fsync

    def failing(path: Path) -> None:
        fsync(path) if path.name != "_delta_log" or not (path / f"{1:020d}.json").exists() else _fails()

    with monkeypatch.context() as patch:
        patch.setattr(stores, "fsync", failing)
        with pytest.raises(OutcomeUnknownError, match="the disk is gone"):
            marking.apply(numbered.effect([5]), 2)
    _expect(marking, place, set(range(1000)) - {5})
    marking.apply(numbered.effect([5]), 2)
    assert (marking.position(), marking.version()) == (2, 1)


def test_checkpoints_of_marked_tables(marking: LocalMerge, tmp_path: Path) -> None:
    """As often as the table says. A new process reads the log from there."""
    place = tmp_path / "t"
    for position in range(2, 14):
        marking.apply(numbered.effect([50 * position]), position)
    assert [each.name for each in place.glob("_delta_log/*.parquet")] == [f"{10:020d}.checkpoint.parquet"]
    for number in range(10):
        (place / "_delta_log" / f"{number:020d}.json").unlink()
    again = delta_table(tmp_path, "t", file_bytes=100, merge="on_read")
    _expect(again, place, set(range(1000)) - set(range(100, 700, 50)))
    again.apply(numbered.effect([], [2000]), 20)
    assert (again.position(), len(_vector_files(place))) == (20, 12)
    assert again.vacuum() == 6
    _expect(again, place, (set(range(1000)) | {2000}) - set(range(100, 700, 50)))


def test_vacuum_keeps_the_vectors_of_kept_versions(marking: LocalMerge, tmp_path: Path) -> None:
    place = tmp_path / "t"
    for position in range(2, 7):
        marking.apply(numbered.effect([position]), position)
    other = place / "deletion_vector_899cef78-06b3-4c14-b024-03860e62cd40.bin"
    other.write_bytes(b"of a DELETE that has not committed yet")
    assert marking.vacuum(3) == 2
    assert len(_vector_files(place)) == 3
    assert other.exists()
    for version in (3, 4, 5):
        assert marking.table.read(version).num_rows == 1000 - version
    with pytest.raises(FileNotFoundError):
        marking.table.read(2)
    os.utime(other, (0, 0))
    assert marking.vacuum(3) == 1
    assert not other.exists()


def test_many_marks_rewrite_a_file(marking: LocalMerge, tmp_path: Path) -> None:
    """Above ten per cent of its rows."""
    place, before = tmp_path / "t", names_of(marking)
    marking.apply(numbered.effect(range(100, 110)), 2)
    assert names_of(marking) == before
    marking.apply(numbered.effect([110]), 3)
    assert len(before - names_of(marking)) == 1
    assert not any(file.deleted for file in marking.table.now().files)
    _expect(marking, place, set(range(1000)) - set(range(100, 111)))


def test_parts_of_one_commit(marking: LocalMerge, tmp_path: Path) -> None:
    """Each part sees what the one before marked and added, and readers see none of it before the commit."""
    place = tmp_path / "t"
    parts = [
        numbered.effect([5, 250], [150, 2000]),
        numbered.effect([6, 2000], [150, 250, 3000]),
        numbered.effect(range(100, 108), [3000]),
    ]
    marking.apply_parts(parts, 2)
    assert marking.version() == 1
    _expect(marking, place, (set(range(1000)) | {3000}) - {5, 6, *range(100, 108)})
    counts = sorted(file.deleted.count for file in marking.table.now().files if file.deleted)
    assert counts == [1, 2, 9]


def test_a_truncate_between_parts(marking: LocalMerge, tmp_path: Path) -> None:
    truncate = numbered.effect([], range(50))
    truncate = type(truncate)(truncate.key, True, truncate.gone, truncate.rows)
    marking.apply_parts([numbered.effect([5]), truncate, numbered.effect([7], [8, 60])], 2)
    _expect(marking, tmp_path / "t", (set(range(50)) | {60}) - {7})
    assert not any(file.deleted for file in marking.table.now().files)


@pytest.mark.parametrize(
    ("protocol", "properties", "says"),
    [
        ({"writerFeatures": ["deletionVectors", "rowTracking"]}, {}, "writers need rowTracking"),
        ({}, {"delta.appendOnly": "true"}, "it has the property delta.appendOnly"),
        ({}, {"delta.constraints.small": "id < 7"}, "it has the property delta.constraints.small"),
    ],
    ids=str,
)
def test_what_another_program_demands_of_writers(
    protocol: dict[str, Any], properties: dict[str, str], says: str, marking: LocalMerge, tmp_path: Path
) -> None:
    marking.apply(numbered.effect([5]), 2)
    version, log = marking.version(), tmp_path / "t" / "_delta_log"
    state = read_state(open_store(tmp_path), "t", version)
    metadata = {**state.metadata, "configuration": {**state.metadata["configuration"], **properties}}
    actions = [{"protocol": {**state.protocol, **protocol}}, {"metaData": metadata}]
    (log / f"{version + 1:020d}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))
    with pytest.raises(ValueError, match=f"was changed by something else, and cannot be written: {says}"):
        marking.apply(numbered.effect([6]), 3)
    assert (marking.position(), len(_vector_files(tmp_path / "t"))) == (2, 1)


def test_bounds_of_marked_files_keep_their_digits(tmp_path: Path) -> None:
    """Statistics that are written again have the same decimals, and say that the bounds may be of marked rows."""
    schema = current_schema(pa.schema({"id": pa.int64(), "n": pa.decimal128(38, 10)}))
    numbers = ["12345678901234567890.1234567891", "-0.0000000001", "99999999999999999999.0000000001"]
    values = [*map(Decimal, numbers), *[None] * 7]
    rows = pa.table([range(10), values, [1] * 10, [None] * 10], schema=schema)
    table = delta_table(tmp_path, "t", merge="on_read")
    table.replace(rows.to_batches(), schema, 1)
    before = read_state(open_store(tmp_path), "t", 0).adds
    table.apply(Effect(("id",), False, numbered.keys(4), rows.slice(0, 0)), 2)
    ((path, add),) = read_state(open_store(tmp_path), "t", 1).adds.items()
    known, now = (parsed_json(each[path]["stats"], decimals=True) for each in (before, {path: add}))
    assert now == known | {"tightBounds": False}
    assert now["maxValues"]["n"] == Decimal(numbers[2])


def test_targets_that_cannot_mark_rows(tmp_path: Path) -> None:
    options = TableOptions(merge="on_read")
    for format, place in (
        ("delta", str(tmp_path)),
        ("delta", "s3://bucket/lake?region=x"),
        ("iceberg", str(tmp_path)),
    ):
        FORMATS[format].check(open_store(place), options, format)
    with pytest.raises(ValueError, match="merge='on_read' is not possible for duckdb tables"):
        FORMATS["duckdb"].check(open_store(tmp_path), options, "duckdb")
    with pytest.raises(ValueError, match="merge must be one of 'on_write', 'on_read', not 'read'"):
        FORMATS["delta"].check(open_store(tmp_path), TableOptions(merge="read"), "delta")  # type: ignore[arg-type]


def _bucket_table(bucket: Bucket) -> LocalMerge:
    return numbered.load(delta_table(bucket.uri % "lake", "t", file_bytes=100, merge="on_read"), 300)


@pytest.mark.slow
def test_marked_rows_in_a_bucket() -> None:
    """Those of others, and of this package."""
    with opened_bucket("marked") as bucket:
        place = bucket.uri % "lake"
        table = _bucket_table(bucket)
        before = names_of(table)
        mark_rows(str(open_store(place).at("t")), _file(table, 1).name, inline([3]))
        assert numbered.ids(table) == sorted({*range(300)} - {103})
        table.apply(numbered.effect([104, 5], [2000]), 2)
        table.apply(numbered.effect([250], [7]), 3)
        assert before < names_of(table)
        left = sorted({*range(300), 2000} - {5, 103, 104, 250})
        for each in (table, delta_table(place, "t", merge="on_read")):
            assert numbered.ids(each) == left
        theirs = read_with_delta_rs(bucket.uri % "lake/t")
        assert sorted(theirs["id"].to_pylist()) == left
        stale = delta_table(place, "t", merge="on_read")
        assert stale.position() == 3
        table.apply(numbered.effect([8]), 4)
        stale.apply(numbered.effect([9]), 5)
        assert numbered.ids(stale) == sorted({*left} - {8, 9})
        for position in range(6, 14):
            table.apply(numbered.effect([20 * position]), position)
        names = open_store(place).names("t/_delta_log")
        assert f"t/_delta_log/{10:020d}.checkpoint.parquet" in names
        assert table.vacuum() > 0
        assert numbered.ids(table) == sorted({*left} - {8, 9, *range(120, 280, 20)})
        numbered.load(table, 7)
        assert numbered.ids(table) == [*range(7)]


def test_marks_that_come_late() -> None:
    """A store reports an error, and makes the commit later: all of its files are there."""
    with opened_bucket("late-marks") as bucket:
        table = _bucket_table(bucket)
        bucket.delay("_delta_log/")
        with pytest.raises(OutcomeUnknownError):
            table.apply(numbered.effect([5], [2000]), 2)
        table = delta_table(bucket.uri % "lake", "t", merge="on_read")
        assert table.position() == 1
        bucket.arrive()
        assert table.position() == 2
        assert numbered.ids(table) == sorted({*range(300), 2000} - {5})


def test_marks_whose_answer_is_lost() -> None:
    """The store has committed them, and the request is made again. Nothing is applied twice."""
    with opened_bucket("lost-marks") as bucket:
        table = _bucket_table(bucket)
        for position in (2, 3):
            bucket.lose_answers("_delta_log/")
            table.apply(numbered.effect([position], [2000 + position]), position)
            assert bucket.to_lose == 0
        for each in (table, delta_table(bucket.uri % "lake", "t", merge="on_read")):
            assert (each.position(), each.version()) == (3, 2)
            assert numbered.ids(each) == sorted({*range(300), 2002, 2003} - {2, 3})


def test_a_full_vacuum_of_delta_rs(marking: LocalMerge, tmp_path: Path) -> None:
    """Where Delta for Spark has its vectors, it would remove those of the table."""
    place = tmp_path / "t"
    marking.apply(numbered.effect([5]), 2)
    for each in place.rglob("*"):
        os.utime(each, (0, 0))
    deltalake.DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    _expect(marking, place, set(range(1000)) - {5})


def test_a_timestamp_in_a_marked_table(marking: LocalMerge, tmp_path: Path) -> None:
    """It needs a feature of its own, beside that of vectors."""
    marking.apply(numbered.effect([5]), 2)
    effect = numbered.effect([6], [150])
    at = pa.array([datetime(2024, 2, 29)], pa.timestamp("us"))
    rows = effect.rows.append_column("at", at)
    marking.apply(Effect(effect.key, False, effect.gone, rows), 3)
    _expect(marking, tmp_path / "t", set(range(1000)) - {5, 6})
    features = deltalake.DeltaTable(tmp_path / "t").protocol().reader_features
    assert sorted(features) == ["deletionVectors", "timestampNtz"]
    assert marking.find(numbered.keys(150), ["at"])["at"].to_pylist() == [datetime(2024, 2, 29)]


def test_bounds_that_an_optimize_has_rounded(tmp_path: Path) -> None:
    """They are mended in a file that got a vector since, which stays."""
    schema = current_schema(pa.schema({"id": pa.int64(), "n": pa.decimal128(38, 10)}))
    numbers = [Decimal(f"1234567890123456789{k}.1234567891") for k in range(8)]
    rows = pa.table([range(8), pa.array(numbers, schema.field("n").type), [1] * 8, [None] * 8], schema=schema)
    table, place = delta_table(tmp_path, "t", file_bytes=100, merge="on_read"), tmp_path / "t"
    table.replace(rows.to_batches(max_chunksize=4), schema, 1)
    deltalake.DeltaTable(place).optimize.compact()
    mark_rows(place, _file(table, 0).name, inline([3]))
    version = table.version()
    assert version is not None
    rounded = read_state(open_store(tmp_path), "t", version)
    delta_table(tmp_path, "t", merge="on_read").fix_statistics()
    state = read_state(open_store(tmp_path), "t", version + 1)
    assert rounded.vectors == state.vectors != {}
    ((before,), (after,)) = (
        [parsed_json(add["stats"], decimals=True) for add in each.adds.values()] for each in (rounded, state)
    )
    assert before["maxValues"]["n"] != numbers[7]
    assert (after["minValues"]["n"], after["maxValues"]["n"]) == (numbers[0], numbers[7])
    assert after["tightBounds"] is False
    for number in numbers:
        found = pa.table(
            deltalake.DeltaTable(place).scan(predicate=f"n = CAST('{number}' AS DECIMAL(38, 10))")
        )
        assert found.num_rows == (number != numbers[3])


def test_a_part_that_rewrites_a_file_with_new_marks(marking: LocalMerge, tmp_path: Path) -> None:
    before = names_of(marking)
    marking.apply_parts([numbered.effect([100, 200], [150]), numbered.effect(range(101, 140))], 2)
    _expect(marking, tmp_path / "t", set(range(1000)) - set(range(100, 140)) - {200})
    assert len(before - names_of(marking)) == 1
    assert [file.deleted.count for file in marking.table.now().files if file.deleted] == [1]


def test_a_position_that_another_program_sets(marking: LocalMerge, tmp_path: Path) -> None:
    """A commit that only marks rows is not taken for made because the table has its position, and all files."""
    store = open_store(tmp_path)
    table = DeltaTable(store, "t", "current")
    base = table.version()
    assert base is not None
    other = deltalake.DeltaTable(tmp_path / "t")
    moved = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("pgoutput_fast.mirror", 2)])
    other.create_write_transaction([], "append", other.schema(), [], commit_properties=moved)
    name = base.files[0].name
    with pytest.raises(ConflictError):
        table.commit(Commit(base, base.schema, CommitLsn(2), deleted={name: np.array([0])}))
    assert not _vector_files(tmp_path / "t")
    now = table.version()
    assert now is not None
    table.commit(Commit(now, base.schema, CommitLsn(3), deleted={name: np.array([0])}))
    assert len(numbered.ids(marking)) == 999


def test_a_new_column_while_others_optimize(
    marking: LocalMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that adds the column has the same condition as the one that marks rows."""
    commit, left = DeltaTable.commit, [1]

    def disturbed(*arguments: Any) -> None:
        if left:
            left.clear()
            deltalake.DeltaTable(tmp_path / "t").optimize.compact()
        commit(*arguments)

    monkeypatch.setattr(DeltaTable, "commit", disturbed)
    effect = numbered.effect([5], [150])
    rows = effect.rows.append_column("more", pa.array(["m"]))
    marking.apply(Effect(effect.key, False, effect.gone, rows), 2)
    assert not left
    _expect(marking, tmp_path / "t", set(range(1000)) - {5})
    assert any(file.deleted for file in marking.table.now().files)


def test_files_that_can_wait_are_rewritten_a_quarter_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all tables of a store together. Those with too many marked rows do not wait."""
    monkeypatch.setattr(local, "_REST", 1_000_000)
    one, other = (
        numbered.load(delta_table(tmp_path, name, file_bytes=100, merge="on_read")) for name in "tu"
    )
    one.apply(numbered.effect([*range(100, 111), *range(200, 212)]), 2)
    assert _marked(one) == [11]  # the other one had more
    other.apply(numbered.effect(range(100, 111)), 2)
    assert _marked(other) == [11]
    other.apply(numbered.effect(range(111, 121)), 3)
    assert _marked(other) == []
    monkeypatch.setattr(local, "_RESTS_UNTIL", {})
    one.more_waits = True
    one.apply(numbered.effect([5]), 3)
    assert _marked(one) == [1, 11]
    one.more_waits = False
    one.apply(numbered.effect([6]), 4)
    assert _marked(one) == [2]


def _marked(table: LocalMerge) -> list[int]:
    now = table.table.now()
    assert now is not None
    return [file.deleted.count for file in now.files if file.deleted]
