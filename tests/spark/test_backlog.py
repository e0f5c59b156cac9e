"""A real server's backlog, untagged, in shuffled files: tagged and decoded on Spark it gives the server's own tables.

`make soak` does the same with ten million messages.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from support import pg
from support.backlog import TABLES, backlog, same_tables, server_table, spark_table
from support.plans import is_sorted

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20261121")
MESSAGES = 60_000
FILES = 20


class Backlog:
    def __init__(self, payloads: list[bytes], lsns: list[int], tables: dict[str, pa.Table]) -> None:
        self.payloads, self.lsns, self.tables = payloads, lsns, tables

    def write(self, directory: Path, order: list[int]) -> str:
        """Files of rows in that order; the files' names are shuffled."""
        rows = pa.table(
            {"place": order, "data": [self.payloads[k] for k in order], "lsn": [self.lsns[k] for k in order]}
        )
        directory.mkdir()
        names = random.Random(SEED).sample(range(FILES), FILES)
        for k, name in enumerate(names):
            begin, end = rows.num_rows * k // FILES, rows.num_rows * (k + 1) // FILES
            pq.write_table(rows.slice(begin, end - begin), directory / f"{name:03}.parquet")
        return str(directory)


@pytest.fixture(scope="module")
def captured(servers: pg.Servers) -> Iterator[Backlog]:
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    database = pg.Database(servers[max(servers)])
    try:
        payloads: list[bytes] = []
        lsns: list[int] = []
        for some_lsns, some in backlog(database, SEED, MESSAGES, rows=800):
            lsns += some_lsns
            payloads += some
        yield Backlog(payloads, lsns, {table: server_table(database, table) for table in TABLES})
    finally:
        database.drop()


@pytest.mark.slow
def test_the_backlog_has_everything_in_it(captured: Backlog) -> None:
    kinds = Counter(payload[:1] for payload in captured.payloads)
    assert len(captured.payloads) >= MESSAGES
    for kind in b"BCRIUDTSEcAbPKrpM":
        assert kinds[bytes([kind])], f"no {chr(kind)}"
    aborts = Counter(data[1:5] == data[5:9] for data in captured.payloads if data[:1] == b"A")
    assert aborts[True], "no streamed transaction was rolled back"
    assert aborts[False], "no savepoint was"
    assert kinds[b"S"] > 20
    catalog = pgo.tag(captured.payloads)[1].catalog
    assert len(catalog.relations) > 2 * len(TABLES)
    # Rows are also deleted and truncated, and who writes when depends on the machine.
    assert sum(table.num_rows for table in captured.tables.values()) > 100


@pytest.mark.slow
@pytest.mark.parametrize("how", ["files", pytest.param("rows", marks=pytest.mark.exhaustive)])
def test_shuffled_files_give_the_tables_of_the_server(
    spark: Any, captured: Backlog, tmp_path: Path, how: str
) -> None:
    """Of rows in any order; or of ranges in order, which are tagged where they are."""
    order = list(range(len(captured.payloads)))
    if how == "rows":
        random.Random(SEED).shuffle(order)
    dump = spark.read.parquet(captured.write(tmp_path / "dump", order))
    tagged = pgspark.tag(dump, "place", payload="data", lsn="lsn")
    assert is_sorted(tagged) == (how == "rows")
    tagged.write.parquet(str(tmp_path / "tagged"))
    wal = spark.read.parquet(str(tmp_path / "tagged"))
    expected = pa.Table.from_batches([pgo.tag(captured.payloads, lsn=captured.lsns)[0]])
    keys = [("seq", "ascending"), ("relation", "ascending")]
    assert wal.toArrow().cast(expected.schema).sort_by(keys).equals(expected.sort_by(keys))
    for table, rows in captured.tables.items():
        same_tables(spark_table(wal, table, rows.schema), rows, table)
