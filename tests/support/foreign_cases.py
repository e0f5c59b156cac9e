"""Damaged Arrow data, one function per entry point. `python tests/support/foreign_cases.py` prints the outcomes.

Run it in a separate process: a read beyond the end of a buffer kills the process.
"""

from __future__ import annotations

import base64
import ctypes
import json
import mmap
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

# This file also runs as a program.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.decoding.framing import unframe
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.transactions import spill
from support.guarded import array_of, batch_of, guarded

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
WAL = [encode.encode_begin(100, 0, 7), encode.encode_relation(T)]
WAL += [encode.encode_insert(16384, [str(k), "x" * 2000]) for k in range(40)]
WAL += [encode.encode_commit(100, 108, 0)]
OPEN = [encode.encode_stream_start(8, True), encode.encode_relation(T, xid=8)]
OPEN += [encode.encode_insert(16384, [str(k), "y"], xid=8) for k in range(40)] + [encode.encode_stream_stop()]
TAGGED, STATE = pgo.tag(WAL)
COMMITTED = pgo.Options(transactions="committed")
N = len(WAL)


def ints(*values: int) -> bytes:
    return struct.pack(f"{len(values)}i", *values)


def longs(*values: int) -> bytes:
    return struct.pack(f"{len(values)}q", *values)


def payloads(offsets: list[int], data: bytes = b"".join(WAL), **more: Any) -> pa.Array:
    return array_of(pa.binary(), len(offsets) - 1, [None, ints(*offsets), data], **more)


def ends(values: list[bytes] = WAL) -> list[int]:
    found = [0]
    for each in values:
        found.append(found[-1] + len(each))
    return found


def tagged(**columns: pa.Array) -> pa.RecordBatch:
    return batch_of(
        [columns.get(field.name, TAGGED.column(field.name)) for field in TAGGED.schema], TAGGED.schema
    )


def wild_ends() -> list[int]:
    offsets = ends()
    offsets[20] = 1 << 30
    return offsets


def view(length: int, buffer: int, offset: int) -> pa.Array:
    """Two views; the arguments describe the second one."""
    good = struct.pack("<i12s", 1, b"B")
    views = good + struct.pack("<i4sii", length, b"Bxxx", buffer, offset)
    return array_of(pa.binary_view(), 2, [None, views, b"B" * 100])


# ---- decode --------------------------------------------------------------------------------------------------------


def decode_wild_offset() -> Any:
    return pgo.decode(payloads(wild_ends()))


def decode_backward_offset() -> Any:
    offsets = ends()
    offsets[20] = 3
    return pgo.decode(payloads(offsets))


def decode_negative_offset() -> Any:
    return pgo.decode(payloads([-(1 << 30), *ends()[1:]]))


def decode_short_offsets() -> Any:
    return pgo.decode(array_of(pa.binary(), 1 << 20, [None, ints(*ends()), b"".join(WAL)]))


def decode_short_validity() -> Any:
    return pgo.decode(array_of(pa.binary(), 1 << 20, [b"\xff", ints(*[0] * ((1 << 20) + 1)), b""]))


def decode_begin_before_the_buffer() -> Any:
    return pgo.decode(payloads(ends(), offset=-(1 << 30)))


def decode_view_of_another_buffer() -> Any:
    return pgo.decode(view(50, 9, 0))


def decode_view_beyond_its_buffer() -> Any:
    return pgo.decode(view(50, 0, 1 << 30))


def decode_view_of_negative_length() -> Any:
    return pgo.decode(view(-5, 0, 0))


def decode_committed_wild_offset() -> Any:
    return pgo.Decoder(COMMITTED).decode(payloads(wild_ends()))


def decode_chunk_with_wild_offset() -> Any:
    return pgo.decode(pa.chunked_array([pa.array(WAL[:2], pa.binary()), payloads(wild_ends()[2:])]))


def decode_short_lsn() -> Any:
    return pgo.decode(WAL * 100, lsn=array_of(pa.int64(), N * 100, [None, longs(1, 2, 3)]))


