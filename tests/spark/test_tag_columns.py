"""Which column has the payloads, and which DataFrames have no order, on a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from support.forms import and_slow

ORDERS = encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23, key=True),))


def stream(transactions: int) -> list[bytes]:
    writer, payloads = encode.Writer(), []
    for n in range(transactions):
        payloads += writer.begin(n + 1, 100 * n + 100, 0)
        payloads += writer.change(ORDERS, "insert", new=[str(n)])
        payloads += writer.commit(100 * n + 100, 100 * n + 108, 0)
    return payloads


def rows(spark: Any, name: str = "value") -> Any:
    payloads = stream(5)
    return spark.createDataFrame(
        pa.table({"place": pa.array(range(len(payloads))), name: pa.array(payloads, pa.binary())})
    )


def kafka(spark: Any, partitions: int = 1, topics: int = 1) -> Any:
    """What Spark gives for Kafka topics, without a Kafka; the producer put a number beside each message."""
    count = f"({partitions} * {topics})"
    return rows(spark).selectExpr(
        "cast(null as binary) key",
        "value",
        f"concat('wal', place % {topics}) topic",
        f"cast(place div {topics} % {partitions} as int) partition",
        f"place div {count} offset",
        "timestamp_micros(place) timestamp",
        "0 timestampType",
        "place number",
    )


def expected() -> list[dict[str, Any]]:
    return pgo.tag(stream(5))[0].to_pylist()


def seqs_in_order(df: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = df.orderBy("seq").toArrow().to_pylist()
    return rows


@pytest.mark.parametrize("name", and_slow(["value"], ["payload"]))
def test_the_column_of_payloads_is_found(spark: Any, name: str) -> None:
    """Beside a column of another type that has the other name."""
    other = "value" if name == "payload" else "payload"
    df = rows(spark, name).selectExpr("*", f"string(place) {other}", "binary(string(place)) more")
    assert seqs_in_order(pgspark.tag(df, "place")) == expected()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ["place", "value data"],
            "no binary column named payload or value: .*payload='data'.* place bigint, data binary$",
        ),
        (
            ["place", "value", "value payload"],
            "several binary columns named .*: place bigint, value binary, payload binary$",
        ),
        (
            ["place", "hex(value) value"],
            r"no binary column .*payload=; of text such as .*unhex.*: place bigint, value string$",
        ),
        (["place"], "no binary column .* payload=. The columns are: place bigint$"),
    ],
)
def test_no_column_or_several_is_an_error_with_all_columns(
    spark: Any, columns: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pgspark.tag(rows(spark).selectExpr(*columns), "place")


def test_one_partition_of_kafka_is_ordered_by_its_offsets(spark: Any) -> None:
    assert seqs_in_order(pgspark.tag(kafka(spark), "offset")) == expected()
    one = kafka(spark, partitions=2).where("partition = 1")
    with pytest.raises(pgo.DecodeError):  # not refused, but half a stream
        pgspark.tag(one, "offset")


@pytest.mark.parametrize("order", ["offset", ["partition", "offset"], ["timestamp", "partition", "offset"]])
@pytest.mark.parametrize(
    ("partitions", "topics", "what"), [(2, 1, "partitions of a topic"), (1, 2, "topics")]
)
def test_several_partitions_are_refused(
    spark: Any, order: Any, partitions: int, topics: int, what: str
) -> None:
    with pytest.raises(ValueError, match=f"from several {what}, .* Kafka keeps none between partitions"):
        pgspark.tag(kafka(spark, partitions, topics), order)


def test_several_partitions_with_one_order_over_all(spark: Any) -> None:
    assert seqs_in_order(pgspark.tag(kafka(spark, 2, 2), "number")) == expected()


def test_a_column_of_that_name_is_not_kafka(spark: Any) -> None:
    df = rows(spark).selectExpr("place div 4 partition", "place % 4 offset", "value")
    assert seqs_in_order(pgspark.tag(df, ["partition", "offset"])) == expected()


def test_bytes_that_spark_reads_as_text(spark: Any, tmp_path: Path) -> None:
    pq.write_table(rows(spark).toArrow(), tmp_path / "dump.parquet")
    name = "spark.sql.parquet.binaryAsString"
    spark.conf.set(name, "true")
    try:
        for more in ({}, {"payload": "value"}):
            with pytest.raises((ValueError, TypeError), match=rf"{name} makes text of the bytes"):
                pgspark.tag(tmp_path, "place", spark=spark, **more)  # type: ignore[arg-type]
    finally:
        spark.conf.unset(name)
    assert seqs_in_order(pgspark.tag(tmp_path, "place", spark=spark)) == expected()
