"""A separate driver process that writes tables, and is killed: `python -m support.lake_driver '<JSON>'`.

It prints `ready` before it begins to write, and `done` after it has written.

    source, target: paths or URIs.
    arguments: more arguments of `write_tables`, of `write_raw`, or of the sink.
    call: the function that writes, by default `write_tables`. `write_segments` writes files of payloads, tagged by
        their column `place`.
    checkpoint: for a stream.
    batches: for batches without a stream: the first and the last message of each.
    sink: the name of the sink, by default `table_sink`.
    gateway: port and secret of a running JVM; by default it starts its own JVM.
    remote: the address of a running server of Spark Connect. Its own JVM is one, too, if the variable `MODE` of
        `support.sessions` is set.
    conf: settings of its own JVM.
    kill: [module, attribute, number]: the process (or, with its own JVM, its process group) kills itself at the
        call with this number of this function; with a negative number, when that call returns. Several functions are
        separated by commas, and their calls are counted together.
    batch: kill after this number of returns of the function of foreachBatch.
    worker: kill the Python workers when one of them has written its first file.
    hold: with `worker`, they wait as long as this file is there.
    executor: kill an executor at that time. Its Python worker continues.
    tasks: [kind, directory for marks]: disturbs each task of each job once, when it has its first result. `worker`: its
        worker kills itself. `executor`: the first task of each job kills its executor, and its worker.
    dying: for `current_sink`: in this number of its jobs, a worker kills itself after its task has done its work.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.sessions import MODE


def session(job: dict[str, Any]) -> Any:
    """A session of the running JVM, or of a new one."""
    if "remote" in job:
        return connected(job["remote"])
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if "gateway" not in job:
        connect = os.environ.pop(MODE, None) is not None
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
        if connect:
            builder = builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            builder = builder.config("spark.connect.grpc.binding.port", 0)
            jvm = builder.getOrCreate()._jvm
            service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
            port = getattr(service, "MODULE$").localPort()
            return connected(f"sc://127.0.0.1:{port}")
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
    # In the session of the other process, `register` would replace its data source by one that ends with this process.
    return SparkSession(context).newSession()


def connected(address: str) -> Any:
    """A session of a server of Spark Connect."""
    from pyspark.sql.connect.session import SparkSession

    os.environ[MODE] = "1"
    return SparkSession.builder.remote(address).getOrCreate()


def die(group: bool, sent: int = signal.SIGKILL) -> None:
    os.kill(0 if group else os.getpid(), sent)


def kill_at(
    module: str, attributes: str, number: int, group: bool, sent: int = signal.SIGKILL, after: float = 0.0
) -> None:
    """Replaces functions by ones that kill this process at one of their calls, or send it another signal.

    `after` is a time in seconds. The process itself waits for it, so that it is not late if others are. With a negative
    number, calls that raise an error do not count, such as those of work that is given up.
    """
    calls, failed = itertools.count(1), 0

    def end() -> None:
        threading.Timer(after, die, (group, sent)).start() if after else die(group, sent)

    def counted(function: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            nonlocal failed
            at = next(calls)
            if at == number:
                end()
            try:
                result = function(*args, **keywords)
            except BaseException:
                failed += 1
                raise
            if at - failed == -number:
                end()
            return result

        return call

    for attribute in attributes.split(","):
        holder: Any = importlib.import_module(module)
        *outer, last = attribute.split(".")
        for name in outer:
            holder = getattr(holder, name)
        setattr(holder, last, counted(getattr(holder, last)))


def _below(process: int) -> bool:
    """Whether a process is a descendant of this one."""
    while process > 1:
        process = _parent(process)
        if process == os.getpid():
            return True
    return False


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _workers() -> list[int]:
    """The Python workers of this driver's executors. Their parents are Spark's daemons."""
    found = []
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            lines = [Path(f"/proc/{each}/cmdline").read_bytes() for each in (process, _parent(process))]
            if all(b"pyspark.daemon" in line for line in lines) and _below(process):
                found.append(process)
    return found


def _waits(process: int, marker: Path) -> bool:
    """Whether a process reads the pipe."""
    with contextlib.suppress(OSError):
        return any(os.readlink(each.path) == str(marker) for each in os.scandir(f"/proc/{process}/fd"))
    return False


def disturb(job: dict[str, Any], marker: Path, pipe: int) -> None:
    """Kills workers or executors as the job says, while they read the marker after their first file."""
    while "hold" in job and os.path.exists(job["hold"]):
        time.sleep(0.05)
    while not (chosen := [each for each in _workers() if _waits(each, marker)]):
        time.sleep(0.05)
    if "executor" in job:
        del chosen[1:]
    for process in chosen:
        os.kill(_parent(_parent(process)) if "executor" in job else process, signal.SIGKILL)
    print("stopped", len(chosen), flush=True)
    # From now on there is a marker, and readers of the pipe see its end.
    whole = marker.with_name("marker")
    whole.write_text("{}")
    whole.rename(marker)
    os.close(pipe)


def disturb_run(job: dict[str, Any]) -> None:
    """Makes the run's marker a pipe. So workers wait for this process after they have written a file."""
    from pgoutput_fast.spark.tables import run

    put = run.put_marker

    def put_pipe(store: Any, name: str, format: str) -> None:
        put(store, name, format)
        (marker,) = (Path(store.at(each)) for each in store.names("_runs"))
        marker.unlink()
        os.mkfifo(marker)
        pipe = os.open(marker, os.O_RDWR)
        threading.Thread(target=disturb, args=(job, marker, pipe), daemon=True).start()

    run.put_marker = put_pipe


