"""Files of sorted keys: they find the same rows as a read of the data files, and all of them may be lost or damaged."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.merge.key_files import KeyFiles, sorted_keys
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.columns import FIELD_ID
from pgoutput_fast.tables.table import DataFile
from support import numbered
from support.current_tables import RandomEffects, delta_table
from support.forms import and_slow

COUNT = 70_000


def _files(place: Path) -> list[Path]:
    return sorted((place / "t" / "_keys").glob("*"))


def _for_all(table: LocalMerge) -> LocalMerge:
    """Lets searches use files of keys in short files, too."""
    table.keys = KeyFiles(table.table.store, table.table.files, least_rows=1, rows_a_key=0)
    return table


@pytest.fixture
def large(tmp_path: Path) -> LocalMerge:
    """Numbers in any order, in one file that is large enough."""
    table = delta_table(tmp_path, "t", merge="on_read")
    order = np.random.default_rng(3).permutation(COUNT)
    table.replace(numbered.rows(order.tolist()).to_batches(), numbered.SCHEMA, 1)
    return table


def test_the_first_search_writes_them_and_others_use_them(large: LocalMerge, tmp_path: Path) -> None:
    assert _files(tmp_path) == []
    large.apply(numbered.effect([5, COUNT + 7], [6, COUNT]), 2)
    (file,) = _files(tmp_path)
    # Without the data, only the keys tell which rows are marked.
    data = tmp_path / "t" / file.name.removesuffix(".arrow")
    content = data.read_bytes()
    data.unlink()
    large.apply(numbered.effect([6, 7], [8]), 3)
    delta_table(tmp_path, "t", merge="on_read").apply(numbered.effect([9]), 4)  # another process
    data.write_bytes(content)
    assert numbered.ids(large) == sorted({*range(COUNT + 1)} - {5, 6, 7, 9})


def test_rows_of_an_earlier_version_that_come_back(large: LocalMerge, tmp_path: Path) -> None:
    large.keys = None
    large.apply(numbered.effect([5]), 2)
    again = delta_table(tmp_path, "t", merge="on_read")
    again.apply(numbered.effect([6]), 3)
    assert _files(tmp_path)
    deltalake.DeltaTable(tmp_path / "t").restore(0)
    again.apply(numbered.effect([5, 7]), 4)
    assert numbered.ids(again) == sorted({*range(COUNT)} - {5, 7})


def _with_ids(**columns: int) -> pa.Schema:
    return pa.schema(
        [pa.field(name, pa.int64(), metadata={FIELD_ID: str(number)}) for name, number in columns.items()]
    )


def test_a_column_with_the_name_of_another_one(tmp_path: Path) -> None:
    """The file, and its keys, have the column 1 as `id`. That is `pid` now, and `id` is a later column."""
    store, ids = open_store(tmp_path), np.arange(100)
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table([ids], schema=_with_ids(id=1)), tmp_path / "t" / "part.parquet")
    keys, file = KeyFiles(store, "t", least_rows=1, rows_a_key=0), DataFile("part.parquet", 100, 0)
    keys.known = {file.name}
    wanted = pa.table({"id": [5]})
    assert sum(len(at) for at, _ in keys.rows(file, _with_ids(id=1), ["id"], wanted)) == 100
    assert _files(tmp_path)
    assert [at.tolist() for at, _ in keys.rows(file, _with_ids(id=1), ["id"], wanted)] == [[5]]
    now = _with_ids(id=2, pid=1)
    for columns, found in ((["id"], {None}), (["pid"], {*range(100)})):
        rows = [rows for _, rows in keys.rows(file, now, columns, wanted.rename_columns(columns))]
        assert {value for part in rows for value in part.column(0).to_pylist()} == found


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _of_other_rows(file: Path) -> None:
    """As if it were of another data file."""
    table = delta_table(file.parent, "other", merge="on_read")
    table.replace(numbered.rows(range(COUNT + 1)).to_batches(), numbered.SCHEMA, 1)
    table.apply(numbered.effect([5]), 2)
    (other,) = (file.parent / "other" / "_keys").glob("*")
    file.write_bytes(other.read_bytes())


def _of_other_columns(file: Path) -> None:
    table = delta_table(file.parent, "other", merge="on_read")
    effect = numbered.effect([], range(COUNT))
    rows = effect.rows.rename_columns(["number", *effect.rows.schema.names[1:]])
    table.replace(rows.to_batches(), rows.schema, 1)
    gone = effect.gone.rename_columns(["number"])
    table.apply(type(effect)(("number",), False, gone, rows.slice(0, 1)), 2)
    (other,) = (file.parent / "other" / "_keys").glob("*")
    file.write_bytes(other.read_bytes())


def _forged(*columns: str) -> Callable[[Path], None]:
    """A file with a right checksum, and other columns: positions that the data file lacks, or none."""

    def forge(file: Path) -> None:
        parts = {
            "id": pa.array(range(COUNT)),
            "_row": pa.array([2**32 - 1] * COUNT, pa.uint32()),
        }
        table, sink = pa.table({name: parts[name] for name in columns}), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        content = sink.getvalue().to_pybytes()
        file.write_bytes(content + zlib.crc32(content).to_bytes(4, "little"))

    return forge


_FORGED = [_forged("id", "_row"), _forged("id"), _forged("_row", "id")]


@pytest.mark.parametrize(
    "damage", [_cut, _flip, _empty, _of_other_rows, _of_other_columns, Path.unlink, *_FORGED]
)
def test_damaged_ones_are_written_again(
    damage: Callable[[Path], Any], large: LocalMerge, tmp_path: Path
) -> None:
    large.apply(numbered.effect([5]), 2)
    (file,) = _files(tmp_path)
    content = file.read_bytes()
    damage(file)
    assert not file.exists() or file.read_bytes() != content
    again = delta_table(tmp_path, "t", merge="on_read")
    again.apply(numbered.effect([6]), 3)
    assert file.read_bytes() == content
    assert numbered.ids(again) == sorted({*range(COUNT)} - {5, 6})


def test_without_space_for_them(large: LocalMerge, tmp_path: Path) -> None:
    (tmp_path / "t" / "_keys").write_bytes(b"in the way")
    large.apply(numbered.effect([5]), 2)
    large.apply(numbered.effect([6]), 3)
    assert numbered.ids(large) == sorted({*range(COUNT)} - {5, 6})


def test_those_of_files_that_are_gone(tmp_path: Path) -> None:
    """Nothing else is removed."""
    table = _for_all(numbered.load(delta_table(tmp_path, "t", file_bytes=100, merge="on_read")))
    table.apply(numbered.effect([50, 150]), 2)
    before = _files(tmp_path)
    assert len(before) == 2
    others = tmp_path / "t" / "_keys" / "README", tmp_path / "t" / "_keys" / ".part-1.arrow.0123456789abcdef"
    for other in others:
        other.write_bytes(b"")
    table.apply(numbered.effect(range(100, 130)), 3)  # so many that the file is rewritten
    table.apply(numbered.effect([250]), 4)
    assert [other.exists() for other in others] == [True, False]
    others[0].unlink()
    assert len(set(before) - set(_files(tmp_path))) == 1
    names = {file.name for file in table.table.now().files}
    assert names <= {each.name for each in (tmp_path / "t").iterdir()}
    assert {each.name.removesuffix(".arrow") for each in _files(tmp_path)} <= names
    assert numbered.ids(table) == sorted({*range(1000)} - {50, 150, 250, *range(100, 130)})


def test_a_remote_table_has_them_on_this_machine(tmp_path: Path) -> None:
    """Not in the store, where a search would read them whole."""
    store = open_store(tmp_path)
    store.local = False  # only what the place of the keys depends on
    numbered.load(delta_table(tmp_path, "t", merge="on_read"), COUNT, COUNT)
    now = delta_table(tmp_path, "t").table.now()
    keys = KeyFiles(store, "t")
    wanted = numbered.keys(9, 8, 9, -1)
    ((read, _),) = keys.rows(now.files[0], now.schema, ["id"], wanted)
    ((positions, found),) = keys.rows(now.files[0], now.schema, ["id"], wanted)
    assert (len(read), positions.tolist(), found["id"].to_pylist()) == (COUNT, [8, 9], [8, 9])
    assert _files(tmp_path) == []


@pytest.mark.parametrize(
    "key",
    and_slow(
        ["text and int8"],
        [
            "int2",
            "int8",
            "text",
            "uuid",
            "numeric",
            "float8",
            "timestamptz",
            "date",
            "bytea",
            "bool and int4",
        ],
    ),
)
def test_they_find_what_a_model_does(key: str, tmp_path: Path) -> None:
    """In files of all sizes, with columns that become wider, and restarts."""
    effects, dice = RandomEffects(len(key) + 2, key), random.Random(9)
    table = _for_all(delta_table(tmp_path, "t", file_bytes=4_000, merge="on_read"))
    used = 0
    for position in range(1, 61):
        table.apply(effects.next(), position)
        effects.model.assert_equal(table, effects.compared)
        used += bool(_files(tmp_path))
        if dice.random() < 0.2:
            table = _for_all(delta_table(tmp_path, "t", file_bytes=4_000, merge="on_read"))
    assert (used > 20) == (key != "float8")


@pytest.mark.parametrize("columns", [["n"], ["text"], ["few", "n"], ["n", "few"], ["bytes"]], ids=" ".join)
def test_searches_beside_plain_python(columns: list[str], tmp_path: Path) -> None:
    """Keys that are there often, once, and not at all; and some that are wanted twice."""
    dice = random.Random(4)
    numbers = [dice.randrange(3000) for _ in range(5000)]
    table = pa.table(
        {
            "n": numbers,
            "text": [f"é{n}" if n % 3 else "" for n in numbers],
            "few": [n % 7 for n in range(5000)],
            "bytes": pa.array([n.to_bytes(16, "big") for n in numbers], pa.binary(16)),
        }
    )
    place = tmp_path / "t"
    place.mkdir()
    pq.write_table(table, place / "a.parquet", row_group_size=700)
    file = DataFile("a.parquet", 5000, 1)
    keys = KeyFiles(open_store(tmp_path), "t", least_rows=1)
    for wanted in (table.slice(0, 0), table.slice(100, 300), table.take([7, 7, 9]), table.slice(4999)):
        wanted = wanted.select(columns)
        expected = {tuple(row.values()) for row in wanted.to_pylist()}
        rows = [tuple(row.values()) for row in table.select(columns).to_pylist()]
        for _ in range(2):
            found = list(keys.rows(file, table.schema, columns, wanted))
            places = [at for positions, _ in found for at in positions.tolist()]
            values = [tuple(row.values()) for _, part in found for row in part.to_pylist()]
            assert values == [rows[at] for at in places]
            assert {at for at in places if rows[at] in expected} == {
                at for at, row in enumerate(rows) if row in expected
            }
        assert len(places) == sum(row in expected for row in rows)
    unknown = DataFile("a.parquet", None, 1)  # type: ignore[arg-type]
    assert sum(len(at) for at, _ in keys.rows(unknown, table.schema, columns, table.select(columns))) == 5000


def test_the_keys_of_a_rewritten_file_need_no_search(large: LocalMerge, tmp_path: Path) -> None:
    """They are those of the file before without the marked rows, in their new places."""
    _for_all(large).apply(numbered.effect([5]), 2)
    (before,) = _files(tmp_path)
    gone = np.random.default_rng(4).choice(COUNT, COUNT // 9, replace=False).tolist()
    large.table.most_marked = 0.5
    large.apply(numbered.effect(gone[:100]), 3)
    large.table.most_marked = 0.1
    large.apply(numbered.effect(gone[100:], [COUNT]), 4)
    (after,) = _files(tmp_path)
    assert before != after
    name = after.name.removesuffix(".arrow")
    kept = pq.read_table(tmp_path / "t" / name, columns=["id"])
    assert kept.num_rows < COUNT - COUNT // 10
    keys = pa.ipc.open_file(after.read_bytes()[:-4]).read_all()
    assert keys.equals(sorted_keys(kept))
    # The next search uses them: it does not read the data.
    (tmp_path / "t" / name).rename(tmp_path / "data")
    left = sorted({*range(COUNT + 1)} - {5, *gone})
    large.apply(numbered.effect([left[7]], [left[8]]), 5)
    (tmp_path / "data").rename(tmp_path / "t" / name)
    assert numbered.ids(large) == sorted({*left} - {left[7]})


def test_without_merges_on_read_a_vacuum_removes_them(large: LocalMerge, tmp_path: Path) -> None:
    large.apply(numbered.effect([5]), 2)
    large.vacuum()
    assert len(_files(tmp_path)) == 1
    back = delta_table(tmp_path, "t", merge="on_write")
    assert back.vacuum() > 0
    assert not (tmp_path / "t" / "_keys").exists()
    assert back.vacuum() == 0
    delta_table(tmp_path, "t", merge="on_read").apply(numbered.effect([6]), 3)
    assert len(_files(tmp_path)) == 1
