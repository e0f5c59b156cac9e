"""Runs tasks on the executors, and collects their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from pgoutput_fast.spark.sessions import cores_of
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tasks.current.jobs import RESULT_SCHEMA, Failed, Job, RunJobs, packed, unpacked
from pgoutput_fast.spark.types import spark_schema
from pgoutput_fast.spark.workers import check_workers

__all__ = ["run_jobs"]

_TASKS_PER_CORE = 4


def run_jobs(spark: SparkSession, jobs: Sequence[Job]) -> list[Any]:
    """Runs each task once, and returns the results in task order.

    Raises:
        ValueError, pyarrow.ArrowException: the first such error of a task.
        pyspark.errors.PySparkException: if a task fails with another error as often as Spark allows.
    """
    if not jobs:
        return []
    # A Spark task has overhead, and most of these are small.
    numbers = spark.range(0, len(jobs), 1, min(len(jobs), _TASKS_PER_CORE * cores_of(spark)))
    check_workers(numbers)
    task = RunJobs(tuple(packed(each) for each in jobs))
    found = numbers.mapInArrow(shipped(task), spark_schema(RESULT_SCHEMA)).toArrow()
    results = dict(zip(found.column("task").to_pylist(), found.column("result").to_pylist(), strict=True))
    done = [unpacked(results[number]) for number in range(len(jobs))]
    for each in done:
        if isinstance(each, Failed):
            raise each.problem
    return done
