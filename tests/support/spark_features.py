"""Features of the installed version of Spark."""

from __future__ import annotations

import importlib.util

__all__ = ["AVAILABLE_NOW"]

# Before 4.2, a Python source does not receive `availableNow` and limits: Spark takes all existing data in one batch.
AVAILABLE_NOW = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
