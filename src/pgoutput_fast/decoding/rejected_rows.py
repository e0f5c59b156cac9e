"""Tagging in quarantine: rejected messages, and transactions whose outcome is unknown, have tagged rows of their own.

So nothing is lost if the rows are stored, and any part of them is decoded elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.base.errors import DecodeError
from pgoutput_fast.protocol.kinds import MESSAGE_KINDS, REJECTED, SESSION_MARK, UNKNOWN_OUTCOME
from pgoutput_fast.schema.foreign import cast, checked
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA, REJECTS_SCHEMA, TAGGED_SCHEMA, one_batch

__all__ = [
    "error_of",
    "has_marks",
    "message_of",
    "outcomes_of",
    "rejects_of",
    "rows_of",
    "tag_in_quarantine",
    "whole_messages",
    "without_rejected",
]

_END = b"\0"  # between the description of a reject, as JSON, and the message
_DESCRIBED = [name for name in REJECTS_SCHEMA.names if name not in ("seq", "lsn", "raw")]


class _SplitError(Exception):
    """The messages must be tagged in smaller parts."""


def tag_in_quarantine(
    native: NativeDecoder, payloads: pa.Array, lsns: pa.Array | None, seqs: pa.Array | None = None
) -> pa.RecordBatch:
    """Tags the next messages. Rejected messages and transactions with an unknown outcome have rows, too.

    Args:
        native: a decoder in quarantine.
        payloads: the messages.
        lsns: their LSNs.
        seqs: their ordinals; by default the decoder counts on.

    Returns:
        Rows with TAGGED_SCHEMA, by `seq` and `kind`.
    """
    first = native.next_seq if seqs is None or not len(seqs) else seqs[0].as_py()
    try:
        with native.tentative():
            tagged, records = native.tag([payloads], lsns, seqs)
            unknown = records.unknown_outcomes
            if unknown and len(payloads) > 1:
                # The records do not say at which message an outcome became unknown.
                raise _SplitError
    except _SplitError:
        half = len(payloads) // 2
        parts = [
            tag_in_quarantine(
                native,
                payloads.slice(at, count),
                None if lsns is None else lsns.slice(at, count),
                None if seqs is None else seqs.slice(at, count),
            )
            for at, count in ((0, half), (half, len(payloads) - half))
        ]
        return one_batch(pa.Table.from_batches(parts))
    rejects = records.rejects
    if not rejects.num_rows and not unknown:
        return tagged
    marks = [
        {"seq": first, "kind": UNKNOWN_OUTCOME, "txn": txn, "in_stream": False, "payload": b""}
        for txn in sorted(unknown)
    ]
    tables = [pa.Table.from_batches([tagged]), pa.Table.from_pylist(marks, TAGGED_SCHEMA), rows_of(rejects)]
    return one_batch(pa.concat_tables(tables).sort_by([("seq", "ascending"), ("kind", "ascending")]))


def rows_of(rejects: pa.RecordBatch | pa.Table) -> pa.Table:
    """Tagged rows for rejects of whole messages, with REJECTS_SCHEMA."""
    described = zip(*(rejects.column(name).to_pylist() for name in _DESCRIBED), strict=True)
    payloads = [
        json.dumps(each).encode() + _END + raw
        for each, raw in zip(described, rejects.column("raw").to_pylist(), strict=True)
    ]
    count = rejects.num_rows
    columns: dict[str, Any] = {
        "seq": rejects.column("seq"),
        "lsn": rejects.column("lsn"),
        "kind": pa.array([REJECTED] * count, pa.int8()),
        "in_stream": pa.array([False] * count),
        "payload": pa.array(payloads, pa.binary()),
    }
    return pa.Table.from_arrays(
        [columns.get(field.name, pa.nulls(count, field.type)) for field in TAGGED_SCHEMA],
        schema=TAGGED_SCHEMA,
    )


def rejects_of(rows: pa.Table) -> pa.Table:
    """The inverse of `rows_of`.

    Raises:
        ValueError: if a row was made by something else.
    """
    found: list[dict[str, Any]] = []
    chosen = rows.select(["seq", "lsn", "kind", "payload"]).to_pylist()
    for row in (row for row in chosen if row["kind"] == REJECTED):
        described, raw = _parted(row["seq"], row["payload"])
        found.append({"seq": row["seq"], "lsn": row["lsn"], "raw": raw, **described})
    return pa.Table.from_pylist(found, REJECTS_SCHEMA)


def message_of(row: Mapping[str, Any]) -> bytes:
    """The message of a tagged row with `seq`, `kind` and `payload`."""
    return _parted(row["seq"], row["payload"])[1] if row["kind"] == REJECTED else bytes(row["payload"])


def whole_messages(rows: pa.Table) -> pa.Table:
    """A row per message, with its original bytes: the first row that has its `seq`. The starts of sessions stay.

    Args:
        rows: tagged rows by `seq` and `kind`, with all rows of each of their messages.
    """
    longest: dict[int, bytes] = {}
    chosen, kept = rows.select(["seq", "kind", "payload"]).to_pylist(), []
    for at, row in enumerate(chosen):
        if row["kind"] == SESSION_MARK:
            kept.append(at)
        elif row["kind"] != UNKNOWN_OUTCOME:
            if row["seq"] not in longest:
                kept.append(at)
            longest[row["seq"]] = max(longest.get(row["seq"], b""), message_of(row), key=len)
    payloads = [b"" if chosen[at]["kind"] == SESSION_MARK else longest[chosen[at]["seq"]] for at in kept]
    found = rows.take(pa.array(kept, pa.int64()))
    return found.set_column(
        found.schema.get_field_index("payload"), rows.schema.field("payload"), pa.array(payloads, pa.binary())
    )


def without_rejected(batch: pa.RecordBatch, names: Collection[str | None]) -> pa.RecordBatch:
    """The rows without those of rejected messages, except those of some relations; None for unknown ones."""
    expect_list("names", names)
    rows = batch.select(["seq", "kind", "payload"]).to_pylist() if has_marks(batch) else []
    left_out = [
        row["kind"] == REJECTED and _parted(row["seq"], row["payload"])[0]["relation"] not in names
        for row in rows
    ]
    return batch.filter(pa.array([not each for each in left_out])) if any(left_out) else batch


def _parted(seq: int, payload: bytes) -> tuple[dict[str, Any], bytes]:
    described, end, raw = payload.partition(_END)
    try:
        values = parsed_json(described)
        if not end or len(values) != len(_DESCRIBED):
            raise ValueError
        return dict(zip(_DESCRIBED, values, strict=True)), raw
    except (TypeError, ValueError):
        raise ValueError(f"the tagged row of message {seq} does not say why it was rejected") from None


def outcomes_of(rows: pa.Table) -> pa.RecordBatch:
    """Rows with OUTCOMES_SCHEMA for the transactions whose outcome is unknown: their outcome is `unknown`."""
    found = [
        {"txn": row["txn"], "outcome": "unknown", "at_seq": row["seq"]}
        for row in rows.select(["seq", "kind", "txn"]).to_pylist()
        if row["kind"] == UNKNOWN_OUTCOME
    ]
    return pa.RecordBatch.from_pylist(found, OUTCOMES_SCHEMA)


def has_marks(batch: pa.RecordBatch | pa.Table) -> bool:
    """Whether rows of rejected messages, or of unknown outcomes, are among tagged payloads."""
    what = "column kind of tagged payloads"
    column = batch.column("kind")
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        found = cast(checked(chunk, what, full=not chunk.type.equals(pa.int8())), what, pa.int8())
        values = found.buffers()[1]
        # Not with pyarrow.compute: importing it takes longer than importing this package.
        kinds = (
            b"" if values is None else memoryview(values)[found.offset : found.offset + len(found)].tobytes()
        )
        if bytes([REJECTED]) in kinds or bytes([UNKNOWN_OUTCOME]) in kinds:
            return True
    return False


def error_of(rejects: pa.Table) -> DecodeError:
    """The error for the first of these rejects."""
    first = min(rejects.to_pylist(), key=lambda row: row["seq"])
    kind = MESSAGE_KINDS.get(first["raw"][0]) if first["raw"] else None
    places = {name: first[name] for name in ("seq", "lsn", "byte_offset", "relation", "column")}
    return DecodeError(first["reason"], kind=kind, **places)
