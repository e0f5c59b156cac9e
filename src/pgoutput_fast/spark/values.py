"""Converts columns to the types that Spark accepts. Imports no PySpark."""

from __future__ import annotations

from pgoutput_fast.schema.plain import iso_8601
from pgoutput_fast.schema.plain import to_types as to_spark

__all__ = ["iso_8601", "to_spark"]
