"""Partitions of the tables of `write_tables`, and columns whose types become wider or come from a catalog."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.catalog.user_types import UserType, UserTypes
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import write_segment
from pgoutput_fast.spark.tables import run as runs
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables import parquet
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.partitions import Partitioning
from pgoutput_fast.tables.table import OutcomeUnknownError
from support.forms import and_slow
from support.written_tables import FORMATS, NAMES, SOURCE, assert_same, expected, read, stored

__all__ = ["stored"]

SALES = RelationSpec(
    20020,
    "public",
    "sales",
    (ColumnSpec("id", 23, key=True), ColumnSpec("country", 25), ColumnSpec("day", 1082), ColumnSpec("n", 21)),
)
NARROW = RelationSpec(
    20030,
    "public",
    "grown",
    (
        ColumnSpec("id", 23, key=True),
        ColumnSpec("ratio", 700),
        ColumnSpec("price", 1700, (10 << 16 | 2) + 4),
        ColumnSpec("name", 1043, 14),
        ColumnSpec("marks", 1007),
    ),
)
WIDE = RelationSpec(
    20030,
    "public",
    "grown",
    (
        ColumnSpec("id", 20, key=True),
        ColumnSpec("ratio", 701),
        ColumnSpec("price", 1700, (12 << 16 | 2) + 4),
        ColumnSpec("name", 25),
        ColumnSpec("marks", 1016),
    ),
)


class _KilledError(BaseException):
    """Stands for a process that ends at once: no handler of errors runs."""


def _write_inserts(
    directory: Path, first: int, spec: RelationSpec, rows: list[list[str | None]], state: Any
) -> Any:
    """Writes a segment with a transaction of inserts. Returns the state behind it."""
    writer = Writer()
    wal = writer.begin(first, first * 1000, 0)
    for row in rows:
        wal += writer.change(spec, "insert", new=row)
    tagged, state = pgo.tag(wal + writer.commit(first * 1000, first * 1000 + 8, 0), state)
    directory.mkdir(exist_ok=True)
    write_segment(directory, tagged, state, source=SOURCE)
    return state


def _sales(first: int) -> list[list[str | None]]:
    countries = ["DE", "a/b c", "é=%", None]
    days = ["2024-02-29", "0001-01-01", None]
    return [[str(first + k), countries[k % 4], days[k % 3], str(k % 2)] for k in range(24)]


@pytest.mark.parametrize("format", and_slow(["parquet"], [each for each in FORMATS if each != "parquet"]))
def test_partitions(spark: Any, tmp_path: Path, format: str) -> None:
    segments, target, by = tmp_path / "segments", tmp_path / "lake", {'"public".sales': ["country", "day"]}
    state = None
    for first in (0, 100):
        state = _write_inserts(segments, first + 1, SALES, _sales(first), state)
        (row,) = pgspark.write_tables(segments, target, format=format, partition_by=by)
        assert (row.rows, row.files) == (24, 12)
        left = target / "public.sales" / "country=DE" / ".part-00-00-00001.parquet"
        if format == "parquet":
            left.write_bytes(b"")  # of a task that ended late
    pgspark.write_tables(segments, target, format=format, partition_by=by, mode="overwrite")
    assert not left.exists()
    wanted = expected(spark.read.parquet(str(segments)), "public.sales", "committed")
    if format == "parquet":
        rows = spark.read.parquet(str(target / "public.sales")).orderBy("_seq")
        assert rows.schema["day"].dataType.simpleString() == "date"
        assert rows.select(wanted.schema.names).toArrow().to_pylist() == wanted.to_pylist()
        assert rows.where("country = 'a/b c'").count() == 12
    else:
        assert_same(read(format, target, "public.sales"), wanted)
    if format == "delta":
        table = deltalake.DeltaTable(str(target / "public.sales"))
        assert table.metadata().partition_columns == ["country", "day"]
        assert table.to_pyarrow_table(filters=[("country", "=", "DE")]).num_rows == 12
    for other in ({"public.sales": ["day"]}, ()):
        with pytest.raises(
            ValueError, match=r"is partitioned by \['country', 'day'\], not by .* or use another target"
        ):
            pgspark.write_tables(segments, target, format=format, partition_by=other)


def test_a_catalog_adds_what_the_server_says_of_types(spark: Any, tmp_path: Path) -> None:
    """A stream does not say how many digits a domain has."""
    spec = RelationSpec(
        16401, "public", "sales", (ColumnSpec("id", 23, key=True), ColumnSpec("total", 50_001))
    )
    writer = Writer()
    wal = [
        *writer.begin(7, 100, 0),
        *writer.change(spec, "insert", new=["1", "2.50"]),
        *writer.commit(100, 108, 0),
    ]
    tagged, state = pgo.tag(wal)
    write_segment(tmp_path / "segments", tagged, state, source=SOURCE)
    price = UserType(50_001, "public", "price", "domain", of=1700, typmod=(12 << 16 | 2) + 4)
    catalog = pgo.Catalog(types=UserTypes([price]))
    payloads = spark.read.parquet(str(tmp_path / "segments"))
    for name, source, given, kind in (
        ("stream", tmp_path / "segments", None, pa.string()),
        ("server", tmp_path / "segments", catalog, pa.decimal128(12, 2)),
        ("payloads", payloads, catalog, pa.decimal128(12, 2)),
    ):
        pgspark.write_tables(source, tmp_path / name, catalog=given)
        rows = read("parquet", tmp_path / name, "public.sales")
        assert rows.schema.field("total").type == kind
        assert str(rows.column("total")[0].as_py()) == "2.50"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("error", [ValueError, _KilledError, OutcomeUnknownError])
def test_a_run_that_ends_early_leaves_no_file_in_a_partition(
    tmp_path: Path, format: str, error: type[BaseException]
) -> None:
    """If nobody knows whether files were committed, the next run removes them, and not this one."""

    def write() -> None:
        with runs.begin_run(str(tmp_path), format, TableOptions()) as run:
            table = run.table("public.t")
            partitioning = Partitioning(("a",), table.partition_directories, table.partition_columns_stored)
            with TableFiles(
                run.store, run.name, run.hidden, partitioning={"public.t": partitioning}
            ) as files:
                files.add("public.t", pa.record_batch({"a": pa.array(["..", "x"]), "b": pa.array([1, 2])}))
            raise (
                OutcomeUnknownError("t", OSError("ended")) if error is OutcomeUnknownError else error("ended")
            )

    with pytest.raises(error, match="ended"):
        write()
    assert len(list((tmp_path / "public.t").rglob("*.parquet"))) == (0 if error is ValueError else 2)
    with runs.begin_run(str(tmp_path), format, TableOptions()):
        assert not list((tmp_path / "public.t").rglob("*.parquet"))


def test_wrong_partitions(spark: Any, stored: Path, tmp_path: Path) -> None:
    for by, kind, message in (
        ("day", TypeError, r"partition_by must be a list"),
        ({"public.t1": "day"}, TypeError, r"partition_by must be a list"),
        (["at"], ValueError, r"cannot be partitioned by 'at', which is timestamp"),
        (["other"], ValueError, r"has no column 'other' to partition by"),
        ({"public.missing": ["day"]}, KeyError, r"partition_by names public\.missing, which is not written"),
    ):
        with pytest.raises(kind, match=message):
            pgspark.write_tables(stored, tmp_path, NAMES[:2], partition_by=by)
    with pytest.raises(ValueError, match=r"iceberg_catalog= is for format='iceberg'"):
        pgspark.write_tables(stored, tmp_path, format="delta", iceberg_catalog={})


@pytest.mark.parametrize("format", and_slow(["delta"], [each for each in FORMATS if each != "delta"]))
def test_a_type_that_became_wider(spark: Any, tmp_path: Path, format: str) -> None:
    segments, target = tmp_path / "segments", tmp_path / "lake"
    state = _write_inserts(segments, 1, NARROW, [["1", "1.5", "1.25", "a", "{1,NULL}"]], None)
    pgspark.write_tables(segments, target, format=format)
    _write_inserts(
        segments, 2, WIDE, [[str(1 << 40), "1e+300", "1234567890.25", "b" * 99, f"{{{1 << 40}}}"]], state
    )
    mode: Any = "append"
    if format == "delta":
        with pytest.raises(
            ValueError, match=r"'id' is int32, and the rows have int64. Tables of this kind cannot"
        ):
            pgspark.write_tables(segments, target, format=format)
        mode = "overwrite"
    pgspark.write_tables(segments, target, format=format, mode=mode)
    wanted = expected(spark.read.parquet(str(segments)), "public.grown", "committed")
    assert len(wanted) == 2
    if format == "parquet":
        schema = parquet.ParquetTable(open_store(target), "public.grown").known.schema
        place = target / "public.grown"
        assert_same(ds.dataset(place, schema).to_table().sort_by("_seq"), wanted)
        wal = spark.read.parquet(str(segments))
        rows = (
            spark.read.schema(pgspark.changes(wal, "public.grown").schema).parquet(str(place)).orderBy("_seq")
        )
        assert_same(rows.toArrow(), wanted)
    else:
        assert_same(read(format, target, "public.grown"), wanted)


@pytest.mark.parametrize("format", and_slow(["delta"], [each for each in FORMATS if each != "delta"]))
def test_partitions_by_the_day_of_the_commit(spark: Any, tmp_path: Path, format: str) -> None:
    segments, lake, state = tmp_path / "segments", tmp_path / "lake", None
    more = replace(SALES, columns=(*SALES.columns, ColumnSpec("more", 25)))
    days = [date(2024, 2, 28), date(2024, 2, 29), date(1999, 12, 31)]
    segments.mkdir()
    writer = Writer()
    for n, spec in enumerate((SALES, SALES, more)):
        moment = datetime.combine(days[n], datetime.min.time(), UTC) + timedelta(hours=23, minutes=59)
        wal = writer.begin(n + 1, 1000 * n + 1000, moment)
        wal += writer.change(spec, "insert", new=[str(n), "DE", None, "1", *["x"] * (spec is more)])
        tagged, state = pgo.tag(wal + writer.commit(1000 * n + 1000, 1000 * n + 1008, moment), state)
        write_segment(segments, tagged, state, source=SOURCE)
        if n != 1:
            pgspark.write_tables(segments, lake, format=format, partition_by=["_commit_date"])
    table = lake / "public.sales"
    if format == "delta":
        assert deltalake.DeltaTable(str(table)).metadata().partition_columns == ["_commit_date"]
        rows = pa.table(deltalake.DeltaTable(str(table)).to_pyarrow_table())
    elif format == "iceberg":
        rows = read(format, lake, "public.sales")
    else:
        kinds = ds.partitioning(pa.schema([("_commit_date", pa.date32())]), flavor="hive")
        names = [str(each) for each in table.rglob("*.parquet")]
        rows = ds.dataset(names, partitioning=kinds, partition_base_dir=str(table)).to_table()
    rows = rows.sort_by("_seq")
    assert rows.column("id").to_pylist() == [0, 1, 2]
    assert rows.column("_commit_date").to_pylist() == days
    assert [each.date() for each in rows.column("_commit_timestamp").to_pylist()] == days
    with pytest.raises(ValueError, match=r"is partitioned by \['_commit_date'\], not by \[\]"):
        pgspark.write_tables(segments, lake, format=format)
