"""What the installed version of Spark can do."""

from __future__ import annotations

import importlib.util

__all__ = ["AVAILABLE_NOW"]

# Before 4.2 a Python source does not hear of `availableNow` and of limits: Spark takes what is there in one batch.
AVAILABLE_NOW = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
