"""What a user of Spark meets first: payloads that are not tagged, positions as text, a Python that is not on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from support.forms import and_slow

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


def _wal() -> list[bytes]:
    writer = Writer()
    wal = writer.begin(7, 100, 0) + writer.change(ORDERS, "insert", new=["1", "x"])
    return wal + writer.commit(100, 108, 0)


def _segments(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    tagged, state = pgo.tag(_wal())
    write_segment(directory, tagged, state, source=Source("1", "d", "s"))
    return directory


# --- payloads that are not tagged ---------------------------------------------------------------------------


def test_untagged_payloads_are_refused_with_what_to_do(spark: Any) -> None:
    frame = spark.createDataFrame([(1, b"B")], "place long, data binary")
    for ask in (
        lambda: pgspark.changes(frame, "public.orders"),
        lambda: pgspark.transactions(frame),
        lambda: pgspark.outcomes(frame),
        lambda: pgspark.messages(frame),
        lambda: pgspark.rejects(frame),
        lambda: pgspark.relations(frame),
        lambda: pgspark.read_catalog(frame),
    ):
        with pytest.raises(ValueError, match=r"not tagged: .*there is place, data") as caught:
            ask()
        assert "pgspark.tag(df, order_by=..., payload='data')" in str(caught.value)
    named = frame.withColumnRenamed("data", "payload")
    with pytest.raises(ValueError, match=r"pgspark\.tag\(df, order_by=\.\.\.\), and pass"):
        pgspark.changes(named, "public.orders")


def test_what_is_no_dataframe_is_refused(spark: Any) -> None:
    for ask in (
        lambda: pgspark.changes("segments/", "public.orders"),  # type: ignore[arg-type]
        lambda: pgspark.relations(["segments/"]),  # type: ignore[arg-type]
        lambda: pgspark.tag(7, "place"),  # type: ignore[arg-type]
        lambda: pgspark.write_segments("dump/", "segments/"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=r"a DataFrame of payloads, not .*spark\.read\.parquet"):
            ask()


def test_payloads_that_were_read_as_text_are_refused(spark: Any, tmp_path: Path) -> None:
    wal = spark.read.parquet(str(_segments(tmp_path / "segments")))
    text = wal.withColumn("payload", wal["payload"].cast("string"))
    for ask in (
        lambda: pgspark.changes(text, "public.orders"),
        lambda: pgspark.messages(text),
        lambda: pgspark.read_catalog(text),
        lambda: pgspark.write_tables(text, tmp_path / "lake"),
        lambda: pgspark.write_segments(text, tmp_path / "other"),
    ):
        with pytest.raises(TypeError, match=r"column payload must be binary, not string: .*binaryAsString"):
            ask()
    assert not (tmp_path / "lake").exists()


def test_another_thread_finds_the_session(spark: Any, tmp_path: Path) -> None:
    source = _segments(tmp_path / "segments")
    with ThreadPoolExecutor(1) as pool:
        (row,) = pool.submit(pgspark.write_tables, source, tmp_path / "lake").result()
    assert (row["table"], row["rows"]) == ("public.orders", 1)


# --- positions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "lsns"),
    and_slow(
        [
            ("string", ["0/5", None, "7FFFFFFF/ffffffff", "16/B374D848"]),
        ],
        [
            ("decimal(38,18)", [Decimal(5), None, Decimal((1 << 63) - 1), Decimal(0x16B374D848)]),
            ("decimal(20,0)", [Decimal(5), None, Decimal((1 << 63) - 1), Decimal(0x16B374D848)]),
            ("int", [5, None, (1 << 31) - 1, 7]),
        ],
    ),
)
def test_a_column_of_positions(spark: Any, kind: str, lsns: list[Any]) -> None:
    rows = list(zip(range(4), _wal(), lsns, strict=True))
    frame = spark.createDataFrame(rows, f"place long, payload binary, at {kind}")
    found = pgspark.tag(frame, "place", lsn="at").orderBy("seq").select("lsn").toArrow()
    expected = [None if lsn is None else pgo.parse_lsn(lsn) for lsn in lsns]
    assert found.column("lsn").to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "lsn"),
    and_slow(
        [("string", "80000000/0"), ("decimal(10,1)", Decimal("0.5"))],
        [("string", "0/5\n"), ("string", "5"), ("decimal(10,0)", Decimal(-1))],
    ),
)
def test_a_column_of_what_are_no_positions(spark: Any, kind: str, lsn: Any) -> None:
    frame = spark.createDataFrame([(0, _wal()[0], lsn)], f"place long, payload binary, at {kind}")
    with pytest.raises(PySparkException, match="column at: an LSN is text such as"):
        pgspark.tag(frame, "place", lsn="at").collect()


def test_the_position_of_a_snapshot_is_text_or_digits() -> None:
    from pgoutput_fast.spark.source.snapshot import plan_snapshot

    given = {"mode": "snapshot", "dsn": "host=/nowhere", "table": "public.t", "snapshot": "1-1-1"}
    with pytest.raises(ValueError, match=r"option consistent_lsn: an LSN as text is like"):
        plan_snapshot({**given, "consistent_lsn": "0-5"})
    for lsn in ("5", "0/5"):
        with pytest.raises(Exception, match="nowhere"):
            plan_snapshot({**given, "consistent_lsn": lsn})


# --- columns ------------------------------------------------------------------------------------------------


def test_a_misspelt_column_is_an_error_when_the_query_is_planned(spark: Any, tmp_path: Path) -> None:
    directory = _segments(tmp_path)
    options = pgo.Options(columns={"public.orders": ["id", "nte"]})
    with pytest.raises(ValueError, match=r"public\.orders has no column 'nte' \(did you mean 'note'\?\)"):
        pgspark.changes(spark.read.parquet(str(directory)), "public.orders", options=options)
    source = spark.read.format("pgoutput").option("table", "public.orders").option("columns", "id,nte")
    with pytest.raises(PySparkException, match=r"no column 'nte'; there is .*note"):
        source.load(str(directory)).schema  # noqa: B018


# --- a Python that is not on PATH ---------------------------------------------------------------------------

OWN_SPARK = pytest.mark.classic("it starts a classic Spark")

_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pgoutput_fast import spark as pgspark

spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
)
pgspark.register(spark)
pgspark.register(spark)
orders = spark.read.format("pgoutput").option("table", "public.orders").load(sys.argv[1])
print([tuple(row) for row in orders.select("id", "note").collect()])
"""


def _run(tmp_path: Path, java: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    segments = tmp_path / "segments"
    segments.mkdir()
    return subprocess.run(
        [sys.executable, str(program), str(_segments(segments))],
        # As `env -i` would have it: no PATH, no activated environment.
        env={
            "HOME": os.environ.get("HOME", "/"),
            "JAVA_HOME": java,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


@pytest.mark.slow
@OWN_SPARK
@pytest.mark.timeout(1800)
def test_the_format_is_found_without_a_path(tmp_path: Path, spark: Any) -> None:
    run = _run(tmp_path, os.environ["JAVA_HOME"])
    assert run.stdout.strip().endswith("[(1, 'x')]"), run.stderr


@pytest.mark.exhaustive
@OWN_SPARK
@pytest.mark.timeout(1800)
def test_another_python_is_an_error_that_says_what_to_do(tmp_path: Path, spark: Any) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    run = _run(tmp_path, os.environ["JAVA_HOME"], PYSPARK_PYTHON=str(other))
    assert f"Spark's Python workers would run {other}" in run.stderr
    assert "set PYSPARK_PYTHON to the latter before the session starts" in run.stderr
