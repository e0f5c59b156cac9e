"""Decodes a backlog of many untagged messages on Spark, and compares the result with the tables of the server.

    python fuzz/soak_tag.py --messages 10000000

On the server, three sessions work at the same time (see tests/support/backlog.py): streamed, rolled back and prepared
transactions, savepoints, DDL, truncates. The messages are in fifty files, each with rows from the whole stream in
random order. `tag` on local[2] orders them, and its result is written as Parquet. The changes of committed transactions
give tables, which are compared with the server's tables, cell by cell. Prints the cost, and fails if a cell differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from pgoutput_fast import spark as pgspark  # noqa: E402
from pgoutput_fast.demo.java import spark_environment  # noqa: E402
from pgoutput_fast.demo.servers import Server  # noqa: E402
from support import pg  # noqa: E402
from support.backlog import TABLES, backlog, same_tables, server_table, spark_table  # noqa: E402

FILES = 50


def capture(database: pg.Database, seed: str, messages: int, rows: int, directory: Path) -> Counter[str]:
    """Writes the files. Returns the number of messages by kind."""
    kinds: Counter[str] = Counter()
    chance = np.random.default_rng([*seed.encode()])
    schema = pa.schema([("place", pa.int64()), ("data", pa.binary()), ("lsn", pa.int64())])
    directory.mkdir()
    writers = [
        pq.ParquetWriter(directory / f"{k:03}.parquet", schema, compression="zstd") for k in range(FILES)
    ]
    for lsns, payloads in backlog(database, seed, messages, rows):
        first = kinds.total()
        kinds.update(chr(payload[0]) for payload in payloads)
        if first // 10**6 < kinds.total() // 10**6:
            print(f"{kinds.total():,} messages", file=sys.stderr, flush=True)
        columns = [np.arange(first, first + len(payloads)), pa.array(payloads, pa.binary()), lsns]
        table = pa.table(columns, schema=schema).take(chance.permutation(len(payloads)))
        for k, writer in enumerate(chance.permutation(len(writers))):
            begin, end = len(payloads) * k // FILES, len(payloads) * (k + 1) // FILES
            writers[writer].write_table(table.slice(begin, end - begin))
    for each in writers:
        each.close()
    return kinds


class Memory:
    """The peak memory in MB of the JVM and the Python workers that this process started. A thread samples it."""

    def __init__(self) -> None:
        self.jvm = self.workers = self.worker = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            resident: dict[str, list[float]] = {"java": [], "python": []}
            for name, size in below(os.getpid()):
                for kind, sizes in resident.items():
                    if name.startswith(kind):
                        sizes.append(size)
            self.jvm = max(self.jvm, *resident["java"], 0)
            self.worker = max(self.worker, *resident["python"], 0)
            self.workers = max(self.workers, sum(resident["python"]))

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


def below(root: int) -> list[tuple[str, float]]:
    """Returns (name, resident MB) of all descendants of a process."""
    found: dict[int, tuple[int, str, float]] = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(
                line.split(":\t", 1) for line in (each / "status").read_text().splitlines() if ":\t" in line
            )
            found[int(each.name)] = (
                int(status["PPid"]),
                status["Name"],
                int(status["VmRSS"].split()[0]) / 1000,
            )
        except (OSError, KeyError, ValueError):
            continue  # the process has ended, or is a kernel thread
    mine: set[int] = {root}
    while more := {pid for pid, (parent, _, _) in found.items() if parent in mine} - mine:
        mine |= more
    return [found[pid][1:] for pid in mine - {root}]


def session(directory: Path) -> Any:
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # With loopback TCP, two full buffers can block both sides for minutes.
        .config("spark.python.unix.domain.socket.enabled", True)
        .config("spark.driver.memory", "4g")
        .config("spark.driver.maxResultSize", "4g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.shuffle.partitions", 32)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", True)
        .getOrCreate()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=8000, help="the most rows that one statement changes")
    parser.add_argument("--seed", default="20261121")
    parser.add_argument("--version", type=int, help="major version of the server; default: the newest")
    parser.add_argument("--directory", help="directory for files; default: a temporary one")
    given = parser.parse_args()
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started:>8.0f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        directory = Path(name)
        with Server(pg.installations()[given.version or max(pg.installations())]) as server:
            database = pg.Database(server)
            kinds = capture(database, given.seed, given.messages, given.rows, directory / "dump")
            expected = {table: server_table(database, table) for table in TABLES}
        size = sum(path.stat().st_size for path in (directory / "dump").iterdir())
        say(
            f"{kinds.total():,} messages of PostgreSQL {server.version} in {FILES} files, {size / 1e6:,.0f} MB"
        )
        say(", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items())))
        spark, memory = session(directory), Memory()
        tagged = pgspark.tag(spark.read.parquet(str(directory / "dump")), "place", payload="data", lsn="lsn")
        say("first pass done")
        tagged.write.parquet(str(directory / "tagged"))
        say(
            f"tagged; JVM {memory.jvm:,.0f} MB, a Python worker {memory.worker:,.0f}, all {memory.workers:,.0f}"
        )
        wal = spark.read.parquet(str(directory / "tagged"))
        for table, rows in expected.items():
            same_tables(spark_table(wal, table, rows.schema), rows, table)
            say(f"{table}: {rows.num_rows:,} rows of {rows.num_columns} columns match the server")
        memory.stop()
        say(f"JVM {memory.jvm:,.0f} MB, a Python worker {memory.worker:,.0f}, all {memory.workers:,.0f}")
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
