"""The reorder buffer in a saved state, as JSON values."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from pgoutput_fast.protocol.limits import LAST_INT64, LAST_UINT32
from pgoutput_fast.schema.foreign import checked_table
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.transactions.reorder_buffer import (
    Due,
    InMemory,
    OnDisk,
    ReorderBuffer,
    Waiting,
    read_tables,
)

__all__ = ["from_dict", "to_dict"]

# Columns of waiting rows without nulls.
_FILLED = ("seq", "kind", "txn", "in_stream", "payload")

# Fields of a spill file's description.
_FILE_TYPES = {
    "name": str, "txn": int, "rows": int, "batches": int, "nbytes": int, "size": int, "checksum": int,
    "token": str,
}  # fmt: skip


def to_dict(reorder_buffer: ReorderBuffer, *, save: bool) -> dict[str, Any]:
    """The buffer as JSON values. Set `save` if a decoder may continue from them later.

    It includes rows in spill files of a temporary directory.
    """
    if save:
        reorder_buffer.note_saved()
    tables: list[pa.Table] = []
    described = []
    for txn, waiting in sorted(reorder_buffer.waiting.items()):
        files = []
        for piece in waiting.pieces:
            if isinstance(piece, InMemory):
                tables.append(piece.table)
            elif isinstance(piece.file, dict) or piece.file.durable:
                entry = piece.file if isinstance(piece.file, dict) else piece.file.to_dict()
                files.append({**entry, "from_batch": piece.batch})
            else:
                tables += read_tables(piece)
        aborts = [list(each) for each in waiting.rolled_back]
        described.append({"txn": txn, "files": files, "rolled_back": aborts})
    rows = _copied(pa.concat_tables(tables)) if tables else None
    return {
        "waiting": described,
        "rows": None if rows is None else _rows_to_text(rows),
        "due": [
            [
                due.txn,
                due.at_seq,
                due.commit_lsn,
                due.commit_timestamp,
                due.lost,
                *([due.given, due.message_lsn] if due.given or due.message_lsn else []),
            ]
            for due in reorder_buffer.due
        ],
    }


def from_dict(document: dict[str, Any]) -> ReorderBuffer:
    """The inverse of `to_dict`. Spill files are opened when a decoder continues with the state.

    Raises:
        ValueError, KeyError, TypeError: for an invalid document.
    """
    reorder_buffer = ReorderBuffer()
    for each in document["waiting"]:
        files = tuple(_parse_file(entry) for entry in each["files"])
        aborts = tuple(
            (_integer(subxid, LAST_UINT32), _integer(at_seq)) for subxid, at_seq in each["rolled_back"]
        )
        txn = _integer(each["txn"])
        if txn in reorder_buffer.waiting:
            raise ValueError(f"not a stream state: transaction {txn} waits twice")
        reorder_buffer.waiting[txn] = Waiting(files, aborts)
    if len(names := reorder_buffer.names()) > len(set(names)):
        raise ValueError("not a stream state: it names a spill file twice")
    if document["rows"] is not None:
        rows = _rows_from_text(document["rows"])
        for txn, part in _split_by_txn(rows):
            reorder_buffer.keep(txn, part)
    reorder_buffer.due = tuple(
        Due(
            _integer(txn),
            _integer(at_seq),
            _integer(lsn),
            _integer(timestamp, least=-LAST_INT64),
            bool(lost),
            *(_integer(number) for number in given),
        )
        for txn, at_seq, lsn, timestamp, lost, *given in document["due"]
    )
    return reorder_buffer


def _parse_file(entry: dict[str, Any]) -> OnDisk:
    described = dict(entry)
    batch = described.pop("from_batch")
    if "token" not in described:
        raise ValueError(
            "not a stream state of this version: an earlier version of pgoutput_fast wrote its spill files, and they "
            "have no token. Continue with that version until no change waits for its commit, or decode again from "
            "the beginning"
        )
    if (
        {name: type(value) for name, value in described.items()} != _FILE_TYPES
        or type(batch) is not int
        or any(isinstance(value, int) and value < 0 for value in described.values())
    ):
        raise ValueError("not a stream state: it does not describe a spill file as this version does")
    if not 0 <= batch < described["batches"]:
        raise ValueError("not a stream state: it continues after the end of a spill file")
    return OnDisk(described, batch)


def _integer(value: Any, most: int = LAST_INT64, least: int = 0) -> int:
    """Returns a number of a state after a check of its type and bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(
            "not a stream state: a number in its waiting changes is not an integer, or out of bounds"
        )
    return value


def _split_by_txn(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Splits rows that are sorted by transaction into (txn, rows)."""
    txns = rows.column("txn").to_numpy()
    starts = [0, *((txns[1:] != txns[:-1]).nonzero()[0] + 1).tolist(), len(txns)]
    for start, end in pairwise(starts):
        if start < end:
            yield int(txns[start]), _copied(rows.slice(start, end - start))


def _copied(table: pa.Table) -> pa.Table:
    """A deep copy; copies of equal rows are equal byte for byte."""
    return table.take(pa.array(range(table.num_rows), pa.int64())).combine_chunks()


def _rows_to_text(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _rows_from_text(text: str) -> pa.Table:
    """The inverse of `_rows_to_text`. The rows are checked, because the text is untrusted."""
    try:
        rows = checked_table(pa.ipc.open_stream(base64.b64decode(text)).read_all(), "rows")
    except (OSError, ValueError, pa.ArrowException) as problem:
        raise ValueError(f"not a stream state: its waiting changes are damaged ({problem})") from None
    if rows.schema != TAGGED_SCHEMA or any(rows.column(name).null_count for name in _FILLED):
        raise ValueError("not a stream state: its waiting changes are not tagged payloads")
    if rows.num_rows and min(rows.column("txn").to_numpy()) < 0:
        raise ValueError("not a stream state: one of its waiting changes belongs to no transaction")
    return rows