def decode_wild_lsn_text() -> Any:
    offsets = ints(*(k << 24 for k in range(N + 1)))
    return pgo.decode(WAL, lsn=array_of(pa.string(), N, [None, offsets, b"0/1"]))


def decode_short_validity_of_lsn() -> Any:
    lsn = array_of(pa.int64(), N * 1000, [b"\1", longs(*[1] * N * 1000)])
    return pgo.decode(WAL * 1000, lsn=lsn)


def decode_seq_without_values() -> Any:
    return pgo.decode(WAL, seq=array_of(pa.int64(), N, [None, None]))


def decode_short_seq_in_chunks() -> Any:
    seq = pa.chunked_array(
        [pa.array(range(3), pa.int64()), array_of(pa.int64(), N * 100 - 3, [None, longs(3)])]
    )
    return pgo.decode(WAL * 100, seq=seq)


def unframe_wild_offset() -> Any:
    frames = [b"w" + bytes(24) + each for each in WAL]
    offsets = ends(frames)
    offsets[20] = 1 << 30
    return unframe(payloads(offsets, b"".join(frames)))


def stream_short_lsn() -> Any:
    columns = [pa.array(WAL, pa.binary()), array_of(pa.int64(), N, [None, longs(1)])]
    batch = batch_of(columns, pa.schema({"payload": pa.binary(), "lsn": pa.int64()}))
    return list(pgo.Decoder().stream([batch]))


def tag_short_validity() -> Any:
    return pgo.tag(array_of(pa.binary(), 1 << 20, [b"\xff", ints(*[0] * ((1 << 20) + 1)), b""]))


# ---- Arrow's C interface -------------------------------------------------------------------------------------------


class Foreign:
    """An object of another library: it has only __arrow_c_array__, with three chosen numbers in the struct."""

    def __init__(self, array: pa.Array, length: int, nulls: int = 0, offset: int = 0) -> None:
        self.array, self.numbers = array, (length, nulls, offset)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        schema, capsule = self.array.__arrow_c_array__(requested_schema)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.memmove(get(capsule, b"arrow_array"), longs(*self.numbers), 24)
        return schema, capsule


LSNS = pa.array(range(N), pa.int64())


def c_interface_of_negative_length() -> Any:
    return pgo.decode(WAL, lsn=Foreign(LSNS, -1))


def c_interface_of_negative_offset() -> Any:
    return pgo.decode(WAL, lsn=Foreign(LSNS, N, offset=-(1 << 40)))


def c_interface_of_impossible_length() -> Any:
    return pgo.decode(WAL, lsn=Foreign(LSNS, (1 << 63) - 1))


def c_interface_of_negative_nulls() -> Any:
    return pgo.decode(WAL, lsn=Foreign(LSNS, N, nulls=-7))


def c_interface_of_nulls_without_validity() -> Any:
    return pgo.decode(WAL, lsn=Foreign(LSNS, N, nulls=3))


def sound_c_interface() -> Any:
    offered = pgo.decode(pa.array(Foreign(pa.array(WAL, pa.binary()), N)), lsn=Foreign(LSNS, N))
    return ids(offered) == [*range(40)]


# ---- decode_tagged -------------------------------------------------------------------------------------------------


def tagged_short_seq() -> Any:
    return pgo.decode_tagged(tagged(seq=array_of(pa.int64(), N, [None, longs(1)])), STATE.catalog)


def tagged_lsn_without_values() -> Any:
    return pgo.decode_tagged(tagged(lsn=array_of(pa.int64(), N, [None, None])), STATE.catalog)


def tagged_short_validity() -> Any:
    return pgo.decode_tagged(tagged(txn=array_of(pa.int64(), N, [b"\1", longs(*range(N))])), STATE.catalog)


def tagged_short_kind() -> Any:
    return pgo.decode_tagged(tagged(kind=array_of(pa.int8(), N, [None, b"B"])), STATE.catalog)


