"""DecodeError, and the one place where the ground floor's codes become sentences."""

from __future__ import annotations

from typing import Any

from pgoutput_fast.lsn import format_lsn

__all__ = ["MESSAGE_KINDS", "DecodeError", "SpillError", "reason_text"]

# What the protocol calls its messages, by their tag byte.
MESSAGE_KINDS = {
    ord("B"): "Begin",
    ord("C"): "Commit",
    ord("b"): "Begin Prepare",
    ord("P"): "Prepare",
    ord("K"): "Commit Prepared",
    ord("r"): "Rollback Prepared",
    ord("S"): "Stream Start",
    ord("E"): "Stream Stop",
    ord("c"): "Stream Commit",
    ord("A"): "Stream Abort",
    ord("p"): "Stream Prepare",
    ord("O"): "Origin",
    ord("R"): "Relation",
    ord("Y"): "Type",
    ord("I"): "Insert",
    ord("U"): "Update",
    ord("D"): "Delete",
    ord("T"): "Truncate",
    ord("M"): "Message",
}


class DecodeError(ValueError):
    """A message that cannot be decoded. Never contains a value.

    Attributes:
        seq: ordinal of the message in the stream; None for the rows of a snapshot.
        row: of a snapshot, the row's ordinal in its COPY; else None.
        lsn: its frame's LSN, None if not known.
        byte_offset: where in the message, counted from its tag byte; of a snapshot's row where in its COPY.
        relation: the relation's qualified name, None if not known.
        column: the column's name, None if no single column is concerned.
        kind: what the protocol calls the message, such as `Insert` or `Stream Start`; None where its tag byte is not
            known, or is that of no message.
        reason: what is wrong.

    >>> import pgoutput_fast as pgo
    >>> pgo.decode([b"B"])
    Traceback (most recent call last):
    pgoutput_fast.errors.DecodeError: message 0, byte 1: the message ends too early (a Begin message)
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
        what = f" ({_a(kind)} message)" if kind is not None else ""
        super().__init__(f"{', '.join(place)}: {reason}{what}" if place else f"{reason}{what}")

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.seq, self.lsn, self.byte_offset, self.relation, self.column, self.row, self.kind)
        return (_rebuild, (self.reason, *place))


def _rebuild(reason: str, *place: Any) -> DecodeError:
    names = ("seq", "lsn", "byte_offset", "relation", "column", "row", "kind")
    return DecodeError(reason, **dict(zip(names, place, strict=True)))


def _a(kind: str) -> str:
    if kind == "Message":
        return "a logical decoding"
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


class SpillError(RuntimeError):
    """A file of changes that wait for their commit is missing or damaged, so that they cannot be given.

    Attributes:
        path: the file.
        txn: the transaction whose rows it holds: ordinal of the message that began it.

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
            f"spill file {path} {what}; it holds changes of the transaction that message {txn} began, which wait for "
            f"their commit. Put the file back, or go on from a state that was taken before message {txn} and decode "
            "again what follows"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (SpillError, (self.path, self.txn, self.what))


# Codes that Python code gives by itself.
FATE_UNKNOWN = 54
# Of a message that is looked at without its neighbours.
LAYOUT_UNKNOWN, LAYOUT_AMBIGUOUS = 56, 57
# 58 to 61 are of _core/pull.pyx and copy_rows.pyx: what is around messages or rows that come by COPY.
# And one that it asks for.
UNKNOWN_VERSION = 30
# Of a COPY as a whole.
COPY_CUT, COPY_GOES_ON = 60, 61

_SESSION = "if a new session begins here, call start_session()"

