"""AUTO CDC of Spark's declarative pipelines takes `emit=upserts`: the tables are those of the server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast.segments import Source, write_segment
from support import pg
from support.code_blocks import blocks_of
from support.paths import DOCS, TESTS
from support.sessions import connect_mode, connect_server, connect_session, java_compiler

pytestmark = [
    pytest.mark.classic("the test has a server of Spark Connect, which pipelines need"),
    pytest.mark.slow,
]

SOURCE = Source("1", "shop", "slot")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark with a catalog `lake`, whose tables have MERGE."""
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 3):
        pytest.skip("SCD type 2 of AUTO CDC needs Spark 4.3")
    directory, javac = tmp_path_factory.mktemp("pipelines"), java_compiler()
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    source = TESTS / "support" / "RowTables.java"
    subprocess.run([javac, "-nowarn", "-cp", jars, "-d", directory / "classes", source], check=True)
    settings = {
        "spark.driver.extraClassPath": directory / "classes",
        "spark.sql.catalog.lake": "RowTables",
        "spark.sql.catalog.lake.root": directory / "lake",
    }
    with connect_server(directory, settings) as found:
        yield found


class Shop:
    """A table of a server, its changes as segments, and its rows after each transaction."""

    def __init__(self, slot: pg.Slot, directory: Path) -> None:
        self._slot, self.directory = slot, directory
        self._state: Any = None
        self._taken = 0
        self._found: list[list[tuple[Any, ...]]] = []
        directory.mkdir()

    def run(self, *transactions: str) -> None:
        """Runs transactions that change the table, and stores their messages as one more segment."""
        for each in transactions:
            self._slot.execute(each)
            self._found.append(self.rows("id, note"))
        payloads = self._slot.peek()[self._taken :]
        self._taken += len(payloads)
        tagged, self._state = pgo.tag(
            [data for _, data in payloads], self._state, lsn=[lsn for lsn, _ in payloads]
        )
        write_segment(self.directory, tagged, self._state, source=SOURCE)

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return self._slot.execute(f"SELECT {columns} FROM orders ORDER BY id")

    def rows_after(self) -> dict[int, list[tuple[Any, ...]]]:
        """{LSN of a commit: the rows after it}."""
        payloads = [data for _, data in self._slot.peek()]
        changes = pgo.decode(payloads, options=pgo.Options(transactions="committed")).table("public.orders")
        commits = sorted(set(changes["_commit_lsn"].to_pylist()))
        return dict(zip(commits, self._found, strict=True))


@pytest.fixture
def shop(servers: pg.Servers, tmp_path: Path) -> Iterator[Shop]:
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    try:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        with database.slot("FOR TABLE orders") as slot:
            yield Shop(slot, tmp_path / "segments")
    finally:
        database.drop()


class Pipeline:
    """The pipeline of the page.

    Args:
        spark: a session of Spark Connect.
        segments: what it reads.
        storage: the directory of the pipeline.
    """

    def __init__(self, spark: Any, segments: Path, storage: Path) -> None:
        self._spark, self._path = spark, storage / "spark-pipeline.yml"
        (recipe,) = [each.text for each in blocks_of(DOCS / "spark.md") if each.heading == "AUTO CDC"]
        storage.mkdir()
        self.tables = storage / "tables.py"
        self.tables.write_text(f"directory = {str(segments)!r}\n{recipe}")
        self._path.write_text(
            f"{{name: orders, storage: 'file://{storage}', catalog: lake, database: public,"
            " configuration: {spark.sql.pipelines.maxFlowRetryAttempts: '0'},"
            " libraries: [{glob: {include: tables.py}}]}"
        )

    def run(self, *, full_refresh: Sequence[str] = (), refresh: Sequence[str] = ()) -> None:
        """Does what `spark-pipelines run` does, with its options."""
        from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import (
            create_dataflow_graph,
            handle_pipeline_events,
            start_run,
        )

        spec, spark = load_pipeline_spec(self._path), self._spark
        graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
        register_definitions(self._path, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
        events = start_run(
            spark, graph, full_refresh=list(full_refresh), full_refresh_all=False, refresh=list(refresh), dry=False,
            storage=spec.storage,
        )  # fmt: skip
        handle_pipeline_events(events)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of SCD type 1."""
        return [
            tuple(row)
            for row in self._spark.table("lake.public.orders").select(*columns).orderBy("id").collect()
        ]

    def rows_at(self, lsn: int) -> list[tuple[Any, ...]]:
        """The rows that SCD type 2 has for an LSN."""
        versions = self._spark.table("lake.public.order_versions").where(
            f"__START_AT._commit_lsn <= {lsn} AND (__END_AT IS NULL OR __END_AT._commit_lsn > {lsn})"
        )
        return [tuple(row) for row in versions.select("id", "note").orderBy("id").collect()]


def test_auto_cdc_has_the_rows_of_the_server(address: str, shop: Shop, tmp_path: Path) -> None:
    """SCD type 1 has the rows of now. Type 2 has those after each transaction."""
    with connect_session(address) as spark, connect_mode():
        pipeline = Pipeline(spark, shop.directory, tmp_path / "pipeline")
        shop.run(
            "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, NULL)",
            "UPDATE orders SET note = 'paid' WHERE id IN (1, 4)",
            "UPDATE orders SET id = id + 10 WHERE id = 2",
            "DELETE FROM orders WHERE id = 3",
        )
        pipeline.run()
        assert pipeline.rows("id", "note") == shop.rows()
        shop.run(
            "INSERT INTO orders VALUES (3, 'again')",
            "UPDATE orders SET id = CASE id WHEN 1 THEN 2 ELSE 13 END WHERE id IN (1, 3)",
            "BEGIN; UPDATE orders SET note = 'x' WHERE id = 4; UPDATE orders SET id = 1, note = 'y' WHERE id = 4; COMMIT",
            "BEGIN; DELETE FROM orders WHERE id = 12; INSERT INTO orders VALUES (12, 'new'); COMMIT",
            "ALTER TABLE orders ADD COLUMN price int; UPDATE orders SET price = id, note = note || '.' WHERE id < 10",
        )
        # A new column is one more that type 2 tracks.
        with pytest.raises(
            PySparkException, match=r"TRACK_HISTORY_DRIFT.* target table lake\.public\.order_versions"
        ):
            pipeline.run()
        pipeline.run(full_refresh=["order_versions"], refresh=["orders"])
        assert pipeline.rows("id", "note", "price") == shop.rows()
        for lsn, rows in shop.rows_after().items():
            assert pipeline.rows_at(lsn) == rows, lsn


@pytest.mark.exhaustive  # the slow parts are those of the test above
def test_a_truncate_stops_auto_cdc_and_a_full_refresh_begins_after_it(
    address: str, shop: Shop, tmp_path: Path
) -> None:
    with connect_session(address) as spark, connect_mode():
        pipeline = Pipeline(spark, shop.directory, tmp_path / "pipeline")
        shop.run(
            "INSERT INTO orders VALUES (1, 'a')", "TRUNCATE orders", "INSERT INTO orders VALUES (2, 'b')"
        )
        with pytest.raises(PySparkException) as caught:
            pipeline.run()
        found = re.search(
            r"relation public\.orders: the server truncated .* where = '([^']*)'", str(caught.value)
        )
        assert found is not None, str(caught.value)
        recipe = pipeline.tables.read_text()
        pipeline.tables.write_text(recipe.replace(".load(", f".option('where', {found[1]!r}).load("))
        pipeline.run(full_refresh=["orders", "order_versions"])
        assert pipeline.rows("id", "note") == shop.rows()
