"""Checks that Spark's Python workers can import this package."""

from __future__ import annotations

import logging
import os
import shutil
import sys

from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_workers", "register"]

_log = logging.getLogger(__name__)


def _place(executable: str) -> tuple[str, str]:
    # python, python3 and python3.11 of one environment are one Python; the same binary's link in another is not.
    return os.path.dirname(os.path.abspath(executable)), os.path.realpath(executable)


def check_workers(frame: DataFrame) -> None:
    """Makes sure that a local Spark runs its workers with this Python.

    A local Spark whose PYSPARK_PYTHON was never set would take whatever `python3` is first on PATH; it is told to take
    this one. On a cluster the executors' Python is the cluster's business.

    Raises:
        RuntimeError: if PYSPARK_PYTHON names another Python than this one, in which the package would be missing.
    """
    _use_this_python(frame.sparkSession)


def register(spark: SparkSession) -> None:
    """Makes `format("pgoutput")` known to a session, and sees that its Python workers are this Python.

    Spark finds the format by itself only if the Python that it looks with has this package: that of `PYSPARK_PYTHON`
    when the session starts, else the first `python3` on PATH. From a program whose environment is not activated this
    is another one, and Spark says DATA_SOURCE_NOT_FOUND. Call this once, behind `getOrCreate()`. It does no harm where
    the format is known already.

    Raises:
        RuntimeError: if PYSPARK_PYTHON names another Python than this one, in which the package would be missing.
    """
    from pyspark_pgoutput import DefaultSource

    _use_this_python(spark)
    spark.dataSource.register(DefaultSource)


def _use_this_python(spark: SparkSession) -> None:
    context = spark.sparkContext
    if not (context.master or "").startswith("local"):
        return
    chosen = shutil.which(context.pythonExec)
    if chosen is not None and _place(chosen) == _place(sys.executable):
        return
    if "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python"):
        raise RuntimeError(
            f"Spark's Python workers would run {context.pythonExec}, but pgoutput_fast is running in {sys.executable}: "
            "set PYSPARK_PYTHON to the latter before the session starts"
        )
    _log.info("PYSPARK_PYTHON is not set: Spark's Python workers will run %s", sys.executable)
    context.pythonExec = sys.executable
