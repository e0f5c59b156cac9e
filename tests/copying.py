"""COPY in binary format, written plainly; and the same rows as the messages of inserts."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence

import pgoutput_fast as pgo
from pgoutput_fast.encode import Writer

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
TRAILER = b"\xff\xff"

Row = Sequence[bytes | None]


def copied(rows: Iterable[Row], *, flags: int = 0, extension: bytes = b"", trailer: bytes = TRAILER) -> bytes:
    """A whole stream."""
    head = SIGNATURE + struct.pack(">Ii", flags, len(extension)) + extension
    return head + b"".join(map(copied_row, rows)) + trailer


def copied_row(row: Row) -> bytes:
    cells = [struct.pack(">i", -1) if cell is None else struct.pack(">i", len(cell)) + cell for cell in row]
    return struct.pack(">H", len(row)) + b"".join(cells)


def parsed(stream: bytes, columns: int) -> list[list[bytes | None]] | None:
    """The rows of a whole stream, read slowly by what PostgreSQL's manual says; None if it is none.

    Flags of the lower half may be ignored, an extension is passed over (here one of at most 1 MiB).
    """
    source = io.BytesIO(stream)

    def integer(code: str) -> int:
        size = struct.calcsize(code)
        piece = source.read(size)
        if len(piece) < size:
            raise EOFError
        return int(struct.unpack(code, piece)[0])

    def piece(size: int) -> bytes:
        found = source.read(size)
        if len(found) < size:
            raise EOFError
        return found

    try:
        if piece(11) != SIGNATURE or integer(">I") >> 16:
            return None
        extension = integer(">i")
        if not 0 <= extension <= 1 << 20:
            return None
        piece(extension)
        rows: list[list[bytes | None]] = []
        while (count := integer(">h")) != -1:
            if count != columns:
                return None
            row: list[bytes | None] = []
            for _ in range(columns):
                size = integer(">i")
                if size < -1:
                    return None
                row.append(None if size == -1 else piece(size))
            rows.append(row)
    except EOFError:
        return None
    return None if source.read(1) else rows


def inserted(relation: pgo.Relation, rows: Iterable[Row], text: frozenset[str] = frozenset()) -> list[bytes]:
    """The messages of a transaction that inserts them, in binary but for the columns `text`."""
    kinds = [b"t" if column.name in text else b"b" for column in relation.columns]
    writer = Writer()
    return [
        *writer.begin(7, 100, 0),
        b"R" + relation.wire_body(),
        *(
            b"I" + struct.pack(">I", relation.oid) + b"N" + struct.pack(">H", len(kinds))
            + b"".join(b"n" if cell is None else kind + struct.pack(">i", len(cell)) + cell
                       for kind, cell in zip(kinds, row, strict=True))
            for row in rows
        ),
        *writer.commit(100, 108, 0),
    ]  # fmt: skip
