"""Rows of a table in files by the values of columns: each row once, in its order, and few files open at once."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables import files, partitions
from pgoutput_fast.tables.delta.table import DeltaTable
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.tables.partitions import Partitioning, check_partition_columns, divide

TEXTS = ["a", "é", "a b", "a/b", "..", "%41", "x=y", "q'\"\\", "1", "\n", None]
SCHEMA = pa.schema(
    [
        ("_seq", pa.int64()),
        ("n", pa.int32()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
    ]
)


def _rows(count: int, seed: int) -> pa.Table:
    noise = random.Random(seed)
    return pa.table(
        {
            "_seq": range(count),
            "n": [noise.choice([None, -1, 7]) for _ in range(count)],
            "text": [noise.choice(TEXTS) for _ in range(count)],
            "day": [noise.choice([date(1, 1, 1), date(2024, 2, 29), None]) for _ in range(count)],
            "flag": [noise.choice([True, False, None]) for _ in range(count)],
        },
        SCHEMA,
    )


def _said(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("columns", [("n",), ("text", "day"), ("flag", "n", "text", "day"), ()])
def test_each_row_is_in_its_partition_once_and_in_order(columns: tuple[str, ...]) -> None:
    rows = pa.concat_tables([_rows(500, seed) for seed in range(3)])
    rows = rows.set_column(0, "_seq", pa.array(range(1500)))
    found: dict[tuple[str | None, ...], list[int]] = {}
    for values, part in divide(rows, Partitioning(columns, False, True), "public.t"):
        assert values not in found
        found[values] = part["_seq"].to_pylist()
        assert all(tuple(_said(row[name]) for name in columns) == values for row in part.to_pylist())
        assert found[values] == sorted(found[values])
    assert sorted(seq for seqs in found.values() for seq in seqs) == list(range(1500))


def test_directories_are_those_that_readers_know(tmp_path: Path) -> None:
    rows = _rows(2000, 1)
    names = ("text", "day", "n")
    partitioning = {"t": Partitioning(names, True, False)}
    with TableFiles(open_store(tmp_path), "run", False, partitioning=partitioning) as written:
        for batch in rows.to_batches(max_chunksize=300):
            written.add("t", batch)
    found = ds.dataset(
        tmp_path / "t",
        partitioning=ds.partitioning(pa.schema([SCHEMA.field(name) for name in names]), flavor="hive"),
    ).to_table()
    assert found.select(SCHEMA.names).sort_by("_seq").to_pylist() == rows.to_pylist()
    for each in written.written:
        values = json.loads(each.partition)
        assert each.name.count("/") == 3
        assert pq.read_schema(tmp_path / "t" / each.name).names == ["_seq", "flag"]
        assert partitioning["t"].directory(tuple(values)) == each.name.rpartition("/")[0] + "/"
    assert all(
        os.path.commonpath([tmp_path / "t", each]) == str(tmp_path / "t")
        for each in tmp_path.rglob("*.parquet")
    )


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many values: a row group is written for each, and those that waited longest are closed."""
    monkeypatch.setattr(files, "_MOST_WAITING", 20_000)
    monkeypatch.setattr(files, "_MOST_OPEN", 5)
    partitioning = {"t": Partitioning(("n",), True, False)}
    before = len(os.listdir("/proc/self/fd"))
    with TableFiles(open_store(tmp_path), "run", False, partitioning=partitioning) as written:
        for k in range(10):
            numbers = pa.array([n % 30 for n in range(1000)])
            written.add(
                "t", pa.record_batch({"_seq": pa.array(range(k * 1000, k * 1000 + 1000)), "n": numbers})
            )
            assert len(os.listdir("/proc/self/fd")) - before <= 5
            assert len(list(tmp_path.rglob(".part-*"))) <= 5
    seqs = [
        seq for each in tmp_path.rglob("*.parquet") for seq in pq.ParquetFile(each).read()["_seq"].to_pylist()
    ]
    assert sorted(seqs) == list(range(10_000))


def _wrong_values(values: list[Any], kind: pa.DataType, stored: bool = False) -> Callable[[], Any]:
    rows = pa.table({"a": pa.array(values, kind), "b": pa.array([1] * len(values))})
    partitioning = Partitioning(("a",), not stored, stored)
    return lambda: [partitioning.directory(found) for found, _ in divide(rows, partitioning, "public.t")]


def test_values_without_a_form_are_errors() -> None:
    for values, kind, message in (
        (
            [""],
            pa.string(),
            r"'a' of public\.t has an empty text, which readers of this format take for null",
        ),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string(), r"take for null"),
        ([1 << 22], pa.date32(), r"not between the years 1 and 9999"),
        (
            ["secret" * 60],
            pa.string(),
            r"^a value of the partition column 'a' is too long for the name of a directory",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            _wrong_values(values, kind)()
    assert (
        _wrong_values(["", "__HIVE_DEFAULT_PARTITION__", "x" * 500], pa.string(), stored=True)() == [""] * 3
    )


def test_columns_that_cannot_divide_a_table_are_errors() -> None:
    schema = pa.schema([("a", pa.int32()), ("f", pa.float64()), ("l", pa.list_(pa.int32()))])
    check_partition_columns(schema, ("a",), "t")
    for columns, message in (
        (
            ("b",),
            r"public\.t has no column 'b' to partition by\. .* partition_by=\{'schema\.table': \['b'\]\}",
        ),
        (("f",), r"'f', which is double: partition columns are booleans, whole numbers, texts or dates"),
        (("l",), r"'l', which is list"),
        (("a", "a"), r"names a column twice"),
    ):
        with pytest.raises(ValueError, match=message):
            check_partition_columns(schema, columns, "public.t")
    with pytest.raises(ValueError, match=r"has no column but those of partition_by"):
        check_partition_columns(schema.remove(2).remove(1), ("a",), "t")


def test_too_many_partitions_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_PARTITIONS", partitions.MOST_PARTITIONS // 500)
    partitioning = {"t": Partitioning(("n",), True, False)}
    rows = pa.record_batch({"_seq": pa.array(range(21)), "n": pa.array(range(21))})

    def write() -> None:
        with TableFiles(open_store(tmp_path), "run", False, partitioning=partitioning) as written:
            written.add("t", rows)

    with pytest.raises(ValueError, match=r"^t: one task has rows of more than 20 partitions: choose columns"):
        write()
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_partitions_stay_when_statistics_change(tmp_path: Path) -> None:
    """delta-rs leaves out the bounds of infinities, and a reader then all rows of the file."""
    rows = pa.table(
        {
            "text": ["a/ b", None, "é%="],
            "day": pa.array([date(2020, 1, 1), None, date(2021, 1, 1)]),
            "yes": [True, False, None],
            "x": [float("inf"), float("inf"), 1.5],
        }
    )
    deltalake.write_deltalake(tmp_path, rows, partition_by=["text", "day", "yes"])
    wanted = pc.field("x") > 1
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_dataset().to_table(filter=wanted).num_rows == 1
    for _ in range(2):
        DeltaTable(open_store(tmp_path.parent), tmp_path.name, "changes").fix_statistics()
        table = deltalake.DeltaTable(tmp_path)
        assert table.version() == 1
        assert len(table.file_uris()) == 3
        found = table.to_pyarrow_dataset().to_table(filter=wanted, columns=rows.schema.names)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, rows.to_pylist()))
