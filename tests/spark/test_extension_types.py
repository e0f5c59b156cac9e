"""Types of extensions on a real local Spark and in the tables that it writes, from recorded values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions

import pgoutput_fast as pgo
from cells.extensions import CELLS
from cells.nested import TYPES
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import Binary, ColumnSpec, RelationSpec, Writer
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.segments import Source, write_segment
from support.forms import and_slow
from support.written_tables import read

NAMES = {each.oid: (each.namespace, each.name) for each in TYPES.values()}
NAMES |= {each.oid: NAMES[each.of] for each in TYPES.values() if each.kind == "domain" and each.of in NAMES}
COLUMNS = {f"c{number}": cells for number, cells in enumerate(CELLS.values())}


@pytest.fixture(params=["text", "binary"])
def tagged(request: pytest.FixtureRequest) -> tuple[pa.RecordBatch, pgo.StreamState]:
    columns = (
        ColumnSpec("id", 23, key=True),
        *(ColumnSpec(name, cells.oid) for name, cells in COLUMNS.items()),
    )
    spec = RelationSpec(16401, "public", "t", columns)
    writer = Writer(types=NAMES)
    wal = writer.begin(7, 100, 0)
    for row in range(5):
        pairs = [cells.both[row % len(cells.both)] for cells in COLUMNS.values()]
        cells_of = [Binary(binary) if request.param == "binary" else text for text, binary in pairs]
        wal += writer.change(spec, "insert", new=[str(row), *cells_of])
    wal += writer.change(spec, "insert", new=["-1", *[None] * len(COLUMNS)])
    wal += writer.commit(100, 108, 0)
    return pgo.tag(wal, pgo.StreamState(catalog=pgo.Catalog(types=TYPES)))


def test_spark_has_what_this_process_decodes(spark: Any, tagged: Any, tmp_path: Path) -> None:
    batch, state = tagged
    expected = pgo.decode_tagged(batch, state.catalog).table("public.t")
    wal = spark.createDataFrame(pa.Table.from_batches([batch]))
    write_segment(tmp_path, batch, state, source=Source("1", "d", "s"))
    frames = [
        pgspark.changes(wal, "public.t", catalog=state.catalog),
        spark.read.format("pgoutput").option("table", "public.t").load(str(tmp_path)),
    ]
    for frame in frames:
        found = frame.toArrow().sort_by("_seq")
        for name, cells in zip(COLUMNS, CELLS, strict=True):
            assert found.column(name).to_pylist() == expected.column(name).to_pylist(), cells
        assert dict(frame.dtypes)["c0"] == "map<string,string>"
        assert frame.where("c0['a'] is null and c0['b c'] is not null").count() == 1


@pytest.mark.parametrize("arrow", and_slow([True], [False]) if hasattr(functions, "arrow_udf") else [False])
def test_rows_of_a_function(spark: Any, tagged: Any, arrow: bool) -> None:
    batch, state = tagged
    expected = pgo.decode_tagged(batch, state.catalog).table("public.t").to_pylist()
    function = pgspark.udf.decode_row(state.catalog.named("public.t")[-1], catalog=state.catalog, arrow=arrow)
    wal = spark.createDataFrame(pa.Table.from_batches([batch]))
    frame = wal.select("seq", function("payload", "in_stream").alias("row")).where("row is not null")
    found = {row["seq"]: row["row"]["after"] for row in frame.toArrow().to_pylist()}
    for row in expected:
        for name, cells in zip(COLUMNS, CELLS, strict=True):
            assert found[row["_seq"]][name] == row[name], cells


@pytest.mark.parametrize("format", and_slow(["delta"], ["iceberg", "parquet"]))
def test_tables_of_a_lake(spark: Any, tagged: Any, tmp_path: Path, format: str) -> None:
    batch, state = tagged
    expected = pgo.decode_tagged(batch, state.catalog).table("public.t").sort_by("id")
    frame = spark.createDataFrame(pa.Table.from_batches([batch]))
    pgspark.write_tables(frame, tmp_path, format=format, catalog=state.catalog, transactions="as_sent")
    name = "public.t"
    found = read(format, tmp_path, name).sort_by("id")
    if (
        format == "iceberg"
    ):  # pyiceberg 0.12 reads a null list of structs as an empty one; the file has the null
        (file,) = tmp_path.rglob("*.parquet")
        found = pq.read_table(file).sort_by("id")
    for column, cells in zip(COLUMNS, CELLS, strict=True):
        assert found.column(column).to_pylist() == expected.column(column).to_pylist(), cells
    assert stored_schema(found.schema, "table").field("c0").type == pa.map_(pa.string(), pa.string())
