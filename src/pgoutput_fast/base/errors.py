"""DecodeError, SpillError, and the sentences for reason codes."""

from __future__ import annotations

from typing import Any

from pgoutput_fast.protocol.kinds import MESSAGE_KINDS
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.protocol.reasons import Reason

__all__ = ["LOAD", "LOAD_TABLES", "MESSAGE_KINDS", "DecodeError", "SpillError", "reason_text"]

# A name of the API, and the equivalent command.
LOAD = "Snapshot (pgoutput-fast snapshot)"
LOAD_TABLES = f"load the tables again with {LOAD}"


class DecodeError(ValueError):
    """A message that cannot be decoded. The error never contains a value.

    Attributes:
        seq: ordinal of the message in the stream; None for the rows of a snapshot.
        row: ordinal of a snapshot's row in its COPY; None for a message.
        lsn: LSN of the message's frame, None if unknown.
        byte_offset: offset in the message, from its tag byte on; for a snapshot's row, offset in its COPY.
        relation: the relation's qualified name, None if unknown.
        column: the column's name, None if no single column is concerned.
        kind: the message's name in the protocol, such as `Insert` or `Stream Start`; None if its tag byte is unknown.
        reason: what is wrong.

    >>> import pgoutput_fast as pgo
    >>> pgo.decode([b"B"])
    Traceback (most recent call last):
    pgoutput_fast.base.errors.DecodeError: message 0, byte 1: the message ends too early (a Begin message)
    """

    def __init__(
        self,
        reason: str,
        *,
        seq: int | None = None,
        lsn: int | None = None,
        byte_offset: int | None = None,
        relation: str | None = None,
        column: str | None = None,
        row: int | None = None,
        kind: str | None = None,
    ) -> None:
        self.reason = reason
        self.seq = seq
        self.lsn = lsn
        self.byte_offset = byte_offset
        self.relation = relation
        self.column = column
        self.row = row
        self.kind = kind
        place = [f"message {seq}"] if seq is not None else []
        if row is not None:
            place.append(f"row {row}")
        if lsn is not None:
            place.append(f"LSN {format_lsn(lsn)}")
        if relation is not None:
            place.append(f"relation {relation}")
        if column is not None:
            place.append(f"column {column!r}")
        if byte_offset is not None:
            place.append(f"byte {byte_offset}")
        what = f" ({_with_article(kind)} message)" if kind is not None else ""
        super().__init__(f"{', '.join(place)}: {reason}{what}" if place else f"{reason}{what}")

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.seq, self.lsn, self.byte_offset, self.relation, self.column, self.row, self.kind)
        return (_rebuild, (self.reason, *place))


def _rebuild(reason: str, *place: Any) -> DecodeError:
    names = ("seq", "lsn", "byte_offset", "relation", "column", "row", "kind")
    return DecodeError(reason, **dict(zip(names, place, strict=True)))


def _with_article(kind: str) -> str:
    if kind == "Message":
        return "a logical decoding"
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


class SpillError(RuntimeError):
    """A spill file is missing or damaged, so its changes are lost to the decoder.

    Attributes:
        path: the file.
        txn: the transaction of its rows: the ordinal of the message that began it.

    >>> import pgoutput_fast as pgo, tempfile
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23),)), Writer(streaming="on")
    >>> begun = writer.stream_start(9) + writer.change(orders, "insert", new=["1"]) + writer.stream_stop()
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     options = pgo.Options(transactions="committed", memory_limit=1, spill_directory=directory)
    ...     with pgo.Decoder(options) as decoder:
    ...         _ = decoder.decode(begun)
    ...         state = decoder.state.to_json()
    >>> try:  # the directory and the file in it are gone
    ...     pgo.Decoder(options, pgo.StreamState.from_json(state))
    ... except pgo.SpillError as error:
    ...     error.txn
    0
    """

    def __init__(self, path: str, txn: int, what: str) -> None:
        self.path = path
        self.txn = txn
        self.what = what
        super().__init__(
            f"spill file {path} {what}. It has changes of the transaction that message {txn} began; they wait for the "
            f"commit. Put the file back, or continue from a state that was saved before message {txn}, and decode the "
            "messages after that state again"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (SpillError, (self.path, self.txn, self.what))


_LONGEST_TYPE = 200

_HINTS = {
    "date": " (decoding needs DateStyle=ISO)",
    "timestamp": " (decoding needs DateStyle=ISO)",
    "timestamptz": " (decoding needs DateStyle=ISO)",
    "daterange": " (decoding needs DateStyle=ISO)",
    "tsrange": " (decoding needs DateStyle=ISO)",
    "tstzrange": " (decoding needs DateStyle=ISO)",
    "bytea": " (decoding needs bytea_output=hex)",
    "interval": " (decoding needs IntervalStyle=postgres)",
    "money": " (decoding needs lc_monetary=C)",
}


def reason_text(code: int, column_type: Any = None, sent: int = -1, described: int = -1) -> str:
    """The sentence for a code; `column_type` is the ColumnType of the affected column, if any."""
    name = column_type.name if column_type is not None and column_type.name else "its type"
    hint = _HINTS.get(name.removesuffix("[]"), "")
    if not hint and name.endswith("[]") and "." in name:
        # The protocol only sends the name of an array type.
        hint = " (its type has the name of an array, _...; if it is not one, read the types with Catalog.enriched())"
    elif not hint and column_type is not None and column_type.has("composite"):
        hint = " (if a composite type was altered, read the types again with Catalog.enriched())"
    arrow = str(column_type.arrow) if column_type is not None else "Arrow"
    if len(arrow) > _LONGEST_TYPE:
        # The type of a composite can have thousands of fields, and every reject would list them.
        arrow = f"{arrow[:_LONGEST_TYPE]}..."
    return Reason(code).sentence.format(
        sent=sent,
        described=described,
        type=name,
        arrow=arrow,
        hint=hint,
    )
