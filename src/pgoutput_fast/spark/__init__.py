"""The face for PySpark: DataFrames of tagged payloads in, typed DataFrames out.

    wal = spark.read.parquet("segments/")              # tagged payloads
    wal = tag(spark.read.parquet("dump/"), "seq")       # or untagged ones
    orders = changes(wal, "public.orders")             # one row per tuple, decoded on the executors

None of this registers anything or needs a jar: decoding runs in `mapInArrow`. `format("pgoutput")` is found by Spark
itself, or made known by `register(spark)` where its Python is another one.
"""

from pgoutput_fast.spark import udf
from pgoutput_fast.spark.catalog import read_catalog, relations
from pgoutput_fast.spark.changes import changes
from pgoutput_fast.spark.outcomes import outcomes
from pgoutput_fast.spark.records import messages, rejects
from pgoutput_fast.spark.tag import tag
from pgoutput_fast.spark.transactions import transactions
from pgoutput_fast.spark.workers import register

__all__ = [
    "changes",
    "messages",
    "outcomes",
    "read_catalog",
    "register",
    "rejects",
    "relations",
    "tag",
    "transactions",
    "udf",
]
