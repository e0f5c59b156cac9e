"""Waiting changes: what they are as tagged payloads, and that they keep nothing of the memory of a call."""

from __future__ import annotations

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast._core.tagging.waiting import WaitingRows
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.transactions.reorder_buffer import ReorderBuffer

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


def test_rows_have_memory_of_their_own_behind_a_call() -> None:
    rows, _ = native().tag_waiting([interleaved()], None, None)
    assert all(each.is_shared for each in rows)
    buffer = ReorderBuffer()
    for each in rows:
        buffer.keep(each.txn, each)
    before = buffer.memory
    buffer.end_call()
    assert buffer.memory == before
    assert not any(piece.source.is_shared for each in buffer.waiting.values() for piece in each.pieces)


def test_memory_that_the_caller_changes_behind_a_call_is_not_read() -> None:
    server = Writer(2, streaming="on")
    wal = server.stream_start(7)
    for k in range(300):
        wal += server.change(ORDERS, "insert", new=[str(k), f"text {k}"], xid=7)
    wal += server.stream_stop()
    ends = wal + server.stream_commit(7, 900, 950, 0)
    expected = pgo.Decoder(pgo.Options(transactions="committed")).decode(ends).table("public.orders")
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    memory = bytearray(b"".join(wal))
    offsets = [0]
    for each in wal:
        offsets.append(offsets[-1] + len(each))
    array = pa.Array.from_buffers(
        pa.binary(), len(wal), [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(memory)]
    )
    decoder.decode(array)
    memory[:] = b"\xff" * len(memory)
    assert decoder.decode(ends[-1:]).table("public.orders").equals(expected)


@pytest.mark.parametrize("with_lsns", [0, 3, 20])
def test_pieces_of_many_calls_are_joined(with_lsns: int) -> None:
    """As one call would keep them. Some calls know the LSNs."""
    server = Writer(2, streaming="on")
    wal: list[bytes] = []
    for k in range(20):
        wal += server.stream_start(7)
        for number in range(50):
            wal += server.change(ORDERS, "insert", new=[str(number), "x" * k], xid=7 + k % 3)
        wal += server.stream_stop()
    whole, decoder, buffer = pa.array(wal, pa.binary()), native(), ReorderBuffer()
    lsns = pa.array(range(1, len(whole) + 1), pa.int64())
    for call, at in enumerate(range(0, len(whole), 60)):
        known = lsns.slice(at, 60) if call < with_lsns else None
        for each in decoder.tag_waiting([whole.slice(at, 60)], known, None)[0]:
            buffer.keep(each.txn, each)
        buffer.end_call()
    (waiting,) = buffer.waiting.values()
    assert len(waiting.pieces) < 8
    assert all(isinstance(piece.source, WaitingRows) for piece in waiting.pieces)
    one, _ = native().tag([whole], lsns, None, True)
    found = pa.concat_tables([piece.table for piece in waiting.pieces]).combine_chunks()
    expected = pa.Table.from_batches([one])
    assert found.drop_columns("lsn").equals(expected.drop_columns("lsn"))
    calls = [seq // 60 for seq in expected.column("seq").to_pylist()]
    assert found.column("lsn").to_pylist() == [
        lsn if call < with_lsns else None
        for lsn, call in zip(expected.column("lsn").to_pylist(), calls, strict=True)
    ]
