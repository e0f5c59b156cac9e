"""`metadata=` of `changes`, and the option of `format("pgoutput")`: the result has only the chosen metadata columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.schema.metadata_columns import METADATA_COLUMNS
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.resolve import resolve, with_metadata
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.spark.tasks.changes import DecodeChanges, sent
from pgoutput_fast.spark.types import spark_arrow_schema
from support.forms import and_exhaustive, and_slow

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
WIDER = RelationSpec(
    16401,
    "public",
    "orders",
    (ColumnSpec("id", 20, key=True), ColumnSpec("note", 25), ColumnSpec("at", 1083)),
)
OTHER = RelationSpec(16402, "public", "other", (ColumnSpec("id", 23),))
# The number that stands in `id` is not one: whoever decodes this column fails.
ODD = RelationSpec(16403, "public", "odd", (ColumnSpec("id", 23), ColumnSpec("note", 25)))
SOURCE = Source("1", "shop", "slot")
NAMES = [f"_{name}" for name, _ in METADATA_COLUMNS]
SOME = (
    ["_seq"],
    ["_commit_lsn", "_xid", "_seq"],
    ["_subxid", "_change_type", "_commit_timestamp"],
    ["_txn", "_lsn", "_key_only", "_unchanged", "_unrepresentable"],
    [],
)


def _stream() -> list[bytes]:
    writer = Writer(4, streaming="on")
    wal: list[bytes] = []
    for n in range(6):
        wal += writer.begin(100 + n, 1000 * (n + 1), n)
        orders, more = (ORDERS, []) if n < 3 else (WIDER, ["12:34:56.5"])
        wal += writer.change(orders, "insert", new=[str(n), f"note {n}", *more])
        wal += writer.change(OTHER, "insert", new=[str(n)])
        wal += writer.change(ODD, "insert", new=["none", "odd"])
        wal += writer.commit(1000 * (n + 1), 1000 * (n + 1) + 8, n)
    for xid in (900, 901):
        wal += writer.stream_start(xid)
        wal += writer.change(WIDER, "insert", new=[str(-xid), "streamed", None], xid=xid + 10)
        wal += writer.change(WIDER, "insert", new=[str(-xid - 100), "rolled back", None], xid=xid + 20)
        wal += writer.stream_stop()
        wal += writer.stream_abort(xid, xid + 20)
    wal += writer.stream_commit(900, 10**6, 10**6 + 8, 5)
    wal += writer.stream_abort(901)
    return wal


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("segments")
    wal, state = _stream(), None
    for start in range(0, len(wal), 20):
        part = wal[start : start + 20]
        tagged, state = pgo.tag(part, state, lsn=[start + k + 1 for k in range(len(part))])
        write_segment(directory, tagged, state, source=SOURCE)
    return directory


@pytest.fixture(scope="module")
def wal(spark: Any, segments: Path) -> Any:
    return spark.read.parquet(str(segments))


def _read(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("pgoutput").options(**{"transactions": "as_sent", **options}).load(str(path))


def _sorted(frame: Any, columns: list[str]) -> list[tuple[Any, ...]]:
    """The rows as (values of the columns), in one order for every query."""
    table = frame.toArrow().select(columns)
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.parametrize(
    ("metadata", "transactions"),
    and_exhaustive(
        and_slow(
            [(SOME[1], "committed")], [(SOME[1], "as_sent"), (SOME[4], "as_sent"), (SOME[4], "committed")]
        ),
        [(SOME[n], transactions) for n in (0, 2, 3) for transactions in ("as_sent", "committed")],
    ),
    ids=lambda each: each if isinstance(each, str) else ",".join(each),
)
def test_only_the_chosen_columns_are_there(
    spark: Any, wal: Any, segments: Path, metadata: list[str], transactions: Any
) -> None:
    names = [*metadata, "id", "note", "at"]
    whole = pgspark.changes(wal, "public.orders", transactions=transactions)
    frame = pgspark.changes(wal, "public.orders", transactions=transactions, metadata=metadata)
    text = ", ".join(metadata) or "none"
    source = _read(spark, segments, table="public.orders", transactions=transactions, metadata=text)
    expected = _sorted(whole, names)
    assert len(expected) == (10 if transactions == "as_sent" else 7)
    for each in (frame, source):
        assert each.columns == names
        assert each.dtypes == whole.select(names).dtypes
        assert _sorted(each, names) == expected


def test_all_is_the_default(spark: Any, wal: Any, segments: Path) -> None:
    default = pgspark.changes(wal, "public.orders")
    assert default.columns == [*NAMES, "id", "note", "at"]
    assert pgspark.changes(wal, "public.orders", metadata="all").schema == default.schema
    assert _read(spark, segments, table="public.orders", metadata="all").columns == default.columns


def test_names_need_no_prefix(spark: Any, wal: Any, segments: Path) -> None:
    assert pgspark.changes(wal, "public.orders", metadata=["lsn", "_seq"]).columns[:2] == ["_lsn", "_seq"]
    options = pgo.Options(metadata_prefix="sub")
    # With this prefix, the column `xid` has the name that another column has without it.
    frame = pgspark.changes(wal, "public.orders", options=options, metadata=["subxid", "seq"])
    assert frame.columns == ["subxid", "subseq", "id", "note", "at"]
    assert {row[0] for row in frame.select("subxid").collect()} == {*range(100, 106), 900, 901}
    frame = _read(spark, segments, table="public.orders", metadata="seq", metadata_prefix="pg ")
    assert frame.columns == ["pg seq", "id", "note", "at"]


def test_the_first_column_says_what_the_query_is(wal: Any) -> None:
    frame = pgspark.changes(wal, "public.orders", metadata=())
    assert {"pg.relation", "pg.catalog", "pg.type"} <= frame.schema["id"].metadata.keys()
    assert frame.schema["note"].metadata["pg.type"] == "text"


@pytest.mark.parametrize("metadata", ["_seq", "none", b"_seq", ""])
def test_a_text_is_not_a_list(wal: Any, metadata: Any) -> None:
    with pytest.raises(TypeError, match="metadata must be a list of names"):
        pgspark.changes(wal, "public.orders", metadata=metadata)


def test_wrong_names(spark: Any, wal: Any, segments: Path) -> None:
    missing = "there is no metadata column 'note'; there is _change_type, _seq, .*, _unrepresentable"
    with pytest.raises(KeyError, match=missing):
        pgspark.changes(wal, "public.orders", metadata=["_seq", "note"])
    with pytest.raises(ValueError, match="metadata names a column twice"):
        pgspark.changes(wal, "public.orders", metadata=["_seq", "seq"])
    for options, problem in (
        ({"metadata": "_seq,note"}, missing),
        ({"metadata": " "}, "option metadata must be all, none, or names"),
        ({"metadata": "all", "columns": "id,_seq"}, "options columns and metadata both choose _seq"),
    ):
        with pytest.raises(PySparkException, match=problem):
            _read(spark, segments, table="public.orders", **options).schema  # noqa: B018
    pinned = spark.read.format("pgoutput").schema("_seq bigint, id bigint, note string, at string")
    with pytest.raises(PySparkException, match="option metadata and a schema both choose columns"):
        pinned.option("table", "public.orders").option("metadata", "none").load(str(segments)).collect()


def test_a_result_has_a_column(wal: Any) -> None:
    options = pgo.Options(columns={"public.orders": []})
    assert pgspark.changes(wal, "public.orders", options=options, metadata=["_seq"]).count() == 10
    with pytest.raises(ValueError, match="the result would have no column"):
        pgspark.changes(wal, "public.orders", options=options, metadata=())


@pytest.mark.slow
def test_with_columns_of_the_table(spark: Any, wal: Any, segments: Path) -> None:
    """The columns that are left out are not decoded; Spark itself does not tell which columns a query uses."""
    chosen = pgo.Options(columns={"public.odd": ["note"]})
    for frame in (
        pgspark.changes(wal, "public.odd", options=chosen, metadata=["_seq"]),
        _read(spark, segments, table="public.odd", columns="note", metadata="_seq"),
    ):
        assert frame.columns == ["_seq", "note"]
        assert [row.note for row in frame.collect()] == ["odd"] * 6
    source = _read(spark, segments, table="public.odd", columns="note", metadata="none")
    assert (source.columns, source.count()) == (["note"], 6)
    assert _read(spark, segments, table="public.odd", columns="_seq").count() == 6
    for frame in (pgspark.changes(wal, "public.odd"), _read(spark, segments, table="public.odd")):
        with pytest.raises(PySparkException, match="column 'id'"):
            frame.select("note", "_seq").collect()


def test_several_tables(spark: Any, segments: Path) -> None:
    tables = "public.orders, public.other"
    frame = _read(spark, segments, table=tables, metadata="none")
    assert frame.columns == ["_relation", "public.orders", "public.other"]
    others = frame.where("_relation = 'public.other'").select("`public.other`.id")
    assert sorted(row.id for row in others.collect()) == list(range(6))
    frame = _read(spark, segments, table=tables, metadata="_seq", columns="public.other")
    assert frame.columns == ["_seq", "public.other"]
    assert frame.where("`public.other` is null").count() == 10
    # Nothing of the other table is decoded, but its rows are there.
    frame = _read(spark, segments, table="public.other, public.odd", metadata="none", columns="_relation")
    counts = {row._relation: row["count"] for row in frame.groupBy("_relation").count().collect()}
    assert counts == {"public.other": 6, "public.odd": 6}


@pytest.mark.slow
def test_a_stream(spark: Any, segments: Path, tmp_path: Path) -> None:
    source = spark.readStream.format("pgoutput").options(
        table="public.orders", metadata="commit_lsn", transactions="committed"
    )
    frame = source.load(str(segments))
    assert frame.columns == ["_commit_lsn", "id", "note", "at"]
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(600)
    assert query.exception() is None
    expected = _read(spark, segments, table="public.orders", transactions="committed").select(*frame.columns)
    assert _sorted(spark.read.parquet(str(tmp_path / "out")), frame.columns) == _sorted(
        expected, frame.columns
    )


@pytest.mark.slow
def test_a_stream_takes_new_versions(spark: Any, tmp_path: Path) -> None:
    """The query is planned again for them, with the schema that it has."""
    directory, writer, state = tmp_path / "segments", Writer(), None
    directory.mkdir()

    def add(n: int, orders: RelationSpec, *more: str) -> None:
        nonlocal state
        wal = writer.begin(100 + n, 1000 * (n + 1), n)
        wal += writer.change(orders, "insert", new=[str(n), f"note {n}", *more])
        tagged, state = pgo.tag(wal + writer.commit(1000 * (n + 1), 1000 * (n + 1) + 8, n), state)
        write_segment(directory, tagged, state, source=SOURCE)

    def run() -> list[dict[str, Any]]:
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(600)
        assert query.exception() is None
        rows: list[dict[str, Any]] = (
            spark.read.parquet(str(tmp_path / "out")).orderBy("id").toArrow().to_pylist()
        )
        return rows

    add(0, RelationSpec(16401, "public", "orders", WIDER.columns[:2]))
    source = spark.readStream.format("pgoutput").options(
        table="public.orders", metadata="txn", schema_mode="union", extra_columns="drop"
    )
    frame = source.load(str(directory))
    assert run() == [{"_txn": 0, "id": 0, "note": "note 0"}]
    add(1, WIDER, "12:34:56.5")
    assert [row["id"] for row in run()] == [0, 1]


def test_tags_that_only_other_metadata_need_are_not_sent() -> None:
    """Neither to the executors, nor are values made of them there."""
    wal = _stream()
    tagged, state = pgo.tag(wal)
    whole = resolve(state.catalog, "public.orders", Options(), None)
    resolved = with_metadata(whole, ["_seq"], "_")
    target = spark_arrow_schema(resolved.schema)
    task = DecodeChanges(
        resolved.catalog.to_json(), Options(), resolved.schema, target, resolved.table, resolved.fingerprint
    )
    assert task.unused == ("txn", "xid", "subxid", "commit_lsn", "commit_timestamp")
    columns = [each.split()[-1] for each in sent(task.unused)]
    assert columns == ["seq", "lsn", "version", "subxid", "payload", "kind_xid"]
    rows = tagged.filter(pa.compute.equal(tagged.column("relation"), 16401).fill_null(False))
    rows = rows.filter(pa.compute.equal(rows.column("kind"), ord("I")))
    for batch in task(iter([rows])):
        assert batch.schema.names == ["_seq", "id", "note", "at"]
    (first, *_) = task.decoded(rows, state.catalog).changes
    nulls = {name for name in NAMES if first.batch.column(name).null_count == first.batch.num_rows}
    assert {f"_{name}" for name in task.unused} <= nulls
