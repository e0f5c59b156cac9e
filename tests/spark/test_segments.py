"""Spark over segments: one relation without the others, committed transactions, schemas that stay, damage that is found."""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, segment_catalog, write_segment
from support.forms import and_exhaustive, and_slow
from support.paths import DOCS
from support.plans import plan_text

# The package has a function of the same name.
pgspark_outcomes = importlib.import_module("pgoutput_fast.spark.dataframes.outcomes")
SOURCE = Source("7300000000000000001", "shop", "slot", ("all",), {"proto_version": "4"})
COLUMNS = (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25), ColumnSpec("at", 1114))
TABLES = [RelationSpec(20000 + k, "public", f"t{k}", COLUMNS) for k in range(10)]
ALTERED = RelationSpec(20000, "public", "t0", (ColumnSpec("id", 20, key=True), ColumnSpec("added", 16)))
COMMITTED = pgo.Options(transactions="committed")


def _stream() -> list[bytes]:
    """Ten tables of a size; one is altered; streams, savepoints, prepared transactions with all outcomes; an open end."""
    writer, noise = Writer(4, streaming="on", two_phase=True), random.Random(7)
    wal: list[bytes] = []
    for n in range(80):
        wal += writer.begin(100 + n, 1000 * n + 1000, n)
        for spec in TABLES:
            for k in range(10):
                cells = [str(n * 10 + k), noise.randbytes(200).hex(), "2024-02-29 12:00:00"]
                if spec is TABLES[0] and n >= 70:
                    wal += writer.change(ALTERED, "insert", new=[cells[0], "t"])
                else:
                    wal += writer.change(spec, "insert", new=cells)
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
    a, b = TABLES[1:3]
    wal += writer.stream_start(900)
    wal += writer.change(a, "insert", new=["-1", "streamed", "infinity"], xid=900)
    wal += writer.change(a, "insert", new=["-2", "rolled back", "infinity"], xid=901)
    wal += writer.stream_stop() + writer.stream_abort(900, 901) + writer.stream_start(900)
    wal += writer.change(a, "insert", new=["-3", "after it", None], xid=901)
    wal += writer.change(b, "insert", new=["-4", "of another", None], xid=900)
    wal += writer.stream_stop() + writer.stream_commit(900, 10**6, 10**6 + 8, 5)
    wal += writer.stream_start(910) + writer.change(a, "delete", key=["-1", None, None], xid=910)
    wal += writer.stream_stop() + writer.stream_abort(910, 910)
    for xid, end in ((920, writer.commit_prepared), (930, writer.rollback_prepared)):
        lsn = xid * 10**4
        wal += writer.begin_prepare(xid, lsn, lsn + 8, xid, f"gid {xid}")
        wal += writer.change(a, "insert", new=[str(-xid), "prepared", None])
        wal += writer.prepare(xid, lsn, lsn + 8, xid, f"gid {xid}")
        if end == writer.commit_prepared:
            wal += writer.commit_prepared(xid, lsn + 16, lsn + 24, xid, f"gid {xid}")
        else:
            wal += writer.rollback_prepared(xid, lsn + 8, lsn + 24, xid, xid, f"gid {xid}")
    wal += writer.message(77, "aside", b"", transactional=False)
    wal += writer.begin(950, 10**8, 6) + writer.truncate([a, TABLES[3]])
    wal += writer.message(78, "inside", b"content") + writer.commit(10**8, 10**8 + 8, 6)
    wal += writer.begin(960, 10**8 + 100, 6) + writer.change(a, "insert", new=["-9", "open", None])
    return wal + writer.message(79, "never ended", b"")


MEASURED = pytest.mark.classic("the JVM tells how many bytes tasks read")


@pytest.fixture(scope="module")
def payloads() -> list[bytes]:
    return _stream()


