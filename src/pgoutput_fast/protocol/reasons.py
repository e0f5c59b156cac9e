"""Why a message, row or value cannot be decoded: the one table of codes, names and sentences.

The compiled stages return a code and a position; `errors.reason_text` returns the sentence.
`_core/protocol/reasons.hpp` and `_core/protocol/reasons.pxd` are generated: after a change here run `python
ci/generate_tables.py` and compile again.

This module imports nothing of the package, so that the generator can load it before anything is compiled.
"""

from __future__ import annotations

from enum import IntEnum, unique

__all__ = ["FIRST_NOTED", "FIRST_UNREPRESENTABLE", "OK", "Reason"]

OK = 0
"""No reason: nothing is wrong."""

FIRST_UNREPRESENTABLE = 64
"""Codes below it are malformed input: the bytes violate the protocol, the Relation or the type.

Codes from it on are legal values that the column's Arrow type cannot hold.
"""

FIRST_NOTED = 128
"""From this code on the value is kept, and a reject reports what was lost."""

_SESSION = "if a new session begins here, call start_session()"


@unique
class Reason(IntEnum):
    """A code, and the sentence for it.

    `errors.reason_text` replaces the names in braces: `{type}` and `{arrow}` are the column's types, `{hint}` is what
    may help with that type, `{sent}` and `{described}` are counts of cells and columns.

    A number never changes its meaning and is not used again.
    """

    sentence: str

    # `Reason(code)` is a lookup and passes no sentence.
    def __new__(cls, code: int, sentence: str = "") -> Reason:
        reason = int.__new__(cls, code)
        reason._value_ = code
        reason.sentence = sentence
        return reason

    # ---- malformed -------------------------------------------------------------------------------------------------

    EMPTY_PAYLOAD = 1, "the payload is empty"
    UNKNOWN_TAG = 2, "unknown message tag: is this a message of pgoutput, without anything around it?"
    TRUNCATED = 3, "the message ends too early"
    TRAILING_BYTES = 4, "bytes are left over after the message's end"
    PAYLOAD_TOO_LONG = 5, "the payload is longer than any message that the server can send (1 GiB - 1)"
    BAD_TUPLE_TAG = 6, "a tuple must begin with N, K or O, as its message allows"
    BAD_CELL_KIND = 7, "a cell must be of kind n, u, t or b"
    BAD_CELL_LENGTH = 8, "a cell's length is negative"
    BAD_CELL_COUNT = 9, "the tuple has {sent} cells, but its Relation describes {described} columns"
    BAD_FLAGS = 10, "the protocol does not define these flags"
    BAD_STRING = 11, "a name is not valid UTF-8: set client_encoding=UTF8 in the session that reads the slot"
    BAD_COUNT = 12, "a count is negative, zero or beyond the message's end"
    BAD_IDENTITY = 13, "unknown replica identity"
    BAD_POSITION = 14, "an LSN has more than 63 bits"
    BAD_TIMESTAMP = 15, "a timestamp does not fit into int64 microseconds since 1970"
    DUPLICATE_COLUMN = 16, "the Relation names a column twice"
    NO_RELATION = (
        17,
        "no Relation message described the relation of this change: did the stream begin before this message?",
    )
    RELATION_LOST = (
        18,
        "the last Relation message of this change's relation is lost or malformed; the next valid one ends this",
    )
    STATE_LOST = (
        19,
        "the stream's state is not known after a malformed message; the next transaction boundary ends this",
    )
    OUTSIDE_TRANSACTION = (
        20,
        "a Begin or Stream Start was expected before this message, since no transaction is open: "
        "did the stream begin before this message?",
    )
    EXPECTED_COMMIT = 21, "the open transaction's Commit was expected before this message; " + _SESSION
    STREAM_UNKNOWN = (
        22,
        "the Stream Start that begins this transaction (first-segment flag 1) was expected before this message: did "
        "the capture begin too late, or was the state lost in which decoding stopped?",
    )
    OTHER_COMMIT = (
        23,
        "the open transaction's Commit was expected; this Commit has another LSN than the open Begin",
    )
    BAD_TEXT = 24, "the text is not {type} as PostgreSQL prints it{hint}"
    BAD_LENGTH = 25, "the value does not have the length of {type}"
    BAD_VERSION = 26, "unknown version of the binary form of {type}"
    BAD_ELEMENT = 27, "the array's elements have another type than those of the column"
    BAD_ARRAY = 28, "the text or binary form of the array is malformed{hint}"
    OUT_OF_RANGE = 29, "the value is beyond the range of {type}"
    UNKNOWN_VERSION = (
        30,
        "the catalog does not know this row's relation version: pass the catalog of the state in which tagging ended",
    )
    TAGS_DISAGREE = 31, "the payload has another kind or relation than its tags say"
    BAD_NESTED = 44, "the text or binary form of {type} is malformed"

    # Not pgoutput messages, but their frames or a text form of them.
    TEXT_PAYLOAD = (
        40,
        "this is text, as SQL output shows bytes ('\\x...' or hex digits): pass the bytes themselves, "
        "for instance with bytes.fromhex(text.removeprefix('\\\\x'))",
    )
    FRAMED_PAYLOAD = 41, "this is a walsender's frame: pgoutput_fast.unframe() takes the message out of it"
    UNKNOWN_FRAME = (
        42,
        "a walsender's frame of kind w or k was expected: do not pass messages without a frame to unframe()",
    )
    COPY_DATA_HEADER = (
        43,
        "the frame still has the header of its CopyData message: leave out these five bytes",
    )

    # Boundaries out of order, named after the expected message.
    EXPECTED_BEGIN = (
        48,
        "a Begin was expected before this Commit, since no transaction is open: "
        "did the stream begin before this message?",
    )
    EXPECTED_BEGIN_PREPARE = (
        49,
        "a Begin Prepare was expected before this Prepare, since no transaction is open: "
        "did the stream begin before this message?",
    )
    EXPECTED_PREPARE = 50, "the open transaction's Prepare was expected before this message; " + _SESSION
    EXPECTED_STREAM_START = (
        51,
        "a Stream Start was expected before this Stream Stop, since no stream block is open: "
        "did the stream begin before this message?",
    )
    EXPECTED_STREAM_STOP = (
        52,
        "the open stream block's Stream Stop was expected before this message; " + _SESSION,
    )
    OTHER_PREPARE = (
        53,
        "the open transaction's Prepare was expected; this Prepare has another xid or gid than the open Begin Prepare",
    )
    OUTCOME_UNKNOWN = (
        54,
        "it is unknown whether this change was committed: a message that may have ended the transaction, or rolled "
        "back a part of it, is malformed or missing",
    )
    TYPE_CHANGED = (
        55,
        "a Type message gives the column another type than {type}, but the Relation equals a known version byte for "
        "byte, and a version has one meaning: continue with a new Decoder",
    )

    # For a message without its context.
    LAYOUT_UNKNOWN = (
        56,
        "the message is malformed: it has neither the form of a plain message nor that of one from a stream block",
    )
    LAYOUT_AMBIGUOUS = (
        57,
        "the message may be a plain message or one from a stream block: say which with in_stream",
    )

    # For COPY's binary format.
    BAD_COPY_HEADER = (
        58,
        "this is not a COPY stream in binary format, or it has unknown options",
    )
    BAD_COPY_ROW = (
        59,
        "the row of the COPY stream is not a position of 8 bytes and a payload",
    )
    COPY_TRUNCATED = 60, "the COPY stream ends too early"
    COPY_TRAILING_BYTES = 61, "bytes are left over after the COPY stream's end"
    ROW_TOO_LONG = 62, "the row or value is longer than any that the server can send (1 GiB - 1)"

    # ---- unrepresentable -------------------------------------------------------------------------------------------

    IS_INFINITE = FIRST_UNREPRESENTABLE, "an infinite value has no {arrow} form"
    IS_NAN = 65, "NaN has no {arrow} form"
    BEYOND_RANGE = 66, "the value is beyond the range of {arrow}"
    HOUR_24 = 67, "24:00:00 has no {arrow} form"
    MULTI_DIMENSIONAL = 68, "an array of several dimensions has no {arrow} form"
    NOT_UTF8 = 69, "the text is not valid UTF-8"
    DOES_NOT_FIT = 70, "the value does not fit {arrow}"
    FIELDS_DIFFER = (
        84,
        "the catalog knows other fields of the composite: read the types again with Catalog.enriched()",
    )
    TOO_MANY_ELEMENTS = 85, "an array of so many null composites has no {arrow} form"
    TOO_MUCH_TEXT = (
        86,
        "the value's numerics have too many digits for their few bytes to be written as text: let the server send them "
        "as text, or decode them as float64 or decimals",
    )

    # ---- noted -----------------------------------------------------------------------------------------------------

    LOWER_BOUND = FIRST_NOTED, "an array's lower bound other than 1 has no Arrow form"
