"""Tables of tagged payloads, built by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.tables import TAGGED_SCHEMA


def tagged(*rows: tuple[str, int, int | None, int | None]) -> pa.Table:
    """(kind, seq, txn, subxid) of each row."""
    made = [
        {"kind": ord(kind), "seq": seq, "txn": txn, "subxid": subxid, "in_stream": True, "payload": b"x"}
        for kind, seq, txn, subxid in rows
    ]
    return pa.Table.from_pylist(made, TAGGED_SCHEMA)


def seqs(rows: pa.Table) -> list[int]:
    return list(rows.column("seq").to_pylist())


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A session's mark comes before the message with its ordinal."""
    return sorted(rows, key=lambda row: (row["seq"], row["kind"] != 0, row["relation"] or 0))
