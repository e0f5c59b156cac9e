"""Damaged walsender frames: compares `unframe` with the slow reader."""

from __future__ import annotations

import random
import struct
import traceback

import pyarrow as pa
from cases import mutate

import pgoutput_fast as pgo
from reference.frames import FrameError, unframe


def frames_failure(rng: random.Random, sources: list[list[tuple[int, bytes]]]) -> tuple[int, str | None]:
    """(number of mutated frames, the problem or None)."""
    source = rng.choice(sources)
    frames = [b"w" + struct.pack(">QQq", lsn, lsn + 1, rng.randrange(1 << 50)) + data for lsn, data in source]
    for _ in range(rng.randrange(4)):
        keepalive = b"k" + struct.pack(
            ">QqB", rng.randrange(1 << 62), rng.randrange(1 << 50), rng.randrange(2)
        )
        frames.insert(rng.randrange(len(frames) + 1), keepalive)
    tried = 0
    for _ in range(20):
        damaged = list(frames)
        places = rng.sample(range(len(frames)), rng.choice([0, 1, 1, 1, 2]))
        for at in places:
            # Most damage is in the header, where it has an effect.
            head = damaged[at][:26]
            damaged[at] = mutate(rng, head, frames, keep_tag=rng.random() < 0.8) + damaged[at][26:]
        tried += len(places)
        try:
            compare(damaged, as_array=rng.random() < 0.5)
        except Exception:
            return tried, f"{damaged!r}\n{traceback.format_exc()}"
    return tried, None


def compare(frames: list[bytes], *, as_array: bool) -> None:
    given = pa.array([b"before", *frames], pa.large_binary()).slice(1) if as_array else frames
    try:
        expected = unframe(frames)
    except FrameError as problem:
        check_refused(given, frames, problem.number)
        return
    out = pgo.unframe(given)
    columns = [out.payloads, out.lsn, out.wal_end, out.sent_at.cast(pa.int64())]
    kept = [out.keepalives.column(name) for name in ("after", "wal_end", "sent_at", "reply_requested")]
    kept[2] = kept[2].cast(pa.int64())
    for array in (*columns, *kept):
        array.validate(full=True)
    assert list(zip(*(column.to_pylist() for column in columns), strict=True)) == expected[0]
    assert list(zip(*(column.to_pylist() for column in kept), strict=True)) == expected[1]


def check_refused(given: object, frames: list[bytes], number: int) -> None:
    try:
        pgo.unframe(given)
    except pgo.DecodeError as error:
        place = (error.seq, error.byte_offset)
    else:
        place = (None, None)
    assert place[0] == number, "did not raise, or at another frame"
    assert place[1] is not None
    assert 0 <= place[1] <= len(frames[number])
