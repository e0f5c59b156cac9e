"""The one place that knows what Spark cannot take from Arrow, and what it gets instead.

| decoded as | Spark gets | why |
|---|---|---|
| time64[us] | string, `HH:MM:SS.ffffff` | mapInArrow refuses time64[us], and TIME exists from Spark 4.1 on only |
| month_day_nano_interval | string, ISO 8601 | Spark has no type for months, days and time at once |
| fixed_size_binary(16), arrow.uuid | binary | Spark has no fixed-size binary |
| list or struct of any of these | list or struct of what stands there | |

Everything else that this package decodes is taken as it is.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

__all__ = ["spark_arrow_schema", "spark_arrow_type", "spark_schema"]


def spark_arrow_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type in which a value of type `kind` is handed to Spark."""
    if pa.types.is_time(kind) or pa.types.is_interval(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType):
        return spark_arrow_type(kind.storage_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(spark_arrow_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(spark_arrow_type(field.type)) for field in kind])
    return kind


def spark_arrow_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with every type as Spark takes it; field metadata are kept."""
    return pa.schema(
        [pa.field(field.name, spark_arrow_type(field.type), metadata=field.metadata) for field in schema]
    )


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's schema for `spark_arrow_schema(schema)`: timestamps with a zone are TIMESTAMP, others TIMESTAMP_NTZ."""
    bare = pa.schema([pa.field(field.name, field.type) for field in spark_arrow_schema(schema)])
    return from_arrow_schema(bare, prefer_timestamp_ntz=True)
