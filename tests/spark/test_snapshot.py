"""Snapshots on Spark: tasks read ranges of pages of one moment, in the columns that changes have."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.capture import Snapshot, create_slot, find_slot
from pgoutput_fast.demo.servers import Server
from support import pg
from support.capturing import drop_when_free, wait_until
from support.code_blocks import blocks_of
from support.paths import DOCS
from support.plans import count_partitions

pytest.importorskip("pyspark")


TEMPORARY = (
    "SELECT slot_name, active_pid FROM pg_replication_slots WHERE temporary AND database = current_database()"
)


@pytest.fixture(scope="module")
def newest(servers: pg.Servers) -> Iterator[pg.Database]:
    """A database on the newest server: what differs between servers is tested without Spark."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    server: Server = servers[max(servers)]
    database = pg.Database(server)
    database.execute(
        "CREATE SCHEMA s",
        "CREATE TYPE s.pair AS (a int, i interval)",
        "CREATE TABLE s.t (id int PRIMARY KEY, v text, i interval, at time, u uuid, ts timestamptz, p s.pair, n numeric(9,2),"
        " r int4range, tags text[])",
        "INSERT INTO s.t SELECT g, repeat('x', 400), interval '1 day 02:00', time '12:30', md5(g::text)::uuid, timestamptz '2024-01-01 00:00+00',"
        " ROW(g, interval '1 mon')::s.pair, g / 4.0, int4range(g, g + 2), '{a,NULL}'::text[] FROM generate_series(1, 2000) g",
        'CREATE TABLE s."Empty table" (id int PRIMARY KEY)',
        "CREATE TABLE s.odd (id int PRIMARY KEY, d date)",
        "INSERT INTO s.odd VALUES (1, 'infinity')",
        "CREATE PUBLICATION p FOR TABLE s.t (id, v, n) WHERE (id % 2 = 0), s.\"Empty table\"",
    )  # fmt: skip
    yield database
    # Those who hold snapshots for the Spark session live as long as it does.
    while database.execute(TEMPORARY):
        database.execute(f"SELECT pg_terminate_backend(active_pid) FROM ({TEMPORARY}) AS t")
        time.sleep(0.1)
    database.drop()


@pytest.fixture
def slot(newest: pg.Database) -> Iterator[str]:
    name = f"{newest.name}_s"
    yield name
    drop_when_free(newest.dsn, name)


PLANNED_ONCE = pytest.mark.classic(
    "each use of a DataFrame is planned anew, and so takes a snapshot of its own"
)


def load(spark: Any, database: pg.Database, table: str = "s.t", **options: Any) -> Any:
    reader = (
        spark.read.format("pgoutput")
        .option("mode", "snapshot")
        .option("dsn", database.dsn)
        .option("table", table)
    )
    return reader.options(**options).load()


@PLANNED_ONCE
def test_one_moment_in_many_tasks(spark: Any, newest: pg.Database) -> None:
    frame = load(spark, newest, partition_bytes=1 << 19)
    newest.execute("INSERT INTO s.t (id) VALUES (-1)", "UPDATE s.t SET v = 'y' WHERE id = 1")
    try:
        assert count_partitions(frame) in (2, 3)
        assert frame.count() == 2000
        rows = frame.orderBy("id").limit(2).collect()
    finally:
        newest.execute("DELETE FROM s.t WHERE id = -1", "UPDATE s.t SET v = repeat('x', 400) WHERE id = 1")
    row = rows[0].asDict(recursive=True)
    assert (row["_change_type"], row["_seq"], row["_key_only"], row["_txn"]) == ("insert", -1, False, None)
    assert (row["id"], row["v"], row["i"], row["at"]) == (1, "x" * 400, "P1DT2H", "12:30:00.000000")
    assert (row["p"], str(row["n"]), row["tags"]) == ({"a": 1, "i": "P1M"}, "0.25", ["a", None])
    assert row["r"] == {"lower": 1, "upper": 3, "lower_inc": True, "upper_inc": False, "empty": False}
    assert dict(frame.dtypes)["ts"] == "timestamp"


