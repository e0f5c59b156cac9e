"""Segments to write tables from, checks of the resulting lake, and drivers that are killed while they write."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, read_segment, write_segment
from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import open_store
from support.paths import TESTS

__all__ = [
    "CLUSTER",
    "Driver",
    "assert_whole",
    "data_files",
    "is_connect",
    "make_dump",
    "make_segments",
    "problem_of",
    "python_workers",
    "settled",
    "tables_of",
    "wait_for",
]

# Settings of a cluster of processes.
CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(map(str, (Path(pgo.__file__).parents[1], TESTS))),
}
_COLUMNS = (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25), ColumnSpec("price", 1700))
_SOURCE = Source("7300000000000000002", "shop", "slot", ("all",), {"proto_version": "4"})


def make_segments(
    directory: Path | str,
    *,
    tables: int = 3,
    txns: int = 60,
    rows: int = 10,
    segments: int = 4,
    width: int = 20,
    row_group_bytes: int | None = None,
    price: str | None = None,
    all_end: bool = False,
) -> None:
    """Writes segments: each transaction has `rows` rows of each table. Every tenth is streamed and ends later.

    The first streamed one ends only with `all_end`.

    `width` is half the length of an incompressible text.
    """
    noise = random.Random(5)
    specs = [RelationSpec(30000 + k, "public", f"t{k}", _COLUMNS) for k in range(tables)]
    writer, state = Writer(4, streaming="on"), None
    more = {} if row_group_bytes is None else {"row_group_bytes": row_group_bytes}
    if isinstance(directory, Path):
        directory.mkdir(parents=True, exist_ok=True)
    for part in range(segments):
        wal: list[bytes] = []
        for n in range(txns * part // segments, txns * (part + 1) // segments):
            lsn = 1000 * n + 1000
            wal += writer.begin(100 + n, lsn, n)
            for spec in specs:
                for k in range(rows):
                    new = [str(n * rows + k), noise.randbytes(width).hex(), price or f"{k}.25"]
                    wal += writer.change(spec, "insert", new=new)
            wal += writer.commit(lsn, lsn + 8, n)
            if n % 10 == 3:
                wal += writer.stream_start(100_000 + n)
                wal += writer.change(specs[0], "insert", new=[str(-n), "streamed", None], xid=100_000 + n)
                wal += writer.change(specs[-1], "insert", new=[str(-n), "gone", None], xid=200_000 + n)
                wal += writer.stream_stop() + writer.stream_abort(100_000 + n, 200_000 + n)
            if n % 10 == 7 and (all_end or n > 10):
                wal += writer.stream_commit(100_000 + n - 4, lsn + 500, lsn + 508, n)
        tagged, state = pgo.tag(wal, state)
        write_segment(directory, tagged, state, source=_SOURCE, relation_bytes=2_000, **more)


def make_dump(directory: Path, segments: Path, files: int = 4) -> None:
    """Writes the payloads of segments, untagged and numbered by `place`, as Parquet files in the order of the stream."""
    payloads = pa.concat_tables([read_segment(each.path) for each in list_segments(segments)])["payload"]
    rows = pa.table({"place": pa.array(range(len(payloads))), "payload": payloads})
    directory.mkdir()
    for k in range(files):
        begin, end = len(rows) * k // files, len(rows) * (k + 1) // files
        pq.write_table(rows.slice(begin, end - begin), directory / f"{k}.parquet")


def _files(target: Path | str) -> list[str]:
    return [each.name for each in open_store(target).entries(recursive=True)]


def data_files(target: Path | str) -> set[str]:
    """The files with rows in a lake, including hidden and unfinished ones."""
    return {each for each in _files(target) if each.rpartition("/")[2].lstrip(".").startswith("part-")}


def _named(
    format: str, target: Path | str, directory: str, storage: Mapping[str, str] | None
) -> dict[str, int | None]:
    """{file: rows} of a table's files."""
    store = open_store(target)
    if format == "delta":
        uri = str(store.at(directory)).partition("?")[0].replace("key:secret@", "")
        table = deltalake.DeltaTable(uri, storage_options=dict(storage or {}))
        return {f"{directory}/{each.rpartition('/')[2]}": None for each in table.file_uris()}
    if format == "iceberg":
        uri = f"sqlite:///{store.at('_catalog.db')}"
        with load_catalog("pgoutput_fast", type="sql", uri=uri) as catalog:
            files = catalog.load_table(tuple(directory.split("."))).scan().plan_files()
            found = [(each.file.file_path.rpartition("/")[2], each.file.record_count) for each in files]
        return {f"{directory}/{name}": rows for name, rows in found}
    manifest = json.loads(store.read(f"{directory}/_manifest.json"))
    return {f"{directory}/{each['name']}": each["rows"] for each in manifest["files"]}


