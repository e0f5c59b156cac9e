"""Tagged payloads of Spark, and the segments that it writes of them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog, segment_outcomes
from pgoutput_fast.segments.tail import check_whole
from pgoutput_fast.spark.dataframes.tagged import ends_of, untagged_of
from pgoutput_fast.spark.tagging import segments as tagging
from support.tagged_rows import in_order

__all__ = [
    "assert_as_one_task",
    "dumped",
    "few_tasks",
    "frame",
    "parts_of",
    "rows_in",
    "tagged",
    "tasks_of",
    "with_heartbeats",
]


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments become visible when as many tasks have ended as there are cores."""
    monkeypatch.setattr(tagging, "_TASKS_PER_CORE", 1)


def frame(spark: Any, payloads: list[bytes], begin: int, end: int, sessions: set[int]) -> Any:
    table = {
        "place": pa.array(range(begin, end), pa.int64()),
        "payload": pa.array(payloads[begin:end], pa.binary()),
        "lsn": pa.array([1000 + k if k % 5 else None for k in range(begin, end)], pa.int64()),
        "starts": pa.array([k in sessions for k in range(begin, end)], pa.bool_()),
    }
    order = list(range(end - begin))
    random.Random(begin).shuffle(order)
    return spark.createDataFrame(pa.table(table).take(pa.array(order, pa.int64()))).repartition(2)


def tagged(
    spark: Any, payloads: list[bytes], begin: int = 0, end: int | None = None, sessions: Any = (), **more: Any
) -> Any:
    df = frame(spark, payloads, begin, len(payloads) if end is None else end, set(sessions))
    return pgspark.tag(df, "place", lsn="lsn", session_starts="starts", **more)


def rows_in(directory: Path) -> list[dict[str, Any]]:
    tables = [read_segment(segment.path).to_pylist() for segment in list_segments(directory)]
    return in_order([row for table in tables for row in table])


def dumped(directory: Path, payloads: list[bytes], sessions: Any = (), rows: int = 7) -> Path:
    """Files with the payloads in order, with three row groups each. The names of the files have another order."""
    directory.mkdir()
    for at in range(0, len(payloads), 3 * rows):
        places = range(at, min(at + 3 * rows, len(payloads)))
        table = {
            "place": pa.array(places, pa.int64()),
            "payload": pa.array([payloads[k] for k in places], pa.binary()),
            "starts": pa.array([k in sessions for k in places], pa.bool_()),
        }
        pq.write_table(pa.table(table), directory / f"{99_997 - at:05}.parquet", row_group_size=rows)
    return directory


def assert_as_one_task(directory: Path, wal: Any, segment_bytes: int = 300) -> None:
    """Asserts that segments of several tasks have what the segments of one have, which gets the rows from Spark."""
    alone = directory.with_name(f"{directory.name} of one task")
    pgspark.write_segments(wal.select("*"), alone, segment_bytes=segment_bytes, state=ends_of(wal).before)
    assert rows_in(directory) == rows_in(alone)
    found, expected = list_segments(directory), list_segments(alone)
    assert segment_catalog(directory) == segment_catalog(alone)
    assert segment_outcomes(directory) == segment_outcomes(alone)
    # The last tasks may have had only messages without rows: then a note says where the stream continues.
    note = directory / "_next.json"
    noted = {"next_seq": json.loads(note.read_text())["next_seq"]} if note.exists() else {}
    assert found[-1].state.values | noted == pgspark.state_after(wal).values
    assert (found[0].first_seq, found[-1].last_seq) == (expected[0].first_seq, expected[-1].last_seq)
    check_whole(found)
    assert not [each for each in os.listdir(directory) if each.startswith(".")]


def tasks_of(wal: Any, segment_bytes: int = 300) -> int:
    return len(untagged_of(wal).payloads.joined(0, 10_000, segment_bytes)[1])  # type: ignore[union-attr]


def with_heartbeats(parts: int) -> list[list[bytes]]:
    """Parts of a stream, each of a session of its own: a new session repeats a message, which then has no row."""
    writer, table = (
        encode.Writer(4),
        encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23, key=True),)),
    )
    beat = writer.message(150, "p", b"beat", transactional=False)
    found = []
    for n in range(1, parts + 1):
        part = writer.begin(n, 100 * n, 0) + writer.change(table, "insert", new=[str(n)])
        found.append([*part, *writer.commit(100 * n, 100 * n + 8, 0), *beat])
    found.insert(2, list(beat))  # nothing else comes in this one
    return found


def parts_of(spark: Any, parts: list[list[bytes]]) -> Any:
    """(number, tagged payloads) of each part, from its state on."""
    state, begin = None, 0
    for number, part in enumerate(parts):
        rows = [(begin + k, payload) for k, payload in enumerate(part)]
        wal = pgspark.tag(spark.createDataFrame(rows, "place bigint, payload binary"), "place", state=state)
        yield number, wal
        state, begin = pgspark.state_after(wal), begin + len(part)
