"""Waiting changes: what they are as tagged payloads, and when they keep the memory of a call."""

from __future__ import annotations

import pyarrow as pa

import pgoutput_fast as pgo
from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast._core.tagging.waiting import WaitingRows
from pgoutput_fast.committed.reorder_buffer import ReorderBuffer
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("v", 25)))


def interleaved() -> pa.Array:
    """Blocks of two streamed transactions, with a subtransaction, and a plain transaction that stays open."""
    server = Writer(2, streaming="on")
    wal: list[bytes] = []
    for k in range(6):
        xid = 7 + k % 2
        wal += server.stream_start(xid)
        wal += server.change(ORDERS, "insert", new=[str(k), "x" * k], xid=xid + 10 * (k > 3))
        wal += server.stream_stop()
    wal += server.begin(30, 500, 0) + server.change(ORDERS, "insert", new=["9", "plain"])
    return pa.array(wal, pa.binary())


def native() -> NativeDecoder:
    return NativeDecoder(pgo.Options(), None, None)


def test_they_are_what_the_tagger_says() -> None:
    wal = interleaved()
    lsns = pa.array(range(len(wal)), pa.int64())
    tagged, _ = native().tag([wal], lsns, None, True)
    rows, _ = native().tag_waiting([wal], lsns, None)
    assert all(isinstance(each, WaitingRows) for each in rows)
    assert len(rows) == 3
    for copied in (False, True):
        batches = [each.copied().batch() if copied else each.batch() for each in rows]
        assert pa.Table.from_batches(batches).sort_by("seq").combine_chunks().to_batches() == [tagged]
    assert sum(each.nbytes for each in rows) == sum(map(len, tagged.column("payload").to_pylist()))


def test_rows_that_are_little_of_a_buffer_are_copied() -> None:
    rows, _ = native().tag_waiting([interleaved()], None, None)
    buffer = ReorderBuffer()
    for each in rows:
        buffer.keep(each.txn, each)
    before = buffer.memory
    buffer.end_call(100)  # the whole buffer is too much
    assert buffer.memory == before
    assert all(piece.source.buffer is None for each in buffer.waiting.values() for piece in each.pieces)


def test_rows_that_share_a_buffer_count_it_whole() -> None:
    server = Writer(2, streaming="on")
    wal = server.stream_start(7)
    for k in range(600):
        wal += server.change(ORDERS, "insert", new=[str(k), "x" * 100], xid=7)
    whole = pa.array(wal, pa.binary())
    decoder, buffer = native(), ReorderBuffer()
    for part in (whole.slice(0, 300), whole.slice(300)):
        for each in decoder.tag_waiting([part], None, None)[0]:
            buffer.keep(each.txn, each)
        buffer.end_call(1 << 30)
    (waiting,) = buffer.waiting.values()
    assert waiting.buffers == {(whole.buffers()[2].address, whole.buffers()[2].size)}
    assert buffer.memory == waiting.memory == whole.buffers()[2].size + 80 * 600
