"""A real cluster: how executors get the package, and tasks that Spark runs twice, as described in docs/performance.md.

make test-cluster                                   # builds the wheel
PGOUTPUT_FAST_WHEEL=... make test-cluster           # with an existing wheel
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nodes
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import pgoutput_fast as pgo
from environments import build_wheel
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, read_segment, write_segment

ROWS, SEGMENTS = 20, 4
PROGRAM = """
from pgoutput_fast import spark as pgspark

def attempt(name, run):
    try:
        print(name, "gives", run(), flush=True)
    except Exception as problem:
        print(name, "fails:", problem, flush=True)

def read():
    pgspark.register(spark)
    source = spark.read.format("pgoutput").option("table", "public.orders").option("transactions", "committed")
    return source.load(directory).count()

attempt("changes", lambda: pgspark.changes(spark.read.parquet(directory), "public.orders").count())
attempt("format", read)
attempt("write_tables", lambda: sum(row.rows for row in pgspark.write_tables(directory, lake, mode="overwrite")))
spark.stop()
"""
WAYS = ("changes", "format", "write_tables")


@dataclass(frozen=True)
class Cluster:
    """A cluster whose nodes lack the package, and what can be sent to it."""

    url: str
    place: Path
    wheel: Path

    def run(self, node: Path, **settings: str) -> str:
        """Returns the program's output. `node` is the Python of the executors."""
        program = f"lake = {str(self.place / 'lake')!r}\n{PROGRAM}"
        named = {name.replace("_", "."): value for name, value in settings.items()}
        done = nodes.run_driver(program, self.url, self.place / "segments", node, named)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place: Path = tmp_path_factory.mktemp("cluster")
    given = os.environ.get("PGOUTPUT_FAST_WHEEL")
    wheel = Path(given) if given else build_wheel(sys.executable, place)
    segments = place / "segments"
    segments.mkdir()
    orders, writer, state = (
        RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)),
        Writer(),
        None,
    )
    for n in range(SEGMENTS):
        wal = writer.begin(7, 100 * n + 100, 0)
        for k in range(ROWS):
            wal += writer.change(orders, "insert", new=[str(n * ROWS + k)])
        tagged, state = pgo.tag(wal + writer.commit(100 * n + 100, 100 * n + 108, 0), state)
        write_segment(segments, tagged, state, source=Source("1", "shop", "slot"))
    with nodes.started(place, nodes.make_node(place / "bare")) as url:
        yield Cluster(url, place, wheel)


def _everything(printed: str) -> bool:
    return all(f"{way} gives {ROWS * SEGMENTS}\n" in printed for way in WAYS)


def _failures(printed: str) -> list[str]:
    """The errors of all ways. All must have failed."""
    found, rest = [], printed
    for way in WAYS:
        before, fails, rest = rest.partition(f"{way} fails:")
        assert fails, printed
        found.append(before)
    return [*found[1:], rest]


def test_nodes_without_the_package_say_what_to_do(cluster: Cluster) -> None:
    printed = cluster.run(cluster.place / "bare" / "bin" / "python")
    for said in _failures(printed):
        assert "cannot import pgoutput_fast: No module named 'pgoutput_fast'. Install the wheel" in said


def test_the_wheel_on_each_node(cluster: Cluster) -> None:
    python = nodes.make_node(cluster.place / "full")
    nodes.unpack(cluster.wheel, nodes.site_packages(cluster.place / "full"))
    printed = cluster.run(python)
    assert _everything(printed), printed


def test_an_archive_with_the_wheel(cluster: Cluster) -> None:
    packages = nodes.unpack(cluster.wheel, cluster.place / "packages")
    archive = cluster.place / "packages.tar.gz"
    subprocess.run(["tar", "-C", str(packages), "-czf", str(archive), "."], check=True)
    printed = cluster.run(
        cluster.place / "bare" / "bin" / "python",
        spark_archives=f"{archive}#packages",
        spark_executorEnv_PYTHONPATH="packages",
    )
    assert _everything(printed), printed


def test_a_zip_does_not_work(cluster: Cluster) -> None:
    """Python does not load compiled modules from a zip."""
    package = shutil.copy(cluster.wheel, cluster.place / "package.zip")
    python, segments = cluster.place / "bare" / "bin" / "python", cluster.place / "segments"
    settings = {"spark.submit.pyFiles": str(package)}
    done = nodes.run_driver(PROGRAM, cluster.url, segments, python, settings)
    assert "No module named 'pgoutput_fast._core" in done.stdout + done.stderr


def test_another_version_on_the_nodes_is_said(cluster: Cluster) -> None:
    python = nodes.make_node(cluster.place / "older")
    packages = nodes.unpack(cluster.wheel, nodes.site_packages(cluster.place / "older"))
    init = packages / "pgoutput_fast" / "__init__.py"
    init.write_text(init.read_text().replace(f'__version__ = "{pgo.__version__}"', '__version__ = "0.0.1"'))
    printed = cluster.run(python)
    for said in _failures(printed):
        assert f"has pgoutput_fast 0.0.1 ({init}), but the driver has {pgo.__version__}" in said


