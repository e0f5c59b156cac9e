"""A job of many different tasks: each is an object that runs on an executor, and what it returns goes to the driver."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

__all__ = ["RESULT_SCHEMA", "Job", "RunJobs", "packed", "unpacked"]

# The number of a task, and its packed result.
RESULT_SCHEMA = pa.schema([("task", pa.int64()), ("result", pa.binary())])


class Job(Protocol):
    """Something to do on an executor."""

    def __call__(self) -> Any:
        """Does it. The result goes to the driver, so it is small."""


def packed(value: Any) -> bytes:
    """A task or a result in few bytes."""
    return zlib.compress(pickle.dumps(value), 1)


def unpacked(value: bytes) -> Any:
    """The inverse of `packed`."""
    return pickle.loads(zlib.decompress(value))


@dataclass(frozen=True)
class RunJobs:
    """Numbers of tasks -> their results.

    Attributes:
        work: the packed tasks: all executors get all of them, and each unpacks its own.
    """

    work: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = packed(unpacked(self.work[number])())
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number]), pa.array([result])], schema=RESULT_SCHEMA
                )
