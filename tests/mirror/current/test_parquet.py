"""Current tables of plain Parquet files: versions that readers can follow, and damaged ones."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.mirror.current.parquet import ParquetCurrent
from pgoutput_fast.mirror.effect.effect import Effect, current_schema
from support import numbered
from support.buckets import opened_bucket
from support.paths import DOCS


def _loaded(place: Path | str, **more: Any) -> ParquetCurrent:
    """A table with the ids from 0 to 999, in ten files."""
    return numbered.load(ParquetCurrent(place, "t", file_bytes=100, **more))


def _followed(place: Path) -> pa.Table:
    """The rows as a reader without this package finds them."""
    newest = max((place / "t" / "_versions").glob("*.json"))
    files = json.loads(newest.read_text())["files"]
    return ds.dataset([str(place / "t" / "_files" / each["name"]) for each in files]).to_table()


def test_readers_follow_the_newest_version(tmp_path: Path) -> None:
    table = _loaded(tmp_path)
    table.apply(numbered.effect([5], [6, 1000]), 2)
    assert _followed(tmp_path).sort_by("id").equals(table.read().sort_by("id"))
    # A reader of the whole directory must not see the rows of all versions.
    assert ds.dataset(tmp_path / "t").files == []


def test_only_files_with_changed_keys_are_rewritten(tmp_path: Path) -> None:
    table = _loaded(tmp_path)
    before = {file.name for file in table._load().files}
    assert len(before) == 10
    table.apply(numbered.effect([5, 7], [9, 950, 2000]), 2)
    after = {file.name for file in table._load().files}
    assert len(before & after) == 8


def test_a_file_is_not_read_if_no_key_is_in_its_range(tmp_path: Path) -> None:
    table = _loaded(tmp_path)
    *others, last = table._load().files
    for file in others:
        (tmp_path / "t" / "_files" / file.name).write_bytes(b"damaged")
    table.apply(numbered.effect([905], [950, 2000]), 2)
    assert table.find(numbered.keys(950, 2000), ["text"]).column("text").to_pylist() == ["new", "new"]
    assert last.name not in {file.name for file in table._load().files}


def test_wider_types(tmp_path: Path) -> None:
    table = ParquetCurrent(tmp_path, "t")
    narrow = current_schema(
        pa.schema({"id": pa.int16(), "list": pa.list_(pa.int32()), "price": pa.decimal128(5, 2)})
    )
    wide = current_schema(
        pa.schema({"id": pa.int64(), "list": pa.list_(pa.int64()), "price": pa.decimal128(9, 4)})
    )
    made = [{"id": n, "list": [n], "price": n, "_commit_lsn": 1} for n in range(3)]
    table.replace(pa.Table.from_pylist(made, schema=narrow).to_batches(), narrow, 1)
    rows = pa.Table.from_pylist([{"id": 1, "list": [2**40], "price": 1}, {"id": 2**40}], schema=wide)
    table.apply(Effect(("id",), False, numbered.keys(0), rows), 2)
    assert table.schema().types[:3] == [
        pa.int64(),
        pa.list_(pa.field("element", pa.int64())),
        pa.decimal128(9, 4),
    ]
    there = {row["id"]: (row["list"], row["price"]) for row in table.read().to_pylist()}
    assert there == {1: ([2**40], 1), 2: ([2], 2), 2**40: (None, None)}
    assert table.read(0).schema.field("id").type == pa.int16()
    assert table.find(numbered.keys(2, 2**40), ["price"]).num_rows == 2


def test_a_key_that_changes(tmp_path: Path) -> None:
    """The files have no order by the new key. They are found all the same."""
    table = _loaded(tmp_path)
    table.apply(numbered.effect([], [3], text="three"), 2)
    gone = pa.table({"text": ["three"]})
    table.apply(Effect(("text",), False, gone, numbered.rows([4000], "other")), 3)
    assert numbered.ids(table) == [0, 1, 2, *range(4, 1000), 4000]


def test_rows_that_share_a_key(tmp_path: Path) -> None:
    """A key without an Arrow form is null. A row takes the place of all of them, once."""
    table = _loaded(tmp_path)
    nothing = numbered.rows([None])
    table.apply(
        Effect((), False, numbered.rows([]).drop_columns(["_commit_lsn"]), pa.concat_tables([nothing] * 3)), 2
    )
    table.apply(Effect(("id",), False, numbered.keys(), nothing), 3)
    assert table.read().column("id").null_count == 1


def test_older_versions_can_be_read_until_vacuum(tmp_path: Path) -> None:
    table = _loaded(tmp_path)
    for k in range(4):
        table.apply(numbered.effect([k]), 2 + k)
    assert [table.read(version).num_rows for version in range(5)] == [1000, 999, 998, 997, 996]
    assert table.vacuum(2) == 3
    assert [table.read(version).num_rows for version in (3, 4)] == [997, 996]
    with pytest.raises(FileNotFoundError, match="has no version 0, or has it no more"):
        table.read(0)
    table.apply(numbered.effect([10]), 10)
    assert table.version() == 5


@pytest.mark.in_ci
def test_who_reads_while_others_write_sees_whole_versions(tmp_path: Path) -> None:
    table, stop, wrong = _loaded(tmp_path), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            rows = _followed(tmp_path)
            texts = set(rows.filter(pc.less(rows.column("id"), 900)).column("text").to_pylist())
            if len(texts) != 1 or rows.num_rows != 1000:
                wrong.append(texts)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for position in range(2, 30):
            table.apply(numbered.effect([], range(900), text=str(position)), position)
    finally:
        stop.set()
        reader.join()
    assert wrong == []


def test_another_writer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commit finds the version taken, and its effect is applied on top of the first."""
    table, other = _loaded(tmp_path), ParquetCurrent(tmp_path, "t", file_bytes=100)
    commit = ParquetCurrent._commit

    def disturbed(*arguments: Any, **more: Any) -> None:
        monkeypatch.setattr(ParquetCurrent, "_commit", commit)
        other.apply(numbered.effect([5], [6]), 2)
        commit(*arguments, **more)

    monkeypatch.setattr(ParquetCurrent, "_commit", disturbed)
    table.apply(numbered.effect([8], [6], text="last"), 3)
    assert numbered.ids(table) == [each for each in range(1000) if each not in (5, 8)]
    assert table.find(numbered.keys(6), ["text"]).column("text").to_pylist() == ["last"]
    assert (table.version(), other.position()) == (2, 3)
    named = {file.name for number in range(3) for file in table._load(number).files}
    assert {each.name for each in (tmp_path / "t" / "_files").iterdir()} == named


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values: values.update(format=2), "was written by a later version of pgoutput_fast"),
        (lambda values: values.pop("position"), "is damaged: .*Restore it. Or remove its directory"),
        (lambda values: values["files"][0].update(name="../x.parquet"), "is damaged"),
        (lambda values: values.update(schema="zz"), "is damaged"),
    ],
)
def test_a_damaged_version(tmp_path: Path, change: Any, reason: str) -> None:
    _loaded(tmp_path).apply(numbered.effect([1]), 2)
    newest = max((tmp_path / "t" / "_versions").iterdir())
    values = json.loads(newest.read_text())
    change(values)
    newest.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=reason):
        ParquetCurrent(tmp_path, "t").position()
    newest.unlink()
    assert ParquetCurrent(tmp_path, "t").position() == 1


