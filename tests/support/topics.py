"""A Kafka topic as a table with Spark's columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from support import pg

CHANGES = (
    "INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
    "UPDATE orders SET note = 'paid' WHERE id = 1",
)


def topic_of(payloads: Sequence[pg.Payload], step: int = 1) -> pa.Table:
    """The messages as a topic of one partition; the rows are in reverse order.

    Args:
        payloads: LSNs and messages, in order.
        step: from one offset to the next.
    """
    count = len(payloads)
    topic = pa.table(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array([message for _, message in payloads], pa.binary()),
            "topic": pa.array(["wal"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(0, count * step, step), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("ms", "UTC")),
        }
    )
    return topic.take(pa.array(range(count - 1, -1, -1)))
