"""Spark's types of decoded columns. `schema/types.py` has the table of their Arrow types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
import pyspark.sql.types
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from pgoutput_fast.schema.types import stored_type

__all__ = ["Time", "check_time", "described_schema", "spark_arrow_schema", "spark_arrow_type", "spark_schema"]

Time = Literal["string", "TIME"]


def check_time(time: str) -> None:
    """Checks that this Spark supports the conversion `time` of a time of day.

    Raises:
        ValueError: if it cannot.
    """
    if time not in ("string", "TIME"):
        raise ValueError(f"time must be 'string' or 'TIME', not {time!r}")
    if time == "TIME" and not hasattr(pyspark.sql.types, "TimeType"):
        raise ValueError("this Spark has no type TIME: use Spark 4.1 or later, or time='string'")


def spark_arrow_type(kind: pa.DataType, time: Time = "string") -> pa.DataType:
    """Returns the Arrow type in which Spark receives a value of type `kind`. For a time of day, `time` decides."""
    return stored_type(kind, "spark_time" if time == "TIME" else "spark")


def spark_arrow_schema(schema: pa.Schema, time: Time = "string") -> pa.Schema:
    """Returns the schema with every type as accepted by Spark. Field metadata are kept."""
    return pa.schema(
        [
            pa.field(field.name, spark_arrow_type(field.type, time), metadata=field.metadata)
            for field in schema
        ]
    )


def spark_schema(schema: pa.Schema, time: Time = "string") -> StructType:
    """Returns Spark's schema for `spark_arrow_schema(schema)`.

    Timestamps with a zone are TIMESTAMP, others TIMESTAMP_NTZ.
    """
    bare = pa.schema([pa.field(field.name, field.type) for field in spark_arrow_schema(schema, time)])
    return from_arrow_schema(bare, prefer_timestamp_ntz=True)


def described_schema(
    schema: pa.Schema, time: Time = "string", catalog: Mapping[str, str] | None = None
) -> StructType:
    """Returns Spark's schema, with PostgreSQL's names as field metadata.

    Args:
        schema: the decoded schema.
        time: the type of a time of day.
        catalog: further metadata of the first field, beside those of the schema.
    """
    fields: list[StructField] = []
    for field, given in zip(spark_schema(schema, time), schema, strict=True):
        metadata = _texts(given.metadata)
        if not fields:
            metadata |= _texts(schema.metadata) | dict(catalog or {})
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields)


def _texts(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items() if key.startswith(b"pg.")}
