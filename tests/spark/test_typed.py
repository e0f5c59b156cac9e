"""`read_typed`: Spark's Parquet reader gives from typed files what `changes` decodes from the segments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.spark.places import spark_path
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.typed_files.files import TypedFiles
from support.forms import and_long
from support.oracle import plain_records
from support.paths import DOCS
from support.streams import ENRICHED, RandomChoices, make_stream

SOURCE = Source("1", "shop", "slot")
ORDERS = RelationSpec(
    16401,
    "public",
    "orders",
    (
        ColumnSpec("id", 21, key=True),
        ColumnSpec("price", 1700, (5 << 16 | 2) + 4),
        ColumnSpec("ratio", 700),
        ColumnSpec("counts", 1005),
        ColumnSpec("at", 1083),
        ColumnSpec("token", 2950),
    ),
)
WIDER = RelationSpec(
    16401,
    "public",
    "orders",
    (
        ColumnSpec("note (new)", 25),
        ColumnSpec("id", 20, key=True),
        ColumnSpec("price", 1700, (12 << 16 | 4) + 4),
        ColumnSpec("ratio", 701),
        ColumnSpec("counts", 1016),
        ColumnSpec("day", 1082),
        ColumnSpec("seen", 1114),
        ColumnSpec("changed", 1184),
    ),
)
ODD = RelationSpec(16402, "so.called", 'a/b "%c" [1]*', (ColumnSpec("id", 23, key=True),))
ODD_NAME = '"so.called"."a/b ""%c"" [1]*"'


def _stream() -> list[bytes]:
    writer = Writer(4, streaming="on")
    wal: list[bytes] = []
    old = ["7", "1.25", "0.5", "{1,NULL}", "12:34:56.5", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]
    new = [
        "new",
        str(1 << 40),
        "12345678.1234",
        "0.1",
        f"{{{1 << 40}}}",
        "0044-03-15 BC",
        *["1500-01-02 03:04:05"] * 2,
    ]
    new[-1] += "+00"
    for n in range(4):
        wal += writer.begin(100 + n, 1000 * (n + 1), n)
        wal += writer.change(*((ORDERS, "insert") if n < 2 else (WIDER, "insert")), new=old if n < 2 else new)
        wal += writer.change(ODD, "insert", new=[str(n)])
        wal += writer.commit(1000 * (n + 1), 1000 * (n + 1) + 8, n)
    wal += writer.begin(200, 5000, 5) + writer.change(WIDER, "delete", key=[None, "9", *[None] * 6])
    wal += writer.truncate([WIDER]) + writer.commit(5000, 5008, 5)
    for xid in (900, 901):
        wal += writer.stream_start(xid)
        wal += writer.change(WIDER, "insert", new=[f"streamed {xid}", "1", *[None] * 6], xid=xid)
        wal += writer.stream_stop()
    return wal + writer.stream_commit(900, 10**6, 10**6 + 8, 5) + writer.stream_abort(901)


def _write(directory: Path, payloads: list[bytes], every: int, state: pgo.StreamState | None = None) -> None:
    """Segments and typed files."""
    directory.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(payloads), every):
        tagged, state = pgo.tag(payloads[start : start + every], state)
        if tagged.num_rows:
            write_segment(directory, tagged, state, source=SOURCE)
    TypedFiles(open_store(directory), pgo.Options(on_error="quarantine")).catch_up()


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("typed [1] {a,b} *%20")
    _write(directory, _stream(), 7)
    (some, *_) = sorted((directory / "typed" / "public.orders").rglob("*.parquet"))
    for name in (f".{some.name}.{'ab' * 8}", f".{some.name}", f"_{some.name}"):
        some.with_name(name).write_bytes(b"never finished")
    return directory


def _rows(frame: Any) -> list[dict[str, Any]]:
    # Python's dates are not enough.
    return sorted(plain_records(frame.toArrow()), key=lambda row: (row["_seq"], row["_change_type"]))


def _decoded(spark: Any, segments: Path, table: str, **arguments: Any) -> Any:
    wal = spark.read.parquet("file://" + str(segments).translate({ord(c): "\\" + c for c in "[]{}*"}))
    return pgspark.changes(wal, table, transactions="committed", **arguments)


@pytest.mark.parametrize("vectorized", and_long(["true"], ["false"]))
def test_rows_and_schema_are_those_of_changes(spark: Any, segments: Path, vectorized: str) -> None:
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    try:
        for table, rows in (("public.orders", 7), (ODD_NAME, 4)):
            expected = _decoded(spark, segments, table)
            frame = pgspark.read_typed(segments, table)
            assert frame.dtypes == expected.dtypes
            assert _rows(frame) == _rows(expected)
            assert frame.count() == rows
            for got, field in zip(frame.schema, expected.schema, strict=True):
                wanted = {key: value for key, value in field.metadata.items() if key != "pg.catalog"}
                assert got.metadata == wanted
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")


def test_no_python_worker_reads_them(spark: Any, segments: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pgspark.read_typed(str(segments), "public.orders", spark)
    frame.where("_commit_lsn > 2000").select("id", "note (new)").explain("extended")
    plan = capsys.readouterr().out
    assert "FileScan parquet" in plan
    assert "ReadSchema: struct<_commit_lsn:bigint,note (new):string,id:bigint>" in plan
    assert "PushedFilters: [IsNotNull(_commit_lsn), GreaterThan(_commit_lsn,2000)]" in plan
    for python in ("ArrowEvalPython", "MapInArrow", "BatchScan", "Python"):
        assert python not in plan
    _decoded(spark, segments, "public.orders").explain("extended")
    assert "MapInArrow" in capsys.readouterr().out


@pytest.mark.in_ci
@pytest.mark.parametrize("seed", and_long([0], [1, 2]))
def test_random_streams(spark: Any, tmp_path: Path, seed: int) -> None:
    """Of every type; what was quarantined is not among the changes either."""
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        stream = make_stream(RandomChoices(seed), steps=60)
        _write(tmp_path, stream.payloads, 1 + len(stream.payloads) // 3, pgo.StreamState(catalog=ENRICHED))
        catalog = pgo.segments.segment_catalog(tmp_path)
        compared = 0
        for table in {relation.qualified_name for relation in catalog.relations}:
            try:
                frame = pgspark.read_typed(tmp_path, table)
                expected = _decoded(
                    spark, tmp_path, table, catalog=catalog, options=pgo.Options(on_error="quarantine")
                )
            except (KeyError, FileNotFoundError):
                continue  # nothing of it has committed
            except ValueError:
                continue  # its versions do not fit together
            # A version of which nothing committed has no file.
            rows = _rows(expected.select(frame.columns))
            assert _rows(frame) == rows
            compared += len(rows)
        assert compared
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_names_that_differ_in_case(spark: Any, tmp_path: Path) -> None:
    writer = Writer()
    spec = RelationSpec(1, "public", "cases", (ColumnSpec("id", 23), ColumnSpec("Id", 25)))
    wal = writer.begin(1, 100, 0) + writer.change(spec, "insert", new=["1", "one"])
    _write(tmp_path, wal + writer.commit(100, 108, 0), 10)
    with pytest.raises(ValueError, match=r"'id' and 'Id' differ only in case: set spark\.sql\.caseSensitive"):
        pgspark.read_typed(tmp_path, "public.cases")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        (row,) = pgspark.read_typed(tmp_path, "public.cases").select("id", "Id").collect()
        assert tuple(row) == (1, "one")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_errors(spark: Any, segments: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no typed files in .*Capture\(\.\.\., typed=True\)"):
        pgspark.read_typed(tmp_path, "public.orders")
    with pytest.raises(KeyError, match=r'no relation .*; there is "so\.called".*, public\.orders'):
        pgspark.read_typed(segments, "public.nothing")
    wrong: Any = 16401
    with pytest.raises(TypeError, match=r"table must be a qualified name such as public\.orders, not a int"):
        pgspark.read_typed(segments, wrong)


def test_paths(spark: Any, segments: Path) -> None:
    uri = "file://" + str(segments).replace("%", "%25")
    for path in (f"{segments}/", uri, f"{uri}/"):
        assert pgspark.read_typed(path, ODD_NAME).count() == 4
    for given, expected in (
        ("s3a://key:secret@lake/a%20b/?region=eu-central-1", "s3a://lake/a b/typed/t"),
        ("s3://lake", "s3://lake/typed/t"),
        ("abfss://files@lake.dfs.core.windows.net/x", "abfss://files@lake.dfs.core.windows.net/x/typed/t"),
        ("hdfs://name:8020/x", "hdfs://name:8020/x/typed/t"),
    ):
        assert spark_path(given, "typed/t") == expected


def test_the_page_says_what_is_so(spark: Any, segments: Path) -> None:
    """The example of docs/spark.md."""
    page = (DOCS / "spark.md").read_text()
    (block,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "typed = pgspark.read_typed" in each
    ]
    names: dict[str, Any] = {"pgspark": pgspark, "segments": str(segments)}
    exec(compile(block.replace(', "note")', ")"), "spark.md", "exec"), names)
    assert names["typed"].count() == 7
