"""`spark.readStream.format("pgoutput")`: every committed change once, whatever ends and begins again, and when."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.capture import Capture, Limits, create_slot, find_slot
from pgoutput_fast.capture.retention import Consumers, retain
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.segments import Source, compact, list_segments, write_segment
from pgoutput_fast.segments import catalog as segment_catalogs
from pgoutput_fast.spark.source.plan import plan_source
from pgoutput_fast.spark.source.stream import StreamReader
from pgoutput_fast.spark.source.stream_plan import plan_stream
from support import pg
from support.capturing import Running, drop_when_free, wait_until
from support.paths import DOCS
from support.spark_features import AVAILABLE_NOW

_numbers = itertools.count(1)


class Shop:
    """A database with a publication and a slot, captured into a directory."""

    def __init__(self, database: pg.Database, directory: Path) -> None:
        self.database = database
        self.directory = directory
        self.slot = f"{database.name}_s{next(_numbers)}"
        self.publication = f"p_{self.slot}"
        self.tables: list[str] = []

    @property
    def dsn(self) -> str:
        """Streams what is more than a few rows."""
        return self.database.dsn + " options='-c logical_decoding_work_mem=64kB'"

    def begin(self, *tables: str) -> None:
        self.database.execute(*(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)" for table in tables))
        self.tables += tables
        self.database.execute(f"CREATE PUBLICATION {self.publication} FOR TABLE {', '.join(tables)}")
        create_slot(self.database.dsn, self.slot)

    def run(self, *statements: str) -> None:
        self.database.execute(*statements)

    def capture(self) -> None:
        """All that is committed now, and what is streamed."""
        Capture(self.dsn, self.slot, [self.publication], self.directory).run(until_lsn=self._now())

    @contextlib.contextmanager
    def capturing(self, seconds: float = 0.1) -> Iterator[None]:
        """A capture beside, in one session, whose segments are short."""
        limits = Limits(seconds=seconds)
        capture = Capture(self.dsn, self.slot, [self.publication], self.directory, limits=limits)
        with Running(capture) as running:
            yield
        assert running.failed is None

    def arrived(self) -> None:
        """Waits until what was committed is in segments."""
        lsn = self._now()

        def is_there() -> bool:
            found = find_slot(self.database.dsn, self.slot)
            return found is None or (found.confirmed_flush_lsn or 0) >= lsn

        wait_until(is_there)

    def _now(self) -> int:
        return int(self.database.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")[0][0])

    def drop(self) -> None:
        with contextlib.suppress(psycopg2.Error):
            self.database.execute(
                f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
            )
        drop_when_free(self.database.dsn, self.slot)
        self.database.execute(
            f"DROP PUBLICATION IF EXISTS {self.publication}",
            *(f"DROP TABLE IF EXISTS {t}" for t in self.tables),
        )


@pytest.fixture(scope="module")
def base(servers: pg.Servers) -> Iterator[pg.Database]:
    """A database of the newest server."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    yield database
    database.drop()


