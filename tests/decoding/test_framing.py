"""Walsender frames, and bytes that are not messages: text from SQL output, messages still in their frame."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode

EPOCH = 946_684_800_000_000
BEGIN, COMMIT = encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)


def data_frame(payload: bytes, lsn: int = 0x10, wal_end: int = 0x20, sent_at: int = 5) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, wal_end, sent_at) + payload


def keepalive(wal_end: int = 0x30, reply: int = 0) -> bytes:
    return b"k" + struct.pack(">QqB", wal_end, 6, reply)


FRAMES = [keepalive(), data_frame(BEGIN), keepalive(reply=1), data_frame(COMMIT, 0, 0x21, -5), keepalive(1)]


@pytest.mark.parametrize(
    "given",
    [
        list, iter, lambda f: list(map(bytearray, f)), lambda f: list(map(memoryview, f)),
        lambda f: pa.array(f, pa.binary()), lambda f: pa.array(f, pa.large_binary()),
        lambda f: pa.array([b"?", *f, b""], pa.binary()).slice(1, len(f)),
        lambda f: pa.chunked_array([f[:2], [], f[2:]], pa.binary()),
    ],
)  # fmt: skip
def test_frames_give_payloads_positions_and_keepalives(given: Callable[[list[bytes]], Any]) -> None:
    out = pgo.unframe(given(FRAMES))
    for array in (out.payloads, out.lsn, out.wal_end, out.sent_at):
        array.validate(full=True)
    assert out.payloads.to_pylist() == [BEGIN, COMMIT]
    assert out.lsn.to_pylist() == [0x10, 0]
    assert out.wal_end.to_pylist() == [0x20, 0x21]
    assert out.sent_at.cast(pa.int64()).to_pylist() == [EPOCH + 5, EPOCH - 5]
    out.keepalives.validate(full=True)
    times = out.keepalives.column("sent_at").cast(pa.int64()).to_pylist()
    assert times == [EPOCH + 6] * 3
    assert out.keepalives.drop_columns(["sent_at"]).to_pylist() == [
        {"after": 0, "wal_end": 0x30, "reply_requested": False},
        {"after": 1, "wal_end": 0x30, "reply_requested": True},
        {"after": 2, "wal_end": 1, "reply_requested": False},
    ]
    decoded = pgo.decode(out.payloads, out.lsn)
    assert decoded.transactions.column("kind").to_pylist() == ["begin", "commit"]


@pytest.mark.parametrize("nothing", [[], pa.array([], pa.binary()), pa.chunked_array([], pa.large_binary())])
def test_no_frames_are_no_payloads(nothing: Any) -> None:
    out = pgo.unframe(nothing)
    assert (len(out.payloads), len(out.lsn), len(out.wal_end), len(out.sent_at)) == (0, 0, 0, 0)
    assert out.keepalives.num_rows == 0
    assert pgo.decode(out.payloads, out.lsn).changes == []


def test_keepalives_alone_are_no_payloads() -> None:
    out = pgo.unframe([keepalive(), keepalive(reply=1)])
    assert (len(out.payloads), out.keepalives.num_rows) == (0, 2)


@pytest.mark.parametrize(
    ("frame", "offset", "reason"),
    [
        (b"", 0, "empty"),
        (b"w", 1, "too early"),
        (data_frame(b"")[:-1], 24, "too early"),
        (keepalive()[:-1], 17, "too early"),
        (keepalive()[:5], 5, "too early"),
        (keepalive() + b"\0", 18, "left over"),
        (keepalive(reply=2), 17, "flags"),
        (data_frame(BEGIN, 1 << 63), 1, "LSN"),
        (data_frame(BEGIN, 1, 1 << 63), 9, "LSN"),
        (keepalive(1 << 63), 1, "LSN"),
        (data_frame(BEGIN, 1, 1, (1 << 63) - 1), 17, "timestamp"),
        (BEGIN, 0, "a frame of kind w or k|kind w or k"),
        (b"r" + bytes(33), 0, "kind w or k"),
        (b"d" + struct.pack(">I", 4 + len(keepalive())) + keepalive(), 0, "five bytes"),
        (data_frame(BEGIN).hex().encode(), 0, "fromhex"),
        (b"\\x" + keepalive().hex().encode(), 0, "fromhex"),
    ],
)
def test_frames_that_are_none_are_errors_that_name_the_place(frame: bytes, offset: int, reason: str) -> None:
    good = data_frame(BEGIN)
    for frames in ([good, keepalive(), frame], pa.chunked_array([[good], [keepalive(), frame]], pa.binary())):
        with pytest.raises(pgo.DecodeError, match=reason) as caught:
            pgo.unframe(frames)
        assert (caught.value.seq, caught.value.byte_offset) == (2, offset)


@pytest.mark.parametrize(
    "wrong", [b"w", "w", ["w"], [None], [1], pa.array(["w"]), pa.array([None], pa.binary()), 5]
)
def test_frames_that_are_not_bytes_are_type_errors(wrong: Any) -> None:
    with pytest.raises(TypeError, match="frames must be"):
        pgo.unframe(wrong)


def test_damaged_offsets_are_an_error() -> None:
    offsets = pa.array([0, 30, 20, 60], pa.int32()).buffers()[1]
    damaged = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"w" * 60)])
    with pytest.raises(ValueError, match="offsets"):
        pgo.unframe(damaged)


def test_many_frames_of_any_length() -> None:
    rng = random.Random(5)
    payloads = [rng.randbytes(rng.choice([0, 1, 20, 300])) for _ in range(20_000)]
    frames: list[bytes] = []
    for number, payload in enumerate(payloads):
        frames += [keepalive(number)] * (rng.random() < 0.1)
        frames.append(data_frame(payload, number))
    out = pgo.unframe(frames)
    assert out.payloads.to_pylist() == payloads
    assert out.lsn.to_pylist() == list(range(len(payloads)))
    assert out.keepalives.column("after").to_pylist() == out.keepalives.column("wal_end").to_pylist()


# --- what is not a message --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"\\x" + BEGIN.hex().encode(),
        b"\\x",
        BEGIN.hex().encode(),
        BEGIN.hex().upper().encode(),
        COMMIT.hex().encode(),
        b"72" + b"00" * 1000,
    ],
)
def test_text_of_sql_output_is_an_error_with_a_hint(text: bytes) -> None:
    with pytest.raises(pgo.DecodeError, match="fromhex") as caught:
        pgo.decode([BEGIN, text])
    assert (caught.value.seq, caught.value.byte_offset) == (1, 0)
    (reject,) = pgo.decode([text], options=pgo.Options(on_error="quarantine")).rejects.to_pylist()
    assert "bytes.fromhex" in reject["reason"]
    assert reject["raw"] == text
    with pytest.raises(pgo.DecodeError, match="fromhex"):
        pgo.tag([text])


@pytest.mark.parametrize("given", [lambda t: t, lambda t: [t], pa.array, lambda t: pa.array([t])])
def test_text_of_type_str_is_a_type_error_with_a_hint(given: Callable[[Any], Any]) -> None:
    text: Any = "\\x" + BEGIN.hex()
    with pytest.raises(TypeError, match=r"bytes\.fromhex\(text\.removeprefix"):
        pgo.decode(given([text] if given is pa.array else text))
    assert pgo.decode([bytes.fromhex(text.removeprefix("\\x"))]).transactions.num_rows == 1


@pytest.mark.parametrize("frame", [data_frame(BEGIN), keepalive()])
def test_messages_still_in_their_frame_are_an_error_with_a_hint(frame: bytes) -> None:
    with pytest.raises(pgo.DecodeError, match="unframe") as caught:
        pgo.decode([frame])
    assert caught.value.byte_offset == 0


@pytest.mark.parametrize("other", [b"w", b"kx", b"?", b"\\", b"4", b"4G", b"\xff" * 40])
def test_other_unknown_tags_are_called_that(other: bytes) -> None:
    with pytest.raises(pgo.DecodeError, match="unknown message tag"):
        pgo.decode([other])
