"""A slow reader of walsender frames, one after another: the independent oracle for `pgo.unframe`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

EPOCH = 946_684_800_000_000
MOST = (1 << 63) - 1


class FrameError(ValueError):
    """A frame that is not valid: the ordinal of the first one."""

    def __init__(self, number: int) -> None:
        super().__init__(f"frame {number}")
        self.number = number


def unframe(frames: Sequence[bytes]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """([(payload, lsn, wal_end, sent_at)], [(after, wal_end, sent_at, reply requested)]); times since 1970."""
    data: list[tuple[Any, ...]] = []
    keepalives: list[tuple[Any, ...]] = []
    for number, frame in enumerate(frames):
        if frame[:1] == b"w" and len(frame) >= 25:
            lsn, wal_end, sent_at = struct.unpack_from(">QQq", frame, 1)
            positions = [lsn, wal_end]
            data.append((frame[25:], lsn, wal_end, sent_at + EPOCH))
        elif frame[:1] == b"k" and len(frame) == 18 and frame[17] <= 1:
            wal_end, sent_at = struct.unpack_from(">Qq", frame, 1)
            positions = [wal_end]
            keepalives.append((len(data), wal_end, sent_at + EPOCH, frame[17] == 1))
        else:
            raise FrameError(number)
        if max(positions) > MOST or sent_at + EPOCH > MOST:
            raise FrameError(number)
    return data, keepalives
