"""What `write_tables` and `table_sink` refuse before they write, and what they take only once: no row twice, none lost."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.errors import StreamingQueryException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import (
    Source,
    compact,
    list_segments,
    read_segment,
    segment_catalog,
    write_segment,
)
from pgoutput_fast.spark.tables.run import Run, begin_run
from pgoutput_fast.tables.options import TableOptions
from support.forms import and_slow
from support.lakes import data_files, make_segments, settled

FORMATS = ["parquet", "delta", "iceberg"]
SOURCE = Source("7300000000000000001", "shop", "slot")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


def contents(place: Path) -> dict[str, bytes]:
    found = {str(each.relative_to(place)): each for each in place.rglob("*") if each.is_file()}
    return {name: each.read_bytes() for name, each in found.items() if name != "_lock"}


def ids(target: Path) -> list[int]:
    """The ids of all rows in the data files, ascending."""
    return sorted(
        each for name in data_files(target) for each in pq.ParquetFile(target / name).read()["id"].to_pylist()
    )


def sink(spark: Any, segments: Path, target: Path, checkpoint: Path, **arguments: Any) -> None:
    """Runs a query to its end."""
    rows = spark.readStream.format("pgoutput").option("emit", "files").load(str(segments))
    query = rows.writeStream.foreachBatch(pgspark.table_sink(target, **arguments))
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """Four segments with 12 rows of a table, and messages that end in other segments than they begin."""
    make_segments(tmp_path / "segments", tables=1, txns=12, rows=1)
    return tmp_path / "segments"


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_that_is_named_twice_is_written_once(
    spark: Any, segments: Path, tmp_path: Path, format: str
) -> None:
    names: Any = ["public.t0", '"public".t0', 30000]
    rows = pgspark.write_tables(
        segments, tmp_path / "lake", names, format=format, partition_by={'"public".t0': []}
    )
    assert [(row.table, row.rows) for row in rows] == [("public.t0", 12)]
    assert ids(tmp_path / "lake") == list(range(12))


@pytest.mark.slow
def test_a_sink_writes_a_table_that_is_named_twice_once(spark: Any, segments: Path, tmp_path: Path) -> None:
    sink(spark, segments, tmp_path / "lake", tmp_path / "checkpoint", tables=["public.t0", "public.t0"])
    assert ids(tmp_path / "lake") == list(range(12))


def part_of(segments: Path, place: Path, *which: int) -> Path:
    """A directory with some of the segments."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for n in which:
        path = list_segments(segments)[n].path
        shutil.copy(path, place)
    return place


@pytest.mark.parametrize("format", and_slow(["parquet"], [each for each in FORMATS if each != "parquet"]))
def test_a_segment_is_missing_behind_the_position(
    spark: Any, segments: Path, tmp_path: Path, format: str
) -> None:
    place, lake = tmp_path / "part", tmp_path / "lake"
    pgspark.write_tables(part_of(segments, place, 0, 1), lake, format=format)
    before = contents(lake)
    missing = list_segments(segments)[2]
    message = rf"public\.t0 cannot be written: the source lacks messages {missing.first_seq} to {missing.last_seq}, "
    with pytest.raises(ValueError, match=message):
        pgspark.write_tables(part_of(segments, place, 0, 1, 3), lake, format=format)
    assert contents(lake) == before
    # What the error says helps: the segments behind the gap alone.
    (row,) = pgspark.write_tables(list_segments(place)[-1].path, lake, format=format, mode="overwrite")
    assert row.rows == 3
    (row,) = pgspark.write_tables(place, lake, format=format)  # the gap lies before the position
    assert row.rows == 0


def test_a_segment_is_missing_for_a_table_that_begins(spark: Any, segments: Path, tmp_path: Path) -> None:
    place, lake = tmp_path / "part", tmp_path / "lake"
    part_of(segments, place, 0, 2, 3)
    for mode in ("append", "overwrite", "error"):
        with pytest.raises(ValueError, match=r"the source lacks messages .* Restore it"):
            pgspark.write_tables(place, lake, mode=mode)  # type: ignore[arg-type]
    assert not contents(lake)
    # Retention removes segments at the beginning.
    (row,) = pgspark.write_tables(part_of(segments, place, 1, 2, 3), lake)
    assert row.rows == 9


