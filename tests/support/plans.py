"""Spark's query plans. These functions work on sessions of both kinds."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def plan_text(df: Any, *, extended: bool = False) -> str:
    """The output of `explain`: the physical plan, or with `extended` all plans."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        df.explain(extended)
    return out.getvalue()


def is_sorted(df: Any) -> bool:
    return "Sort [" in plan_text(df)


def count_partitions(df: Any) -> int:
    """The number of Spark's partitions, including those without rows."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"n": [1]})

    return int(df.mapInArrow(count, "n long").count())