@pytest.fixture
def shop(base: pg.Database, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(base, tmp_path / "segments")
    yield shop
    shop.drop()


def _keeper(place: Path) -> Callable[[Any, int], None]:
    """A sink that keeps each batch in a file. On Spark Connect it runs in another process."""

    def keep(frame: Any, batch: int) -> None:
        rows = frame.toArrow().to_pylist()
        path = place / f"batch-{batch:06}.json"
        text = json.dumps(sorted(rows, key=lambda row: row["_seq"]), default=str)
        # A batch that comes again is the same.
        assert not path.exists() or path.read_text() == text
        # A test may read all batches at this moment.
        whole = path.with_suffix(".new")
        whole.write_text(text)
        whole.replace(path)

    return keep


class Query:
    """A streaming query with a checkpoint, that can be begun again; its sink keeps each batch once."""

    def __init__(self, spark: Any, shop: Shop, place: Path, **options: str) -> None:
        self.spark, self.shop, self.place, self.options = spark, shop, place, options
        self._running: Any = None

    def run(self, **options: str) -> int:
        """Takes what is there; in so many batches."""
        before = len(self._batches())
        _take_all(self._writer(options), self.shop, captures="dsn" in options)
        return len(self._batches()) - before

    @contextlib.contextmanager
    def running(self, **options: str) -> Iterator[Any]:
        """The query, for the time of the block."""
        self._running = self._writer(options).trigger(processingTime="0.1 seconds").start()
        try:
            yield self._running
        finally:
            self._running.stop()

    def until(self, condition: Callable[[], object]) -> None:
        """Waits while the query runs. An error of the query ends the test."""

        def holds() -> object:
            if (problem := self._running.exception()) is not None:
                raise problem
            return condition()

        wait_until(holds)

    def _writer(self, options: dict[str, str]) -> Any:
        reader = self.spark.readStream.format("pgoutput").options(**{**self.options, **options})
        frame = reader.load(str(self.shop.directory))
        writer = frame.writeStream.option("checkpointLocation", str(self.place / "checkpoint"))
        return writer.foreachBatch(_keeper(self.place))

    def _batches(self) -> list[Path]:
        return sorted(self.place.glob("batch-*.json"))

    def rows(self) -> list[dict[str, Any]]:
        """All batches."""
        return [row for path in self._batches() for row in json.loads(path.read_text())]

    def forget(self, batches: int = 1) -> None:
        """As if Spark had died before it noted that the last batches were done."""
        for path in sorted((self.place / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))[
            -batches:
        ]:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _take_all(writer: Any, shop: Shop, *, captures: bool) -> None:
    """Has a query take what there is."""
    if AVAILABLE_NOW:
        assert writer.trigger(availableNow=True).start().awaitTermination(240)
        return
    query = writer.trigger(processingTime="0.1 seconds").start()
    try:
        if captures:
            shop.arrived()
            time.sleep(0.5)
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.fixture
def query(spark: Any, shop: Shop, tmp_path: Path) -> Query:
    place = tmp_path / "query"
    place.mkdir()
    return Query(spark, shop, place, table="public.orders")


def _applied(rows: list[dict[str, Any]], table: str | None = None) -> dict[int, str]:
    """The table that the changes make; each of them once."""
    assert len({(row["_seq"], row["_change_type"]) for row in rows}) == len(rows)
    found: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: (row["_commit_lsn"], row["_seq"])):
        if row["_change_type"] == "truncate":
            found.clear()
        elif row["_change_type"] == "delete":
            del found[row["id"]]
        elif row["_change_type"] != "update_preimage":
            found[row["id"]] = row["note"]
    return found


def _table(shop: Shop, table: str = "orders") -> dict[int, str]:
    return dict(shop.database.execute(f"SELECT id, note FROM {table}"))


@pytest.mark.slow
def test_segments_are_joined_meanwhile(shop: Shop, query: Query) -> None:
    """Between two runs, before a batch comes again, and while a query and a capture run."""
    shop.begin("orders")
    for n in range(4):
        shop.run(f"INSERT INTO orders VALUES ({n}, 'first')")
        shop.capture()
    query.run(max_segments="2")
    query.forget()
    assert compact(shop.directory, keep=1, grace=0).joined == 3
    shop.run("UPDATE orders SET note = 'second' WHERE id < 2")
    shop.capture()
    query.run()
    assert _applied(query.rows()) == _table(shop)
    done = []
    with shop.capturing(0.05), query.running():
        for n in range(30):
            shop.run(
                f"INSERT INTO orders VALUES ({100 + n}, 'third')", f"DELETE FROM orders WHERE id = {90 + n}"
            )
            shop.arrived()
            done.append(compact(shop.directory, keep=1, grace=600))
            if n % 5 == 4:  # its tasks have read what goes now, however slow this machine is
                query.until(lambda: _applied(query.rows()) == _table(shop))
                done.append(compact(shop.directory, keep=1, grace=0))
    assert sum(each.joined for each in done) > 10
    compact(shop.directory, keep=1, grace=0)
    query.run()
    assert _applied(query.rows()) == _table(shop)
    frame = query.spark.read.format("pgoutput").option("table", "public.orders").load(str(shop.directory))
    assert _applied(frame.toArrow().to_pylist()) == _table(shop)


@pytest.mark.slow
def test_what_comes_between_triggers(shop: Shop, query: Query) -> None:
    shop.begin("orders")
    shop.run("INSERT INTO orders SELECT g, 'first' FROM generate_series(1, 30) g")
    shop.capture()
    assert query.run() == 1
    assert _applied(query.rows()) == _table(shop)
    shop.run("UPDATE orders SET note = 'second' WHERE id <= 7", "DELETE FROM orders WHERE id = 20")
    shop.capture()
    shop.run("INSERT INTO orders VALUES (31, 'third')")
    shop.capture()
    assert query.run() == 1
    assert _applied(query.rows()) == _table(shop)
    query.forget()
    assert query.run() == 0  # the same batch again, and the sink compares
    assert _applied(query.rows()) == _table(shop)


