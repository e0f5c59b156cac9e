"""Summaries: the effect of a range of messages on the state of the stream, as a small function state -> state.

A range of messages can begin anywhere. The `summarizer` module summarises it without its neighbours, for any state
before it. Summaries compose associatively. The summaries alone give the state before each range, so ranges can be
tagged in parallel.

A summary is a short stream that changes the state as the range does. It has the boundary, Relation and Type messages
of the range under their own ordinals, except those whose effect the range itself undoes or overrides. The same tagger
tags the range and runs over the summary, so there is only one set of rules. A summary has three parts, in this order:

1. All messages that change the state, up to the first message behind which certainly no transaction is open. They are
   as they came.
2. What holds for everything behind part 1. This is the last Relation and Type message of each oid (of a Type also the
   first place of each different content, because Relations behind it are read with it), and the xids that began,
   as ranges. An xid that begins again voids what was open under it. Xids that began as streams, and stayed streams,
   are kept apart: they void what was streamed under them, but not what was prepared.
3. Transactions that are open or prepared behind the range, or that were open or prepared before it. Each streamed
   transaction is one block with the last messages of each subtransaction.

A summary also has the LSNs of non-transactional logical messages: the largest ones, one more than a state keeps.

The size of a summary grows with the number of relations and of open transactions (with their rolled back
subtransactions), not with the number of all transactions. A streamed transaction that was rolled back, or that was
prepared and ended, leaves only its xid.
Changes, Truncates and the contents of logical messages do not change the state, so a summary does not read them.
Errors in them appear when the range is tagged.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.decoding.state import StreamState, native_decoder, state_of
from pgoutput_fast.documents import parsed_json
from pgoutput_fast.encode.messages import (
    encode_begin,
    encode_commit,
    encode_message,
    encode_stream_abort,
    encode_stream_start,
    encode_stream_stop,
)
from pgoutput_fast.schema.options import Options

__all__ = ["SESSION_STARTS", "Message", "Summary", "void", "void_stream"]

# Stands for the start of a session in a list of messages. Such a list never has real logical messages.
SESSION_STARTS = encode_message(0, "", b"", transactional=False)


class Message(NamedTuple):
    """A message that changes the state: its ordinal in the range, its LSN (0 if unknown), its bytes."""

    seq: int
    lsn: int
    payload: bytes


@dataclass(frozen=True)
class Summary:
    """The effect of a range of messages on the state before it.

    Attributes:
        count: number of messages in the range.
        failed: whether its last message is an error after any state.
        prefix_ended: whether part 1 has ended.
        prefix: part 1.
        descriptions: the Relations and Types of part 2.
        begun_xids: the xids of part 2, as half-open ranges (from, until).
        transactions: part 3.
        lsns_before: two sets of LSNs of logical messages before the first boundary: those if that place is outside of
            a stream block, and those if it is inside of one.
        lsns: LSNs of logical messages behind the first boundary, ascending.
        streamed_xids: xids that began as streams; what was prepared under them before may still be prepared.

    `Summary()` is the identity.
    """

    count: int = 0
    failed: bool = False
    prefix_ended: bool = False
    prefix: tuple[Message, ...] = ()
    descriptions: tuple[Message, ...] = ()
    begun_xids: tuple[tuple[int, int], ...] = ()
    transactions: tuple[Message, ...] = ()
    lsns_before: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    lsns: tuple[int, ...] = ()
    streamed_xids: tuple[int, ...] = ()

    def apply(self, state: StreamState) -> StreamState:
        """The state behind the range, from the state before it.

        The catalog has the relation versions that the new state refers to, not all versions of the range.

        Raises:
            DecodeError: as when the range is tagged, if a boundary, Relation, Type or Origin message is an error. A
                change, Truncate or logical message before it may be an error, too. If equal Relation messages are an
                error, this error names the last of them, and tagging names the first.
            ValueError: for the state of a decoder in quarantine that lacks a boundary or a Type.
        """
        if self.count == 0:
            return state
        native, base = native_decoder(Options(), state), state.next_seq
        before = _values(native)
        if before["session_starts"] or self.prefix[:1] == (Message(0, 0, SESSION_STARTS),):
            _replay(native, [Message(0, 0, SESSION_STARTS)], base)
            before = _values(native)
        if before["lost"] or before["bad_type"]:
            raise ValueError("a message of the stream could not be read: tag the next ones in one piece")
        # The order of these two groups of LSNs does not matter.
        in_stream = before["context"] == "streaming"
        xid = before["current"]["xid"] if in_stream else None
        _replay(
            native, (_logical_message(lsn, xid) for lsn in (*self.lsns, *self.lsns_before[in_stream])), base
        )
        _replay(native, self.prefix, base)
        if self.prefix_ended:
            behind_prefix = _values(native)
            open_xids = sorted(
                {each["xid"] for each in chain(behind_prefix["streamed"], behind_prefix["prepared"])}
            )
            _replay(
                native,
                chain.from_iterable(void(xid, 0) for xid in open_xids if self.has_begun(xid)),
                base,
            )
            streamed_xids = set(self.streamed_xids)
            for xid in (each["xid"] for each in behind_prefix["streamed"]):
                if xid in streamed_xids:
                    _replay(native, void_stream(xid, 0), base)
            _replay(native, self.descriptions, base)
            _replay(native, self.transactions, base)
        return StreamState(_values(native) | {"next_seq": base + self.count}, native.catalog)

    def has_begun(self, xid: int) -> bool:
        """Whether an xid is in a range of `begun_xids`."""
        at = bisect_right(self.begun_xids, (xid, 1 << 33)) - 1
        return at >= 0 and xid < self.begun_xids[at][1]

    def to_bytes(self) -> bytes:
        """The summary as compact bytes."""
        values = vars(self)
        document = {key: values[attribute] for attribute, key in _KEYS.items()}
        begun, at = [], 0
        for begin, end in self.begun_xids:
            begun += [begin - at, end - begin]
            at = end
        document["begun"] = begun
        document["streamed"] = _distances(self.streamed_xids)
        document["lsns_before"] = [_distances(lsns) for lsns in self.lsns_before]
        document["lsns"] = _distances(self.lsns)
        for key in _MESSAGE_KEYS:
            document[key] = [
                [seq, lsn, base64.b85encode(payload).decode()] for seq, lsn, payload in document[key]
            ]
        return zlib.compress(json.dumps(document).encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Summary:
        """The inverse of `to_bytes`."""
        document = parsed_json(zlib.decompress(data))
        for key in _MESSAGE_KEYS:
            document[key] = tuple(
                Message(seq, lsn, base64.b85decode(payload)) for seq, lsn, payload in document[key]
            )
        begun, at = [], 0
        steps = iter(document["begun"])
        for gap, length in zip(steps, steps, strict=True):
            begun.append((at + gap, at + gap + length))
            at += gap + length
        document["begun"] = tuple(begun)
        document["lsns_before"] = tuple(tuple(accumulate(each)) for each in document["lsns_before"])
        for key in ("streamed", "lsns"):
            document[key] = tuple(accumulate(document[key]))
        return cls(**{attribute: document[key] for attribute, key in _KEYS.items()})


# The key of each attribute of a summary in `Summary.to_bytes`.
_KEYS = {
    "count": "count",
    "failed": "failed",
    "prefix_ended": "settled",
    "prefix": "first",
    "descriptions": "said",
    "begun_xids": "begun",
    "transactions": "body",
    "lsns_before": "lsns_before",
    "lsns": "lsns",
    "streamed_xids": "streamed",
}
# The keys of lists of messages.
_MESSAGE_KEYS = tuple(_KEYS[attribute] for attribute in ("prefix", "descriptions", "transactions"))


def _values(native: NativeDecoder) -> dict[str, Any]:
    values = state_of(native).values
    assert values is not None
    return values


def _distances(ascending: Sequence[int]) -> list[int]:
    """The difference of each number to the one before it, of the first to 0."""
    return [after - before for before, after in pairwise([0, *ascending])]


def _logical_message(lsn: int, xid: int | None) -> Message:
    """A logical message with an LSN and no content."""
    return Message(0, 0, encode_message(lsn, "", b"", transactional=False, xid=xid))


def void(xid: int, seq: int) -> list[Message]:
    """An empty transaction. It voids what was open or prepared under its xid."""
    return [Message(seq, 0, encode_begin(1, 0, xid)), Message(seq, 0, encode_commit(1, 1, 0))]


def void_stream(xid: int, seq: int) -> list[Message]:
    """An empty stream that is rolled back. It voids what was streamed under its xid, but not what was prepared."""
    payloads = encode_stream_start(xid, True), encode_stream_stop(), encode_stream_abort(xid, xid)
    return [Message(seq, 0, payload) for payload in payloads]


def _replay(native: NativeDecoder, messages: Iterable[Message], base: int) -> None:
    """Tags messages, and starts sessions where the messages say so."""
    pending: list[Message] = []

    def tag_pending() -> None:
        if pending:
            native.tag(
                [pa.array([m.payload for m in pending], pa.binary())],
                pa.array([m.lsn for m in pending], pa.int64()),
                pa.array([base + m.seq for m in pending], pa.int64()),
            )
            pending.clear()

    for message in messages:
        if message.payload == SESSION_STARTS:
            tag_pending()
            native.start_session()
        pending.append(message)
    tag_pending()
