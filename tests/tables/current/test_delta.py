"""Current tables in the format of Delta: types, other programs that write to the table, files that stay as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.merge import commit as commits
from pgoutput_fast.merge.effect.effect import Effect, Unfilled, current_schema
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.merge.units import RewriteUnit
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta.table import DeltaTable
from pgoutput_fast.tables.table import (
    Commit,
    CommitLsn,
    ConflictError,
    OutcomeUnknownError,
    Table,
    Version,
)
from support import numbered
from support.buckets import opened_bucket
from support.current_tables import delta_table, forget_statistics


def _loaded(place: Path, **more: Any) -> LocalMerge:
    """A table with the ids from 0 to 999, in ten files."""
    return numbered.load(delta_table(place, "t", **more))


@pytest.fixture
def small(tmp_path: Path) -> LocalMerge:
    return _loaded(tmp_path, file_bytes=100)


@pytest.fixture(params=["on_write", "on_read"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> LocalMerge:
    """The same, for each way to merge."""
    return _loaded(tmp_path, file_bytes=100, merge=request.param)


def _files(place: Path) -> set[str]:
    return {each.rpartition("/")[2] for each in deltalake.DeltaTable(place / "t").file_uris()}


# ---- types ----------------------------------------------------------------------------------------------------------

TYPES: dict[str, tuple[pa.DataType, Any, pa.DataType, Any]] = {
    "int2": (pa.int16(), -5, pa.int16(), -5),
    "float4": (pa.float32(), 0.5, pa.float32(), 0.5),
    "numeric": (pa.decimal128(38, 10), Decimal("1.5"), pa.decimal128(38, 10), Decimal("1.5000000000")),
    "date": (pa.date32(), date(1, 1, 1), pa.date32(), date(1, 1, 1)),
    "time": (pa.time64("us"), 45_296_500_000, pa.string(), "12:34:56.500000"),
    "timestamp": (pa.timestamp("us"), datetime(2024, 2, 29), pa.timestamp("us"), datetime(2024, 2, 29)),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        datetime(9999, 12, 31, tzinfo=UTC),
        pa.timestamp("us", "UTC"),
        datetime(9999, 12, 31, tzinfo=UTC),
    ),
    "interval": (
        pa.month_day_nano_interval(),
        pa.MonthDayNano([14, -3, 1_000_000_000]),
        pa.string(),
        "P1Y2M-3DT1S",
    ),
    "uuid": (pa.binary(16), bytes(range(16)), pa.binary(), bytes(range(16))),
    "large": (pa.large_string(), "é", pa.string(), "é"),
    "view": (pa.string_view(), "a" * 40, pa.string(), "a" * 40),
    "empty": (pa.struct([]), {}, pa.string(), "()"),
    "times": (pa.list_(pa.time64("us")), [0, None], pa.list_(pa.string()), ["00:00:00.000000", None]),
    "range": (
        pa.struct([("lower", pa.time64("us")), ("empty", pa.bool_())]),
        {"lower": None, "empty": True},
        pa.struct([("lower", pa.string()), ("empty", pa.bool_())]),
        {"lower": None, "empty": True},
    ),
}  # fmt: skip


def test_what_columns_become(tmp_path: Path) -> None:
    schema = current_schema(
        pa.schema([("id", pa.int64()), *((name, kind[0]) for name, kind in TYPES.items())])
    )
    row = {"id": 1, **{name: kind[1] for name, kind in TYPES.items()}, "_commit_lsn": 5}
    arrays = [pa.array([row.get(field.name), None], field.type) for field in schema]
    rows = pa.Table.from_arrays(arrays, schema=schema).append_column(
        "arrow uuid",
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=1).bytes, None], pa.binary(16))),
    )
    table = delta_table(tmp_path, "t")
    table.replace([], rows.schema, 1)
    assert table.read().num_rows == 0
    rows = rows.set_column(0, "id", pa.array([1, 2]))
    table.apply(Effect(("id",), False, numbered.keys(), rows), 2)
    there = table.read()
    assert there.schema == table.schema()
    for name, (_, _, kind, value) in TYPES.items():
        assert there.schema.field(name).type.equals(kind), name
        assert there.column(name).to_pylist() == [value, None], name
    assert there.column("arrow uuid").to_pylist() == [uuid.UUID(int=1).bytes, None]
    opened = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert opened.column("time").to_pylist() == ["12:34:56.500000", None]
    found = table.find(rows.select(["uuid", "time"]).slice(0, 1), ["id"])
    assert found.column("id").to_pylist() == [1]


def test_types_that_change(small: LocalMerge) -> None:
    narrow = numbered.SCHEMA.set(0, pa.field("id", pa.int32()))
    rows = numbered.rows([1, 5000]).cast(narrow)
    small.apply(Effect(("id",), False, numbered.keys(2).cast(pa.schema({"id": pa.int32()})), rows), 2)
    assert numbered.ids(small) == [0, 1, *range(3, 1000), 5000]
    version, other = small.version(), numbered.SCHEMA.set(0, pa.field("id", pa.decimal128(10, 2)))
    rows = numbered.rows([1]).set_column(0, other.field("id"), pa.array([Decimal(1)], other.field("id").type))
    with pytest.raises(
        ValueError,
        match=r"'id' is int64, and the rows have decimal.*cannot change its type in this way: load",
    ):
        small.apply(Effect(("id",), False, rows.select(["id"]).slice(0, 0), rows), 3)
    assert (small.position(), small.version()) == (2, version)


def test_a_type_that_becomes_wider(tmp_path: Path) -> None:
    """All files are written again: delta-rs has no other way. Two effects of one commit may both bring wider types."""
    narrow = pa.schema([numbered.SCHEMA.field("id").with_type(pa.int16()), *list(numbered.SCHEMA)[1:]])
    table = delta_table(tmp_path, "t", file_bytes=100)
    rows = numbered.rows(range(300)).cast(narrow)
    table.replace(rows.to_batches(max_chunksize=100), narrow, 1)
    before = _files(tmp_path)
    middle = narrow.set(0, pa.field("id", pa.int32()))
    first = Effect(("id",), False, numbered.keys(5), numbered.rows([1, 1 << 20]).cast(middle))
    table.apply_parts([first, numbered.effect(gone=[6], comes=[1 << 40])], 2)
    assert numbered.ids(table) == [*range(5), *range(7, 300), 1 << 20, 1 << 40]
    assert len(before) == 3
    assert not before & _files(tmp_path)
    opened = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert opened.schema.field("id").type == pa.int64()
    assert opened.num_rows == 300
    assert table.open(0).schema == narrow


def test_columns_that_come_and_go(small: LocalMerge) -> None:
    rows = (
        numbered.rows([1])
        .drop_columns(["text"])
        .append_column("more", pa.array([[1.5]], pa.list_(pa.float64())))
    )
    small.apply(Effect(("id",), False, numbered.keys(), rows), 2)
    assert small.schema().names == ["id", "text", "_commit_lsn", "_unrepresentable", "more"]
    found = {row["id"]: row for row in small.find(numbered.keys(1, 2), ["text", "more"]).to_pylist()}
    assert found == {1: {"id": 1, "text": None, "more": [1.5]}, 2: {"id": 2, "text": "x", "more": None}}


def test_a_table_gets_its_first_timestamps_late(small: LocalMerge) -> None:
    """They are a feature of the table, which writers and readers must know."""
    rows = numbered.rows([1]).append_column("at", pa.array([datetime(2024, 2, 29)], pa.timestamp("us")))
    small.apply(Effect(("id",), False, numbered.keys(), rows), 2)
    assert small.find(numbered.keys(1), ["at"]).column("at").to_pylist() == [datetime(2024, 2, 29)]
    small.replace([], numbered.SCHEMA, 3)
    small.replace(rows.to_batches(), rows.schema, 4)
    assert small.read().column("at").to_pylist() == [datetime(2024, 2, 29)]


def test_names_that_are_the_same(tmp_path: Path) -> None:
    table = delta_table(tmp_path, "t")
    schema = current_schema(pa.schema({"id": pa.int64(), "ID": pa.int64()}))
    with pytest.raises(ValueError, match=r"both columns 'id' and 'ID'.*tables of this format ignore case"):
        table.replace([], schema, 1)
    assert table.version() is None


def test_fields_whose_names_are_the_same(tmp_path: Path) -> None:
    """delta-rs has no type of its own for this error. A mirror stops for all errors but a ValueError."""
    table = delta_table(tmp_path, "t")
    same = pa.struct([("a", pa.int64()), ("A", pa.string())])
    schema = current_schema(pa.schema({"id": pa.int64(), "pair": same}))
    with pytest.raises(ValueError, match=r"t cannot have these columns: .*Duplicate field name[^\n]*\Z"):
        table.replace([], schema, 1)
    assert table.version() is None


# ---- effects --------------------------------------------------------------------------------------------------------


def test_only_files_with_changed_keys_are_rewritten(small: LocalMerge, tmp_path: Path) -> None:
    before = _files(tmp_path)
    assert len(before) == 10
    small.apply(numbered.effect([5, 7], [9, 950, 2000]), 2)
    after = _files(tmp_path)
    assert len(before & after) == 8
    small.apply(numbered.effect([], [3000]), 3)
    assert len(_files(tmp_path) - after) == 1
    assert after < _files(tmp_path)


def test_a_file_is_not_read_if_no_key_is_in_its_range(small: LocalMerge, tmp_path: Path) -> None:
    *others, last = small.table.now().files
    for file in others:
        (tmp_path / "t" / file.name).write_bytes(b"damaged")
    small.apply(numbered.effect([905], [950, 2000]), 2)
    assert small.find(numbered.keys(950, 2000), ["text"]).column("text").to_pylist() == ["new", "new"]
    assert last.name not in _files(tmp_path)


def test_a_key_that_changes(small: LocalMerge) -> None:
    """The files have no order by the new key. They are found all the same."""
    small.apply(numbered.effect([], [3], text="three"), 2)
    gone = pa.table({"text": ["three"]})
    small.apply(Effect(("text",), False, gone, numbered.rows([4000], "other")), 3)
    assert numbered.ids(small) == [0, 1, 2, *range(4, 1000), 4000]


def test_rows_that_share_a_key(small: LocalMerge) -> None:
    """A key without an Arrow form is null. A row takes the place of all of them, once."""
    nothing = numbered.rows([None])
    none = numbered.rows([]).drop_columns(["_commit_lsn"])
    small.apply(Effect((), False, none, pa.concat_tables([nothing] * 3)), 2)
    small.apply(Effect(("id",), False, numbered.keys(), nothing), 3)
    assert small.read().column("id").null_count == 1


def test_row_groups_have_a_bounded_size(tmp_path: Path) -> None:
    table = delta_table(tmp_path, "t")
    batch = numbered.rows(range(20_000), "x" * 1000).to_batches()[0]
    table.replace((batch for _ in range(5)), numbered.SCHEMA, 1)
    (name,) = _files(tmp_path)
    assert pq.read_metadata(tmp_path / "t" / name).num_row_groups == 3
    assert table.read().num_rows == 100_000


@pytest.mark.slow
def test_who_reads_while_others_write_sees_whole_versions(small: LocalMerge, tmp_path: Path) -> None:
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            rows = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()
            texts = set(rows.filter(pc.less(rows.column("id"), 900)).column("text").to_pylist())
            if len(texts) != 1 or rows.num_rows != 1000:
                wrong.append(texts)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for position in range(2, 30):
            small.apply(numbered.effect([], range(900), text=str(position)), position)
    finally:
        stop.set()
        reader.join()
    assert wrong == []


def test_a_table_that_is_removed_while_it_is_open(small: LocalMerge, tmp_path: Path) -> None:
    """An effect does not begin another one in its place."""
    assert small.position() == 1
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(ValueError, match=r"is damaged: .* load the table again"):
        small.apply(numbered.effect([], [2000]), 2)
    assert small.position() is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_an_effect_without_rows_moves_the_position(small: LocalMerge, tmp_path: Path) -> None:
    before = _files(tmp_path)
    small.apply(numbered.effect(), 7)
    assert (small.position(), small.version(), _files(tmp_path)) == (7, 1, before)


def test_unfilled_values_are_refused(small: LocalMerge) -> None:
    unfilled = Unfilled("text", pa.array([0], pa.int64()), numbered.keys(1))
    with pytest.raises(ValueError, match="fill them from `find` first"):
        small.apply(Effect(("id",), False, numbered.keys(), numbered.rows([1]), [unfilled]), 2)


def test_a_row_without_a_key_that_is_not_there(small: LocalMerge) -> None:
    gone = numbered.rows([1, 1, 2]).drop_columns(["_commit_lsn"])
    with pytest.raises(ValueError, match="lacks rows that changes remove"):
        small.apply(Effect((), False, gone, numbered.rows([])), 2)
    assert (small.position(), len(numbered.ids(small))) == (1, 1000)


def test_older_versions_can_be_read_until_vacuum(small: LocalMerge) -> None:
    for k in range(4):
        small.apply(numbered.effect([k]), 2 + k)
    assert [small.read(version).num_rows for version in range(5)] == [1000, 999, 998, 997, 996]
    assert small.vacuum(2) == 3
    assert [small.read(version).num_rows for version in (3, 4)] == [997, 996]
    with pytest.raises(FileNotFoundError):
        small.read(0)
    with pytest.raises(ValueError, match="keep must be"):
        small.vacuum(0)


def test_a_version_that_cannot_be_read_now_is_not_gone(
    small: LocalMerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(4):
        small.apply(numbered.effect([k]), 2 + k)
    read = DeltaTable.version

    def fail(self: DeltaTable, number: int | None = None) -> Version | None:
        if number == 2:
            raise ConnectionResetError("the store does not answer")
        return read(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "version", fail)
        with pytest.raises(ConnectionResetError):
            small.vacuum(10)
    assert [small.read(version).num_rows for version in range(5)] == [1000, 999, 998, 997, 996]


def test_vacuum_leaves_new_files_of_others(small: LocalMerge, tmp_path: Path) -> None:
    new, old = tmp_path / "t" / "new.parquet", tmp_path / "t" / "old.parquet"
    week = time.time() - 8 * 24 * 3600
    for each in (new, old):
        each.write_bytes(b"")
    os.utime(old, (week, week))
    assert small.vacuum() == 1
    assert new.exists()


def test_a_file_without_a_count_of_rows(tmp_path: Path) -> None:
    """Its footer has the count."""
    table = numbered.load(delta_table(tmp_path, "t", merge="on_read"))
    table.apply(numbered.effect([5, 6], [1000]), 2)
    size = table.size()
    assert size[0] == 999
    forget_statistics(tmp_path / "t")
    assert delta_table(tmp_path, "t").size() == size


def test_short_files_become_one(tmp_path: Path) -> None:
    table = delta_table(tmp_path, "t", file_bytes=100_000)
    for k in range(40):
        table.apply(numbered.effect([], [k]), 1 + k)
    assert len(_files(tmp_path)) < 20
    assert (numbered.ids(table), table.position()) == ([*range(40)], 40)


def test_a_longer_file_is_not_written_again_each_time(tmp_path: Path) -> None:
    """Files of one row become one again and again. The file that is longer stays until there are more like it."""
    table = delta_table(tmp_path, "t", file_bytes=1 << 20)
    table.apply(numbered.effect([], range(10_000)), 1)
    (longer,) = _files(tmp_path)
    assert 16 << 10 < (tmp_path / "t" / longer).stat().st_size <= 128 << 10
    files, fewest = 1, []
    for k in range(30):
        table.apply(numbered.effect([], [10_000 + k]), 2 + k)
        now = _files(tmp_path)
        assert longer in now
        if len(now) < files:
            fewest.append(len(now))
        files = len(now)
        assert files <= 2 * (8 + 1)
    assert len(fewest) > 2
    assert numbered.ids(table) == [*range(10_030)]


def test_what_one_effect_joins_is_bounded(tmp_path: Path) -> None:
    """Although many files wait to be joined, the effect that joins some does not write the long ones again."""
    table = delta_table(tmp_path, "t", file_bytes=1 << 20)
    # Each file has an eighth of the most at least: they stay as they are.
    for k in range(10):
        text = str(k).join(map(chr, np.random.default_rng(k).integers(0x4E00, 0x9000, 60_000)))
        table.apply(numbered.effect([], [k], text=text), 1 + k)
    long = _files(tmp_path)
    assert len(long) == 10
    for k in range(10, 20):
        table.apply(numbered.effect([], [k]), 1 + k)
    assert long < _files(tmp_path)
    assert len(_files(tmp_path)) < 20


# ---- other programs -------------------------------------------------------------------------------------------------


def _disturbed(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object], times: int = 1) -> None:
    """Does something after the mirror has read the table, and before it commits."""
    commit, left = Table.commit, [times]

    def disturbed(*arguments: Any, **more: Any) -> None:
        if left[0]:
            left[0] -= 1
            what()
        commit(*arguments, **more)

    monkeypatch.setattr(Table, "commit", disturbed)


@pytest.mark.parametrize("what", ["compact", "z_order", "vacuum", "delete", "append"])
def test_others_change_the_table_meanwhile(
    either: LocalMerge, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        table = deltalake.DeltaTable(tmp_path / "t")
        if what == "compact":
            table.optimize.compact()
        elif what == "z_order":
            table.optimize.z_order(["text"])
        elif what == "vacuum":
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        elif what == "delete":
            table.delete("id = 500")
        else:
            deltalake.write_deltalake(table, numbered.rows([10_000]), mode="append")

    _disturbed(monkeypatch, change)
    either.apply(numbered.effect([5], [6, 700, 1000]), 2)
    expected = {*range(1001)} - {5}
    expected ^= {"delete": {500}, "append": {10_000}}.get(what, set())
    assert numbered.ids(either) == sorted(expected)
    assert either.position() == 2
    assert either.find(numbered.keys(6, 700, 1000), ["text"]).column("text").to_pylist() == ["new"] * 3
    _disturbed(monkeypatch, change)
    either.apply(numbered.effect([700]), 3)
    assert len(numbered.ids(either)) == len(expected) - 1 + (what == "append")


def test_a_file_is_gone_when_it_is_read(
    either: LocalMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left = RewriteUnit.run, [1]

    def disturbed(*arguments: Any) -> Any:
        if left:
            left.clear()
            table = deltalake.DeltaTable(tmp_path / "t")
            table.optimize.compact()
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        return run(*arguments)

    monkeypatch.setattr(RewriteUnit, "run", disturbed)
    either.apply(numbered.effect([5], [6, 1000]), 2)
    assert numbered.ids(either) == [each for each in range(1001) if each != 5]
    for each in _files(tmp_path):
        (tmp_path / "t" / each).unlink()
    with pytest.raises(
        ValueError, match=r"is damaged: .*parquet.* Or load the table again .in a mirror: Mirror.reload"
    ):
        either.apply(numbered.effect([7]), 3)
    with pytest.raises(ValueError, match=r"is damaged: .*parquet.* Or load the table again"):
        either.find(numbered.effect([7]).gone, ["v"])


def test_the_same_effect_from_two_processes(
    either: LocalMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, effect = delta_table(tmp_path, "t"), numbered.effect([5], [6, 1000])
    other.position()
    with monkeypatch.context() as patch:
        _disturbed(patch, lambda: other.apply(effect, 2))
        either.apply(effect, 2)
    assert numbered.ids(either) == [each for each in range(1001) if each != 5]
    assert either.version() == 1


def test_a_table_that_is_always_changed(
    either: LocalMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_ATTEMPTS", 3)
    before = {each.name for each in (tmp_path / "t").rglob("*")}
    with monkeypatch.context() as patch:
        _disturbed(
            patch,
            lambda: deltalake.write_deltalake(tmp_path / "t", numbered.rows([7777]), mode="append"),
            100,
        )
        with pytest.raises(
            RuntimeError, match="3 times during a commit: let only one process mirror into it"
        ):
            either.apply(numbered.effect([5], [6]), 2)
    assert either.position() == 1
    left = {each.name for each in (tmp_path / "t").rglob("*")} - before
    assert not [each for each in left if each.startswith(("part-current-", "deletion_vector_"))]


def test_tables_of_others_are_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", numbered.rows([1]))
    table = delta_table(tmp_path, "t")
    for call in (
        table.position,
        lambda: table.replace([], numbered.SCHEMA, 1),
        lambda: table.apply(numbered.effect(), 1),
    ):
        with pytest.raises(
            ValueError, match="is not a table of a mirror, or something else changed it: use another target"
        ):
            call()
    assert deltalake.DeltaTable(tmp_path / "t").version() == 0


def test_features_that_hide_rows_are_refused(small: LocalMerge, tmp_path: Path) -> None:
    table = deltalake.DeltaTable(tmp_path / "t")
    table.alter.add_feature(deltalake.TableFeatures.ColumnMapping, allow_protocol_versions_increase=True)
    with pytest.raises(ValueError, match="it has columnMapping, which this package does not know"):
        small.apply(numbered.effect([5]), 2)


# ---- stores, packages -----------------------------------------------------------------------------------------------


def test_in_a_bucket() -> None:
    with opened_bucket("current") as bucket:
        table = delta_table(bucket.uri % "lake", "public.o+2E", file_bytes=100)
        assert table.position() is None
        numbered.load(table, 300)
        table.apply(numbered.effect([5, 150], [6, 1000]), 2)
        table.apply(numbered.effect([], [2000]), 3)
        assert numbered.ids(table) == sorted({*range(300), 1000, 2000} - {5, 150})
        assert numbered.ids(delta_table(bucket.uri % "lake", "public.o+2E")) == numbered.ids(table)
        assert table.find(numbered.keys(6, 7), ["text"]).num_rows == 2
        assert table.vacuum() > 0
        assert table.read().num_rows == 300


def test_a_commit_that_comes_late() -> None:
    """A store reports an error, and makes the commit later: the new files are there."""
    with opened_bucket("late") as bucket:
        table = numbered.load(delta_table(bucket.uri % "lake", "t"), 3)
        bucket.delay("_delta_log/")
        with pytest.raises(OSError, match="RequestTimeout") as caught:
            table.apply(numbered.effect([1], [7]), 2)
        table = delta_table(bucket.uri % "lake", "t")
        assert table.position() == 1
        bucket.arrive()
        assert table.position() == 2
        assert numbered.ids(table) == [0, 2, 7]
        assert isinstance(caught.value, OutcomeUnknownError)


def test_a_commit_whose_answer_is_lost() -> None:
    """The store has done it. Nothing is applied twice, and the files of the new version stay."""
    with opened_bucket("lost") as bucket:
        table = delta_table(bucket.uri % "lake", "t")
        bucket.lose_answers("_delta_log/")
        table.replace(numbered.rows([1]).to_batches(), numbered.SCHEMA, 1)
        for position in (2, 3):
            bucket.lose_answers("_delta_log/")
            table.apply(numbered.effect([1], [1, position]), position)
            assert bucket.to_lose == 0
        for each in (table, delta_table(bucket.uri % "lake", "t")):
            assert (each.position(), each.version()) == (3, 2)
            assert numbered.ids(each) == [1, 2, 3]


def test_a_first_commit_without_files_whose_answer_is_lost() -> None:
    """An empty table is there, and is this writer's own."""
    with opened_bucket("empty") as bucket:
        table = DeltaTable(open_store(bucket.uri % "lake"), "t", "history")
        for position in (5, 6):
            bucket.lose_answers("_delta_log/")
            table.commit(Commit(table.known, numbered.SCHEMA, CommitLsn(position)))
            assert bucket.to_lose == 0
            assert (table.version().lsn, table.version().names) == (position, set())
        with pytest.raises(ConflictError):
            table.commit(Commit(None, numbered.SCHEMA, CommitLsn(7)))