class Dying:
    """A task. At its first run, the worker dies between its work and its result."""

    def __init__(self, job: Any, marker: str) -> None:
        self._job, self._marker = job, marker

    def __call__(self) -> Any:
        result = self._job()
        if not os.path.exists(self._marker):
            Path(self._marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def make_dying(count: int, target: str) -> None:
    """Makes the first task of each of the first `count` jobs die once."""
    from pgoutput_fast.spark import merge
    from pgoutput_fast.spark.current import sink
    from support.lake_driver import Dying as Task  # the name under which workers find it

    run, calls = merge.run_jobs, itertools.count()

    def run_dying(spark: Any, jobs: Any) -> list[Any]:
        number = next(calls) if jobs else count
        if number < count:
            marker = f"{target}.died{number}"
            jobs = [Task(jobs[0], marker), *jobs[1:]]
        return run(spark, jobs)

    merge.run_jobs = sink.run_jobs = run_dying


@dataclass(frozen=True)
class DisturbedTask:
    """A task of a job, which is disturbed once. The attributes are those of `tasks`, and the number of the job."""

    task: Callable[[Any], Iterator[Any]]
    kind: str
    marks: str
    job: int

    def __call__(self, batches: Any) -> Iterator[Any]:
        results = self.task(batches)
        first = next(results, None)
        self._disturb()
        if first is not None:
            yield first
        yield from results

    def _disturb(self) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId() if self.kind == "worker" else 0
        mark = Path(self.marks, f"{self.job}-{partition}")
        if context.partitionId() != partition:
            return
        if not mark.exists():
            mark.touch()
            if self.kind == "executor":
                os.kill(_parent(os.getppid()), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def disturb_tasks(kind: str, marks: str) -> None:
    """Makes each task of each job one that is disturbed."""
    from pgoutput_fast.spark import shipping
    from support.lake_driver import DisturbedTask as Task  # the name under which workers find it

    pickled, jobs = shipping._pickled, itertools.count()

    def disturbed(value: Any) -> bytes:
        return pickled(Task(value, kind, marks, next(jobs)) if callable(value) else value)

    shipping._pickled = disturbed


def home(place: str) -> str:
    """A directory for SPARK_HOME in which a local cluster may write."""
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


def write_tagged(source: str, target: str, *, spark: Any, **arguments: Any) -> None:
    from pgoutput_fast import spark as pgspark

    pgspark.write_segments(pgspark.tag(source, "place", spark=spark), target, **arguments)


def main(job: dict[str, Any]) -> None:
    from pgoutput_fast import spark as pgspark

    if "home" in job:
        os.environ["SPARK_HOME"] = home(job["home"])
    spark = session(job)
    pgspark.register(spark)
    group = not {"gateway", "remote"} & job.keys()
    if "kill" in job:
        kill_at(*job["kill"], group=group)
    if {"worker", "executor"} & job.keys():
        disturb_run(job)
    if "dying" in job:
        make_dying(job["dying"], job["target"])
    if "tasks" in job:
        disturb_tasks(*job["tasks"])
    print("ready", flush=True)
    make_sink = getattr(pgspark, job.get("sink", "table_sink"))
    if "checkpoint" in job:
        write_stream(spark, job, make_sink(job["target"], **job["arguments"]), group)
    elif "batches" in job:
        from support.current_streams import batch_of

        sink = make_sink(job["target"], **job["arguments"])
        for number, (first, last) in enumerate(job["batches"]):
            sink(batch_of(spark, Path(job["source"]), first, last), number)
    else:
        write = getattr(pgspark, job.get("call", "write_tables"))
        if write is pgspark.write_segments:
            write = write_tagged
        write(job["source"], job["target"], spark=spark, **job["arguments"])
    print("done", flush=True)
    if group:
        spark.stop()
    else:
        os._exit(0)  # the JVM and its context belong to another process


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
