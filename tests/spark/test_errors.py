"""What is wrong in one of many tasks: the driver says what and where in few lines, and quarantine keeps it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, segment_catalog, write_segment
from support.forms import and_slow
from support.lakes import make_segments

T = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("on", 1082)))
ROWS, BAD = 2000, 1234
PLACE = rf"DecodeError: message {BAD + 2}, relation public\.t, column 'on', byte \d+: the text is not date"
SECRET = "a secret"
# Arrow UDFs came with 4.1.
FORMS = [True, False] if hasattr(functions, "arrow_udf") else [False]


def _payloads() -> list[bytes]:
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    for n in range(ROWS):
        wal += writer.change(T, "insert", new=[str(n), SECRET if n == BAD else "2024-02-29"])
    return wal + writer.commit(100, 108, 0)


@pytest.fixture(scope="module")
def payloads() -> list[bytes]:
    return _payloads()


@pytest.fixture(scope="module")
def segments(payloads: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty segments; one of them has a value that is none."""
    directory, state = tmp_path_factory.mktemp("segments"), None
    for start in range(0, len(payloads), 101):
        tagged, state = pgo.tag(payloads[start : start + 101], state)
        write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    assert len(list_segments(directory)) == 20
    return directory


def _text(action: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    text = str(caught.value)
    assert SECRET not in text
    return text


def _expect_few_lines(text: str, where: str) -> None:
    assert re.search(where, text), text
    # The place in this package that raised it, and what it said; with a JVM's stack where Spark adds one.
    own = text.split("\n\tat ")[0].splitlines()
    assert len(own) < 17, text
    assert sum("pgoutput_fast" in line and "File" in line for line in own) <= 4, text


@pytest.fixture(scope="module")
def wal(segments: Path, spark: Any) -> Any:
    return spark.read.parquet(str(segments)).repartition(10)


@pytest.mark.slow
def test_changes(wal: Any) -> None:
    frame = pgspark.changes(wal, "public.t")
    _expect_few_lines(_text(lambda: frame.write.format("noop").mode("overwrite").save()), PLACE)
    # Rows of which nobody asks for the column are decoded all the same: Spark does not say which it wants.
    _expect_few_lines(_text(frame.select("id").collect), PLACE)


@pytest.mark.parametrize(
    "damaged", and_slow([b""], [b"\0", b"C", b"U"]), ids=["empty", "no kind", "an end", "another change"]
)
def test_payloads_that_begin_otherwise(spark: Any, payloads: list[bytes], damaged: bytes) -> None:
    """A change is found by its tags, which its payload must fit: such a row is no end of anything."""
    rows = pgo.tag(payloads[:12])[0].to_pylist()
    at = next(n for n, row in enumerate(rows) if row["kind"] == ord("I"))
    rows[at]["payload"] = damaged + rows[at]["payload"][1:] if damaged else b""
    wal = spark.createDataFrame(pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA))
    [reject] = pgspark.rejects(wal).collect()
    assert reject["seq"] == rows[at]["seq"]
    where = f"DecodeError: message {at}"
    assert where in _text(pgspark.changes(wal, "public.t").collect)


def test_the_source(spark: Any, segments: Path) -> None:
    reader = spark.read.format("pgoutput").option("table", "public.t")
    _expect_few_lines(_text(reader.load(str(segments)).collect), PLACE)
    kept = reader.option("on_error", "quarantine").load(str(segments))
    assert kept.count() == ROWS - 1
    assert "relation 'public.nothing' here; there is public.t" in _text(
        lambda: spark.read.format("pgoutput").option("table", "public.nothing").load(str(segments)).schema
    )


def test_quarantine_keeps_it(wal: Any, payloads: list[bytes]) -> None:
    options = pgo.Options(on_error="quarantine")
    assert pgspark.changes(wal, "public.t", options=options).count() == ROWS - 1
    for found in (pgspark.rejects(wal), pgspark.rejects(wal, "public.t", options=options)):
        [reject] = found.collect()
        assert (reject["seq"], reject["relation"], reject["column"]) == (BAD + 2, "public.t", "on")
        assert bytes(reject["raw"]) == payloads[BAD + 2]


@pytest.mark.slow
def test_tables_beside_the_changes(spark: Any, payloads: list[bytes]) -> None:
    rows = pgo.tag(payloads)[0].to_pylist()
    rows[-1]["payload"] = rows[-1]["payload"][:-1]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA))
    where = rf"DecodeError: message {ROWS + 2}, byte \d+: the message ends too early"
    for given in (pgspark.transactions(frame), pgspark.outcomes(frame)):
        _expect_few_lines(_text(given.collect), where)


@pytest.mark.parametrize("arrow", and_slow([False], [each for each in FORMS if each]))
def test_functions_on_single_payloads(spark: Any, payloads: list[bytes], arrow: bool) -> None:
    raw = spark.createDataFrame([(payload,) for payload in payloads], "payload binary").coalesce(1)
    relation = pgo.tag(payloads)[1].catalog.named("public.t")[-1]
    row = pgspark.udf.decode_row(relation, arrow=arrow)("payload")
    where = rf"DecodeError: relation public\.t, column 'on', byte \d+: the text is not date.*\(row {BAD + 2} of its Arrow batch\)"
    _expect_few_lines(_text(raw.select(row).collect), where)
    kept = pgspark.udf.decode_row(relation, arrow=arrow, malformed="null")("payload")
    assert raw.select(kept.alias("row")).where("row is not null").count() == ROWS - 1
    damaged = raw.limit(5).selectExpr("substring(payload, 2) as payload")
    kind = pgspark.udf.message_kind("payload", arrow=arrow)
    _expect_few_lines(
        _text(damaged.select(kind).collect), r"DecodeError: byte 0: unknown message tag.*row 0 of"
    )


def test_rows_without_a_relation_message(spark: Any, tmp_path: Path) -> None:
    """The first segments were removed, and a program reads the files by itself."""
    make_segments(tmp_path, tables=1, txns=8, segments=2)
    first, second = list_segments(tmp_path)
    Path(first.path).unlink()
    wal = spark.read.parquet(str(second.path))
    with pytest.raises(KeyError, match=r"these rows have no Relation message\. .*segment_catalog"):
        pgspark.changes(wal, "public.t0")
    assert pgspark.changes(wal, "public.t0", catalog=segment_catalog(tmp_path)).count() > 0
