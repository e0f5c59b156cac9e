"""Decode messages that lie in a Kafka topic, without Spark.

    python in_python.py TOPIC.parquet STATE.json

The topic has one message of pgoutput in each `value`, and one partition: the messages of a slot have one order. Here it
is a Parquet file with Kafka's columns. The state says where the next call goes on, also in the middle of a transaction.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pgoutput_fast as pgo


def decode_topic(topic: pa.Table, state: pgo.StreamState | None) -> tuple[pgo.Decoded, pgo.StreamState]:
    """Decodes the messages behind `state`. `_seq` of a change is its offset in Kafka."""
    places = topic.group_by(["topic", "partition"]).aggregate([]).num_rows
    if places > 1:
        raise ValueError(f"the messages of a slot need one partition of one topic; here are {places}")
    if state is not None:
        topic = topic.filter(pc.field("offset") >= state.next_seq)
    topic = topic.sort_by("offset")
    decoder = pgo.Decoder(pgo.Options(transactions="committed"), state)
    decoded = decoder.decode(topic["value"].combine_chunks(), seq=topic["offset"].combine_chunks())
    return decoded, decoder.state


def main() -> None:
    topic, saved = Path(sys.argv[1]), Path(sys.argv[2])
    before = pgo.StreamState.from_json(saved.read_text()) if saved.exists() else None
    decoded, after = decode_topic(pq.read_table(topic), before)
    for name, table in decoded.tables.items():
        print(name)
        for row in table.select(["_seq", "_change_type", "id", "note"]).to_pylist():
            print("offset", *row.values())
    # Save the state when the rows are safe in their place. Until then, the next call gives them again.
    saved.write_text(after.to_json())


if __name__ == "__main__":
    main()
