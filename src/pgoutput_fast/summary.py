"""What a stretch of a stream does to the state before it, whatever that is: the function state -> state, and small.

A stretch that begins anywhere is summarised without its neighbours (by `summarizer`); summaries compose associatively;
and the state before each stretch follows from the summaries alone. So stretches can be tagged side by side.

A summary is a stream of its own, which moves the state as the stretch does: its boundary, Relation and Type messages
under their own ordinals, without those whose effect the stretch itself takes back or overrides. The tagger that tags
the stretch runs over it: there is no second set of rules. Three parts follow one another:

1. until the first message behind which no transaction is open for sure, everything that moves the state, as it came;
2. what holds for all behind it: the last Relation and Type of each oid (of a Type also where each thing that it said
   came first: Relations behind it are understood by it), and the xids that began (an xid that begins
   again voids what was open under it), as ranges; those that began as streams, and stayed that, apart: they void what
   was streamed under them, and nothing that was prepared;
3. transactions that the stretch leaves open or prepared, or that it found so: each streamed one as a single block with
   the last word of each subtransaction.

Beside it stand the LSNs of non-transactional logical messages: as many of the largest as a state keeps, and one more.

The size is that of relations and open transactions (with their rolled back subtransactions), not of transactions; a
streamed one that was rolled back, or prepared and ended, leaves its xid.
Changes, Truncates and what logical messages hold do not move the state and are not looked into: what is wrong with
them shows when the stretch is tagged.
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

from pgoutput_fast._core.decode import NativeDecoder
from pgoutput_fast.encode_messages import (
    encode_begin,
    encode_commit,
    encode_message,
    encode_stream_abort,
    encode_stream_start,
    encode_stream_stop,
)
from pgoutput_fast.options import Options
from pgoutput_fast.state import StreamState, native_decoder, state_of

__all__ = ["SESSION_STARTS", "Message", "Summary", "void", "void_stream"]

# Stands for a session's start in a list of messages. Logical messages that were sent are in no such list.
SESSION_STARTS = encode_message(0, "", b"", transactional=False)


class Message(NamedTuple):
    """A message that moves the state: its ordinal in the stretch, its LSN (0 where unknown), its bytes."""

    seq: int
    lsn: int
    payload: bytes


@dataclass(frozen=True)
class Summary:
    """What a stretch does to the state before it.

    Attributes:
        count: how many messages it has.
        failed: whether its last message is an error after any state.
        settled: whether part 1 has ended.
        first, said, begun, body: part 1; part 2's Relations and Types, and its xids as (from, until); part 3.
        lsns_before: LSNs of messages before the first boundary, if that is outside of a stream block, and if it is
            inside of one.
        lsns: LSNs of messages behind it, ascending.
        streamed: xids that began as streams, and what was prepared under them before may still be.

    The identity is `Summary()`.
    """

    count: int = 0
    failed: bool = False
    settled: bool = False
    first: tuple[Message, ...] = ()
    said: tuple[Message, ...] = ()
    begun: tuple[tuple[int, int], ...] = ()
    body: tuple[Message, ...] = ()
    lsns_before: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    lsns: tuple[int, ...] = ()
    streamed: tuple[int, ...] = ()

    def apply(self, state: StreamState) -> StreamState:
        """The state after the stretch, from that before it.

        The catalog has the relation versions that the state refers to, and not all that the stretch described.

        Raises:
            DecodeError: as tagging the stretch would, if a boundary, Relation, Type or Origin message is an error.
                A change, Truncate or logical message before it may be one, too. Of equal Relation messages it names
                the last, where tagging names the first.
            ValueError: for a state of a decoder in quarantine that lacks a boundary or a Type.
        """
        if self.count == 0:
            return state
        native, base = native_decoder(Options(), state), state.next_seq
        before = _values(native)
        if before["session_starts"] or self.first[:1] == (Message(0, 0, SESSION_STARTS),):
            _replay(native, [Message(0, 0, SESSION_STARTS)], base)
            before = _values(native)
        if before["lost"] or before["bad_type"]:
            raise ValueError("a message of the stream could not be read: tag the next ones in one piece")
        # Which of them come first does not matter.
        in_stream = before["context"] == "streaming"
        xid = before["current"]["xid"] if in_stream else None
        _replay(native, (_heard(lsn, xid) for lsn in (*self.lsns, *self.lsns_before[in_stream])), base)
        _replay(native, self.first, base)
        if self.settled:
            since = _values(native)
            open_xids = sorted({each["xid"] for each in chain(since["streamed"], since["prepared"])})
            _replay(
                native,
                chain.from_iterable(void(xid, 0) for xid in open_xids if self.has_begun(xid)),
                base,
            )
            streamed = set(self.streamed)
            for xid in (each["xid"] for each in since["streamed"]):
                if xid in streamed:
                    _replay(native, void_stream(xid, 0), base)
            _replay(native, self.said, base)
            _replay(native, self.body, base)
        return StreamState(_values(native) | {"next_seq": base + self.count}, native.catalog)

    def has_begun(self, xid: int) -> bool:
        """Whether an xid is among those of `begun`."""
        at = bisect_right(self.begun, (xid, 1 << 33)) - 1
        return at >= 0 and xid < self.begun[at][1]

    def to_bytes(self) -> bytes:
        """A compact form."""
        begun, at = [], 0
        for begin, end in self.begun:
            begun += [begin - at, end - begin]
            at = end
        document = vars(self) | {
            "begun": begun,
            "streamed": _distances(self.streamed),
            "lsns_before": [_distances(lsns) for lsns in self.lsns_before],
            "lsns": _distances(self.lsns),
        }
        for part in ("first", "said", "body"):
            document[part] = [
                [seq, lsn, base64.b85encode(payload).decode()] for seq, lsn, payload in document[part]
            ]
        return zlib.compress(json.dumps(document).encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Summary:
        """The inverse of `to_bytes`."""
        document = json.loads(zlib.decompress(data))
        for part in ("first", "said", "body"):
            document[part] = tuple(
                Message(seq, lsn, base64.b85decode(payload)) for seq, lsn, payload in document[part]
            )
        begun, at = [], 0
        steps = iter(document["begun"])
        for gap, length in zip(steps, steps, strict=True):
            begun.append((at + gap, at + gap + length))
            at += gap + length
        document["begun"] = tuple(begun)
        document["lsns_before"] = tuple(tuple(accumulate(each)) for each in document["lsns_before"])
        for part in ("streamed", "lsns"):
            document[part] = tuple(accumulate(document[part]))
        return cls(**document)


def _values(native: NativeDecoder) -> dict[str, Any]:
    values = state_of(native).values
    assert values is not None
    return values


def _distances(ascending: Sequence[int]) -> list[int]:
    """Each from the one before it, the first from 0."""
    return [after - before for before, after in pairwise([0, *ascending])]


def _heard(lsn: int, xid: int | None) -> Message:
    """A logical message of which no more than its LSN is kept."""
    return Message(0, 0, encode_message(lsn, "", b"", transactional=False, xid=xid))


def void(xid: int, seq: int) -> list[Message]:
    """An empty transaction: what was open or prepared under its xid is void."""
    return [Message(seq, 0, encode_begin(1, 0, xid)), Message(seq, 0, encode_commit(1, 1, 0))]


def void_stream(xid: int, seq: int) -> list[Message]:
    """An empty stream that is rolled back: what was streamed under its xid is void, and nothing that was prepared."""
    payloads = encode_stream_start(xid, True), encode_stream_stop(), encode_stream_abort(xid, xid)
    return [Message(seq, 0, payload) for payload in payloads]


def _replay(native: NativeDecoder, messages: Iterable[Message], base: int) -> None:
    stretch: list[Message] = []

    def tag() -> None:
        if stretch:
            native.tag(
                [pa.array([m.payload for m in stretch], pa.binary())],
                pa.array([m.lsn for m in stretch], pa.int64()),
                pa.array([base + m.seq for m in stretch], pa.int64()),
            )
            stretch.clear()

    for message in messages:
        if message.payload == SESSION_STARTS:
            tag()
            native.start_session()
        stretch.append(message)
    tag()