@pytest.fixture(scope="module")
def stored(payloads: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments, cut in mid-transaction."""
    directory, state = tmp_path_factory.mktemp("segments"), None
    for begin in range(0, len(payloads), 4000):
        tagged, state = pgo.tag(payloads[begin : begin + 4000], state)
        write_segment(directory, tagged, state, source=SOURCE, relation_bytes=10_000)
    return directory


@pytest.fixture(scope="module")
def wal(stored: Path, spark: Any) -> Any:
    return spark.read.parquet(str(stored))


def _rows(frame: Any, *order: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.orderBy(*order).toArrow().to_pylist()
    return rows


def _bytes_read(spark: Any, action: Callable[[], Any]) -> int:
    """What Spark's tasks read from files while `action` runs."""
    context, group = spark.sparkContext, str(uuid.uuid4())
    # Ranges that the reader fetches in other threads are not counted.
    spark.conf.set("parquet.hadoop.vectored.io.enabled", "false")
    context.setJobGroup(group, "measured")
    try:
        action()
    finally:
        context._jsc.clearJobGroup()
        spark.conf.unset("parquet.hadoop.vectored.io.enabled")
    # The listener that counts runs behind.
    context._jsc.sc().listenerBus().waitUntilEmpty(240_000)
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    return sum(store.lastStageAttempt(stage).inputBytes() for job in jobs for stage in job.stageIds)


def _run(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


@pytest.mark.parametrize(
    ("transactions", "table"),
    and_exhaustive(
        and_slow([("as_sent", "public.t0"), ("committed", "public.t3")], [("committed", "public.t7")]),
        [
            *(("as_sent", f"public.t{n}") for n in (1, 3, 7)),
            *(("committed", f"public.t{n}") for n in (0, 1)),
        ],
    ),
)
def test_changes_equal_those_of_one_process(
    wal: Any, payloads: list[bytes], table: str, transactions: Any
) -> None:
    order = ["_commit_lsn", "_seq"] if transactions == "committed" else ["_seq"]
    got = _rows(pgspark.changes(wal, table, transactions=transactions), *order)
    expected = pgo.decode(payloads, options=pgo.Options(transactions=transactions)).table(table)
    assert got == expected.to_pylist()
    if table == "public.t1":
        left = [row["id"] for row in got if row["id"] and row["id"] < 0]
        assert left == ([-1, -3, -920] if transactions == "committed" else [-1, -2, -3, -1, -920, -930, -9])


@pytest.mark.slow
def test_outcomes_can_be_of_another_part(spark: Any, payloads: list[bytes]) -> None:
    """Changes of one half, whose commit is in the other."""
    at = next(k for k, payload in enumerate(payloads) if payload[:1] == b"c")
    first, state = pgo.tag(payloads[:at])
    rest, _ = pgo.tag(payloads[at:], state)
    half, other = (spark.createDataFrame(pa.Table.from_batches([each])) for each in (first, rest))
    one = pgspark.changes(half, "public.t2", transactions="committed")
    both = pgspark.changes(
        half, "public.t2", options=COMMITTED, outcomes=pgspark.outcomes(other).union(pgspark.outcomes(half))
    )
    assert one.where("id < 0").count() == 0
    assert [row["_commit_lsn"] for row in both.where("id < 0").collect()] == [10**6]


@pytest.mark.slow
def test_more_outcomes_than_are_sent_to_each_task(
    wal: Any, payloads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are shuffled with the payloads, to the task that has those of their transaction."""
    monkeypatch.setattr(pgspark_outcomes, "_MOST_SENT", 1)
    frame = pgspark.changes(wal, "public.t1", transactions="committed")
    decoded = pgo.decode(payloads, options=COMMITTED)
    assert _rows(frame, "_commit_lsn", "_seq") == decoded.table("public.t1").to_pylist()
    assert "hashpartitioning(coalesce(txn" in plan_text(frame, extended=True)
    assert _rows(pgspark.messages(wal, options=COMMITTED), "seq") == decoded.messages.to_pylist()
    assert _rows(pgspark.rejects(wal, options=COMMITTED), "seq") == decoded.rejects.to_pylist()


def test_tables_beside_the_changes(wal: Any, payloads: list[bytes]) -> None:
    decoded = pgo.decode(payloads)
    assert _rows(pgspark.outcomes(wal), "at_seq") == decoded.outcomes.to_pylist()
    assert _rows(pgspark.messages(wal), "seq") == decoded.messages.to_pylist()
    assert _rows(pgspark.rejects(wal), "seq") == decoded.rejects.to_pylist()
    assert [row["column"] for row in _rows(pgspark.rejects(wal, "public.t1"), "seq")] == ["at", "at"]
    assert pgspark.rejects(wal, "public.t2").count() == 0
    assert [row["prefix"] for row in decoded.messages.to_pylist()] == ["aside", "inside", "never ended"]


@pytest.mark.slow
def test_tables_beside_the_changes_of_committed_transactions(wal: Any, payloads: list[bytes]) -> None:
    decoded = pgo.decode(payloads, options=COMMITTED)
    assert _rows(pgspark.messages(wal, options=COMMITTED), "seq") == decoded.messages.to_pylist()
    assert _rows(pgspark.rejects(wal, options=COMMITTED), "seq") == decoded.rejects.to_pylist()
    assert (decoded.messages.num_rows, decoded.rejects.num_rows) == (2, 1)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment of 10 MB: readers fetch 64 kB at a time at least, whatever they need."""
    writer, noise = Writer(4), random.Random(7)
    wal: list[bytes] = []
    for n in range(20):
        wal += writer.begin(100 + n, 1000 * n + 1000, n)
        for spec in TABLES * 10:
            wal += writer.change(spec, "insert", new=[str(n), noise.randbytes(5000).hex(), None])
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
    directory = tmp_path_factory.mktemp("wide")
    write_segment(directory, *pgo.tag(wal), source=SOURCE, relation_bytes=10_000)
    return directory


@pytest.mark.slow
@MEASURED
def test_one_table_of_ten_is_a_tenth_of_the_bytes(wide: Path, spark: Any) -> None:
    wal, catalog = spark.read.parquet(str(wide)), segment_catalog(wide)
    size = sum(path.stat().st_size for path in wide.glob("*.parquet"))
    everything = _bytes_read(spark, lambda: _run(wal))
    assert everything > 0.98 * size
    for transactions in ("as_sent", "committed"):
        frame = pgspark.changes(wal, "public.t4", catalog=catalog, transactions=transactions)  # type: ignore[arg-type]
        read = _bytes_read(spark, lambda frame=frame: _run(frame)) / everything
        assert 0.1 < read < (0.14 if transactions == "as_sent" else 0.2)
    # Where there are no changes, little is read.
    assert _bytes_read(spark, lambda: pgspark.read_catalog(wal)) < 0.03 * everything
    assert _bytes_read(spark, lambda: _run(pgspark.outcomes(wal))) < 0.03 * everything


@pytest.mark.slow
@MEASURED
def test_sorting_within_files_is_enough_for_other_tagged_payloads(
    wide: Path, spark: Any, tmp_path: Path
) -> None:
    wal, path = spark.read.parquet(str(wide)).orderBy("payload"), str(tmp_path / "sorted")
    wal.coalesce(1).sortWithinPartitions("relation", "version", "seq").write.option(
        "parquet.block.size", 1 << 20
    ).parquet(path)
    again = spark.read.parquet(path)
    everything = _bytes_read(spark, lambda: _run(again))
    frame = pgspark.changes(again, "public.t4", catalog=segment_catalog(wide))
    assert _bytes_read(spark, lambda: _run(frame)) < 0.25 * everything
    assert frame.count() == 200


@pytest.mark.slow
def test_a_newer_version_fails_latest_and_widens_union(wal: Any, spark: Any, stored: Path) -> None:
    known = segment_catalog(stored)
    before = pgo.Catalog(relation for relation in known.relations if "added" not in str(relation))
    planned = pgspark.changes(wal, "public.t0", schema_mode="latest", catalog=before)
    assert planned.schema["id"].dataType.simpleString() == "int"
    assert planned.schema["_change_type"].metadata["pg.catalog"] == before.fingerprint()
    with pytest.raises(
        PySparkException,
        match=rf"relation public\.t0.*catalog {before.fingerprint()}\): plan the query again",
    ):
        _run(planned)
    union = pgspark.changes(wal, "public.t0", schema_mode="union", catalog=before)
    assert union.schema["id"].dataType.simpleString() == "bigint"
    assert union.columns[-4:] == ["id", "added", "note", "at"]
    assert union.schema["id"].metadata["pg.type"] == "int8"
    assert union.schema["_change_type"].metadata["pg.catalog"] == known.fingerprint()
    assert union.count() == 800
    schema = pa.schema([("note", pa.string()), ("id", pa.int64())])
    options = pgo.Options(schemas={"public.t0": schema}, extra_columns="drop")
    pinned = pgspark.changes(wal, "public.t0", catalog=before, options=options)
    assert pinned.columns[-2:] == ["note", "id"]
    assert (pinned.count(), pinned.where("note is null").count()) == (800, 100)
    narrow = pgo.Catalog(before.relations).named("public.t0")[0]
    with pytest.raises(ValueError, match="values that do not fit"):
        pgspark.changes(wal, "public.t0", schema=narrow, options=options)


@pytest.mark.slow
def test_a_pinned_column_without_nulls(wal: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    options = pgo.Options(extra_columns="drop")
    assert pgspark.changes(wal, "public.t2", schema=schema, options=options).count() == 801
    with pytest.raises(PySparkException, match="column 'id' has nulls"):
        _run(pgspark.changes(wal, "public.t3", schema=schema, options=options))  # which was truncated


@pytest.mark.slow
def test_versions_of_another_name_are_not_this_table(spark: Any) -> None:
    old, new = (RelationSpec(1, "public", name, (ColumnSpec("id", 23),)) for name in ("old", "new"))
    writer = Writer()
    wal = writer.begin(1, 1, 1) + writer.change(old, "insert", new=["1"])
    wal += writer.change(new, "insert", new=["2"]) + writer.commit(1, 2, 1)
    frame = spark.createDataFrame(pa.Table.from_batches([pgo.tag(wal)[0]]))
    assert [row["id"] for row in pgspark.changes(frame, "public.old").collect()] == [1]
    assert [row["id"] for row in pgspark.changes(frame, "public.new").collect()] == [2]
    assert pgspark.changes(frame, 1).count() == 2


def test_arguments(wal: Any) -> None:
    schema = pa.schema([("id", pa.int64())])
    for arguments in (
        {"schema_mode": "newest"},
        {"schema_mode": "pinned"},
        {"schema_mode": "union", "schema": schema},
        {"transactions": "all"},
    ):
        with pytest.raises(ValueError, match=r"schema_mode|transactions"):
            pgspark.changes(wal, "public.t0", **arguments)  # type: ignore[arg-type]


@pytest.mark.slow
def test_one_bad_message_in_one_of_many_tasks(spark: Any, payloads: list[bytes]) -> None:
    tagged, state = pgo.tag(payloads[:1000])
    rows = tagged.to_pylist()
    at = next(k for k, row in enumerate(rows) if k > 500 and row["relation"] == 20004)
    rows[at]["payload"] = rows[at]["payload"][:-3]
    damaged = pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA)
    frame = spark.createDataFrame(damaged).repartition(20)
    with pytest.raises(PySparkException) as caught:
        _run(pgspark.changes(frame, "public.t4"))
    text = str(caught.value)
    assert f"DecodeError: message {at}, relation public.t4, column 'at'" in text
    assert len(text.splitlines()) < 12
    quarantine = pgo.Options(on_error="quarantine")
    assert pgspark.changes(frame, "public.t4", options=quarantine).count() == (
        sum(row["relation"] == 20004 for row in rows) - 2  # one is bad, and one the Relation message
    )
    [reject] = pgspark.rejects(frame).collect()
    assert (reject["seq"], reject["relation"], bytes(reject["raw"])) == (at, "public.t4", rows[at]["payload"])
    assert "ends too early" in reject["reason"]
    # What its tags do not fit is found by the tags alone: the table is named all the same.
    rows[at]["payload"] = b"D" + rows[at]["payload"][1:]
    wrong = spark.createDataFrame(pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA))
    with pytest.raises(
        PySparkException, match=rf"message {at}, relation public\.t4, byte 0: .*than its tags say"
    ):
        _run(pgspark.changes(wrong, "public.t4", catalog=state.catalog))


def test_a_bad_description(spark: Any, payloads: list[bytes]) -> None:
    rows = pgo.tag(payloads[:200])[0].to_pylist()
    at = next(k for k, row in enumerate(rows) if row["kind"] == ord("R") and row["relation"] == 20002)
    rows[at]["payload"] = rows[at]["payload"][:-3]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA))
    with pytest.raises(pgo.DecodeError, match=rf"message {at}: the message ends too early"):
        pgspark.changes(frame, "public.t4")
    quarantine = pgo.Options(on_error="quarantine")
    assert pgspark.changes(frame, "public.t4", options=quarantine).count() > 0
    # What it described is found where everything is that cannot be decoded.
    lost = {row["seq"] for row in rows if row["kind"] == ord("I") and row["relation"] == 20002}
    assert {row["seq"] for row in pgspark.rejects(frame).collect()} == lost


