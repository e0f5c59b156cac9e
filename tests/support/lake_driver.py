"""A driver of its own that writes tables, and is killed: `python -m support.lake_driver '<JSON>'`.

It prints `ready` before it begins to write, and `done` when it has written.

    source, target: paths or URIs.
    arguments: more arguments of `write_tables`, or of `table_sink` if there is a checkpoint.
    checkpoint: for a stream.
    gateway: port and secret of a JVM that runs; by default it starts its own JVM.
    conf: settings of its own JVM.
    kill: [module, attribute, number]: the process (or, with its own JVM, its process group) kills itself when this
        function is called for the so-manieth time; with a number below 0, when this call returns.
    batch: kill after the function of foreachBatch has returned so many times.
    worker: how many Python workers to kill while they write a file.
    executor: how many executors to kill while a Python worker of theirs writes a file. The worker goes on.
    straggler: whether a Python worker stops while it writes a file, and goes on when the run has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def session(job: dict[str, Any]) -> Any:
    """A session of the JVM that runs, or of one of its own."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if "gateway" not in job:
        builder = SparkSession.builder.config("spark.ui.enabled", False)
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
        for name, value in {"spark.master": "local[2]", "spark.driver.memory": "1g"}.items():
            builder = builder.config(name, value)
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        builder = builder.config("spark.driver.extraJavaOptions", quick)
        for name, value in job.get("conf", {}).items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    from pyspark.java_gateway import launch_gateway

    os.environ["PYSPARK_GATEWAY_PORT"] = str(job["gateway"][0])
    os.environ["PYSPARK_GATEWAY_SECRET"] = job["gateway"][1]
    gateway = launch_gateway()
    jvm: Any = gateway.jvm
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    context = SparkContext(
        gateway=gateway, jsc=jvm.JavaSparkContext(running), conf=SparkConf(_jconf=running.conf())
    )
    return SparkSession(context)


def die(group: bool) -> None:
    os.kill(0 if group else os.getpid(), signal.SIGKILL)


def kill_at(module: str, attribute: str, number: int, group: bool) -> None:
    """Replaces a function by one that kills this process at one of its calls."""
    holder: Any = importlib.import_module(module)
    *outer, last = attribute.split(".")
    for name in outer:
        holder = getattr(holder, name)
    function, calls = getattr(holder, last), itertools.count(1)

    def counted(*args: Any, **keywords: Any) -> Any:
        at = next(calls)
        if at == number:
            die(group)
        result = function(*args, **keywords)
        if at == -number:
            die(group)
        return result

    setattr(holder, last, counted)


def _writers(target: str) -> Iterator[tuple[int, str]]:
    """(process, path) of the processes that have a file of a run open."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for each in os.scandir(f"/proc/{process}/fd"):
                path = os.readlink(each.path)
                if path.startswith(target) and re.search(r"/\.+part-[^/]*$", path):
                    yield int(process), path


def stop_writers(target: str, most: int, done: threading.Event) -> Iterator[tuple[int, str]]:
    """Stops processes while they write a file. Yields the processes, and prints the files."""
    stopped: set[int] = set()
    while len(stopped) < most and not done.is_set():
        if not any(each.name.lstrip(".").startswith("part-") for each in Path(target).glob("*/.*")):
            time.sleep(0.0005)
            continue
        for process, path in _writers(target):
            if process in stopped or process == os.getpid() or len(stopped) >= most:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                if os.path.exists(path):
                    stopped.add(process)
                    print("stopped", path, flush=True)
                    yield process, path
                else:
                    os.kill(process, signal.SIGCONT)


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def disturb(job: dict[str, Any], done: threading.Event, stragglers: list[int]) -> None:
    """Does to workers and executors what the job says."""
    most = job.get("worker", 0) or job.get("executor", 0) or int(job.get("straggler", False))
    for process, _ in stop_writers(job["target"], most, done):
        if "straggler" in job:
            stragglers.append(process)
        elif "executor" in job:
            os.kill(_parent(_parent(process)), signal.SIGKILL)
            os.kill(process, signal.SIGCONT)
        else:
            os.kill(process, signal.SIGKILL)


def resume_at_end(stragglers: list[int]) -> None:
    """Lets stragglers go on right after a run has ended, and waits until Spark has ended them."""
    from pgoutput_fast.spark.tables.run import Run

    end = Run.end

    def ended(run: Run) -> None:
        end(run)
        for process in stragglers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while any(os.path.exists(f"/proc/{each}") for each in stragglers) and time.monotonic() < deadline:
            time.sleep(0.1)

    Run.end = ended  # type: ignore[method-assign]


def home(place: str) -> str:
    """A directory for SPARK_HOME in which a cluster of this machine may write."""
    import pyspark

    for each in Path(pyspark.__file__).parent.iterdir():
        (Path(place) / each.name).symlink_to(each)
    return place


def write_stream(spark: Any, job: dict[str, Any], sink: Any, group: bool) -> None:
    batches = itertools.count(1)

    def write(batch: Any, number: int) -> None:
        sink(batch, number)
        if next(batches) == job.get("batch"):
            die(group)

    reader = spark.readStream.format("pgoutput").option("emit", "files").option("max_segments", "1")
    query = reader.load(job["source"]).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


def main(job: dict[str, Any]) -> None:
    from pgoutput_fast import spark as pgspark

    if "home" in job:
        os.environ["SPARK_HOME"] = home(job["home"])
    spark = session(job)
    pgspark.register(spark)
    group = "gateway" not in job
    if "kill" in job:
        kill_at(*job["kill"], group=group)
    done, stragglers = threading.Event(), list[int]()
    watcher = threading.Thread(target=disturb, args=(job, done, stragglers))
    watcher.start()
    if "straggler" in job:
        resume_at_end(stragglers)
    print("ready", flush=True)
    try:
        if "checkpoint" in job:
            write_stream(spark, job, pgspark.table_sink(job["target"], **job["arguments"]), group)
        else:
            pgspark.write_tables(job["source"], job["target"], spark=spark, **job["arguments"])
    finally:
        done.set()
        watcher.join()
    print("done", flush=True)
    if group:
        spark.stop()
    else:
        os._exit(0)  # the JVM and its context belong to another process


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
