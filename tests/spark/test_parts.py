"""What the driver packs for each range of a stream, and that a task unpacks only that of its own ranges."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.spark.shipping import parts_of, shipped
from pgoutput_fast.spark.tasks.parts import Parts
from pgoutput_fast.spark.tasks.range_outcomes import RangeOutcomes, with_outcomes
from pgoutput_fast.spark.tasks.tag import PAYLOAD, Start, Starts, TagRanges
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

T = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True),))


def test_many_small_parts_and_one_that_is_larger_than_a_block() -> None:
    given = [bytes([k]) * size for k, size in enumerate((3, 0, 5 << 20, 1, 2 << 20, 2 << 20, 1 << 20))]
    blocks: list[int] = []

    def share(block: bytes) -> Any:
        blocks.append(len(block))
        return Parts.of([block]).blocks[0]

    parts = Parts.of(iter(given), share)
    assert [parts[k] for k in range(len(given))] == given
    assert blocks == [5 << 20, (2 << 20) + 1, 3 << 20]
    assert Parts.of([]).places == ()


@dataclass(frozen=True)
class _Sizes:
    """Numbers -> what a task sees of these parts."""

    parts: Parts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [self.parts[number] for number in batch.column(0).to_pylist()]
            rows = {"first": [each[0] for each in found], "size": [len(each) for each in found]}
            yield pa.RecordBatch.from_pydict(rows)


@pytest.mark.parametrize("size", [10, 70_000])
def test_a_task_gets_its_parts(spark: Any, size: int) -> None:
    """Also twice: another job of the same session shares the same broadcast variables."""
    parts = parts_of(spark, (bytes([k]) * (size + k) for k in range(100)))
    frame = spark.range(0, 100, 1, 5)
    for _ in range(2):
        found = frame.mapInArrow(shipped(_Sizes(parts)), "first long, size long").collect()
        assert sorted(map(tuple, found)) == [(k, size + k) for k in range(100)]


def _ranges() -> tuple[list[bytes], list[Start], str, TransactionOutcomes]:
    """A transaction in each of three ranges, and a streamed one that is open from the first into the third."""
    writer, wal, edges = Writer(streaming="on"), [], [0]
    for k in range(3):
        wal += writer.begin(k + 1, 100 * k + 100, 0) + writer.change(T, "insert", new=[str(k)])
        wal += writer.commit(100 * k + 100, 100 * k + 108, 0)
        if k == 0:
            wal += (
                writer.stream_start(9) + writer.change(T, "insert", new=["7"], xid=9) + writer.stream_stop()
            )
        if k == 2:
            wal += writer.stream_commit(9, 900, 908, 0)
        edges.append(len(wal))
    starts, state = [], pgo.StreamState()
    for begin, end in pairwise(edges):
        starts.append(Start.of(state, end - begin, str(begin), str(end - 1)))
        state = pgo.tag(wal[begin:end], state)[1]
    tagged, _ = pgo.tag(wal)
    outcomes = TransactionOutcomes.of_batch(pgo.decode_tagged(tagged, state.catalog).outcomes)
    return wal, starts, state.catalog.to_json(), outcomes


@pytest.mark.parametrize("number", range(3))
def test_a_task_unpacks_only_its_own_range(number: int) -> None:
    """What it would need for other ranges is damaged here."""
    wal, starts, catalog, outcomes = _ranges()

    def alone(parts: Any) -> Parts:
        return Parts.of(each if k == number else b"damaged" for k, each in enumerate(parts))

    task = TagRanges(Starts.of(starts, catalog, alone), ("place",), pgo.TAGGED_SCHEMA)
    own = RangeOutcomes.of(outcomes, starts, alone)
    start = starts[number]
    begin, end = start.next_seq, start.next_seq + start.count
    rows = {PAYLOAD: pa.array(wal[begin:end], pa.binary()), "order0": pa.array(range(begin, end), pa.int64())}
    tagged = pa.Table.from_batches(list(task(iter([pa.RecordBatch.from_pydict(rows)]))))
    assert tagged.equals(pa.Table.from_batches([pgo.tag(wal)[0]]).slice(begin, end - begin))
    ((_, found),) = with_outcomes([tagged], own)
    assert found is not None
    assert found.released(tagged).equals(outcomes.released(tagged))
    assert len(found.txns) == 2, "its own transaction, and the streamed one"
    with pytest.raises(pickle.UnpicklingError):
        own.at((number + 1) % 3)


def test_what_a_range_gets_does_not_grow_with_other_ranges() -> None:
    """Of ten times as many ranges and transactions."""

    def sizes(ranges: int) -> set[int]:
        count = 100 * ranges
        txns = np.arange(count) * 3
        none = np.zeros(count, np.bool_)
        outcomes = TransactionOutcomes(txns, txns + 2, txns * 7, txns * 5, ~none, none, {})
        starts = [Start(b"", 300, str(k), str(k), 300 * k) for k in range(ranges)]
        return {len(RangeOutcomes.of(outcomes, starts, Parts.of).at(k).txns) for k in range(ranges)}

    assert sizes(10) == sizes(100) == {100}
