"""Spark Connect gives what a classic session gives: the same calls on both, against a server that is another process.

`make test-connect` runs the other Spark tests on Spark Connect.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.mirror import at
from pgoutput_fast.segments import Source, list_segments, read_segment, write_segment
from pgoutput_fast.spark import sessions
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions
from support.forms import and_exhaustive
from support.fresh import make_target
from support.plans import is_sorted
from support.sessions import connect_mode, connect_session

pytestmark = [
    pytest.mark.classic("these tests compare both kinds of sessions"),
    pytest.mark.slow,  # a server of Spark Connect has a JVM of its own
]

SOURCE = Source("1", "shop", "slot")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
WIDER = RelationSpec(16401, "public", "orders", (*ORDERS.columns, ColumnSpec("at", 1184)))
DAYS = RelationSpec(16402, "public", "days", (ColumnSpec("day", 1082), ColumnSpec("price", 1700)))


def _stream() -> list[bytes]:
    """Two tables, one of them altered; a savepoint rolled back, a prepared transaction, a message, an open end."""
    writer = Writer(4, streaming="on", two_phase=True)
    wal: list[bytes] = []
    for n in range(12):
        wal += writer.begin(100 + n, 1000 * (n + 1), n)
        for k in range(5):
            if n < 8:
                wal += writer.change(ORDERS, "insert", new=[str(5 * n + k), f"note {n}"])
            else:
                wal += writer.change(WIDER, "insert", new=[str(5 * n + k), None, "2024-02-29 12:00:00+00"])
        wal += writer.change(DAYS, "insert", new=["2024-02-29" if n else "infinity", "1.50"])
        wal += writer.commit(1000 * (n + 1), 1000 * (n + 1) + 8, n)
    wal += writer.stream_start(900) + writer.change(WIDER, "insert", new=["-1", "streamed", None], xid=900)
    wal += writer.change(WIDER, "insert", new=["-2", "rolled back", None], xid=901) + writer.stream_stop()
    wal += writer.stream_abort(900, 901) + writer.stream_commit(900, 20_000, 20_008, 20)
    wal += writer.begin_prepare(910, 21_000, 21_008, 21, "gid") + writer.change(
        ORDERS, "delete", key=["1", None]
    )
    wal += writer.prepare(910, 21_000, 21_008, 21, "gid")
    wal += writer.commit_prepared(910, 22_000, 22_008, 22, "gid")
    wal += writer.message(23_000, "aside", b"content", transactional=False)
    return wal + writer.begin(920, 24_000, 24) + writer.change(ORDERS, "insert", new=["-9", "open"])


PAYLOADS = _stream()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments, and untagged payloads in files: in order, and not."""
    root: Path = tmp_path_factory.mktemp("places")
    (root / "segments").mkdir()
    state, size = None, len(PAYLOADS) // 3 + 1
    for begin in range(0, len(PAYLOADS), size):
        tagged, state = pgo.tag(PAYLOADS[begin : begin + size], state)
        write_segment(root / "segments", tagged, state, source=SOURCE, relation_bytes=1000)
    make_target(root / "mirror")
    shuffled = list(range(len(PAYLOADS)))
    random.Random(1).shuffle(shuffled)
    for name, order in (("ordered", list(range(len(PAYLOADS)))), ("shuffled", shuffled)):
        (root / name).mkdir()
        for number, begin in enumerate(range(0, len(order), size)):
            _dump(root / name / f"{number}.parquet", order[begin : begin + size], number)
    return root


def _dump(path: Path, order: list[int], number: int) -> None:
    places, payloads = pa.array(order, pa.int64()), pa.array([PAYLOADS[k] for k in order], pa.binary())
    pq.write_table(pa.table({"place": places, "payload": payloads}), path)
    os.utime(path, (1_700_000_000 + number,) * 2)  # a stream of files takes them in this order


@pytest.fixture(scope="module")
def connected(connect_address: str) -> Iterator[Any]:
    with connect_session(connect_address) as session:
        yield session


def _rows(frame: Any) -> list[str]:
    return sorted(map(str, frame.toArrow().to_pylist()))


def _wal(spark: Any, places: Path) -> Any:
    return spark.read.parquet(str(places / "segments"))


