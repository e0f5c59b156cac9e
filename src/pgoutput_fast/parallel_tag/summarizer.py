"""Builds summaries of ranges of messages, batch by batch, and composes summaries of adjacent ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.protocol.relations import Malformed, fields_of, parse_type
from pgoutput_fast._core.tagging.control_messages import LSNS_KEPT, boundary_of, control_messages, is_origin
from pgoutput_fast.encode.messages import encode_stream_start
from pgoutput_fast.parallel_tag.descriptions import Descriptions
from pgoutput_fast.parallel_tag.open_transactions import OpenTransactions, StreamBlock
from pgoutput_fast.parallel_tag.summary import SESSION_STARTS, StateMessage, Summary
from pgoutput_fast.parallel_tag.survey import RangeSurvey
from pgoutput_fast.protocol import kinds

__all__ = ["Summarizer", "compose", "summarize"]

# Messages that change the state without being boundaries: descriptions and origins.
_NO_BOUNDARIES = (*kinds.DESCRIPTIONS, kinds.MSG_ORIGIN)
_CONTROL_MESSAGES = (*kinds.BOUNDARIES, *_NO_BOUNDARIES)
# Both return the oid first.
_PARSERS: dict[int, Callable[[bytes], Any]] = {kinds.MSG_RELATION: fields_of, kinds.MSG_TYPE: parse_type}
# The contexts between two messages, as in `control_messages`.
_UNKNOWN, _OUTSIDE, _PLAIN, _PREPARING, _STREAMING = range(-1, 4)
_CONTEXT_AFTER = {
    kinds.MSG_BEGIN: _PLAIN,
    kinds.MSG_BEGIN_PREPARE: _PREPARING,
    kinds.MSG_STREAM_START: _STREAMING,
}

_Lsns = tuple[int, ...]


class _ControlEffects:
    """The effects on the state of the control messages after part 1 of a summary.

    Attributes:
        descriptions: Relations and Types that apply to all transactions.
        transactions: open and prepared transactions.
        context: the context after the last message. It is also maintained in part 1.
    """

    def __init__(self) -> None:
        self.descriptions = Descriptions()
        self.transactions = OpenTransactions()
        self.context = _UNKNOWN
        self._opening: StateMessage | None = None  # the message that opened the open transaction or block
        self._fields: Any = None  # the fields of a Begin or Begin Prepare in `_opening`
        self._origin: StateMessage | None = None  # the Origin after a Begin or Begin Prepare
        self._block: StreamBlock | None = None  # the block of the open Stream Start

    def start_session(self, mark: StateMessage | None) -> None:
        """Starts a session: an unfinished transaction is void.

        Args:
            mark: the message for the start of the session; None if part 1 has it.
        """
        self.transactions.start_session(mark)
        self._open(_OUTSIDE, None)

    def take(self, kind: int, message: StateMessage, fields: tuple[Any, ...] | None) -> bool:
        """Takes the next control message. Returns False if it is an error in any state.

        Args:
            kind: its kind.
            message: the message.
            fields: the fields of a boundary; None for any other message and for a malformed boundary.
        """
        if kind in kinds.DESCRIPTIONS:
            return self._take_description(kind, message)
        if kind == kinds.MSG_ORIGIN:
            return self._take_origin(message)
        return fields is not None and self._take_boundary(kind, message, *fields)

    def _take_description(self, kind: int, message: StateMessage) -> bool:
        streaming = self.context == _STREAMING
        body = message.payload[5 if streaming else 1 :]
        try:
            oid = _PARSERS[kind](body)[0]
        except Malformed:
            return False
        if streaming:
            assert self._block is not None
            self._block.descriptions.add(kind, oid, message, int.from_bytes(message.payload[1:5], "big"))
        else:
            self.descriptions.add(kind, oid, message)
        return True

    def _take_origin(self, message: StateMessage) -> bool:
        if self.context == _OUTSIDE or not is_origin(message.payload):
            return False
        if self._block is not None:
            self._block.origin = message
        else:
            self._origin = message
        return True

    def _take_boundary(
        self,
        kind: int,
        message: StateMessage,
        xid: int,
        subxid: int,
        lsn: int,
        end_lsn: int,
        gid: bytes,
        first: bool,
    ) -> bool:
        if kind == kinds.MSG_STREAM_STOP:
            return self._close(_STREAMING)
        if kind == kinds.MSG_COMMIT:
            return self.context == _PLAIN and self._fields[2] == lsn and self._close(_PLAIN)
        if kind == kinds.MSG_PREPARE:
            return self._prepare(message, xid, end_lsn, gid)
        if self.context != _OUTSIDE:
            return False
        if kind in (kinds.MSG_BEGIN, kinds.MSG_BEGIN_PREPARE):
            self.transactions.begin(xid)
            self._open(_CONTEXT_AFTER[kind], message)
            self._fields = (xid, subxid, lsn, end_lsn, gid)
        elif kind == kinds.MSG_STREAM_START and first:
            self._open(_STREAMING, message, self.transactions.begin_stream(xid).open_block(message))
        elif kind == kinds.MSG_COMMIT_PREPARED:
            self._add_committed(self.transactions.commit_prepared(xid, message, gid))
        elif kind == kinds.MSG_ROLLBACK_PREPARED:
            self.transactions.roll_back_prepared(xid, message, gid, lsn)
        elif self.transactions.stream(xid) is not None:
            self._continue_stream(kind, message, xid, subxid, end_lsn, gid)
        elif self.transactions.may_be_earlier(xid):
            self._continue_earlier(kind, message, xid, subxid)
        else:
            return kind == kinds.MSG_STREAM_ABORT  # no stream from before the range is open
        return True

    def leave(self) -> None:
        """Forgets the open transaction or block."""
        self._open(_OUTSIDE, None)

    def _open(self, context: int, message: StateMessage | None, block: StreamBlock | None = None) -> None:
        self.context, self._opening, self._origin, self._block = context, message, None, block

    def _close(self, context: int) -> bool:
        """Ends the open transaction or block. Returns False if none of this context is open."""
        if self.context != context:
            return False
        self._open(_OUTSIDE, None)
        return True

    def _prepare(self, message: StateMessage, xid: int, end_lsn: int, gid: bytes) -> bool:
        if self.context != _PREPARING or (self._fields[0], self._fields[4]) != (xid, gid):
            return False
        messages = [each for each in (self._opening, self._origin, message) if each is not None]
        self.transactions.prepare(xid, messages, gid, end_lsn)
        return self._close(_PREPARING)

    def _continue_earlier(self, kind: int, message: StateMessage, xid: int, subxid: int) -> None:
        """Takes a message of a transaction that was open before the range, or is unknown."""
        earlier = self.transactions.earlier(xid)
        if kind == kinds.MSG_STREAM_START:
            block = earlier.open_block(message)
            block.start = block.start or message
            self._open(_STREAMING, message, block)
        elif kind == kinds.MSG_STREAM_ABORT and xid != subxid:
            block = earlier.open_block(None)
            block.descriptions.roll_back(subxid)
            block.aborts.setdefault(subxid, message)
        else:
            earlier.end_stream([message])

    def _continue_stream(
        self, kind: int, message: StateMessage, xid: int, subxid: int, end_lsn: int, gid: bytes
    ) -> None:
        """Takes a message of a stream that began in this range."""
        stream = self.transactions.stream(xid)
        assert stream is not None
        assert stream.block is not None
        if kind == kinds.MSG_STREAM_START:
            self._open(_STREAMING, message, stream.block)
        elif kind == kinds.MSG_STREAM_ABORT and xid != subxid:
            stream.block.descriptions.roll_back(subxid)
        elif kind == kinds.MSG_STREAM_COMMIT:
            self._add_committed(self.transactions.commit_stream(xid))
        elif kind == kinds.MSG_STREAM_PREPARE:
            self._add_committed(self.transactions.prepare_stream(xid, message, gid, end_lsn))
        else:
            self.transactions.drop_stream(xid)

    def _add_committed(self, committed: list[Descriptions]) -> None:
        """Adds descriptions of a committed or prepared stream, which now apply to all transactions."""
        for each in committed:
            self.descriptions.add_committed(each)

    def opening_messages(self) -> Iterator[StateMessage]:
        """The messages that open the transaction or stream block that is open after the range."""
        if self._opening is not None and self.context == _STREAMING:
            xid = int.from_bytes(self._opening.payload[1:5], "big")
            yield self._opening._replace(payload=encode_stream_start(xid, False))
        elif self._opening is not None:
            yield self._opening
            if self._origin is not None:
                yield self._origin


class Summarizer:
    """Builds a summary, batch by batch.

    Args:
        lenient: leave out messages that are an error in any state, instead of ending the summary with the first one.
            Then `Summary.apply` gives only an estimate of the state after a range with such a message.
        survey: also gets the messages.

    Attributes:
        left_out: whether such a message was left out.
    """

    def __init__(self, *, lenient: bool = False, survey: RangeSurvey | None = None) -> None:
        self.left_out = False
        self._survey = survey
        self._lenient = lenient
        self._count = 0
        self._failed = False
        self._error: StateMessage | None = None
        self._session_starts = False  # whether a session starts with the next message
        self._prefix: list[StateMessage] = []
        self._prefix_ended = False
        self._effects = _ControlEffects()  # of the messages after the prefix
        self._lsns_before: tuple[_Lsns, _Lsns] = ((), ())
        self._lsns: _Lsns = ()

    # ---- input -------------------------------------------------------------------------------------------------------

    def start_session(self) -> None:
        """Records that a new decoding session begins with the next message."""
        self._session_starts = True

    def add(self, payloads: pa.Array, lsn: pa.Array | None = None) -> None:
        """Adds the next messages: a binary or large binary array, and their LSNs (int64, without nulls)."""
        base = self._advance(len(payloads))
        if self._failed:
            return
        selected = control_messages(payloads, self._effects.context, self._prefix_ended)
        if self._survey is not None:
            self._survey.add(base, selected)
        self._add_lsns_before(*selected["lsns_before"])
        begins, xids = selected["begun"], selected["xids"]
        events: list[tuple[int, StateMessage | int]] = [
            (
                k,
                StateMessage(
                    base + k, 0 if lsn is None else lsn[k].as_py(), _shorten(payloads[k].as_buffer())
                ),
            )
            for k in selected["messages"]
        ]
        if self._xids_in_order(events).intersection(xids.tolist()):
            events = sorted(
                [*events, *zip(begins.tolist(), xids.tolist(), strict=True)], key=lambda event: event[0]
            )
            begins = begins[:0]
        for _, each in events:
            if isinstance(each, StateMessage):
                self._take(each)
            elif not self._failed:
                self._effects.transactions.begin(each)
        # Nothing else is known of the remaining xids.
        until = np.searchsorted(begins, len(payloads) if self._error is None else self._error.seq - base)
        self._effects.transactions.begin_others(xids[:until])
        self._lsns = _largest(self._lsns, selected["lsns"])

    def append(self, other: Summary) -> None:
        """Adds the summary of the next range."""
        base = self._advance(other.count)
        if other.count == 0 or self._failed:
            return
        self._add_lsns_before(*other.lsns_before)
        self._take_all(other.prefix, base)
        if other.prefix_ended and not self._failed:
            transactions = self._effects.transactions
            for xid in transactions.xids():
                if other.has_begun(xid):
                    transactions.begin(xid)
            for xid in other.streamed_xids:
                transactions.begin_stream(xid)
                transactions.drop_stream(xid)
            transactions.begin_ranges(other.begun_xids)
            self._take_all([*other.descriptions, *other.transactions], base)
        self._lsns = _largest(self._lsns, other.lsns)
        self._failed = self._failed or other.failed

    def _advance(self, count: int) -> int:
        """Counts the next messages and returns the first ordinal. A recorded start of a session takes effect there."""
        base, self._count = self._count, self._count + count
        if count and self._session_starts:
            self._session_starts = False
            self._take(StateMessage(base, 0, SESSION_STARTS))
        return base

    def _xids_in_order(self, events: Iterable[tuple[int, StateMessage | int]]) -> set[int]:
        """The xids whose beginnings must be processed in order with the other messages."""
        xids = {*self._effects.transactions.xids(), *self._effects.transactions.replaced_xids()}
        for message in (each for _, each in events if isinstance(each, StateMessage)):
            if message.payload[:1] and message.payload[0] in kinds.BOUNDARIES:
                fields = boundary_of(message.payload)
                xids.update(() if fields is None else (fields[0],))
        return xids

    def _add_lsns_before(self, outside: Sequence[int], inside: Sequence[int]) -> None:
        """Adds LSNs of logical messages, parsed as outside and as inside of a stream block."""
        if self._effects.context == _UNKNOWN:
            before = self._lsns_before
            self._lsns_before = (_largest(before[0], outside), _largest(before[1], inside))
        else:
            self._lsns = _largest(self._lsns, inside if self._effects.context == _STREAMING else outside)

    def _take_all(self, messages: Iterable[StateMessage], base: int) -> None:
        """Takes messages of a summary whose range begins at ordinal `base`."""
        for message in messages:
            self._take(message._replace(seq=base + message.seq))

    def _take(self, message: StateMessage) -> None:
        if self._failed:
            return
        if self._survey is not None:
            in_block = self._effects.context in (_UNKNOWN, _STREAMING)
            self._survey.add_control_message(message, in_block=in_block)
        if message.payload == SESSION_STARTS:
            self._take_session(message)
            return
        kind = message.payload[0] if message.payload else 0
        fields = boundary_of(message.payload) if kind in kinds.BOUNDARIES else None
        if self._prefix_ended:
            if not self._effects.take(kind, message, fields):
                self._fail(message)
        elif kind not in _NO_BOUNDARIES and fields is None:
            self._fail(message)
        else:
            self._prefix.append(message)
            self._prefix_ended = kind in kinds.CLOSINGS
            if fields is not None:
                self._effects.context = _CONTEXT_AFTER.get(kind, _OUTSIDE)

    def _take_session(self, mark: StateMessage) -> None:
        if self._prefix_ended:
            self._effects.start_session(mark)
        else:
            self._prefix.append(mark)
            self._prefix_ended = True
            self._effects.start_session(None)

    def _fail(self, message: StateMessage) -> None:
        """Records an error, after which messages are ignored."""
        if self._lenient:
            self.left_out = True
            if message.payload[:1] and message.payload[0] in kinds.BOUNDARIES:
                self._effects.leave()
            return
        self._failed = True
        self._error = message

    # ---- output ------------------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """The summary of all messages so far."""
        errors = [] if self._error is None else [self._error]
        return Summary(
            count=self._count,
            failed=self._failed,
            prefix_ended=self._prefix_ended,
            prefix=(*self._prefix, *([] if self._prefix_ended else errors)),
            descriptions=tuple(self._effects.descriptions.messages()),
            begun_xids=tuple(self._effects.transactions.begun_ranges()),
            transactions=(
                *self._effects.transactions.messages(),
                *self._effects.opening_messages(),
                *(errors if self._prefix_ended else []),
            ),
            # A batch may also have LSNs of messages after an error.
            lsns_before=((), ()) if self._failed else self._lsns_before,
            lsns=() if self._failed else self._lsns,
            streamed_xids=tuple(self._effects.transactions.streamed_xids()),
        )


def _largest(lsns: _Lsns, more: Sequence[int]) -> _Lsns:
    """The largest LSNs of both up to the limit of a summary, in ascending order without duplicates."""
    return tuple(sorted({*lsns, *more})[-LSNS_KEPT:]) if more else lsns


def _shorten(payload: pa.Buffer) -> bytes:
    """A message's bytes; for any other payload, enough of them to diagnose it."""
    if payload.size and payload[0] not in _CONTROL_MESSAGES and payload.size > 65:
        payload = payload.slice(0, 64 + (payload.size & 1))
    return bytes(payload)


def compose(*summaries: Summary) -> Summary:
    """The summary of adjacent ranges, from their summaries in order."""
    whole = Summarizer()
    for each in summaries:
        whole.append(each)
    return whole.summary()


def summarize(payloads: pa.Array | pa.ChunkedArray) -> Summary:
    """The summary of a range of messages.

    >>> from pgoutput_fast import StreamState
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> halves = [summarize(pa.array(wal[:2], pa.binary())), summarize(pa.array(wal[2:], pa.binary()))]
    >>> compose(*halves).apply(StreamState()).next_seq
    4
    """
    summarizer = Summarizer()
    for chunk in payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]:
        summarizer.add(chunk)
    return summarizer.summary()
