"""What Spark plans to do."""

from __future__ import annotations

from typing import Any


def is_sorted(df: Any) -> bool:
    return "Sort [" in df._jdf.queryExecution().executedPlan().toString()