def _tables(target: Path) -> list[str]:
    """The rows of all tables of a target."""
    assert target.is_dir()
    return sorted(
        str((path.parent.name, row))
        for path in target.rglob("part-*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    )


def _segments(directory: Path) -> list[str]:
    return sorted(
        str(row) for each in list_segments(directory) for row in read_segment(each.path).to_pylist()
    )


def _query(frame: Any, each: Callable[[Any, int], None], place: Path) -> None:
    """Runs a streaming query over what is there."""
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(600)
    finally:
        query.stop()


def _changes(transactions: Any) -> Callable[..., list[str]]:
    return lambda spark, places, _: _rows(
        pgspark.changes(_wal(spark, places), "public.orders", transactions=transactions)
    )


def _tag(spark: Any, places: Path, _: Path) -> list[str]:
    return _rows(pgspark.tag(spark.read.parquet(str(places / "shuffled")), "place"))


def _tag_in_two(spark: Any, places: Path, _: Path) -> list[str]:
    dump = spark.read.parquet(str(places / "shuffled"))
    first = pgspark.tag(dump.where("place < 60"), "place")
    state = pgspark.state_after(first).to_json()
    second = pgspark.tag(dump.where("place >= 60"), "place", state=state, partitions=2)
    return [*_rows(first), *_rows(second), pgspark.state_after(second).to_json()]


def _udfs(spark: Any, places: Path, _: Path) -> list[str]:
    (orders, *_more) = pgo.tag(PAYLOADS)[1].catalog.named("public.orders")
    raw = spark.read.parquet(str(places / "ordered"))
    forms = (True, False) if hasattr(functions, "arrow_udf") else (False,)
    found = []
    for arrow in forms:
        found += _rows(
            raw.select(
                pgspark.udf.message_kind("payload", malformed="null", arrow=arrow).alias("kind"),
                pgspark.udf.relation_oid("payload", malformed="null", arrow=arrow).alias("oid"),
                pgspark.udf.xid("payload", malformed="null", arrow=arrow).alias("xid"),
                pgspark.udf.decode_row(orders, malformed="null", arrow=arrow)("payload").alias("row"),
            )
        )
    return found


def _table_sink(spark: Any, places: Path, place: Path) -> list[str]:
    pgspark.register(spark)
    reader = spark.readStream.format("pgoutput").option("emit", "files").option("max_segments", "1")
    _query(reader.load(str(places / "segments")), pgspark.table_sink(place / "lake"), place)
    return _tables(place / "lake")


def _current_sink(spark: Any, places: Path, place: Path) -> list[str]:
    pgspark.register(spark)
    reader = spark.readStream.format("pgoutput").option("emit", "files").option("max_segments", "1")
    sink = pgspark.current_sink(place / "lake", bucket_bytes=1)
    _query(reader.load(str(places / "segments")), sink, place)
    store = open_store(place / "lake")
    tables = {
        name: open_current("delta", store, name, TableOptions()).read(version)
        for name, version in at(place / "lake").items()
    }
    return sorted(f"{name} {row}" for name, rows in tables.items() for row in rows.to_pylist())


def _tag_batches(spark: Any, places: Path, place: Path) -> list[str]:
    target = str(place / "segments")

    def store(wal: Any, _: int) -> None:
        pgspark.write_segments(wal, target)

    raw = spark.readStream.schema("place bigint, payload binary").option("maxFilesPerTrigger", 2)
    each = pgspark.tag_batches(place / "states", "place", store)
    _query(raw.parquet(str(places / "ordered")), each, place)
    return _segments(Path(target))


def _write_tables(tagged: bool) -> Callable[..., list[str]]:
    def write(spark: Any, places: Path, place: Path) -> list[str]:
        source = _wal(spark, places) if tagged else places / "segments"
        written = []
        for _ in range(2):  # the second time there is nothing to add
            written += pgspark.write_tables(source, place / "lake", spark=spark)
        assert [row.rows for row in written[2:]] == [0, 0]
        return [*(f"{row.table} {row.rows} {row.position}" for row in written), *_tables(place / "lake")]

    return write


def _table_status(spark: Any, places: Path, place: Path) -> list[str]:
    pgspark.write_tables(places / "segments", place / "lake", format="delta", spark=spark)
    return _rows(pgspark.table_status(place / "lake", spark=spark))


def _write_raw(spark: Any, places: Path, place: Path) -> list[str]:
    found = []
    for name, source in (
        ("paths", places / "ordered"),
        ("rows", spark.read.parquet(str(places / "shuffled"))),
    ):
        written = pgspark.write_raw(source, place / name, order_by="place", spark=spark)
        found += [*(f"{row.table} {row.rows} {row.position}" for row in written), written.state.to_json()]
        found += _tables(place / name)
    return found


def _write_segments(spark: Any, places: Path, place: Path) -> list[str]:
    wal = pgspark.tag(spark.read.parquet(str(places / "shuffled")), "place")
    pgspark.write_segments(wal, place / "segments", segment_bytes=300)
    return _segments(place / "segments")


def _read_catalog(spark: Any, places: Path, _: Path) -> list[str]:
    return [pgspark.read_catalog(_wal(spark, places)).to_json()]


def _of_wal(function: Callable[[Any], Any]) -> Callable[..., list[str]]:
    return lambda spark, places, _: _rows(function(_wal(spark, places)))


CALLS: dict[str, Callable[[Any, Path, Path], list[str]]] = {
    "changes as sent": _changes("as_sent"),
    "changes committed": _changes("committed"),
    "transactions": _of_wal(pgspark.transactions),
    "outcomes": _of_wal(pgspark.outcomes),
    "messages": _of_wal(pgspark.messages),
    "relations": _of_wal(pgspark.relations),
    "rejects": _of_wal(pgspark.rejects),
    "read_catalog": _read_catalog,
    "read_fresh": lambda spark, places, _: _rows(
        pgspark.read_fresh(places / "mirror", "public.t", spark=spark)
    ),
    "tag": _tag,
    "tag in two calls": _tag_in_two,
    "tag_batches": _tag_batches,
    "udfs": _udfs,
    "current_sink": _current_sink,
    "table_sink": _table_sink,
    "write_tables of segments": _write_tables(False),
    "write_tables of payloads": _write_tables(True),
    "table_status": _table_status,
    "write_raw": _write_raw,
    "write_segments": _write_segments,
}


# `make test-connect` tries these, too.
LONG = {
    "changes as sent",
    "current_sink",
    "messages",
    "outcomes",
    "read_fresh",
    "rejects",
    "tag in two calls",
    "tag_batches",
    "write_tables of payloads",
}


@pytest.mark.parametrize(
    "call",
    and_exhaustive([each for each in CALLS if each not in LONG], [each for each in CALLS if each in LONG]),
)
def test_a_call_gives_what_a_classic_session_gives(
    spark: Any, connected: Any, places: Path, tmp_path: Path, call: str
) -> None:
    (tmp_path / "classic").mkdir()
    (tmp_path / "connect").mkdir()
    expected = CALLS[call](spark, places, tmp_path / "classic")
    with connect_mode():
        got = CALLS[call](connected, places, tmp_path / "connect")
    assert got == expected
    assert expected


def test_every_public_function_is_called() -> None:
    called = "\n".join(CALLS)
    missing = [name for name in pgspark.__all__ if name not in called]
    # `register` and `state_after` stand in other calls.
    assert missing == ["register", "state_after"]


def test_no_part_of_the_jvm_is_asked_for(spark: Any, connected: Any, places: Path) -> None:
    with connect_mode():
        frame = connected.read.parquet(str(places / "ordered"))
        assert sessions.java_session(connected) is None
        assert sessions.java_frame(frame) is None
        assert sessions.context_of(connected) is None
        assert "Parquet" in (sessions.plan_of(frame) or "")
        assert sessions.cores_of(connected) == 2
    assert sessions.cores_of(spark) == 2


def test_files_in_order_stay_where_they_are(connected: Any, places: Path) -> None:
    with connect_mode():
        wal = pgspark.tag(connected.read.parquet(str(places / "ordered")), "place")
        assert not is_sorted(wal)
        assert _rows(wal) == sorted(map(str, pgo.tag(PAYLOADS)[0].to_pylist()))
        assert is_sorted(pgspark.tag(connected.read.parquet(str(places / "ordered")), "place", partitions=2))


def test_an_error_of_a_task_says_the_same(spark: Any, connected: Any) -> None:
    rows = pgo.tag(PAYLOADS)[0].to_pylist()
    at = next(k for k, row in enumerate(rows) if row["kind"] == ord("I") and row["relation"] == ORDERS.oid)
    rows[at]["payload"] = rows[at]["payload"][:-3]
    table = pa.Table.from_pylist(rows, pgo.TAGGED_SCHEMA)
    said = rf"message {rows[at]['seq']}, relation public\.orders.*ends too early"
    with pytest.raises(PySparkException, match=said):
        pgspark.changes(spark.createDataFrame(table), "public.orders").collect()
    with connect_mode(), pytest.raises(PySparkException, match=said):
        pgspark.changes(connected.createDataFrame(table), "public.orders").collect()


@pytest.mark.slow
def test_what_comes_while_tables_are_written_is_for_the_next_run(
    connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark Connect lists files for each query. So a segment may appear between the queries of one call."""
    directory = tmp_path / "segments"
    directory.mkdir()
    cut = next(k for k, payload in enumerate(PAYLOADS) if payload[:1] == b"C")  # its commit comes later
    first, state = pgo.tag(PAYLOADS[:cut])
    write_segment(directory, first, state, source=SOURCE)

    def write_more(*arguments: Any, **more: Any) -> Any:
        rest, behind = pgo.tag(PAYLOADS[cut:], state)
        write_segment(directory, rest, behind, source=SOURCE)
        monkeypatch.undo()
        return pgspark.outcomes(*arguments, **more)

    with connect_mode():
        wal = connected.read.parquet(str(directory))
        monkeypatch.setattr("pgoutput_fast.spark.tables.sources.decode_outcomes", write_more)
        written = pgspark.write_tables(wal, tmp_path / "lake")
        assert {row.position for row in written} == {cut - 1}
        assert [row.rows for row in written] == [0, 0]
        pgspark.write_tables(wal, tmp_path / "lake")
        expected = pgspark.changes(wal, "public.orders", transactions="committed").count()
    assert sum("public.orders" in row for row in _tables(tmp_path / "lake")) == expected
