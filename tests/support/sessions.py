"""Spark sessions of both kinds, with the same settings: a classic one, and one of Spark Connect."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT, TESTS

# The variable that makes PySpark's functions those of Spark Connect. PySpark sets it when it makes the session.
MODE = "SPARK_CONNECT_MODE_ENABLED"

SETTINGS: Mapping[str, Any] = {
    "spark.ui.enabled": False,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Tests that count the stages of a query may run after thousands of other stages.
    "spark.ui.retainedStages": 20_000,
    "spark.ui.retainedJobs": 20_000,
    # The optimising compiler and a concurrent collector do not pay off in short tests.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "UTC",
    # mapInArrow matches columns by position. Without this setting a wrong schema gives wrong values.
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": True,
}

# A directory with a module that is imported by the Python of the JVM of a classic session.
PRELOADING = TESTS / "support" / "preloading"

_STARTED = re.compile(r"Spark Connect server started at: .*:(\d+)")


def java_environment() -> dict[str, str]:
    """The environment of a Spark with a Java. Skips the test if there is none; with CI=true that is an error."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("pyspark")
    from pgoutput_fast.demo.java import JavaNotFoundError, spark_environment

    try:
        return spark_environment()
    except JavaNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def java_compiler() -> Path:
    """The compiler of that Java. Skips the test if there is none; with CI=true that is an error."""
    compiler = Path(java_environment()["JAVA_HOME"], "bin", "javac")
    if not compiler.exists():
        if os.environ.get("CI") == "true":
            raise FileNotFoundError(f"{compiler}: install a JDK, such as Debian's default-jdk-headless")
        pytest.skip("a compiler of Java is needed")
    return compiler


@contextlib.contextmanager
def classic_session(warehouse: Path) -> Iterator[Any]:
    """A local Spark on two cores, in a JVM started by this process."""
    environment = java_environment()
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2]").appName("pgoutput_fast tests")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        path = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(PRELOADING)]
        with pytest.MonkeyPatch.context() as of_workers:
            of_workers.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
            session = builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
        gateway: Any = session.sparkContext._gateway
        yield session
        session.stop()
        # stop() leaves the JVM running until this process ends.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(240)


@contextlib.contextmanager
def connect_server(directory: Path, more: Mapping[str, Any] | None = None) -> Iterator[str]:
    """A server of Spark Connect on two cores, in a separate process. Yields its address.

    It uses the same Python and finds the tests, so functions of tests run there.

    Args:
        directory: for the server's log and files. It is the server's working directory, so that no relative path leads
            it to files of this process.
        more: more settings.
    """
    java = java_environment()
    import pyspark

    home = Path(pyspark.__file__).parent
    path = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT), str(TESTS)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment |= java | {
        "SPARK_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(each for each in path if each),
    }
    settings = {
        **SETTINGS,
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": 0,
        **(more or {}),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--name", "pgoutput_fast tests"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = directory / "server.log"
    with open(log, "wb") as output:
        server = subprocess.Popen(
            command, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield f"sc://127.0.0.1:{_port(server, log)}"
    finally:
        # The group has the JVM and its Python workers.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(240)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    """Waits until the server accepts calls. Returns its port."""
    end = time.monotonic() + 600
    while time.monotonic() < end and server.poll() is None:
        found = _STARTED.search(log.read_text(errors="replace"))
        if found is not None:
            return int(found[1])
        time.sleep(0.1)
    raise RuntimeError(
        f"the server of Spark Connect did not start:\n{log.read_text(errors='replace')[-4000:]}"
    )


@contextlib.contextmanager
def connect_session(address: str) -> Iterator[Any]:
    """A session of Spark Connect. It may coexist with a classic one: use it in `connect_mode`."""
    from pyspark.sql.connect.session import SparkSession

    with connect_mode():
        session = SparkSession.builder.remote(address).create()
    try:
        yield session
    finally:
        session.stop()


@contextlib.contextmanager
def connect_mode() -> Iterator[None]:
    """PySpark's functions are those of Spark Connect, as in a process whose only session is one of Spark Connect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MODE, "1")
        yield
