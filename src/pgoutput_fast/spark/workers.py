"""Checks that Spark's Python workers can import this package."""

from __future__ import annotations

import logging
import os
import shutil
import sys

from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast.spark.sessions import context_of

__all__ = ["check_workers", "register"]

_log = logging.getLogger(__name__)


def _environment_and_binary(executable: str) -> tuple[str, str]:
    # python, python3 and python3.11 of one environment are the same Python. A link to the same binary in another
    # environment is not.
    return os.path.dirname(os.path.abspath(executable)), os.path.realpath(executable)


def check_workers(frame: DataFrame) -> None:
    """Makes a local Spark run its workers with this Python.

    If PYSPARK_PYTHON is not set, a local Spark would use the first `python3` on PATH. This function then sets this
    Python. On a cluster, the cluster determines the Python of its executors. With Spark Connect, the server decides.

    Raises:
        RuntimeError: if PYSPARK_PYTHON names another Python, which would lack this package.
    """
    _use_this_python(frame.sparkSession)


def register(spark: SparkSession) -> None:
    """Registers `format("pgoutput")` in a session, and checks that its Python workers run this Python.

    Spark finds the format by itself only if the Python that it searches has this package. It searches the Python of
    `PYSPARK_PYTHON` at the session's start, otherwise the first `python3` on PATH. If your environment is not
    activated, this is another Python, and Spark raises DATA_SOURCE_NOT_FOUND. Call this function once, after
    `getOrCreate()`. Repeated calls are harmless.

    Raises:
        RuntimeError: if PYSPARK_PYTHON names another Python, which would lack this package.
    """
    from pyspark.errors import AnalysisException

    from pyspark_pgoutput import DefaultSource

    _use_this_python(spark)
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as problem:
        # Spark 4.0 refuses to replace a format that it has found by itself, which is this one.
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _use_this_python(spark: SparkSession) -> None:
    context = context_of(spark)
    # On Spark Connect, the server decides.
    if context is None or not (context.master or "").startswith("local"):
        return
    chosen = shutil.which(context.pythonExec)
    if chosen is not None and _environment_and_binary(chosen) == _environment_and_binary(sys.executable):
        return
    if "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python"):
        raise RuntimeError(
            f"Spark's Python workers would run {context.pythonExec}, but pgoutput_fast is running in {sys.executable}: "
            "set PYSPARK_PYTHON to the latter before the session starts"
        )
    _log.info("PYSPARK_PYTHON is not set: Spark's Python workers will run %s", sys.executable)
    context.pythonExec = sys.executable
