"""A job of many different tasks: objects that run on executors, and whose results are sent to the driver."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from pgoutput_fast.tables.table import TABLE_ERRORS

__all__ = ["RESULT_SCHEMA", "Failed", "Job", "RunJobs", "packed", "unpacked"]

# The number of a task, and its packed result.
RESULT_SCHEMA = pa.schema([("task", pa.int64()), ("result", pa.binary())])


class Job(Protocol):
    """A task for an executor."""

    def __call__(self) -> Any:
        """Runs the task. The result is sent to the driver, so it must be small."""


def packed(value: Any) -> bytes:
    """Serializes a task or a result compactly."""
    return zlib.compress(pickle.dumps(value), 1)


def unpacked(value: bytes) -> Any:
    """The inverse of `packed`."""
    return pickle.loads(zlib.decompress(value))


@dataclass(frozen=True)
class Failed:
    """The result of a task whose error is that of a table."""

    problem: Exception


@dataclass(frozen=True)
class RunJobs:
    """Numbers of tasks -> their results.

    Attributes:
        work: the packed tasks: all executors get all of them, and unpack only their own.
    """

    work: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    result = packed(unpacked(self.work[number])())
                except TABLE_ERRORS as problem:
                    # The driver knows then what it was. Another attempt would have the same error.
                    result = packed(Failed(problem))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number]), pa.array([result])], schema=RESULT_SCHEMA
                )