@pytest.mark.slow
def test_segments_that_were_joined_are_no_gap(spark: Any, segments: Path, tmp_path: Path) -> None:
    place, lake = tmp_path / "part", tmp_path / "lake"
    pgspark.write_tables(part_of(segments, place, 0), lake)
    part_of(segments, place, 0, 1, 2, 3)
    assert compact(place, keep=1, grace=0).after == 2
    (row,) = pgspark.write_tables(place, lake)
    assert row.rows == 9
    assert ids(lake) == list(range(12))
    reader = spark.read.format("pgoutput").option("table", "public.t0")
    assert reader.load(str(place)).count() == 12
    assert reader.option("transactions", "as_sent").load(str(place)).count() == 14  # two were rolled back


def test_a_batch_read_needs_all_segments_between_others(spark: Any, segments: Path, tmp_path: Path) -> None:
    place = part_of(segments, tmp_path / "part", 0, 1, 3)
    missing = list_segments(segments)[2]
    message = rf"no segment has messages {missing.first_seq} to {missing.last_seq}: .* pass the paths of the segments"
    for transactions in ("as_sent", "committed"):
        reader = (
            spark.read.format("pgoutput").option("table", "public.t0").option("transactions", transactions)
        )
        with pytest.raises(Exception, match=message):
            reader.load(str(place)).count()
        assert reader.load(str(list_segments(place)[2].path)).count() == 3
        assert reader.load([str(each.path) for each in list_segments(place)[:2]]).count() >= 6


def streamed(directory: Path) -> Any:
    """Writes a segment in which a streamed transaction begins. Yields, and writes the one in which it commits."""
    directory.mkdir()
    writer, state = Writer(4, streaming="on"), None
    begin = writer.stream_start(900) + writer.change(ORDERS, "insert", new=["1", "a"], xid=900)
    begin += writer.stream_stop()
    then = writer.stream_start(900) + writer.change(ORDERS, "insert", new=["2", "b"], xid=900)
    then += writer.stream_stop() + writer.stream_commit(900, 10**6, 10**6 + 8, 5)
    for wal in (begin, then):
        tagged, state = pgo.tag(wal, state)
        write_segment(directory, tagged, state, source=SOURCE)
        yield


@pytest.mark.parametrize("format", and_slow(["parquet"], [each for each in FORMATS if each != "parquet"]))
def test_a_transaction_that_is_open_needs_the_segment_where_it_begins(
    spark: Any, tmp_path: Path, format: str
) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    steps = streamed(segments)
    next(steps)
    assert [row.rows for row in pgspark.write_tables(segments, lake, format=format)] == [0]
    next(steps)
    newer, before = part_of(segments, tmp_path / "newer", 1), contents(lake)
    message = r"public\.orders goes up to message 3\. A transaction that began at message 0 commits only after it, .* 0 to 3"
    with pytest.raises(ValueError, match=message):
        pgspark.write_tables(newer, lake, format=format)
    assert contents(lake) == before
    wal = spark.createDataFrame(read_segment(list_segments(newer)[0].path))
    with pytest.raises(ValueError, match=message):
        pgspark.write_tables(wal, lake, format=format, catalog=segment_catalog(segments))
    assert [row.rows for row in pgspark.write_tables(segments, lake, format=format)] == [2]
    assert ids(lake) == [1, 2]


def test_a_segment_is_gone_in_which_an_open_transaction_has_rows(spark: Any, tmp_path: Path) -> None:
    """It lies before the position of the table, so all of its other rows are there."""
    segments, lake, writer, state = tmp_path / "segments", tmp_path / "lake", Writer(4, streaming="on"), None
    segments.mkdir()
    long = writer.stream_start(900) + writer.change(ORDERS, "insert", new=["1", "a"], xid=900)
    long += writer.stream_stop()
    short = writer.begin(7, 5, 5) + writer.change(ORDERS, "insert", new=["9", "c"]) + writer.commit(5, 13, 5)
    for wal in (long, short, writer.stream_commit(900, 10**6, 10**6 + 8, 5)):
        tagged, state = pgo.tag(wal, state)
        write_segment(segments, tagged, state, source=SOURCE)
    first, second, third = (each.path for each in list_segments(segments))
    assert [row.rows for row in pgspark.write_tables([first, second], lake)] == [1]
    with pytest.raises(ValueError, match="Pass the segments from message 0 on, too"):
        pgspark.write_tables([second, third], lake)
    # A table that is new needs the segment, too.
    message = (
        r"public\.orders begins after message 3\. A transaction that began at message 0 commits only after it"
    )
    for mode in ("append", "error"):
        with pytest.raises(ValueError, match=message):
            pgspark.write_tables([second, third], tmp_path / "new", mode=mode)
    assert not (tmp_path / "new/public.orders").exists()
    named: Any = {"tables": ["public.orders"], "transactions": "as_sent"}
    assert [row.rows for row in pgspark.write_tables([third], tmp_path / "new", **named)] == [0]
    assert [row.rows for row in pgspark.write_tables([second, third], lake, mode="overwrite")] == [1]
    assert [row.rows for row in pgspark.write_tables(segments, lake, mode="overwrite")] == [2]


