"""The PySpark API: DataFrames of tagged payloads in, typed DataFrames out.

    wal = spark.read.parquet("segments/")          # tagged payloads
    wal = tag(spark.read.parquet("dump/"), "seq")  # or untagged ones
    orders = changes(wal, "public.orders")         # one row per tuple, decoded on the executors

These functions register nothing and need no jar: decoding runs in `mapInArrow`. Spark finds `format("pgoutput")` by
itself. If Spark uses another Python than this one, call `register(spark)` for the format.
"""

from pgoutput_fast.base.extras import explained as _explained

try:
    from pgoutput_fast.spark import udf
    from pgoutput_fast.spark.current.sink import current_sink
    from pgoutput_fast.spark.dataframes.catalog import read_catalog, relations
    from pgoutput_fast.spark.dataframes.changes import changes
    from pgoutput_fast.spark.dataframes.fresh import read_fresh
    from pgoutput_fast.spark.dataframes.outcomes import outcomes
    from pgoutput_fast.spark.dataframes.records import messages, rejects
    from pgoutput_fast.spark.dataframes.tagged import state_after
    from pgoutput_fast.spark.dataframes.transactions import transactions
    from pgoutput_fast.spark.tables.raw import write_raw
    from pgoutput_fast.spark.tables.status import table_status
    from pgoutput_fast.spark.tables.write import table_sink, write_tables
    from pgoutput_fast.spark.tagging.batches import tag_batches
    from pgoutput_fast.spark.tagging.segments import write_segments
    from pgoutput_fast.spark.tagging.tag import tag
    from pgoutput_fast.spark.workers import register
except ModuleNotFoundError as problem:
    raise _explained(problem) from None

__all__ = [
    "changes",
    "current_sink",
    "messages",
    "outcomes",
    "read_catalog",
    "read_fresh",
    "register",
    "rejects",
    "relations",
    "state_after",
    "table_sink",
    "table_status",
    "tag",
    "tag_batches",
    "transactions",
    "udf",
    "write_raw",
    "write_segments",
    "write_tables",
]