def tagged_short_in_stream() -> Any:
    return pgo.decode_tagged(tagged(in_stream=array_of(pa.bool_(), N, [None, b""])), STATE.catalog)


def tagged_wild_payload() -> Any:
    return pgo.decode_tagged(tagged(payload=payloads(wild_ends())), STATE.catalog)


def tagged_table_with_wild_payload() -> Any:
    table = pa.Table.from_batches([tagged(payload=payloads(wild_ends())), TAGGED])
    return pgo.decode_tagged(table, STATE.catalog)


def tagged_wild_large_payload() -> Any:
    payload = array_of(pa.large_binary(), N, [None, longs(*wild_ends()), b"".join(WAL)])
    schema = TAGGED.schema.set(11, pa.field("payload", pa.large_binary()))
    return pgo.decode_tagged(batch_of([*TAGGED.columns[:-1], payload], schema), STATE.catalog)


def tagged_committed_wild_outcomes() -> Any:
    outcomes = pgo.decode(WAL).outcomes
    wild = array_of(pa.string(), 1, [None, ints(0, 1 << 30), b"committed"])
    columns = [wild if name == "outcome" else outcomes.column(name) for name in outcomes.schema.names]
    outcomes = batch_of(columns, outcomes.schema)
    return pgo.decode_tagged(TAGGED, STATE.catalog, COMMITTED, outcomes=outcomes)


def tagged_committed_kinds_that_are_null() -> Any:
    kinds = pa.array([None, *TAGGED.column("kind").to_pylist()[1:]], pa.int8())
    return pgo.decode_tagged(tagged(kind=kinds), STATE.catalog, COMMITTED, outcomes=pgo.decode(WAL).outcomes)


