"""`spark.readStream.format("pgoutput")`: every committed change once, whatever ends and begins again, and when."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

import pg
from pgoutput_fast.capture import Capture, Limits, create_slot, drop_slot, find_slot

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
        stop = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                limits = Limits(seconds=seconds)
                Capture(self.dsn, self.slot, [self.publication], self.directory, limits=limits).run(stop=stop)
            except BaseException as problem:
                failed.append(problem)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not failed

    def arrived(self) -> None:
        """Waits until what was committed is in segments."""
        lsn, deadline = self._now(), time.monotonic() + 60
        while time.monotonic() < deadline:
            found = find_slot(self.database.dsn, self.slot)
            if found is not None and (found.confirmed_flush_lsn or 0) >= lsn:
                return
            time.sleep(0.05)
        raise AssertionError("the capture does not come there")

    def _now(self) -> int:
        return int(self.database.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")[0][0])

    def drop(self) -> None:
        with contextlib.suppress(psycopg2.Error):
            self.database.execute(
                f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
            )
        for _ in range(100):
            try:
                drop_slot(self.database.dsn, self.slot)
                break
            except psycopg2.Error:
                time.sleep(0.1)
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


class Query:
    """A streaming query with a checkpoint, that can be begun again; its sink keeps each batch once."""

    def __init__(self, spark: Any, shop: Shop, place: Path, **options: str) -> None:
        self.spark, self.shop, self.place, self.options = spark, shop, place, options

    def run(self, schema: str | None = None, **options: str) -> int:
        """Takes what is there; in so many batches."""
        reader = self.spark.readStream.format("pgoutput").options(**{**self.options, **options})
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.load(str(self.shop.directory))
        writer = frame.writeStream.option("checkpointLocation", str(self.place / "checkpoint"))
        before = len(self._batches())
        query = writer.foreachBatch(self._keep).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return len(self._batches()) - before

    def _keep(self, frame: Any, batch: int) -> None:
        rows = frame.toArrow().to_pylist()
        path = self.place / f"batch-{batch:06}.json"
        text = json.dumps(sorted(rows, key=lambda row: row["_seq"]), default=str)
        # A batch that comes again is the same.
        assert not path.exists() or path.read_text() == text
        path.write_text(text)

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


def test_what_comes_between_triggers(shop: Shop, query: Query) -> None:
    shop.begin("orders")
    shop.run("INSERT INTO orders SELECT g, 'first' FROM generate_series(1, 30) g")
    shop.capture()
    assert query.run() == 1
    assert _applied(query.rows()) == _table(shop)
    assert query.run() == 0  # nothing new
    shop.run("UPDATE orders SET note = 'second' WHERE id <= 7", "DELETE FROM orders WHERE id = 20")
    shop.capture()
    shop.run("INSERT INTO orders VALUES (31, 'third')")
    shop.capture()
    assert query.run() == 1
    assert _applied(query.rows()) == _table(shop)
    query.forget()
    assert query.run() == 0  # the same batch again, and `_keep` compares
    assert _applied(query.rows()) == _table(shop)


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
        assert query.run(max_segments="1") > 1
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