@pytest.mark.slow
def test_transactions_that_lie_across_batches(shop: Shop, query: Query) -> None:
    """Streamed, aborted, rolled back in part, and prepared ones: rows come with their commit."""
    shop.begin("orders")
    fill = "INSERT INTO orders SELECT g, repeat('x', 500) FROM generate_series({}, {}) g"
    with shop.database.session() as one, shop.database.session() as other, shop.capturing():
        first, second = one.cursor(), other.cursor()
        first.execute("BEGIN")
        first.execute(fill.format(1000, 1300))
        second.execute("BEGIN")
        second.execute(fill.format(5000, 5300))
        shop.run("INSERT INTO orders VALUES (1, 'plain')")
        shop.arrived()
        first.execute("SAVEPOINT s")
        first.execute(fill.format(2000, 2300))
        shop.run("INSERT INTO orders VALUES (2, 'plain')")
        shop.arrived()
        assert query.run(max_segments="1") > 1 or not AVAILABLE_NOW
        assert set(_applied(query.rows())) == {1, 2}
        first.execute("ROLLBACK TO s")
        first.execute(fill.format(3000, 3300))
        shop.run("INSERT INTO orders VALUES (3, 'plain')")
        shop.arrived()
        query.run()
        assert set(_applied(query.rows())) == {1, 2, 3}
        first.execute("COMMIT")
        second.execute("ROLLBACK")
        shop.arrived()
    query.run()
    query.forget()
    query.run()
    assert _applied(query.rows()) == _table(shop)
    assert len(_table(shop)) == 605
    assert all(row["_commit_lsn"] for row in query.rows())


@pytest.mark.slow
def test_as_sent(shop: Shop, query: Query) -> None:
    """What is rolled back comes, too."""
    shop.begin("orders")
    shop.capture()
    with shop.database.session() as one, shop.capturing():
        cursor = one.cursor()
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO orders SELECT g, repeat('x', 500) FROM generate_series(1000, 1300) g")
        shop.run("INSERT INTO orders SELECT g, 'a' FROM generate_series(1, 10) g")
        shop.arrived()
        cursor.execute("ROLLBACK")
        shop.run("INSERT INTO orders SELECT g, 'b' FROM generate_series(11, 20) g")
        shop.arrived()
    query.run(transactions="as_sent", max_bytes="1")
    rows = query.rows()
    assert {row["id"] for row in rows} >= {*range(1, 21), 1000}
    assert [row["_seq"] for row in rows] == sorted({row["_seq"] for row in rows})


@pytest.mark.slow
def test_tables_that_change(shop: Shop, query: Query) -> None:
    """Under a query that runs, of two tables. What else there is to it: test_spark_stream_reader."""
    shop.begin("orders", "others")
    shop.run("INSERT INTO orders VALUES (1, 'old')", "INSERT INTO others VALUES (7, 'o')")
    shop.capture()
    both = {"table": "public.orders, public.others"}
    with query.running(**both) as running:
        query.until(lambda: len(query.rows()) == 2)
        shop.run("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (2, 'new', 3)")
        shop.capture()
        with pytest.raises(StreamingQueryException, match=r"public\.orders: .* newer version .*Restart"):
            running.awaitTermination(240)
    query.run(**both)
    rows = query.rows()
    assert [row["_relation"] for row in rows] == ["public.orders", "public.others", "public.orders"]
    assert rows[-1]["public.orders"] == {"id": 2, "note": "new", "more": 3}
    assert rows[1]["public.orders"] is None


@pytest.mark.slow
def test_options_that_are_wrong(spark: Any, tmp_path: Path) -> None:
    """Without a schema, `load` says it. With one, the query does, which hid it behind an UnboundLocalError."""
    wrong = spark.readStream.format("pgoutput").option("table", "public.orders").option("starting", "now")
    with pytest.raises(PySparkException, match="option starting must be earliest, latest or"):
        wrong.load(str(tmp_path))
    given = spark.readStream.format("pgoutput").schema("id int").option("table", "public.orders")
    for frame, message in (
        (given.option("starting", "now").load(str(tmp_path)), "ValueError: option starting must be earliest"),
        (given.load(f"{tmp_path}/*.parquet"), "ValueError: a stream reads one directory"),
    ):
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises(StreamingQueryException, match=message) as caught:
            writer.start().awaitTermination(240)
        assert "UnboundLocalError" not in str(caught.value)


