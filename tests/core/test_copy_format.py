"""What is around the rows of a COPY in binary format: both of its readers take and refuse the same."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast._core.copy.slot_rows import CopiedRows
from pgoutput_fast._core.copy.table_rows import CopyRows
from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast.base.errors import DecodeError, reason_text
from support.copying import SIGNATURE, TRAILER, copied_row, relation_of

# Rows of a slot: a position and a payload. For a table they are two binary values, too.
ROWS = [(struct.pack(">q", 7), b"one"), (struct.pack(">q", 8), b""), (struct.pack(">q", 9), b"three")]
TABLE = relation_of(pgo.Column("lsn", 20), pgo.Column("data", 17))


def header(flags: int = 0, extension: bytes = b"", length: int | None = None) -> bytes:
    """A header, which may give its extension a false length."""
    return SIGNATURE + struct.pack(">Ii", flags, len(extension) if length is None else length) + extension


def of_slot(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Rows as they are pulled from a slot."""
    reader, found = CopiedRows(), []
    for piece in pieces:
        payloads, lsns = reader.feed(pa.py_buffer(piece))
        found += list(zip(lsns.to_pylist(), payloads.to_pylist(), strict=True))
    reader.finish()
    return found


def of_table(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Rows as a snapshot of a table reads them."""
    reader = CopyRows(TABLE, pgo.Options(), pgo.UserTypes(), 0, window_bytes=1)
    for piece in pieces:
        reader.write(piece)
    reader.finish()
    rows = [row for batch in reader.take_batches() for row in batch.select(["lsn", "data"]).to_pylist()]
    return [(row["lsn"], row["data"]) for row in rows]


def cut(stream: bytes, length: int) -> list[bytes]:
    return [stream[at : at + length] for at in range(0, len(stream), length)]


@pytest.mark.parametrize("read", [of_slot, of_table])
@pytest.mark.parametrize("length", [1, 2, 7, 11, 12, 18, 19, 20, 1000])
@pytest.mark.parametrize(("flags", "extension"), [(0, b""), (0xFFFF, b"x"), (1, b"\xff" * 300)])
def test_a_header_and_its_extension_are_passed_over(
    read: type, length: int, flags: int, extension: bytes
) -> None:
    stream = header(flags, extension) + b"".join(map(copied_row, ROWS)) + TRAILER
    assert read(cut(stream, length)) == [(7, b"one"), (8, b""), (9, b"three")]
    assert read(cut(header(flags, extension) + TRAILER, length)) == []


DAMAGED = [
    ("no signature", b"PGCOPY\n\xff\r\n\1" + header()[11:], 58, 0, 0),
    ("the beginning of another signature", b"PGCOPX", 58, 0, 0),
    ("critical flags", header(1 << 16), 58, 11, 11),
    ("all critical flags", header(0xFFFF0000), 58, 11, 11),
    ("an extension of a negative length", header(length=-1), 58, 15, 11),
    ("no whole signature", SIGNATURE[:5], 60, 5, 5),
    ("no whole header", header()[:18], 60, 18, 18),
    ("no whole extension", header(extension=b"abc")[:-1], 60, 21, 21),
    ("no trailer", header(), 60, 19, 19),
    ("half a trailer", header() + b"\xff", 60, 20, 20),
    ("bytes behind the trailer", header() + TRAILER + b"\0", 61, 21, 21),
]


@pytest.mark.parametrize("length", [1, 3, 1000])
@pytest.mark.parametrize(
    ("stream", "reason", "of_slot_at", "of_table_at"),
    [each[1:] for each in DAMAGED],
    ids=[d[0] for d in DAMAGED],
)
def test_what_is_no_copy_is_refused(
    stream: bytes, reason: int, of_slot_at: int, of_table_at: int, length: int
) -> None:
    with pytest.raises(Malformed) as from_slot:
        of_slot(cut(stream, length))
    with pytest.raises(DecodeError) as from_table:
        of_table(cut(stream, length))
    assert (from_slot.value.reason, from_slot.value.offset) == (reason, of_slot_at)
    assert from_table.value.reason == reason_text(reason)
    assert from_table.value.byte_offset == of_table_at


def test_how_long_an_extension_may_be() -> None:
    longest = 1 << 20
    stream = header(extension=bytes(longest)) + TRAILER
    assert of_table([stream]) == of_slot([stream]) == []
    longer = header(extension=bytes(longest + 1)) + TRAILER
    assert of_slot([longer]) == []
    with pytest.raises(DecodeError) as refused:
        of_table([longer])
    assert refused.value.byte_offset == 11
