"""How the files of tables are compressed: as `compression=` says, wherever the rows come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from support.forms import and_exhaustive

SOURCE = Source("7300000000000000001", "shop", "slot", ("all",), {"proto_version": "4"})
ORDERS = RelationSpec(
    20000,
    "public",
    "orders",
    (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25), ColumnSpec("at", 1114)),
)
ROWS = 500
CODECS: list[tuple[Any, str]] = [
    ("zstd", "ZSTD"), ("lz4", "LZ4"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")
]  # fmt: skip


def codecs_of(place: Path) -> set[str]:
    """How the pages of all files below a directory are compressed."""
    groups = [
        metadata.row_group(k)
        for metadata in (pq.ParquetFile(path).metadata for path in place.rglob("*.parquet"))
        for k in range(metadata.num_row_groups)
    ]
    return {group.column(k).compression for group in groups for k in range(group.num_columns)}


@pytest.mark.parametrize("format", and_exhaustive(["parquet", "delta", "iceberg"], ["parquet"]))
@pytest.mark.parametrize(("compression", "codec"), CODECS)
def test_files_are_compressed_as_asked(
    spark: Any, tmp_path: Path, format: str, compression: Any, codec: str
) -> None:
    segments, lake, writer = tmp_path / "segments", tmp_path / "lake", Writer()
    wal = writer.begin(7, 100, 0)
    for k in range(ROWS):
        wal += writer.change(ORDERS, "insert", new=[str(k), f"note {k}", "2024-02-29 12:00:00"])
    wal += writer.commit(100, 108, 0)
    segments.mkdir()
    write_segment(segments, *pgo.tag(wal), source=SOURCE)
    (row,) = pgspark.write_tables(segments, lake, format=format, compression=compression)
    assert codecs_of(lake) == {codec}
    assert row.rows == ROWS
    if format == "parquet":
        found = spark.read.parquet(str(lake / "public.orders")).selectExpr(
            "sum(id) AS total", "max(note) AS last"
        )
        assert found.first().asDict() == {"total": sum(range(ROWS)), "last": "note 99"}


def test_a_table_may_get_another_compression(spark: Any, tmp_path: Path) -> None:
    """From segments, from a DataFrame and from a stream; also for what is rejected."""
    segments, lake, known = tmp_path / "segments", tmp_path / "lake", set()
    quarantine = pgo.Options(on_error="quarantine")
    writer, state = Writer(), None
    segments.mkdir()
    for k, (compression, codec) in enumerate(CODECS[1:]):
        wal = writer.begin(k + 1, 100 * k + 100, 0)
        wal += writer.change(ORDERS, "insert", new=[str(k), "good", None])
        wal += writer.change(ORDERS, "insert", new=["x", "bad", None])
        wal += writer.commit(100 * k + 100, 100 * k + 108, 0)
        tagged, state = pgo.tag(wal, state)
        write_segment(segments, tagged, state, source=SOURCE)
        if k == 0:
            pgspark.write_tables(segments, lake, options=quarantine, compression=compression)
        elif k == 1:
            frame = spark.read.parquet(str(segments))
            pgspark.write_tables(frame, lake, options=quarantine, compression=compression)
        else:
            sink = pgspark.table_sink(lake, options=quarantine, compression=compression)
            ends = {"first": tagged.column("seq")[0].as_py(), "last": tagged.column("seq")[-1].as_py()}
            batch = spark.createDataFrame([{"directory": str(segments), "path": "one", **ends}])
            sink(batch.select("directory", "path", "first", "last"), 0)
        known.add(codec)
        assert codecs_of(lake / "public.orders") == known
        assert codecs_of(lake / "_rejects") == known
    found = spark.read.parquet(str(lake / "public.orders")).orderBy("id").collect()
    assert [row.id for row in found] == [0, 1, 2]
