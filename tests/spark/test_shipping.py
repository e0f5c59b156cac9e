"""Tasks on executors: what a worker sets before it loads the task's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from pgoutput_fast.spark.shipping import shipped


def _memory_settings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"milliseconds": [os.environ.get("MIMALLOC_PURGE_DELAY", "")]})


def test_a_worker_keeps_freed_memory(spark: Any) -> None:
    """A batch takes as much memory as the one before it, so the allocator returns it only after a while."""
    frame = spark.range(0, 2, 1, 2)
    assert frame.mapInArrow(shipped(_memory_settings), "milliseconds string").collect() == [("10000",)] * 2
    # This process is not a worker.
    assert "MIMALLOC_PURGE_DELAY" not in os.environ


@pytest.mark.parametrize(("given", "found"), [({}, "10000"), ({"MIMALLOC_PURGE_DELAY": "5"}, "5")])
def test_a_task_sets_it_before_pyarrow_is_there(given: dict[str, str], found: str) -> None:
    """The allocator reads its settings when pyarrow is imported. What the user has set stays."""
    dump: Any = cloudpickle.dumps
    task = dump(shipped(_memory_settings))
    code = (
        "import os, pickle, sys; task = pickle.loads(sys.stdin.buffer.read()); "
        "print(os.environ['MIMALLOC_PURGE_DELAY'], 'pyarrow' in sys.modules)"
    )
    environment = {key: text for key, text in os.environ.items() if key != "MIMALLOC_PURGE_DELAY"} | given
    done = subprocess.run(
        [sys.executable, "-c", code], input=task, env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode().split() == [found, "False"]
