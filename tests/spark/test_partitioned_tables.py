"""Tables that are published via the root of their partitions: the partitions are described, and have no changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pgoutput_fast import spark as pgspark
from pgoutput_fast.capture import Capture
from pgoutput_fast.segments import list_segments
from support.current_streams import batch_of
from support.mirrors import Place, place

__all__ = ["place"]


def _capture(place: Place, segments: Path) -> None:
    Capture(place.database.dsn, place.slot, ["mirrored"], str(segments)).run(until_lsn="now")


def _tables(target: Path) -> set[str]:
    return {each.name for each in target.iterdir() if each.name.startswith("public.")}


@pytest.mark.slow
def test_only_tables_with_changes_are_made(spark: Any, place: Place, tmp_path: Path) -> None:
    database, segments = place.database, tmp_path / "segments"
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        *(f"CREATE TABLE o{k} PARTITION OF orders FOR VALUES FROM ({k}0) TO ({k + 1}0)" for k in range(3)),
        "CREATE TABLE later (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES WITH (publish_via_partition_root)",
    )
    stream, current = tmp_path / "stream", tmp_path / "current"
    sinks = [pgspark.table_sink(stream, format="delta"), pgspark.current_sink(current)]
    begin = 0

    def follow() -> None:
        nonlocal begin
        _capture(place, segments)
        end = list_segments(segments)[-1].last_seq
        for sink in sinks:
            sink(batch_of(spark, segments, begin, end), 0)
        begin = end + 1

    _capture(place, segments)
    for statement in ("INSERT INTO orders VALUES (1), (11), (21)", "UPDATE orders SET id = id + 1"):
        database.execute(statement)
        follow()
        assert _tables(stream) == _tables(current / "current") == {"public.orders"}
    described = {each.name for each in list_segments(segments)[-1].catalog.relations}
    assert described == {"orders", "o0", "o1", "o2"}
    database.execute(
        "INSERT INTO later VALUES (1)", "ALTER TABLE orders DETACH PARTITION o2", "INSERT INTO o2 VALUES (23)"
    )
    follow()
    wal = spark.read.parquet(str(segments))
    for source, target in ((segments, tmp_path / "segments written"), (wal, tmp_path / "payloads written")):
        written = {row.table: row.rows for row in pgspark.write_tables(source, target, format="delta")}
        assert written == {"public.orders": 9, "public.later": 1, "public.o2": 1}
        assert _tables(target) == _tables(stream) == written.keys()
        for name, rows in written.items():
            assert DeltaTable(stream / name).to_pyarrow_table().num_rows == rows
    named = pgspark.write_tables(segments, tmp_path / "named", ["public.o0"])
    assert [(row.table, row.rows) for row in named] == [("public.o0", 0)]


def test_a_source_without_changes(spark: Any, place: Place, tmp_path: Path) -> None:
    database, segments = place.database, tmp_path / "segments"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
        f"SELECT pg_create_logical_replication_slot('{place.slot}', 'pgoutput')",
        "INSERT INTO t VALUES (1)",
    )
    _capture(place, segments)
    wal = spark.read.parquet(str(segments)).where("kind <> ascii('I')")
    assert pgspark.write_tables(wal, tmp_path / "lake") == []
