"""Summaries: the effect of a range of messages on the state of the stream, as a compact function state -> state.

A range of messages can begin anywhere. The `summarizer` module summarizes it on its own, for any preceding state.
Summaries compose associatively. They suffice to compute the state before every range, so ranges can be tagged in
parallel.

A summary is a short stream with the same effect on the state as the range. It has the boundary, Relation and Type
messages of the range with their ordinals, except those that the range itself undoes or overrides. The same tagger
processes ranges and summaries, so there is only one set of rules. A summary has three parts, in this order:

1. All messages that change the state, unmodified, up to the first message after which certainly no transaction is open.
2. Descriptions and xids after part 1: the last Relation and Type message of every oid (for Types also the first
   position of every distinct content, because later Relations depend on it), and the xids that began, as ranges. An xid
   that begins again voids its open or prepared transaction. Xids that began as streams, and stayed streams, are kept
   apart: they void an earlier stream, but not a prepared transaction.
3. Transactions that are open or prepared after the range, or that were so before it. A streamed transaction is one
   block with the last messages of its subtransactions.

A summary also has the largest LSNs of non-transactional logical messages, one more than a state keeps.

The size of a summary is proportional to the number of relations and of open transactions (with their rolled-back
subtransactions), not of all transactions. A streamed transaction that was rolled back, or prepared and ended, leaves
only its xid. Changes, Truncates and the contents of logical messages do not change the state, so a summary does not
read them. Errors in them appear when the range is tagged.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.decoding.state import StreamState, native_decoder, state_of
from pgoutput_fast.encode.messages import (
    encode_begin,
    encode_commit,
    encode_message,
    encode_stream_abort,
    encode_stream_start,
    encode_stream_stop,
)
from pgoutput_fast.schema.options import Options

__all__ = ["SESSION_STARTS", "StateMessage", "Summary", "replayed", "void", "void_stream"]

# Marks the start of a session in a list of messages, which never has real logical messages.
SESSION_STARTS = encode_message(0, "", b"", transactional=False)


class StateMessage(NamedTuple):
    """A message that changes the state: its ordinal in the range, its LSN (0 if unknown), its bytes."""

    seq: int
    lsn: int
    payload: bytes


@dataclass(frozen=True)
class Summary:
    """The effect of a range of messages on the state before it.

    Attributes:
        count: number of messages in the range.
        failed: whether its last message is an error in any state.
        prefix_ended: whether part 1 has ended.
        prefix: part 1.
        descriptions: the Relations and Types of part 2.
        begun_xids: the xids of part 2, as half-open ranges (from, until).
        transactions: part 3.
        lsns_before: LSNs of logical messages before the first boundary, parsed as outside and as inside of a stream
            block.
        lsns: LSNs of logical messages after the first boundary, ascending.
        streamed_xids: xids that began as streams; their earlier transactions may still be prepared.

    `Summary()` is the identity.
    """

    count: int = 0
    failed: bool = False
    prefix_ended: bool = False
    prefix: tuple[StateMessage, ...] = ()
    descriptions: tuple[StateMessage, ...] = ()
    begun_xids: tuple[tuple[int, int], ...] = ()
    transactions: tuple[StateMessage, ...] = ()
    lsns_before: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    lsns: tuple[int, ...] = ()
    streamed_xids: tuple[int, ...] = ()

    def apply(self, state: StreamState, *, lenient: bool = False) -> StreamState:
        """The state after the range, from the state before it.

        Its catalog has the relation versions that the new state refers to, not all versions of the range.

        Args:
            state: the state before the range.
            lenient: leave out messages that are an error. If the range has one, or if the state lacks a boundary or a
                Type, the result is only an estimate.

        Raises:
            DecodeError: as for tagging the range, if a boundary, Relation, Type or Origin message is an error. An
                earlier change, Truncate or logical message may be an error, too. If equal Relation messages are an
                error, this error names the last of them, and tagging names the first.
            ValueError: for the state of a decoder in quarantine that lacks a boundary or a Type.
        """
        if self.count == 0:
            return state
        options = Options(on_error="quarantine" if lenient else "raise")
        native, base = native_decoder(options, state), state.next_seq
        before = _values(native)
        if before["session_starts"] or self.prefix[:1] == (StateMessage(0, 0, SESSION_STARTS),):
            _replay(native, [StateMessage(0, 0, SESSION_STARTS)], base)
            before = _values(native)
        if not lenient and (before["lost"] or before["bad_type"]):
            raise ValueError("a message of the stream could not be read: tag the next ones in one piece")
        # The order of these two groups of LSNs does not matter.
        in_stream = before["context"] == "streaming"
        xid = before["current"]["xid"] if in_stream else None
        _replay(
            native, (_logical_message(lsn, xid) for lsn in (*self.lsns, *self.lsns_before[in_stream])), base
        )
        _replay(native, self.prefix, base)
        if self.prefix_ended:
            after_prefix = _values(native)
            open_xids = sorted(
                {each["xid"] for each in chain(after_prefix["streamed"], after_prefix["prepared"])}
            )
            _replay(
                native,
                chain.from_iterable(void(xid, 0) for xid in open_xids if self.has_begun(xid)),
                base,
            )
            streamed_xids = set(self.streamed_xids)
            for xid in (each["xid"] for each in after_prefix["streamed"]):
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
                StateMessage(seq, lsn, base64.b85decode(payload)) for seq, lsn, payload in document[key]
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


# The keys of a summary's attributes in `Summary.to_bytes`.
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
    """The differences between consecutive numbers, from 0 on."""
    return [after - before for before, after in pairwise([0, *ascending])]


def _logical_message(lsn: int, xid: int | None) -> StateMessage:
    """An empty logical message with an LSN."""
    return StateMessage(0, 0, encode_message(lsn, "", b"", transactional=False, xid=xid))


def void(xid: int, seq: int) -> list[StateMessage]:
    """An empty transaction, which voids an open or prepared one with the same xid."""
    return [StateMessage(seq, 0, encode_begin(1, 0, xid)), StateMessage(seq, 0, encode_commit(1, 1, 0))]


def void_stream(xid: int, seq: int) -> list[StateMessage]:
    """An empty, rolled-back stream, which voids an earlier stream of its xid, but not a prepared transaction."""
    payloads = encode_stream_start(xid, True), encode_stream_stop(), encode_stream_abort(xid, xid)
    return [StateMessage(seq, 0, payload) for payload in payloads]


def replayed(native: NativeDecoder, messages: Iterable[StateMessage], base: int) -> Iterator[pa.RecordBatch]:
    """Tags messages, and starts sessions at their marks. Yields them with TAGGED_SCHEMA, with the marks."""
    pending: list[StateMessage] = []

    def tag_pending() -> Iterator[pa.RecordBatch]:
        if pending:
            yield native.tag(
                [pa.array([m.payload for m in pending], pa.binary())],
                pa.array([m.lsn for m in pending], pa.int64()),
                pa.array([base + m.seq for m in pending], pa.int64()),
            )[0]
            pending.clear()

    for message in messages:
        if message.payload == SESSION_STARTS:
            yield from tag_pending()
            native.start_session()
        pending.append(message)
    yield from tag_pending()


def _replay(native: NativeDecoder, messages: Iterable[StateMessage], base: int) -> None:
    for _ in replayed(native, messages, base):
        pass