@pytest.mark.slow
def test_the_page_does_what_it_says(spark: Any, tmp_path: Path) -> None:
    """Each Python block of docs/spark.md as far as the data source, in turn; `show()` prints what stands below it."""
    page = (DOCS / "spark.md").read_text()
    page = page[: page.index("## The data source")]
    orders = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    writer = Writer(4, streaming="on")
    wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1", "first"])
    wal += writer.commit(100, 108, 0) + writer.stream_start(8)
    wal += writer.message(1, "p", b"") + writer.change(orders, "insert", new=["2", "streamed"], xid=8)
    wal += writer.change(orders, "insert", new=["3", "rolled back"], xid=9) + writer.stream_stop()
    wal += writer.stream_abort(8, 9) + writer.stream_commit(8, 500, 508, 0)
    write_segment(tmp_path, *pgo.tag(wal), source=SOURCE)
    names: dict[str, Any] = {"spark": spark, "pgo": pgo, "directory": str(tmp_path)}
    names |= {
        name: str(tmp_path / name)
        for name in (
            "elsewhere",
            "lake",
            "shared",
            "quick",
            "daily",
            "partitioned",
            "other",
            "iceberg_lake",
            "checkpoint",
        )
    }
    pgspark.register(spark)
    printed = re.findall(r"```\n(\+-.*?\n)```", page, re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(block, "spark.md", "exec"), names)
    assert [row["id"] for row in names["late"].collect()] == [2]
    names["outcomes"].unpersist()
    names["query"].awaitTermination()
    assert names["iceberg_rows"].num_rows == 2
    assert [(row.table, row.rows) for row in names["written"]] == [("public.orders", 0)]
    shown = [text + "\n" for text in out.getvalue().split("\n\n") if text]
    assert shown[:-1] == printed
    assert "seq|column|reason|raw" in shown[-1]
    assert {name: frame.count() for name, frame in names["tables"].items()} == {"public.orders": 3}
    assert names["orders"].schema["id"].metadata["pg.type"] == "int4"