def tables_of(
    format: str, target: Path | str, storage: Mapping[str, str] | None = None
) -> dict[str, pa.Table]:
    """{directory: rows in the order of the stream}, read through the manifest or the log."""
    store, found = open_store(target), {}
    mark = {"parquet": "_manifest.json", "delta": "_delta_log", "iceberg": "metadata"}[format]
    for directory in sorted({each.partition(f"/{mark}")[0] for each in _files(target) if f"/{mark}" in each}):
        rows = []
        for name, count in _named(format, target, directory, storage).items():
            rows.append(pq.ParquetFile(open_file(str(store.at(name)))).read())
            assert count in (None, rows[-1].num_rows)
        table = pa.concat_tables(rows, promote_options="default") if rows else pa.table({})
        order = "seq" if directory.startswith("_rejects") else "_seq"
        found[directory] = table.sort_by([(order, "ascending")]) if rows else table
    return found


def assert_whole(
    format: str,
    target: Path | str,
    expected: Mapping[str, pa.Table],
    storage: Mapping[str, str] | None = None,
) -> None:
    """Asserts that the lake has these tables, and no other file."""
    got = tables_of(format, target, storage)
    assert got.keys() == expected.keys()
    for directory, wanted in expected.items():
        assert got[directory].to_pylist() == wanted.to_pylist(), directory
    named = {name for directory in got for name in _named(format, target, directory, storage)}
    assert data_files(target) == named
    others = [each for each in _files(target) if each not in named]
    others = [each for each in others if "/_delta_log/" not in each and "/metadata/" not in each]
    known = {"_catalog.db", "_lock", "_manifest.json", "_progress.json"}
    assert {each.rpartition("/")[2] for each in others} <= known, others


def wait_for(condition: Any, seconds: float = 240) -> Any:
    """Waits until a condition is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
    return found


def is_connect(spark: Any) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def settled(spark: Any) -> None:
    """Waits until Spark runs no job: tasks of a killed driver, or of a failed job, continue for a while."""
    if not is_connect(spark):
        wait_for(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    # The tasks of a barrier begin together, so both slots must be free: tasks of a failed job still have theirs.
    rows = spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True)
    assert len(rows.collect()) == 2


class Driver:
    """A process that writes tables, see `support.lake_driver`. With its own JVM it is a process group.

    Args:
        job: its job.
        spark: the session whose JVM, or server, it uses; by default it starts a JVM.
    """

    def __init__(self, job: Mapping[str, Any], spark: Any = None) -> None:
        job = {"arguments": {}, **job}
        if spark is not None and is_connect(spark):
            job["remote"] = f"sc://{spark.client._builder.endpoint}"
        elif spark is not None:
            parameters = spark.sparkContext._gateway.gateway_parameters
            job["gateway"] = [parameters.port, parameters.auth_token]
        self._own = spark is None
        path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(TESTS)])}
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        self._errors = Path(f"{job['target']}.errors" if "://" not in job["target"] else job["errors"])
        self._errors.parent.mkdir(parents=True, exist_ok=True)
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.lake_driver", json.dumps(job)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )

    def until(self, line: str) -> str:
        """Reads its output up to a line with this beginning. Returns the line."""
        assert self.process.stdout is not None
        for each in self.process.stdout:
            if each.startswith(line):
                return each.strip()
        raise AssertionError(f"the driver ended: {self.errors()}")

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def kill(self) -> None:
        """Kills the process, with its own JVM if it has one."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self, seconds: float = 800) -> int:
        """Waits for its end. Returns the exit code, which is -9 for a killed process."""
        return self.process.wait(seconds)


@contextmanager
def running(job: Mapping[str, Any], spark: Any = None) -> Iterator[Driver]:
    """A driver that is killed at the end of the block."""
    driver = Driver(job, spark)
    try:
        yield driver
    finally:
        driver.kill()
        driver.process.wait(240)
        assert driver.process.stdout is not None
        driver.process.stdout.close()


def python_workers(spark: Any) -> list[int]:
    """The Python processes of the session's JVM."""
    parents = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            text = Path(f"/proc/{process}/stat").read_text()
            parents[int(process)] = int(text.rpartition(")")[2].split()[1])
    found, jvm = [], spark.sparkContext._gateway.proc.pid
    for process in parents:
        at = process
        while at in parents and at != jvm:
            at = parents[at]
        with suppress(OSError):
            if at == jvm != process and b"pyspark" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


def problem_of(caught: Any) -> str:
    """The error as users see it."""
    return f"{caught.value}\n" + "\n".join(getattr(caught.value, "__notes__", ()))
