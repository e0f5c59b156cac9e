"""COPY in binary format: a plain writer and reader, the same rows as insert messages, and a comparison of both."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.every_type import Cells
from cells.nested import TYPES
from pgoutput_fast._core.copy.table_rows import CopyRows
from pgoutput_fast.catalog.relations import version_of
from pgoutput_fast.encode import Writer
from support.oracle import plain_values

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
TRAILER = b"\xff\xff"

Row = Sequence[bytes | None]

METADATA = 11
COMMIT_LSN = 1 << 40


def relation_of(*columns: pgo.Column) -> pgo.Relation:
    bare = pgo.Relation(16401, 0, "public", "copied", "d", columns)
    return pgo.Relation(16401, version_of(bare.wire_body()), "public", "copied", "d", columns)


def copied(rows: Iterable[Row], *, flags: int = 0, extension: bytes = b"", trailer: bytes = TRAILER) -> bytes:
    """A whole COPY stream."""
    head = SIGNATURE + struct.pack(">Ii", flags, len(extension)) + extension
    return head + b"".join(map(copied_row, rows)) + trailer


def copied_row(row: Row) -> bytes:
    cells = [struct.pack(">i", -1) if cell is None else struct.pack(">i", len(cell)) + cell for cell in row]
    return struct.pack(">H", len(row)) + b"".join(cells)


def parsed(stream: bytes, columns: int) -> list[list[bytes | None]] | None:
    """The rows of a whole stream, read slowly as PostgreSQL's manual describes it; None if it is not a COPY stream.

    Flags of the lower half may be ignored. An extension of the header is skipped (here one of at most 1 MiB).
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
    """The messages of a transaction that inserts the rows. Cells are binary, except those of the columns `text`."""
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


def decoded(
    relation: pgo.Relation,
    stream: bytes,
    pieces: list[int] | None = None,
    text: frozenset[str] = frozenset(),
    **options: Any,
) -> tuple[list[pa.RecordBatch], pa.RecordBatch]:
    """(batches, rejects) of a stream. It is cut into pieces of these lengths, which repeat."""
    rows = CopyRows(relation, pgo.Options(**options), TYPES, COMMIT_LSN, text)
    at = k = 0
    while at < len(stream):
        size = len(stream) if pieces is None else pieces[k % len(pieces)]
        assert rows.write(stream[at : at + size]) == len(stream[at : at + size])
        at, k = at + size, k + 1
    rows.finish()
    assert rows.decoded_bytes == len(stream)
    batches = rows.take_batches()
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(rows.schema, check_metadata=True)
    return batches, rows.take_rejects()


def by_messages(
    relation: pgo.Relation, rows: Any, text: frozenset[str] = frozenset(), **options: Any
) -> pgo.Decoded:
    decoder = pgo.Decoder(pgo.Options(**options), catalog=pgo.Catalog(types=TYPES))
    return decoder.decode(inserted(relation, rows, text))


def same_columns(batches: list[pa.RecordBatch], changes: pgo.Decoded) -> None:
    """Checks that the relation's columns and their metadata are equal, bit for bit."""
    (expected,) = [each.batch for each in changes.changes]
    got = pa.Table.from_batches(batches).combine_chunks()
    assert got.schema.equals(expected.schema, check_metadata=True)
    names = [*expected.schema.names[METADATA:], "_change_type", "_key_only", "_unchanged", "_unrepresentable"]
    for name in names:
        a, b = got.column(name).combine_chunks(), expected.column(name)
        a = a.chunk(0) if isinstance(a, pa.ChunkedArray) else a
        assert a.equals(b) or plain_values(a) == plain_values(b), name
    assert set(got.column("_seq").to_pylist()) <= {-1}
    assert set(got.column("_commit_lsn").to_pylist()) <= {COMMIT_LSN}
    for name in ("_lsn", "_txn", "_xid", "_subxid", "_commit_timestamp"):
        assert got.column(name).null_count == got.num_rows


def same_rejects(rejects: pa.RecordBatch, changes: pgo.Decoded, stream: bytes) -> None:
    """Checks that the same cells are rejected for the same reasons, and that each cell is at its `byte_offset`."""
    names = ("relation", "column", "change_type", "format", "type_oid", "reason", "raw")
    assert rejects.select(names).to_pylist() == changes.rejects.select(names).to_pylist()
    for row in rejects.to_pylist():
        assert (row["seq"], row["lsn"]) == (-1, None)
        assert stream[row["byte_offset"] :].startswith(row["raw"])


def mutated(whole: bytes, dice: random.Random) -> bytes:
    stream = bytearray(whole)
    for _ in range(dice.choice([1, 1, 2, 5])):
        at = dice.randrange(len(stream) + 1)
        how = dice.randrange(4) if at < len(stream) else 3
        if how == 0:
            stream[at] ^= 1 << dice.randrange(8)
        elif how == 1:
            stream[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif how == 2:
            del stream[at : at + dice.choice([1, 4, 50])]
        else:
            stream[at:at] = dice.randbytes(dice.choice([1, 4, 50]))
    return bytes(stream)


def check_mutated(dice: random.Random, cells: Sequence[Cells], on_error: str) -> bool:
    """Changes some bytes of a few rows of these types, and checks the result. Returns whether they are still rows."""
    relation = relation_of(*(pgo.Column(f"c{k}", each.oid, each.typmod) for k, each in enumerate(cells)))
    rows = [[dice.choice([None, *(pair[1] for pair in each.both)]) for each in cells] for _ in range(3)]
    stream = mutated(copied(rows), dice)
    expected = None
    found = parsed(stream, len(cells))
    if found is not None:
        with contextlib.suppress(pgo.DecodeError):
            expected = by_messages(relation, found, on_error=on_error)
    for pieces in ([len(stream) or 1], [dice.randrange(1, 300)]):
        if expected is None:
            with pytest.raises(pgo.DecodeError) as caught:
                decoded(relation, stream, pieces, on_error=on_error)
            assert caught.value.byte_offset is not None
            assert 0 <= caught.value.byte_offset <= len(stream)
            continue
        batches, rejects = decoded(relation, stream, pieces, on_error=on_error)
        assert bool(batches) == bool(expected.changes)
        if batches:
            same_columns(batches, expected)
        names = ("relation", "column", "format", "type_oid", "reason")
        assert rejects.select(names).to_pylist() == expected.rejects.select(names).to_pylist()
    return expected is not None