# By the codes of _core/reasons.hpp. What is in braces is known from the column.
_REASONS = {
    1: "the payload is empty",
    2: "unknown message tag: is this a message of pgoutput, without anything around it?",
    3: "the message ends too early",
    4: "bytes are left over behind the message's end",
    5: "the payload is longer than any message the server can send (1 GiB - 1)",
    6: "a tuple must begin with N, K or O, as its message allows",
    7: "a cell must be of kind n, u, t or b",
    8: "a cell's length is negative",
    9: "the tuple has {sent} cells, its Relation describes {described}",
    10: "the flags are none that the protocol knows",
    11: "a name is not valid UTF-8: the session that decodes must have client_encoding=UTF8",
    12: "a count is negative, zero or beyond the message's end",
    13: "unknown replica identity",
    14: "an LSN beyond 63 bits",
    15: "a timestamp beyond what int64 microseconds since 1970 hold",
    16: "the Relation names a column twice",
    17: "a change of a relation that was never described: did the stream begin before this message?",
    18: "a change of a relation whose last description was lost or malformed, until the next valid Relation message",
    19: "the stream's state is not known after a malformed message; the next transaction boundary ends this",
    20: "a Begin or Stream Start was expected before this message, since no transaction is open: "
    "did the stream begin before this message?",
    21: "the open transaction's Commit was expected before this message; " + _SESSION,
    22: "expected the Stream Start that begins this transaction (first-segment flag 1) before this message: did the "
    "capture begin too late, or was the state lost in which decoding stopped?",
    23: "the open transaction's Commit was expected; this one has another position than its Begin gave",
    24: "the text is not {type} as PostgreSQL prints it{hint}",
    25: "the value's length is not that of {type}",
    26: "unknown version of the binary form of {type}",
    27: "the array's elements are not of the type that the column has",
    28: "the text or binary form of the array is malformed{hint}",
    29: "the value is beyond the range of {type}",
    30: "the catalog does not know this row's relation version: pass that of the state in which tagging ended",
    31: "the payload is not what its tags say: kind or relation differ",
    40: "this is text, as SQL output shows bytes ('\\x...' or hex digits): pass the bytes themselves, "
    "for instance with bytes.fromhex(text.removeprefix('\\\\x'))",
    41: "this is a walsender's frame: pgoutput_fast.unframe() takes the message out of it",
    42: "a walsender's frame of kind w or k was expected; a message without its frame needs no unframe()",
    43: "the frame still has the header of its CopyData message: leave out these five bytes",
    44: "the text or binary form of {type} is malformed",
    48: "a Begin was expected before this Commit, since no transaction is open: "
    "did the stream begin before this message?",
    49: "a Begin Prepare was expected before this Prepare, since no transaction is open: "
    "did the stream begin before this message?",
    50: "the open transaction's Prepare was expected before this message; " + _SESSION,
    51: "a Stream Start was expected before this Stream Stop, since no stream block is open: "
    "did the stream begin before this message?",
    52: "the open stream block's Stream Stop was expected before this message; " + _SESSION,
    53: "the open transaction's Prepare was expected; this one has another xid or gid than its Begin Prepare gave",
    54: "what became of its transaction is not known: a message that may have ended it, or rolled back a part of it, "
    "was malformed or is missing",
    55: "a Type message gives the column another type than {type}, but the Relation is, byte for byte, a version known "
    "already, which has one meaning: go on with a new Decoder",
    56: "the message is malformed: it has the form neither of a plain message nor of one from a stream block",
    57: "the message has the form of a plain message as well as of one from a stream block: say with in_stream which",
    58: "this is no COPY stream in binary format, or one with options that are not known",
    59: "the row of the COPY stream has not the two columns that were asked for: a position and a payload",
    60: "the COPY stream ends too early",
    61: "bytes are left over behind the COPY stream's end",
    62: "the row or value is longer than any the server can send (1 GiB - 1)",
    64: "an infinite value has no {arrow} form",
    65: "NaN has no {arrow} form",
    66: "the value is beyond the range of {arrow}",
    67: "24:00:00 has no {arrow} form",
    68: "an array of several dimensions has no {arrow} form",
    69: "the text is not valid UTF-8",
    70: "the value does not fit {arrow}",
    84: "the composite's fields are not those that the catalog knows: enrich it again",
    85: "an array of so many null composites has no {arrow} form",
    86: "the value's numerics have so many digits for so few bytes that their text is not made: have them sent as "
    "text, or decode them as float64 or decimals",
    128: "an array's lower bound other than 1 has no Arrow form",
}

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
    """The sentence for a code; `column_type` is the types.ColumnType of the column concerned, if one is."""
    name = column_type.name if column_type is not None and column_type.name else "its type"
    hint = _HINTS.get(name.removesuffix("[]"), "")
    if not hint and name.endswith("[]") and "." in name:
        # The wire says no more of an array than that its name begins so.
        hint = " (if its type is no array and only called like one, _..., Catalog.enriched tells)"
    arrow = str(column_type.arrow) if column_type is not None else "Arrow"
    if len(arrow) > _LONGEST_TYPE:
        # A composite's can have thousands of fields, and each reject would name them all.
        arrow = f"{arrow[:_LONGEST_TYPE]}..."
    return _REASONS[code].format(
        sent=sent,
        described=described,
        type=name,
        arrow=arrow,
        hint=hint,
    )