def tagged_file_with_short_buffers() -> Any:
    """A file as written by Arrow, except that the buffer of the payloads' offsets claims a length of one offset."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TAGGED.schema) as writer:
        writer.write_batch(TAGGED)
    data = bytearray(sink.getvalue())
    # The file describes a buffer by (place, length), both int64. This finds the buffer of the offsets by its length.
    wanted = longs(4 * (N + 1))
    for at in range(0, len(data) - 8, 8):
        if data[at : at + 8] == wanted:
            data[at : at + 8] = longs(4)
    return pgo.decode_tagged(pa.ipc.open_stream(bytes(data)).read_next_batch(), STATE.catalog)


# ---- states and spill files ----------------------------------------------------------------------------------------


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def state_with_wild_rows() -> Any:
    decoder = pgo.Decoder(COMMITTED)
    decoder.decode(OPEN)
    document = json.loads(decoder.state.to_json())
    rows = pa.ipc.open_stream(base64.b64decode(document["held"]["rows"])).read_next_batch()
    offsets = rows.column("payload").buffers()[1].to_pybytes()[: 4 * (rows.num_rows + 1)]
    data = base64.b64decode(document["held"]["rows"])
    at = data.index(offsets) + 4 * 20
    document["held"]["rows"] = base64.b64encode(data[:at] + ints(1 << 30) + data[at + 4 :]).decode()
    return pgo.Decoder(COMMITTED, pgo.StreamState.from_json(json.dumps(document)))


def spill_file_with_wild_rows() -> Any:
    import zlib

    with tempfile.TemporaryDirectory() as place:
        options = pgo.Options(transactions="committed", memory_limit=1, spill_directory=place)
        decoder = pgo.Decoder(options)
        decoder.decode(OPEN)
        document = json.loads(decoder.state.to_json())
        entry = document["held"]["waiting"][0]["files"][0]
        path = Path(place) / entry["name"]
        # The mark and the token follow the Arrow file.
        arrow, proof = path.read_bytes()[: -spill._END], path.read_bytes()[-spill._END :]
        rows = pa.ipc.open_file(pa.BufferReader(arrow)).get_batch(0)
        payload = rows.column("payload")
        offsets = payload.buffers()[1].to_pybytes()[: 4 * (rows.num_rows + 1)]
        wild = array_of(
            pa.binary(), rows.num_rows, [None, offsets[:80] + ints(1 << 30) + offsets[84:], b"y" * 10_000]
        )
        rows = batch_of([*rows.columns[:-1], wild], rows.schema)
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_batch(rows)
        path.write_bytes(path.read_bytes() + proof)
        data = path.read_bytes()
        entry["size"], entry["checksum"] = len(data), zlib.crc32(data)
        other = pgo.Decoder(options, pgo.StreamState.from_json(json.dumps(document)))
        try:
            return other.decode([encode.encode_stream_commit(8, 300, 308, 0)])
        finally:
            decoder.close(discard=True)


# ---- unusual but valid data ----------------------------------------------------------------------------------------


def ids(decoded: pgo.Decoded) -> list[int]:
    return [each for change in decoded.changes for each in change.batch.column("id").to_pylist()]


def sound_slices() -> Any:
    array = pa.array([b"zz", *WAL, b"zz"], pa.binary())[1:-1]
    return (
        ids(pgo.decode(array))
        == ids(pgo.decode(pa.chunked_array([array[:3], array[3:3], array[3:]])))
        == [*range(40)]
    )


def sound_exact_buffers() -> Any:
    valid = bytes([0xFF] * ((N + 7) // 8))
    array = array_of(pa.binary(), N, [valid, ints(*ends()), b"".join(WAL)])
    columns = {}
    for field in TAGGED.schema:
        column = TAGGED.column(field.name)
        parts = [None if each is None else each.to_pybytes() for each in column.buffers()]
        columns[field.name] = array_of(field.type, N, parts)
    again = batch_of(list(columns.values()), TAGGED.schema)
    return (
        ids(pgo.decode(array, lsn=array_of(pa.int64(), N, [None, longs(*range(N))])))
        == ids(pgo.decode_tagged(again, STATE.catalog))
        == [*range(40)]
    )


def sound_without_a_value() -> Any:
    """An empty array without buffers, which Arrow allows."""
    for kind in (pa.binary(), pa.large_binary()):
        for offsets in (None, b"", ints(0, 0)):
            for data in (None, b""):
                empty = array_of(kind, 0, [None, offsets, data])
                if pgo.decode(empty).changes or pgo.tag(empty)[0].num_rows or unframe(empty).payloads:
                    return False
                if pgo.Decoder(COMMITTED).decode(pa.chunked_array([empty])).changes:
                    return False
    batch = batch_of(
        [
            array_of(f.type, 0, [None, None, None] if f.name == "payload" else [None, None])
            for f in TAGGED.schema
        ],
        schema=TAGGED.schema,
    )
    return not pgo.decode_tagged(batch, STATE.catalog).changes


def sound_beyond_two_gigabytes() -> Any:
    """The payloads of a large binary array may start at any offset. The memory before them is never accessed."""
    before = (1 << 31) + 4096
    data = b"".join(WAL)
    memory = mmap.mmap(-1, before + len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[before:] = data
    offsets = longs(*(before + each for each in ends()))
    array = pa.Array.from_buffers(pa.large_binary(), N, [None, guarded(offsets), pa.py_buffer(memory)])
    return ids(pgo.decode(array)) == ids(pgo.Decoder(COMMITTED).decode(array)) == [*range(40)]


def sound_views() -> Any:
    long = pa.array(WAL, pa.binary_view())
    return ids(pgo.decode(long)) == ids(pgo.decode(pa.chunked_array([long[:5], long[5:]]))) == [*range(40)]


CASES = {name: case for name, case in globals().items() if name.startswith(("decode_", "unframe_", "stream_short", "tag", "state_", "c_interface_", "spill_", "sound_")) and callable(case)}  # fmt: skip
del CASES["tagged"]


def main(names: list[str]) -> None:
    for name in names or CASES:
        print(json.dumps([name]), flush=True)
        try:
            said: Any = ["gave", repr(CASES[name]())[:200]]
        except Exception as error:
            said = [type(error).__name__, str(error)]
        print(json.dumps([name, *said]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
