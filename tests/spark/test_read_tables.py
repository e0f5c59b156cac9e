"""Spark's own Parquet reader reads tables of `write_tables`, with the columns of `changes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.storage import table_directory
from support.oracle import plain_records

SOURCE = Source("7300000000000000001", "shop", "slot")
KINDS = {"id": 23, "note [x].y": 25, "ratio": 700, "price": 1700, "marks": 1007, "day": 1082, "at": 1114}
KINDS |= {"changed": 1184, "for": 1186, "hour": 1083, "token": 2950, "raw": 17, "seen": 16}
ORDERS = RelationSpec(16401, "public", "orders", tuple(ColumnSpec(*each) for each in KINDS.items()))
# `ratio` became wider, `seen` is gone, and `more` is new.
WIDER = RelationSpec(
    16401, "public", "orders", (*ORDERS.columns[:2], ColumnSpec("ratio", 701), ColumnSpec("more", 20))
)
ODD = RelationSpec(16402, "so.called", "a/b +%c [1]*", (ColumnSpec("id", 23),))
ODD_NAME = '"so.called"."a/b +%c [1]*"'
ROW = [
    "0.5",
    "1.25",
    "{1,NULL}",
    "2024-02-29",
    "1500-01-02 03:04:05",
    "2024-02-29 12:00:00+00",
    "1 day 02:00:00",
]
ROW += ["12:34:56.5", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "\\x00ff", "t"]


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("segments")
    writer, state = Writer(), None
    for n in range(4):
        wal = writer.begin(100 + n, 1000 * n + 1000, n) + writer.change(ODD, "insert", new=[str(n)])
        note = [None, "a=b/%20", "", "DE"][n]
        if n < 3:
            wal += writer.change(ORDERS, "insert", new=[str(n), note, *ROW])
        else:
            wal += writer.change(WIDER, "insert", new=[str(n), note, "0.1", str(1 << 40)])
        tagged, state = pgo.tag(wal + writer.commit(1000 * n + 1000, 1000 * n + 1008, n), state)
        write_segment(directory, tagged, state, source=SOURCE)
    return directory


@pytest.fixture(scope="module")
def lake(spark: Any, segments: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("lake")
    pgspark.write_tables(segments, place, [ODD_NAME])
    # In two runs: so there are files of both versions.
    pgspark.write_tables(spark.read.parquet(str(segments)).where("seq < 9"), place, ["public.orders"])
    pgspark.write_tables(spark.read.parquet(str(segments)), place)
    (some, *_) = sorted((place / "public.orders").glob("part-*.parquet"))
    some.with_name(".part-0-0-1.parquet").write_bytes(b"no commit has added it")
    return place


def _rows(frame: Any) -> list[dict[str, Any]]:
    return sorted(plain_records(frame.toArrow()), key=lambda row: row["_seq"])


def _read(spark: Any, segments: Path, lake: Path, table: str) -> Any:
    """As docs/spark.md does it."""
    place = lake / table_directory(*(name.strip('"') for name in table.rsplit(".", 1)))
    glob = "file://" + str(place).translate({ord(c): "\\" + c for c in "[]{}*"})
    return spark.read.schema(_decoded(spark, segments, table).schema).parquet(glob)


def _decoded(spark: Any, segments: Path, table: str) -> Any:
    return pgspark.changes(spark.read.parquet(str(segments)), table, transactions="committed")


@pytest.mark.slow
def test_rows_are_those_of_changes(spark: Any, segments: Path, lake: Path) -> None:
    for table in ("public.orders", ODD_NAME):
        rows = _rows(_read(spark, segments, lake, table))
        assert rows == _rows(_decoded(spark, segments, table))
        assert len(rows) == 4


@pytest.mark.slow
def test_partitions(spark: Any, segments: Path, tmp_path: Path) -> None:
    by = {"public.orders": ["note [x].y", "id"]}
    wal = spark.read.parquet(str(segments))
    with pytest.raises(Exception, match=r"empty text"):
        pgspark.write_tables(wal, tmp_path, ["public.orders"], partition_by=by)
    # The third row has an empty text.
    pgspark.write_tables(wal.where("seq <> 12"), tmp_path, ["public.orders"], partition_by=by)
    frame = _read(spark, segments, tmp_path, "public.orders")
    expected = _decoded(spark, segments, "public.orders").where("id <> 2")
    assert sorted(frame.dtypes) == sorted(expected.dtypes)
    assert _rows(frame) == _rows(expected.select(*[f"`{name}`" for name in frame.columns]))
    assert frame.where("id = 3").count() == 1


def test_a_table_without_rows(spark: Any, segments: Path, tmp_path: Path) -> None:
    pgspark.write_tables(spark.read.parquet(str(segments)).where("seq < 4"), tmp_path, ["public.orders"])
    assert _read(spark, segments, tmp_path, "public.orders").count() == 0
