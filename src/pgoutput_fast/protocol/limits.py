"""Sizes and limits that several modules use.

Those of the compiled core are in `_core/protocol/limits.hpp`.
"""

from __future__ import annotations

__all__ = [
    "LAST_INT64",
    "LAST_UINT32",
    "MESSAGE_BYTES",
    "PIECE_BYTES",
    "RECEIVED_BYTES",
    "SPARK_BATCH_BYTES",
    "SPARK_BATCH_ROWS",
    "SPARK_PARTITION_BYTES",
]

# The largest values of an Arrow int64 (ordinals, LSNs), and of an oid or xid.
LAST_INT64 = (1 << 63) - 1
LAST_UINT32 = (1 << 32) - 1
# The longest message that a server can send.
MESSAGE_BYTES = (1 << 30) - 1
# Bytes of a large transaction that are decoded at a time, approximately.
PIECE_BYTES = 1 << 25
# Bytes of the stream per read from a server.
RECEIVED_BYTES = 1 << 22
# The best batch size for Spark.
SPARK_BATCH_ROWS, SPARK_BATCH_BYTES = 10_000, 1 << 26
# Bytes per Spark task.
SPARK_PARTITION_BYTES = 1 << 26
