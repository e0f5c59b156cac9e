"""A real Spark cluster on this machine: a master and workers in their own processes, and their nodes' environment.

The Python of the nodes has the packages of this environment, except this package. The processes get no variable of this
process except JAVA_HOME. So executors have the package only if a test sends it to them, or installs it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

import pgoutput_fast
from pgoutput_fast.demo.java import spark_environment

SPARK_HOME = Path(pyspark.__file__).parent
OURS = ("pgoutput_fast", "pyspark_pgoutput", "__editable__")
_SECONDS = 180


def make_node(place: Path) -> Path:
    """Makes a Python environment without this package. Returns its Python."""
    venv.create(place, symlinks=True)
    here, there = Path(sysconfig.get_paths()["purelib"]), site_packages(place)
    for each in here.iterdir():
        if not each.name.startswith((*OURS, "__pycache__", "pip", "setuptools")):
            (there / each.name).symlink_to(each)
    return place / "bin" / "python"


def site_packages(place: Path) -> Path:
    """The directory of an environment's packages."""
    (found,) = place.glob("lib/python3*/site-packages")
    return found


def unpack(wheel: Path, target: Path) -> Path:
    """Installs only a wheel, without dependencies, into a directory."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*command, str(target), str(wheel)], check=True)
    return target


def clean_environment(python: Path) -> dict[str, str]:
    """The environment variables of a node."""
    return {
        "JAVA_HOME": spark_environment()["JAVA_HOME"],
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
    }


@contextmanager
def started(
    place: Path, python: Path, workers: Sequence[Mapping[str, str]] = ({}, {}), address: str = "127.0.0.1"
) -> Iterator[str]:
    """Starts a cluster. Yields the URL of its master.

    Args:
        place: a directory for logs and for the executors' files.
        python: the Python of the nodes.
        workers: more variables per worker, which its executors also get. A worker has one core.
        address: the first worker's address. With "127.0.0.*", every worker has its own.
    """
    environment = clean_environment(python)
    with ExitStack() as stack:
        master = stack.enter_context(
            _process(place, "master", environment, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        )
        url = _wait_for(master, r"Starting Spark master at (spark://\S+)")
        logs = [
            stack.enter_context(
                _process(
                    place, f"worker{k}", {**environment, **more}, "--host", address.replace("*", str(k + 1)),
                    "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(place / f"work{k}"), url,
                )
            )
            for k, more in enumerate(workers)
        ]  # fmt: skip
        for log in logs:
            _wait_for(log, r"Successfully registered with master (\S+)")
        yield url


@contextmanager
def _process(place: Path, name: str, environment: Mapping[str, str], *arguments: str) -> Iterator[Path]:
    kind = "master.Master" if name == "master" else "worker.Worker"
    log = place / f"{name}.log"
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=place, env=dict(environment), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def _wait_for(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.2)
    raise TimeoutError(f"{log.name} does not say {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")


def run_driver(
    program: str, url: str, directory: Path, node: Path, settings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a program on the cluster, with this Python and this package in the driver.

    Args:
        program: it has the session as `spark` and the directory as `directory`.
        url: of the master.
        directory: of segments.
        node: PYSPARK_PYTHON, the Python that the executors start.
        settings: Spark's settings.
    """
    head = "import sys\nfrom pyspark.sql import SparkSession\n"
    head += f"builder = SparkSession.builder.master({url!r})\n"
    always = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in {**always, **settings}.items():
        head += f"builder = builder.config({name!r}, {value!r})\n"
    head += f"directory = {str(directory)!r}\n"
    head += "spark = builder.getOrCreate()\nspark.sparkContext.setLogLevel('ERROR')\n"
    environment = {**clean_environment(node), "PYSPARK_DRIVER_PYTHON": sys.executable}
    # The path of this package if it is not installed. The driver's machine plans with the Python of the nodes.
    environment["PYTHONPATH"] = str(Path(pgoutput_fast.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", head + program],
        env=environment,
        cwd=directory.parent,
        capture_output=True,
        text=True,
        timeout=_SECONDS * 3,
    )