@pytest.mark.slow
def test_what_a_publication_publishes_and_chosen_columns(spark: Any, newest: pg.Database) -> None:
    frame = load(spark, newest, publication="p")
    assert frame.columns[11:] == ["id", "v", "n"]
    assert frame.count() == 1000
    few = load(spark, newest, columns="n,_commit_lsn,id")
    assert few.columns == ["n", "_commit_lsn", "id"]
    assert {row["_commit_lsn"] > 0 for row in few.collect()} == {True}
    assert load(spark, newest, 's."Empty table"', publication="p").collect() == []
    (odd,) = load(spark, newest, "s.odd").collect()
    assert (odd["d"], odd["_unrepresentable"]) == (None, ["d"])


def test_tables_share_the_snapshot_of_a_slot(spark: Any, newest: pg.Database, slot: str) -> None:
    first = load(spark, newest, slot=slot)
    assert "id" in first.columns  # Spark Connect plans nothing before something is asked for
    made = find_slot(newest.dsn, slot)
    assert made is not None
    assert not made.temporary
    newest.execute("INSERT INTO s.odd VALUES (2, NULL)")
    try:
        second = load(spark, newest, "s.odd", slot=slot)
        lsns = {
            row["_commit_lsn"]
            for frame in (first, second)
            for row in frame.select("_commit_lsn").distinct().collect()
        }
        assert lsns == {made.confirmed_flush_lsn}
        assert second.count() == 1
    finally:
        newest.execute("DELETE FROM s.odd WHERE id = 2")


def test_the_page_reads_a_table(spark: Any, newest: pg.Database, slot: str) -> None:
    """docs/capture.md, with a table of this database."""
    (code,) = [
        each.text
        for each in blocks_of(DOCS / "capture.md")
        if (each.heading, each.language) == ("On Spark", "python")
    ]
    for said, here in (("public.orders", "s.t"), ('"shop"', '"p"'), ("to_lake", slot)):
        assert said in code
        code = code.replace(said, here)
    names: dict[str, Any] = {"spark": spark, "dsn": newest.dsn}
    exec(compile(code, "capture.md", "exec"), names)
    assert names["orders"].count() == 1000


def test_a_snapshot_that_somebody_holds(spark: Any, newest: pg.Database) -> None:
    before = set(newest.execute(TEMPORARY))
    with Snapshot(newest.dsn, ["p"]) as snapshot:
        frame = (
            spark.read.format("pgoutput").options(**snapshot.spark_options()).option("table", "s.t").load()
        )
        batches = [batch for name, batch in snapshot.read() if name == "s.t"]
        expected = pa.Table.from_batches(batches).sort_by("id")
        assert (
            frame.orderBy("id")
            .toArrow()
            .select(["id", "v", "n", "_commit_lsn"])
            .equals(
                expected.select(["id", "v", "n", "_commit_lsn"]).cast(
                    frame.toArrow().select(["id", "v", "n", "_commit_lsn"]).schema
                )
            )
        )
    wait_until(lambda: not set(newest.execute(TEMPORARY)) - before)  # the server has noticed its end
    with pytest.raises(Exception, match=r"is gone.*the process that exported it must keep it open"):
        frame.collect()


def test_a_range_of_which_no_more_is_wanted(newest: pg.Database) -> None:
    """Such as by a LIMIT, while the server looks in vain for rows that pass a filter."""
    from pgoutput_fast.spark.source.snapshot import RangeOfTable, SnapshotSourceReader, plan_snapshot

    if newest.version < 15:
        pytest.skip("publications have row filters since 15")
    newest.execute(
        "CREATE TABLE s.slow (id int PRIMARY KEY, v text)",
        "INSERT INTO s.slow SELECT g, repeat('x', 1000) FROM generate_series(1, 7000) g",
        # Five minutes and more, if it is read to its end.
        "CREATE PUBLICATION slow FOR TABLE s.slow WHERE (id <= 5000 OR md5(repeat(left(v, 1), 50000000)) = '')",
    )
    scan = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%slow%' AND state = 'active'"
    try:
        plan = plan_snapshot(
            {
                "mode": "snapshot",
                "dsn": newest.dsn,
                "table": "s.slow",
                "publication": "slow",
                "snapshot_seconds": "600",
            }
        )
        plan = replace(plan, options=replace(plan.options, batch_rows=100))
        (each,) = plan.ranges
        batches = SnapshotSourceReader(plan, plan.spark_schema).read(RangeOfTable(each))
        assert next(batches).num_rows == 100
        assert newest.execute(scan) == [(1,)]
        began = time.monotonic()
        batches.close()  # type: ignore[attr-defined]
        # To its end it takes five minutes where there is nothing else to do.
        assert time.monotonic() - began < 240
        while newest.execute(scan) != [(0,)]:
            assert time.monotonic() - began < 240
            time.sleep(0.1)
    finally:
        newest.execute("DROP PUBLICATION slow", "DROP TABLE s.slow")