def test_row_groups_have_a_bounded_size(tmp_path: Path) -> None:
    table = ParquetCurrent(tmp_path, "t")
    batch = numbered.rows(range(20_000), "x" * 1000).to_batches()[0]
    table.replace((batch for _ in range(5)), numbered.SCHEMA, 1)
    (file,) = table._load().files
    assert pq.read_metadata(tmp_path / "t" / "_files" / file.name).num_row_groups == 3
    assert table.read().num_rows == 100_000


def test_in_a_bucket() -> None:
    with opened_bucket("current") as bucket:
        table = _loaded(bucket.uri % "lake")
        table.apply(numbered.effect([5, 950], [6, 1000]), 2)
        assert numbered.ids(ParquetCurrent(bucket.uri % "lake", "t")) == sorted({*range(1001)} - {5, 950})
        assert table.find(numbered.keys(6, 7), ["text"]).num_rows == 2
        table.optimise()
        assert table.vacuum() > 0
        assert (table.read().num_rows, table.position()) == (999, 2)


def test_the_page_reads_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/current-tables.md, with several versions."""
    code, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "current-tables.md").read_text(), re.DOTALL)
    table = ParquetCurrent(tmp_path / "lake" / "current", "public.orders", file_bytes=100)
    numbered.load(table, 300)
    for n in range(12):
        table.apply(numbered.effect([n], [1000 + n]), 2 + n)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(code, found)
    assert sorted(found["rows"].column("id").to_pylist()) == numbered.ids(table)
    assert len(numbered.ids(table)) == 300