def test_a_feature_whose_answer_is_lost() -> None:
    """Timestamps without a time zone replace all columns: a commit enables them, and the next one has them."""
    with opened_bucket("feature") as bucket:
        table = DeltaTable(open_store(bucket.uri % "lake"), "t", "history")
        table.commit(Commit(None, numbered.SCHEMA, CommitLsn(1)))
        times = pa.schema([("at", pa.timestamp("us"))])
        bucket.lose_answers("_delta_log/")
        table.commit(Commit(table.known, times, CommitLsn(2), removed="all"))
        assert bucket.to_lose == 0
        assert (table.version().lsn, table.version().schema) == (2, times)


@pytest.mark.unsanitized
def test_without_deltalake() -> None:
    code = """
import sys
from pgoutput_fast.storage.stores import open_store
import pgoutput_fast.tables.delta.table as delta, pgoutput_fast.tables.duckdb as duckdb
assert not {"deltalake", "duckdb"} & sys.modules.keys()
sys.modules["deltalake"] = sys.modules["duckdb"] = None
for make in (lambda: delta.DeltaTable(open_store("x"), "t", "current"), lambda: duckdb.DuckDBCurrent("x", "t")):
    try:
        make()
    except ImportError as problem:
        print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "Delta tables need delta-rs: pip install 'deltalake>=1.6.6'",
        "a mirror in DuckDB needs duckdb: pip install 'duckdb>=2.0'",
    ]