def test_options_pin_the_schemas_of_tables(spark: Any, segments: Path, tmp_path: Path) -> None:
    pinned = pa.schema([("note", pa.string()), ("id", pa.int64()), ("later", pa.int32())])
    for name, key in (("a", "public.t0"), ("b", '"public"."t0"'), ("c", 30000)):
        options = pgo.Options(schemas={key: pinned}, extra_columns="drop")
        pgspark.write_tables(segments, tmp_path / name, options=options)
        (found, *_) = data_files(tmp_path / name)
        schema = pq.read_schema(tmp_path / name / found)
        assert [schema.field(each).type for each in ("note", "id", "later")] == pinned.types
        assert "price" not in schema.names
        assert ids(tmp_path / name) == list(range(12))
    with pytest.raises(ValueError, match="price"):
        pgspark.write_tables(segments, tmp_path / "d", options=pgo.Options(schemas={"public.t0": pinned}))


@pytest.mark.parametrize("format", and_slow(["parquet"], [each for each in FORMATS if each != "parquet"]))
def test_a_table_keeps_its_kind_of_transactions(spark: Any, tmp_path: Path, format: str) -> None:
    segments, lakes = streamed(tmp_path / "segments"), {}
    next(segments)
    kinds: list[Any] = ["committed", "as_sent"]
    for kind in kinds:
        lakes[kind] = tmp_path / kind
        pgspark.write_tables(tmp_path / "segments", lakes[kind], format=format, transactions=kind)
    next(segments)
    for kind, other in zip(kinds, reversed(kinds), strict=True):
        before = contents(lakes[kind])
        message = (
            rf"public\.orders was written with transactions='{kind}'.* Pass transactions='{kind}', write to another "
            rf"target, or replace the table by write_tables\(\.\.\., transactions='{other}', mode='overwrite'\)"
        )
        for source in (tmp_path / "segments", spark.read.parquet(str(tmp_path / "segments"))):
            with pytest.raises(ValueError, match=message):
                pgspark.write_tables(source, lakes[kind], format=format, transactions=other)
        assert contents(lakes[kind]) == before
    for kind, lake in lakes.items():
        pgspark.write_tables(tmp_path / "segments", lake, format=format, transactions=kind)
        assert ids(lake) == [1, 2]
    pgspark.write_tables(
        tmp_path / "segments", lakes["committed"], format=format, transactions="as_sent", mode="overwrite"
    )
    with pytest.raises(ValueError, match=r"was written with transactions='as_sent'"):
        pgspark.write_tables(tmp_path / "segments", lakes["committed"], format=format)


@pytest.mark.parametrize("format", and_slow(["parquet"], [each for each in FORMATS if each != "parquet"]))
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"metadata_prefix": "m_"},
            r"public\.t0 has no column m_seq: it was written with another metadata_prefix",
        ),
        ({"columns": {"public.t0": ["id"]}}, r"public\.t0 has the column note, which the options leave out"),
    ],
)
def test_options_that_would_leave_nulls(
    spark: Any, segments: Path, tmp_path: Path, format: str, options: dict[str, Any], message: str
) -> None:
    lake = tmp_path / "lake"
    pgspark.write_tables(part_of(segments, tmp_path / "part", 0), lake, format=format)
    before = contents(lake)
    part_of(segments, tmp_path / "part", 0, 1)
    with pytest.raises(ValueError, match=message):
        pgspark.write_tables(tmp_path / "part", lake, format=format, options=pgo.Options(**options))
    assert contents(lake) == before
    pgspark.write_tables(
        tmp_path / "part", lake, format=format, options=pgo.Options(**options), mode="overwrite"
    )
    # From now on the table goes on with these.
    pgspark.write_tables(segments, lake, format=format, options=pgo.Options(**options))