# ---- tasks that Spark runs twice -----------------------------------------------------------------------------------

# On the slow worker, a task sleeps after it has read or written rows.
SLOW = """
import os
import time
import pyarrow.parquet
slow = os.environ.get("SLOW")
if slow == "write":
    write = pyarrow.parquet.ParquetWriter.write_table
    def write_slowly(*arguments, **more):
        write(*arguments, **more)
        time.sleep(300)
    pyarrow.parquet.ParquetWriter.write_table = write_slowly
if slow == "read":
    read = pyarrow.parquet.ParquetFile.iter_batches
    def read_slowly(*arguments, **more):
        yield from read(*arguments, **more)
        time.sleep(300)
    pyarrow.parquet.ParquetFile.iter_batches = read_slowly
"""
SPECULATE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.quantile": "0.1",
    # Also of a stage with one task.
    "spark.speculation.task.duration.threshold": "2s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.locality.wait": "0",
}
WRITE = """
import time
from pgoutput_fast import spark as pgspark

begun = time.monotonic()
if call == "write_tables":
    pgspark.write_tables(directory, lake, format=format)
elif call == "write_raw":
    pgspark.write_raw(dump, lake, order_by="place", format=format)
else:
    pgspark.write_segments(pgspark.tag(dump, "place", spark=spark), segments)
print("slow:", time.monotonic() - begun > 250, flush=True)
spark.stop()
"""


@pytest.mark.parametrize(
    ("call", "slow", "format"),
    [
        ("write_tables", "write", "parquet"),
        ("write_tables", "write", "delta"),
        ("write_raw", "read", "parquet"),
        ("write_raw", "write", "parquet"),
        ("write_raw", "write", "delta"),
        ("write_segments", "read", "parquet"),
        ("write_segments", "write", "parquet"),
    ],
)
def test_a_task_that_spark_runs_twice(
    cluster: Cluster, tmp_path: Path, call: str, slow: str, format: str
) -> None:
    """Only the files of the first attempt to finish remain. Spark runs no second attempt on the same host."""
    python = nodes.make_node(tmp_path / "full")
    packages = nodes.unpack(cluster.wheel, nodes.site_packages(tmp_path / "full"))
    (packages / "sitecustomize.py").write_text(SLOW)
    places = {name: str(tmp_path / name) for name in ("dump", "segments", "lake")}
    lake, events = tmp_path / "lake", tmp_path / "events"
    events.mkdir()
    _dump(cluster.place / "segments", tmp_path / "dump")
    settings = {**SPECULATE, "spark.eventLog.dir": events.as_uri()}
    named = {**places, "call": call, "format": format}
    program = "".join(f"{name} = {value!r}\n" for name, value in named.items()) + WRITE
    with nodes.started(tmp_path, python, workers=({}, {"SLOW": slow}), address="127.0.0.*") as url:
        done = nodes.run_driver(program, url, cluster.place / "segments", python, settings)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "slow: False" in done.stdout
    logs = [path.read_text() for path in events.rglob("*events*") if path.is_file()]
    logged = [json.loads(line) for log in logs for line in log.splitlines()]
    assert any(event.get("Task Info", {}).get("Speculative") for event in logged)
    if call == "write_segments":
        _assert_segments(tmp_path)
    else:
        _assert_table(lake, format)


def _dump(segments: Path, dump: Path) -> None:
    """A file of numbered payloads for each segment."""
    dump.mkdir()
    place = 0
    for part in list_segments(segments):
        payloads = read_segment(part.path)["payload"]
        places = pa.array(range(place, place + len(payloads)))
        pq.write_table(pa.table({"place": places, "payload": payloads}), dump / f"{place:06}.parquet")
        place += len(payloads)


def _assert_segments(place: Path) -> None:
    """Every payload is there once, and each file belongs to the segments."""
    dumped = pa.concat_tables([pq.read_table(each) for each in sorted((place / "dump").iterdir())])
    parts = list_segments(place / "segments")
    written = pa.concat_tables([read_segment(part.path) for part in parts])
    assert written["payload"].to_pylist() == dumped["payload"].to_pylist()
    assert written["seq"].to_pylist() == list(range(len(dumped)))
    assert {path.name for path in (place / "segments").rglob("*.parquet")} == {
        part.path.name for part in parts
    }


def _assert_table(lake: Path, format: str) -> None:
    table = lake / "public.orders"
    found = {path.name for path in table.rglob("*.parquet")}
    if format == "parquet":
        known = {each["name"] for each in json.loads((table / "_manifest.json").read_text())["files"]}
    else:
        known = {Path(uri).name for uri in DeltaTable(str(table)).file_uris()}
    assert found == known
    assert sum(pq.ParquetFile(table / name).metadata.num_rows for name in known) == ROWS * SEGMENTS