def test_a_version_that_only_older_segments_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction has rows of a version that the segment of its commit has left out of its catalog."""
    monkeypatch.setattr(segment_catalogs, "INLINE_BYTES", 3000)

    def described(oid: int, *columns: str) -> list[bytes]:
        spec = RelationSpec(oid, "public", f"t{oid}", tuple(ColumnSpec(name, 25) for name in columns))
        return [
            encode.encode_relation(spec),
            encode.encode_insert(oid, [f"{oid}.{len(columns)}", *columns[1:]]),
        ]

    many = [message for k in range(20) for message in described(2 + k, "id", "another_column")]
    first = [encode.encode_begin(100, 0, 7), *described(1, "id"), encode.encode_commit(100, 108, 0)]
    altered = [encode.encode_begin(200, 0, 8), *described(1, "id", "b"), *described(1, "id", "b", "c")]
    last = [*many, encode.encode_commit(200, 208, 0)]
    options = {"path": str(tmp_path), "table": "public.t1", "extra_columns": "drop"}
    state = plan = schema = None
    for wal in (first, altered, last):
        tagged, state = pgo.tag(wal, state)
        write_segment(tmp_path, tagged, state, source=Source("1", "shop", "slot"))
        if plan is None:
            schema = plan_source(options).spark_schema
            plan = plan_stream({**options, "schema_mode": "pinned"}, schema, None)
    segments = list_segments(tmp_path)
    assert len(segments[1].catalog.named("public.t1")) > len(segments[2].catalog.named("public.t1"))
    found = []
    for each in segments:
        assert plan is not None
        assert schema is not None
        reader = StreamReader(plan, schema)
        parts = reader.partitions({"seq": each.first_seq}, {"seq": each.last_seq + 1})
        found.append(
            [row for part in parts for batch in reader.read(part) for row in batch.column("id").to_pylist()]
        )
    assert found == [["1.1"], [], ["1.2", "1.3"]]


@pytest.mark.slow
def test_what_retention_may_take(shop: Shop, query: Query) -> None:
    shop.begin("orders")
    shop.run("INSERT INTO orders VALUES (-1, 'kept')")
    shop.capture()
    with query.running(consumer="lake"):
        for k in range(2):
            query.until(lambda: _applied(query.rows()) == _table(shop))
            shop.run(f"INSERT INTO orders VALUES ({k}, 'kept')")
            shop.capture()
        query.until(lambda: _applied(query.rows()) == _table(shop))
    # Spark says that a batch is done when it asks for the next.
    assert 0 < Consumers(shop.directory).positions()["lake"] < list_segments(shop.directory)[2].last_seq
    assert len(retain(shop.directory, consumed=True)) >= 1
    shop.run("INSERT INTO orders VALUES (3, 'kept')")
    shop.capture()
    assert query.run(consumer="lake") == 1
    assert _applied(query.rows()) == _table(shop)
    # A batch that is to come again, and whose segments somebody removed.
    query.forget()
    for segment in list_segments(shop.directory)[:-1]:
        Path(segment.path).unlink()
    shop.run("INSERT INTO orders VALUES (4, 'late')")
    shop.capture()
    Path(list_segments(shop.directory)[0].path).unlink()
    with pytest.raises(
        StreamingQueryException, match=r"lacks messages \d+ to \d+: their segments were removed"
    ):
        query.run()


@pytest.mark.slow
def test_a_query_that_captures(shop: Shop, query: Query, tmp_path: Path) -> None:
    """From an empty directory, before the first change; and again, and beside another capture."""
    shop.begin("orders")
    shop.run("CREATE TYPE sized AS (w int, h int)", "ALTER TABLE orders ADD COLUMN size sized")
    own = {
        "dsn": shop.dsn,
        "slot": shop.slot,
        "publication": shop.publication,
        "capture": json.dumps({"seconds": 0.2}),
    }
    query.run(**own)
    assert not query.rows()
    shop.run("INSERT INTO orders VALUES (1, 'first', (3, 4))")
    assert query.run(**own)
    assert query.rows()[0]["size"] == {"w": 3, "h": 4}
    with query.running(**own):
        for k in range(2, 5):
            shop.run(f"INSERT INTO orders VALUES ({k}, 'live')")
            query.until(lambda: _applied(query.rows()) == dict(_table(shop)))
    wait_until(
        lambda: not find_slot(shop.database.dsn, shop.slot).active_pid
    )  # the capture has ended with the query
    with shop.capturing():
        # It must have the directory before the query asks for it.
        wait_until(lambda: find_slot(shop.database.dsn, shop.slot).active_pid)
        shop.run("INSERT INTO orders VALUES (5, 'by another')")
        assert query.run(**own)
    drop_when_free(shop.database.dsn, shop.slot)
    if AVAILABLE_NOW:
        with pytest.raises(
            StreamingQueryException, match=rf"slot {shop.slot} is gone.*load the tables again"
        ):
            query.run(**own)
    with pytest.raises(StreamingQueryException, match="is gone"), query.running(**own) as running:
        running.awaitTermination(240)
    assert _applied(query.rows()) == _table(shop)


def _busy(shop: Shop, done: Callable[[], bool]) -> int:
    """Changes `orders`, with transactions that are streamed and rolled back between; gives how many times it did."""
    rows = "INSERT INTO orders SELECT {0} * g, repeat('x', 400) FROM generate_series({1}, {2}) g"
    n, deadline = 0, time.monotonic() + 120
    while not done() and time.monotonic() < deadline:
        n += 1
        first, last = n * 500, n * 500 + n % 3 * 200
        shop.run(
            rows.format(1, first, last), f"UPDATE orders SET note = note || 'y' WHERE id % 500 = {n % 7}"
        )
        with shop.database.session() as connection:
            connection.autocommit = False
            connection.cursor().execute(rows.format(-1, first, last + 200))
            connection.rollback()
        time.sleep(0.2)
    return n


_DRIVER = """
import json, sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate())
options, directory, place = json.loads(sys.argv[1]), *sys.argv[2:]
frame = spark.readStream.format("pgoutput").options(**options).load(directory)
writer = frame.writeStream.format("parquet").option("checkpointLocation", place + "/checkpoint")
query = writer.trigger(processingTime="0.1 seconds").start(place + "/out")
if query.awaitTermination(240):
    raise SystemExit("it ended")