@pytest.mark.parametrize(
    ("format", "name"), [("delta", "a%41b"), ("iceberg", "a#b"), ("iceberg", "a?b"), ("iceberg", "a\tb")]
)
def test_a_path_that_readers_of_a_format_do_not_find(
    spark: Any, segments: Path, tmp_path: Path, format: Any, name: str
) -> None:
    with pytest.raises(ValueError, match=f"cannot be the target, because readers of {format} tables"):
        pgspark.write_tables(segments, tmp_path / name, format=format)
    assert not (tmp_path / name).exists()
    pgspark.write_tables(segments, tmp_path / name)
    assert ids(tmp_path / name)


@pytest.mark.slow
def test_a_sink_keeps_the_kind_of_transactions(spark: Any, segments: Path, tmp_path: Path) -> None:
    sink(spark, part_of(segments, tmp_path / "part", 0), tmp_path / "lake", tmp_path / "checkpoint")
    part_of(segments, tmp_path / "part", 0, 1)
    with pytest.raises(StreamingQueryException, match=r"was written with transactions='committed'"):
        sink(spark, tmp_path / "part", tmp_path / "lake", tmp_path / "checkpoint", transactions="as_sent")
    settled(spark)


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_of_an_earlier_version_takes_the_kind_that_comes(
    spark: Any, segments: Path, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, commit = tmp_path / "lake", Run.commit
    with monkeypatch.context() as patch:
        patch.setattr(
            Run,
            "commit",
            lambda run, directory, files, position, *others: commit(
                run, directory, files, position._replace(transactions=None), *others
            ),
        )
        pgspark.write_tables(segments, lake, format=format)
    (lake / "_progress.json").unlink()

    def kind() -> str | None:
        with begin_run(str(lake), format, TableOptions()) as run:
            position = run.ordinal("public.t0")
            assert position is not None
            return position.transactions

    assert kind() is None
    (row,) = pgspark.write_tables(segments, lake, format=format)
    assert (row.rows, kind()) == (0, "committed")
    with pytest.raises(ValueError, match=r"was written with transactions='committed'"):
        pgspark.write_tables(segments, lake, format=format, transactions="as_sent")


@pytest.mark.slow
def test_a_type_that_cannot_change_so(spark: Any, tmp_path: Path) -> None:
    """What the error says helps: the other tables go on, and each version can have a table of its own."""
    place, writer, state = tmp_path / "segments", Writer(), None
    place.mkdir()
    altered = RelationSpec(16401, "public", "orders", (ORDERS.columns[0], ColumnSpec("note", 23)))
    other = RelationSpec(16402, "public", "other", ORDERS.columns)
    for n, spec in enumerate((ORDERS, altered, altered)):
        wal = writer.begin(100 + n, 1000 * n + 1000, n) + writer.change(
            other, "insert", new=[str(10 + n), "a"]
        )
        wal += writer.change(spec, "insert", new=[str(n), "5"])
        tagged, state = pgo.tag(wal + writer.commit(1000 * n + 1000, 1000 * n + 1008, n), state)
        write_segment(place, tagged, state, source=SOURCE)
        if n == 0:
            pgspark.write_tables(place, tmp_path / "lake")
    message = r"public\.orders: column 'note' is string in version \S+ and int32 in version \S+; one table cannot have both"
    with pytest.raises(ValueError, match=message) as caught:
        pgspark.write_tables(place, tmp_path / "lake")
    (row,) = pgspark.write_tables(place, tmp_path / "lake", ["public.other"])
    assert row.rows == 2
    (condition,) = re.findall(r"where\('(.*)'\)", str(caught.value))
    wal = spark.read.parquet(str(place))
    for more in (2, 0):
        (row,) = pgspark.write_tables(wal.where(condition), tmp_path / "next", ["public.orders"])
        assert row.rows == more
    assert ids(tmp_path / "next") == [1, 2]
    assert pgspark.changes(wal.where(condition), "public.orders").count() == 2
    # So does an overwrite, which the error about the old table names.
    with pytest.raises(ValueError, match=r"has another schema: .* or use mode='overwrite'"):
        pgspark.write_tables(wal.where(condition), tmp_path / "lake", ["public.orders"])
    (row,) = pgspark.write_tables(
        wal.where(condition), tmp_path / "lake", ["public.orders"], mode="overwrite"
    )
    assert row.rows == 2


@pytest.mark.slow
@pytest.mark.parametrize("lost", and_slow(["public.t0/metadata"], ["public.t0"]))
def test_an_iceberg_table_whose_files_are_gone(spark: Any, segments: Path, tmp_path: Path, lost: str) -> None:
    lake = tmp_path / "lake"
    pgspark.write_tables(segments, lake, format="iceberg")
    shutil.rmtree(lake / lost)
    message = (
        r"the Iceberg table public\.t0 in .* is damaged: .* move it back; .* "
        r"remove it from the catalog \(drop_table\(\('public', 't0'\)\) in pyiceberg\), and run it again"
    )
    for mode in ("append", "overwrite"):
        with pytest.raises(ValueError, match=message):
            pgspark.write_tables(segments, lake, format="iceberg", mode=mode)
    with pytest.raises(StreamingQueryException, match=message):
        sink(spark, segments, lake, tmp_path / "checkpoint", format="iceberg")
    with load_catalog("pgoutput_fast", type="sql", uri=f"sqlite:///{lake}/_catalog.db") as catalog:
        catalog.drop_table(("public", "t0"))
        pgspark.write_tables(segments, lake, format="iceberg", mode="overwrite")
        assert catalog.load_table(("public", "t0")).scan().to_arrow().num_rows == 12


def test_arguments_that_cannot_be_meant(spark: Any, segments: Path, tmp_path: Path) -> None:
    lake, wal = tmp_path / "lake", spark.read.parquet(str(segments))
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"source": None}, TypeError, r"source must be paths of segments, or a DataFrame .*, not None"),
        ({"source": ""}, ValueError, r"an empty text is no path or URI"),
        ({"target": ""}, ValueError, r"an empty text is no path or URI"),
        ({"target": "s3:/bucket/x"}, ValueError, r"did you mean 's3://bucket/x'\?"),
        ({"tables": []}, ValueError, r"tables is empty: leave it out"),
        ({"tables": [None]}, TypeError, r"tables must be a list of qualified names .*, and has None"),
        ({"options": {}}, TypeError, r"options must be pgoutput_fast\.Options\(\.\.\.\) or None, not a dict"),
        ({"catalog": "x"}, TypeError, r"catalog must be a pgoutput_fast\.Catalog, .* not a str"),
        ({"storage_options": "x"}, TypeError, r"storage_options must be a dict or None, not a str"),
        (
            {"iceberg_catalog": "x", "format": "iceberg"},
            TypeError,
            r"iceberg_catalog must be a dict or None, not a str",
        ),
        ({"file_bytes": "128MB"}, TypeError, r"file_bytes must be a whole number, not a str"),
        ({"file_bytes": 0}, ValueError, r"file_bytes must be at least 1, not 0"),
        ({"compression": "gzip"}, ValueError, r"compression must be one of 'zstd', .*'none', not 'gzip'"),
        ({"compression": None}, ValueError, r"compression must be one of 'zstd', .*'none', not None"),
        ({"spark": "local"}, TypeError, r"spark must be a SparkSession or None, not a str"),
    ]
    for arguments, kind, message in cases:
        with pytest.raises(kind, match=message):
            pgspark.write_tables(**{"source": segments, "target": lake, **arguments})
        if not {"source", "spark"} & arguments.keys():
            with pytest.raises(kind, match=message):
                pgspark.table_sink(**{"target": lake, **arguments})
    assert not lake.exists()
    none: Any = None
    for metadata in (None, 5):
        with pytest.raises(TypeError, match=r"metadata must be 'all' or a list of names, .* pass \[\]"):
            pgspark.changes(wal, "public.t0", metadata=metadata)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"catalog must be a pgoutput_fast\.Catalog"):
        pgspark.changes(wal, "public.t0", catalog="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"order_by must be the name of a column, .* not None"):
        pgspark.tag(wal, none)


def test_columns_that_differ_only_in_case(spark: Any, tmp_path: Path) -> None:
    spec = RelationSpec(1, "public", "cases", (ColumnSpec("id", 23, key=True), ColumnSpec("Id", 23)))
    writer, place = Writer(), tmp_path / "segments"
    place.mkdir()
    wal = writer.begin(1, 100, 0) + writer.change(spec, "insert", new=["1", "2"]) + writer.commit(100, 108, 0)
    write_segment(place, *pgo.tag(wal), source=SOURCE)
    message = r"public\.cases cannot have the format 'delta': .* 'id' and 'Id' differ only in case\. Leave one out with Options"
    with pytest.raises(ValueError, match=message):
        pgspark.write_tables(place, tmp_path / "lake", format="delta")
    options = pgo.Options(columns={"public.cases": ["id"]})
    (row,) = pgspark.write_tables(place, tmp_path / "lake", format="delta", options=options)
    assert row.rows == 1
