"""Sizes that several modules keep. Each of them stands here and nowhere else.

Those of the stages are in `_core/protocol/limits.hpp`.
"""

from __future__ import annotations

__all__ = ["PIECE_BYTES", "RECEIVED_BYTES", "SPARK_BATCH_BYTES", "SPARK_BATCH_ROWS", "SPARK_PARTITION_BYTES"]

# About so many bytes of a large transaction are decoded at a time.
PIECE_BYTES = 1 << 25
# So many bytes of the stream are taken from a server at a time.
RECEIVED_BYTES = 1 << 22
# Batches that Spark takes best.
SPARK_BATCH_ROWS, SPARK_BATCH_BYTES = 10_000, 1 << 26
# So many bytes one task reads.
SPARK_PARTITION_BYTES = 1 << 26