@pytest.mark.slow
@PLANNED_ONCE
def test_a_snapshot_whose_time_is_over(spark: Any, newest: pg.Database) -> None:
    before = set(newest.execute(TEMPORARY))

    def collect_late() -> None:
        frame = load(spark, newest, snapshot_seconds=5)
        wait_until(lambda: not set(newest.execute(TEMPORARY)) - before)
        frame.collect()

    # On a busy machine it may be over while the frame is made, and even before the snapshot is there.
    with pytest.raises(
        Exception, match=r"load it again, with a larger snapshot_seconds|Try again with more time"
    ):
        collect_late()


def test_the_holder_ends_with_what_it_is_for(newest: pg.Database) -> None:
    from pgoutput_fast.snapshot.holder import hold_snapshot, is_alive

    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    held = hold_snapshot(newest.dsn, None, 3600, child)
    assert is_alive(held.pid)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 120
    while find_slot(newest.dsn, held.slot) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while is_alive(held.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_virtual_machine_is_found(tmp_path: Path) -> None:
    """Whatever is between: here a shell that is called so, a shell, and Python."""
    (tmp_path / "java").symlink_to("/bin/sh")
    code = "import os; from pgoutput_fast.snapshot.holder import java_above; print(java_above())"
    inner = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}; true"
    outer = f"echo $$; /bin/sh -c {shlex.quote(inner)}; true"
    said = subprocess.run([tmp_path / "java", "-c", outer], capture_output=True, text=True, check=True).stdout
    own, found = said.split()
    assert own == found
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "None"
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"mode": "stream"}, "option mode must be 'snapshot'"),
        ({"path": "x"}, "has no option 'path'"),
        ({"table": "s.t,s.odd"}, "reads one table"),
        ({"table": "t"}, "qualified name"),
        ({"table": "s.none"}, "there is no table s.none here"),
        ({"table": "s.odd", "publication": "p"}, "there is no table s.odd published by p"),
        ({"publication": "none"}, "there is no publication none"),
        ({"snapshot": "x"}, "need each other"),
        ({"columns": "nope"}, "must name columns that exist"),
        ({"partition_bytes": "many"}, "partition_bytes must be a number"),
        ({"numeric": "int"}, "numeric must be"),
        ({"snapshot": "00000003-00000001-1", "consistent_lsn": "1"}, "is gone"),
    ],
)
def test_options_that_are_wrong(newest: pg.Database, options: dict[str, str], what: str) -> None:
    from pgoutput_fast.spark.source.snapshot import plan_snapshot

    given = {"mode": "snapshot", "dsn": newest.dsn, "table": "s.t", "snapshot_seconds": "600"} | options
    if "snapshot" in options:
        del given["snapshot_seconds"]
    with pytest.raises(Exception, match=what):
        plan_snapshot(given)


@pytest.mark.parametrize(
    "wrong",
    [{"table": "s.other"}, {"publication": "other"}, {"columns": "other"}],
    ids=lambda given: next(iter(given)),
)
def test_a_wrong_name_leaves_no_slot(newest: pg.Database, slot: str, wrong: dict[str, str]) -> None:
    from pgoutput_fast.spark.source.snapshot import plan_snapshot

    with pytest.raises((KeyError, ValueError)):
        plan_snapshot({"mode": "snapshot", "dsn": newest.dsn, "table": "s.t", "slot": slot, **wrong})
    assert find_slot(newest.dsn, slot) is None


def test_a_slot_that_exists_has_no_snapshot(newest: pg.Database, slot: str) -> None:
    from pgoutput_fast.spark.source.snapshot import plan_snapshot

    create_slot(newest.dsn, slot)
    with pytest.raises(Exception, match="its consistent point has passed"):
        plan_snapshot({"mode": "snapshot", "dsn": newest.dsn, "table": "s.t", "slot": slot})