"""


@pytest.mark.exhaustive
@pytest.mark.classic("it starts a classic Spark")
def test_a_driver_that_is_killed(shop: Shop, spark: Any, tmp_path: Path) -> None:
    """Its capture ends, too; and the next one goes on, in the same sink."""
    shop.begin("orders")
    own = {"dsn": shop.dsn, "slot": shop.slot, "publication": shop.publication, "table": "public.orders"}
    own["capture"] = json.dumps({"seconds": 0.1})
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", _DRIVER, json.dumps(own), str(shop.directory), str(tmp_path)]
    driver = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        n = _busy(
            shop, lambda: driver.poll() is not None or len(list(out.glob("_spark_metadata/[0-9]*"))) >= 3
        )
    finally:
        driver.kill()
        _, said = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, said
    shop.run("DELETE FROM orders WHERE id % 7 = 0")
    wait_until(lambda: not find_slot(shop.database.dsn, shop.slot).active_pid)
    frame = spark.readStream.format("pgoutput").options(**own).load(str(shop.directory))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    _take_all(writer.option("path", str(out)), shop, captures=True)
    rows = spark.read.parquet(str(out)).toArrow().to_pylist()
    assert _applied(rows) == _table(shop)
    assert sum(row["_change_type"] == "insert" for row in rows) == sum(
        k % 3 * 200 + 1 for k in range(1, n + 1)
    )


def _written(spark: Any, target: str) -> dict[int, str]:
    """What the changes in files make. The first batches may have none."""
    if not Path(target, "_spark_metadata", "0").exists() or not list(Path(target).glob("*.parquet")):
        return {}
    return _applied(spark.read.parquet(target).toArrow().to_pylist())


@pytest.mark.slow
def test_the_page_says_what_is_so(shop: Shop, spark: Any, tmp_path: Path) -> None:
    """The first example of docs/streaming.md; and its command."""
    page = (DOCS / "streaming.md").read_text()
    shop.slot, shop.publication = "to_lake", "shop"
    shop.begin("orders")
    names = {name: str(tmp_path / name) for name in ("directory", "checkpoint", "target")}
    example, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    values: dict[str, Any] = {"spark": spark, "dsn": shop.dsn, **names}
    exec(compile(example, "streaming.md", "exec"), values)
    try:
        shop.run("INSERT INTO orders VALUES (1, 'first')")
        wait_until(lambda: _written(spark, names["target"]) == {1: "first"})
    finally:
        values["query"].stop()
    wait_until(lambda: not find_slot(shop.database.dsn, shop.slot).active_pid)
    (command,) = re.findall(r"    (pgoutput-fast capture .*)", page)
    arguments = [
        *(sys.executable, "-m", "pgoutput_fast"),
        *command.split()[1:],
        "--dsn",
        shop.dsn,
        "--path",
        names["directory"],
        "--until",
        "now",
    ]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
