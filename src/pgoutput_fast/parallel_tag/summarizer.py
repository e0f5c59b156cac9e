"""Makes summaries of ranges of messages, batch by batch, and composes summaries of adjacent ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.protocol.relations import Malformed, fields_of, parse_type
from pgoutput_fast._core.tagging.control_messages import LSNS_KEPT, boundary_of, control_messages, is_origin
from pgoutput_fast.encode.messages import encode_stream_start
from pgoutput_fast.parallel_tag.open_transactions import Block, Life, all_of, hear_first, place
from pgoutput_fast.parallel_tag.summary import SESSION_STARTS, Message, Summary, void, void_stream
from pgoutput_fast.parallel_tag.xid_ranges import XidSet
from pgoutput_fast.protocol.kinds import (
    BOUNDARIES,
    CLOSINGS,
    DESCRIPTIONS,
    MSG_BEGIN,
    MSG_BEGIN_PREPARE,
    MSG_COMMIT,
    MSG_COMMIT_PREPARED,
    MSG_ORIGIN,
    MSG_PREPARE,
    MSG_RELATION,
    MSG_ROLLBACK_PREPARED,
    MSG_STREAM_ABORT,
    MSG_STREAM_COMMIT,
    MSG_STREAM_PREPARE,
    MSG_STREAM_START,
    MSG_STREAM_STOP,
    MSG_TYPE,
)

__all__ = ["Summarizer", "compose", "summarize"]

# What moves the state: beside boundaries what they hold of descriptions and origins.
_NO_BOUNDARIES = (*DESCRIPTIONS, MSG_ORIGIN)
_CONTROLS = (*BOUNDARIES, *_NO_BOUNDARIES)
_UNKNOWN, _OUTSIDE, _PLAIN, _PREPARING, _STREAMING = range(-1, 4)
_CONTEXT_BEHIND = {MSG_BEGIN: _PLAIN, MSG_BEGIN_PREPARE: _PREPARING, MSG_STREAM_START: _STREAMING}

_Lsns = tuple[int, ...]


class Summarizer:
    """Builds a summary, batch by batch."""

    def __init__(self) -> None:
        self._count = 0
        self._failed = False
        self._error: Message | None = None
        self._settled = False
        self._session = False  # whether a session started in the range
        self._session_starts = False  # whether a session starts with the next message
        self._first: list[Message] = []
        self._said: dict[tuple[int, int], Message] = {}
        self._firsts: dict[tuple[int, int], dict[bytes, Message]] = {}
        self._begun = XidSet()
        self._streamed: set[int] = set()  # see `Summary.streamed`
        # All by xid. Open streams that began in the range; transactions that were prepared in the range; and
        # all messages of xids that may have been open or prepared before the range, without streams that
        # began under them in the range.
        self._streams: dict[int, Life] = {}
        self._prepared: dict[int, Life] = {}
        self._found: dict[int, Life] = {}
        # Both are messages by xid. `_past`: of xids that were open before the range and began again in it.
        # `_ended`: of xids in `_found` when the first session of the range started.
        self._past: dict[int, list[Block | list[Message]]] = {}
        self._ended: dict[int, list[Block | list[Message]]] = {}
        self._mark: Message | None = None
        self._context = _UNKNOWN
        self._opened: Message | None = None  # the B, b or S of the open transaction or block
        self._fields: Any = None  # the fields of `_opened`
        self._origin: Message | None = None  # the Origin behind B or b
        self._block: Block | None = None  # the block behind S
        self._lsns_before: tuple[_Lsns, _Lsns] = ((), ())
        self._lsns: _Lsns = ()

    # ---- what comes in -------------------------------------------------------------------------------------------

    def start_session(self) -> None:
        """Notes that a new decoding session begins with the next message."""
        self._session_starts = True

    def add(self, payloads: pa.Array, lsn: pa.Array | None = None) -> None:
        """Adds the next messages: a binary or large binary array, and their LSNs (int64, without nulls)."""
        base, self._count = self._count, self._count + len(payloads)
        if len(payloads) and self._session_starts:
            self._session_starts = False
            self._take(Message(base, 0, SESSION_STARTS))
        if self._failed:
            return
        found = control_messages(payloads, self._context, self._settled)
        self._hear_before(*found["lsns_before"])
        kept, begun, xids = found["messages"], found["begun"].to_numpy(), found["xids"].to_numpy()
        events: list[tuple[int, Message | int]] = [
            (k, Message(base + k, 0 if lsn is None else lsn[k].as_py(), _bounded(payloads[k].as_buffer())))
            for k in kept
        ]
        if self._named(events).intersection(xids.tolist()):
            events = sorted(
                [*events, *zip(begun.tolist(), xids.tolist(), strict=True)], key=lambda event: event[0]
            )
            begun = begun[:0]
        for _, each in events:
            if isinstance(each, Message):
                self._take(each)
            elif not self._failed:
                self._begin(each)
        # Of the other xids that began, nothing else is known.
        until = np.searchsorted(begun, len(payloads) if self._error is None else self._error.seq - base)
        self._begun.add(xids[:until])
        self._lsns = _largest(self._lsns, found["lsns"])

    def _named(self, events: Iterable[tuple[int, Message | int]]) -> set[int]:
        """The xids whose beginnings must keep their place among the other messages."""
        named = {*self._xids(), *self._past}
        for message in (each for _, each in events if isinstance(each, Message)):
            if message.payload[:1] and message.payload[0] in BOUNDARIES:
                fields = boundary_of(message.payload)
                named.update(() if fields is None else (fields[0],))
        return named

    def _xids(self) -> set[int]:
        """The xids whose new beginning may change what is known."""
        return {*self._streams, *self._prepared, *self._found, *self._streamed, *self._ended}

    def _hear_before(self, outside: Sequence[int], inside: Sequence[int]) -> None:
        """Adds LSNs of logical messages, read both as outside of a stream block and as inside of one."""
        if self._context == _UNKNOWN:
            before = self._lsns_before
            self._lsns_before = (_largest(before[0], outside), _largest(before[1], inside))
        else:
            self._lsns = _largest(self._lsns, inside if self._context == _STREAMING else outside)

    def append(self, other: Summary) -> None:
        """Adds the summary of the next range."""
        base, self._count = self._count, self._count + other.count
        if other.count == 0 or self._failed:
            return
        if self._session_starts:
            self._session_starts = False
            self._take(Message(base, 0, SESSION_STARTS))
        self._hear_before(*other.lsns_before)
        for message in other.first:
            self._take(message._replace(seq=base + message.seq))
        if other.settled and not self._failed:
            for xid in self._xids():
                if other.has_begun(xid):
                    self._begin(xid)
            for xid in other.streamed:
                self._stream(xid)
                del self._streams[xid]
            self._begun.update(XidSet(_without(other.begun, list(self._past))))
            for message in [*other.said, *other.body]:
                self._take(message._replace(seq=base + message.seq))
        self._lsns = _largest(self._lsns, other.lsns)
        self._failed = self._failed or other.failed

    def _fail(self, message: Message) -> None:
        """Notes an error. Messages behind it do not count."""
        self._failed = True
        self._error = message

    def _take(self, message: Message) -> None:
        if self._failed:
            return
        if message.payload == SESSION_STARTS:
            self._take_session(message)
            return
        kind = message.payload[0] if message.payload else 0
        fields = boundary_of(message.payload) if kind in BOUNDARIES else None
        if not self._settled:
            if kind not in _NO_BOUNDARIES and fields is None:
                self._fail(message)
            else:
                self._first.append(message)
                self._settled = kind in CLOSINGS
                if fields is not None:
                    self._context = _CONTEXT_BEHIND.get(kind, _OUTSIDE)
        elif kind in DESCRIPTIONS:
            self._learn(kind, message)
        elif kind == MSG_ORIGIN:
            self._take_origin(message)
        elif fields is None or not self._boundary(kind, message, *fields):
            self._fail(message)

    # ---- what it means ---------------------------------------------------------------------------------------------

    def _learn(self, kind: int, message: Message) -> None:
        streaming = self._context == _STREAMING
        body = message.payload[5 if streaming else 1 :]
        try:
            oid = (fields_of if kind == MSG_RELATION else parse_type)(body)[0]
        except Malformed:
            self._fail(message)
            return
        if streaming:
            assert self._block is not None
            self._block.learn(kind, oid, int.from_bytes(message.payload[1:5], "big"), message)
        else:
            self._hold(kind, oid, message)

    def _hold(self, kind: int, oid: int, message: Message) -> None:
        """Notes a message that holds for all transactions, unless there is a later one."""
        known = self._said.get((kind, oid))
        if known is None or known.seq < message.seq:
            self._said[kind, oid] = message
        if kind == MSG_TYPE:
            hear_first(self._firsts, (kind, oid), message)

    def _take_origin(self, message: Message) -> None:
        if self._context == _OUTSIDE or not is_origin(message.payload):
            self._fail(message)
        elif self._block is not None:
            self._block.origin = message
        else:
            self._origin = message

    def _take_session(self, mark: Message) -> None:
        """Starts a session: open streams and an unfinished transaction are void; what is prepared stays."""
        self._streams.clear()
        if not self._session:
            self._ended.update((xid, life.units) for xid, life in self._found.items())
            self._found.clear()
        if not self._settled:
            self._first.append(mark)
            self._settled = True
        elif not self._session:
            self._mark = mark
        self._session = True
        self._open(_OUTSIDE, None)

    def _has_begun(self, xid: int) -> bool:
        """Whether an xid without kept messages has certainly no open stream from before the range."""
        return xid in self._begun or xid in self._past or xid in self._streamed

    def _begin(self, xid: int) -> None:
        """Notes that an xid begins again. What was open or prepared under it is void."""
        self._streams.pop(xid, None)
        if not self._settle(xid) and xid not in self._past:
            self._begun.add([xid])

    def _settle(self, xid: int) -> bool:
        """Voids what was prepared under an xid, and what was found of it. Returns whether this had to be noted."""
        self._prepared.pop(xid, None)
        found = self._found.pop(xid, None)
        units = found.units if found is not None else []
        if units or (xid in self._ended and xid not in self._past):
            # Its end comes behind the kept messages and needs no ordinal of its own.
            last = units[-1] if units else self._ended[xid][-1]
            self._past[xid] = [*units, void(xid, place(last))]
            return True
        if xid in self._streamed and xid not in self._past:
            self._streamed.remove(xid)
            self._begun.add([xid])
            return True
        return False

    def _stream(self, xid: int) -> Life:
        """Notes that a stream begins under an xid. What was streamed under it is void; what was prepared stays."""
        found = self._found.get(xid)
        if found is not None and not found.left:
            found.keep(void_stream(xid, place(found.units[-1])))
            found.left = True
        elif found is None and not self._has_begun(xid) and xid not in self._ended:
            self._streamed.add(xid)
        life = self._streams[xid] = Life()
        return life

    def _boundary(
        self,
        kind: int,
        message: Message,
        xid: int,
        subxid: int,
        lsn: int,
        end_lsn: int,
        gid: bytes,
        first: bool,
    ) -> bool:
        """False where it is an error for sure."""
        if kind == MSG_STREAM_STOP:
            return self._close(_STREAMING)
        if kind == MSG_COMMIT:
            return self._context == _PLAIN and self._fields[2] == lsn and self._close(_PLAIN)
        if kind == MSG_PREPARE:
            return self._prepare(message, xid, end_lsn, gid)
        if self._context != _OUTSIDE:
            return False
        if kind in (MSG_BEGIN, MSG_BEGIN_PREPARE):
            self._begin(xid)
            self._open(_PLAIN if kind == MSG_BEGIN else _PREPARING, message)
            self._fields = (xid, subxid, lsn, end_lsn, gid)
            return True
        if kind == MSG_STREAM_START and first:
            life = self._stream(xid)
            self._open(_STREAMING, message)
            self._block = life.open(message)
        elif kind in (MSG_COMMIT_PREPARED, MSG_ROLLBACK_PREPARED):
            self._end_prepared(xid, kind, message, lsn, gid)
        elif xid in self._streams:
            self._go_on(kind, message, xid, subxid, end_lsn, gid)
        elif xid not in self._found and (self._has_begun(xid) or self._session):
            return kind == MSG_STREAM_ABORT  # no stream is open that did not begin here
        else:
            self._go_on_unknown(kind, message, xid, subxid)
        return True

    def _open(self, context: int, message: Message | None) -> None:
        self._context, self._opened, self._origin, self._block = context, message, None, None

    def _close(self, context: int) -> bool:
        if self._context != context:
            return False
        self._open(_OUTSIDE, None)
        return True

    def _prepare(self, message: Message, xid: int, end_lsn: int, gid: bytes) -> bool:
        if self._context != _PREPARING or (self._fields[0], self._fields[4]) != (xid, gid):
            return False
        assert self._opened is not None
        life = self._prepared[xid] = Life()
        life.keep([each for each in (self._opened, self._origin, message) if each is not None])
        life.prepared = (gid, end_lsn)
        return self._close(_PREPARING)

    def _go_on_unknown(self, kind: int, message: Message, xid: int, subxid: int) -> None:
        """Of a transaction that was open before the stretch, or is not known."""
        life = self._found.setdefault(xid, Life())
        if kind == MSG_STREAM_START:
            block = life.block if life.block is not None else life.open(message)
            block.start = block.start or message
            self._open(_STREAMING, message)
            self._block = block
        elif kind == MSG_STREAM_ABORT and xid != subxid:
            block = life.block if life.block is not None else life.open(None)
            block.forget(subxid)
            block.forgotten.setdefault(subxid, message)
        else:
            life.left = True
            life.keep([message])

    def _go_on(self, kind: int, message: Message, xid: int, subxid: int, end_lsn: int, gid: bytes) -> None:
        """Of a stream that began in this stretch."""
        life = self._streams[xid]
        assert life.block is not None
        if kind == MSG_STREAM_START:
            self._open(_STREAMING, message)
            self._block = life.block
        elif kind == MSG_STREAM_ABORT and xid != subxid:
            life.block.forget(subxid)
        else:
            del self._streams[xid]
            if kind == MSG_STREAM_COMMIT:
                self._settle(xid)
                self._promote(life)
            elif kind == MSG_STREAM_PREPARE:
                self._settle(xid)
                life.keep([message])
                life.prepared = (gid, end_lsn)
                self._prepared[xid] = life

    def _end_prepared(self, xid: int, kind: int, message: Message, lsn: int, gid: bytes) -> None:
        """A prepared transaction ends, and with it what was streamed of it a second time."""
        self._streams.pop(xid, None)
        known = self._prepared.get(xid)
        if known is not None and known.prepared is not None:
            if known.prepared[0] == gid and (kind == MSG_COMMIT_PREPARED or known.prepared[1] == lsn):
                del self._prepared[xid]
                if kind == MSG_COMMIT_PREPARED:
                    self._promote(known)
        elif xid not in self._begun and xid not in self._past:
            life = self._found.setdefault(xid, Life())
            life.left = True
            life.keep([message])

    def _promote(self, life: Life) -> None:
        """Notes a commit. The Relations and Types of the transaction now hold for all transactions."""
        for unit in life.units:
            for (kind, oid, _), message in all_of(unit.said, unit.firsts) if isinstance(unit, Block) else ():
                self._hold(kind, oid, message._replace(payload=bytes([kind]) + message.payload[5:]))

    # ---- what comes out --------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """The summary of everything that was added."""
        return Summary(
            self._count,
            self._failed,
            self._settled,
            tuple(self._first) + (self._errors() if not self._settled else ()),
            tuple(message for _, message in all_of(self._said, self._firsts)),
            tuple(self._begun.ranges()),
            tuple(self._body()) + (self._errors() if self._settled else ()),
            # A batch also gives LSNs of messages behind an error.
            ((), ()) if self._failed else self._lsns_before,
            () if self._failed else self._lsns,
            tuple(sorted(self._streamed)),
        )

    def _errors(self) -> tuple[Message, ...]:
        return () if self._error is None else (self._error,)

    def _body(self) -> Iterator[Message]:
        units: list[tuple[int, list[Message]]] = []
        if self._mark is not None:
            units.append((self._mark.seq, [self._mark]))
        for kept in [
            *self._ended.values(),
            *self._past.values(),
            *(
                life.units
                for lives in (self._found, self._prepared, self._streams)
                for life in lives.values()
            ),
        ]:
            for unit in kept:
                units.append((place(unit), unit.messages() if isinstance(unit, Block) else unit))
        for _, messages in sorted(units, key=lambda each: each[0]):
            yield from messages
        if self._opened is not None and self._context == _STREAMING:
            xid = int.from_bytes(self._opened.payload[1:5], "big")
            yield self._opened._replace(payload=encode_stream_start(xid, False))
        elif self._opened is not None:
            yield self._opened
            if self._origin is not None:
                yield self._origin


def _largest(lsns: _Lsns, more: Sequence[int]) -> _Lsns:
    """The largest LSNs of both, as many as a summary keeps, without duplicates, in ascending order."""
    return tuple(sorted({*lsns, *more})[-LSNS_KEPT:]) if more else lsns


def _bounded(payload: pa.Buffer) -> bytes:
    """A message's bytes; of what is none of pgoutput's, as many as tell what it may be instead."""
    if payload.size and payload[0] not in _CONTROLS and payload.size > 65:
        payload = payload.slice(0, 64 + (payload.size & 1))
    return bytes(payload)


def _without(ranges: Iterable[tuple[int, int]], xids: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges without these xids. The ranges are in order and do not touch."""
    left = list(ranges)
    for xid in xids:
        at = bisect_right(left, (xid, 1 << 33)) - 1
        if at >= 0 and left[at][0] <= xid < left[at][1]:
            begin, end = left[at]
            left[at : at + 1] = [each for each in [(begin, xid), (xid + 1, end)] if each[0] < each[1]]
    return left


def compose(*summaries: Summary) -> Summary:
    """The summary of adjacent ranges, from the summaries of these ranges in order."""
    whole = Summarizer()
    for each in summaries:
        whole.append(each)
    return whole.summary()


def summarize(payloads: pa.Array | pa.ChunkedArray, lsn: pa.Array | None = None) -> Summary:
    """The summary of a range of messages.

    >>> from pgoutput_fast import StreamState
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> halves = [summarize(pa.array(wal[:2], pa.binary())), summarize(pa.array(wal[2:], pa.binary()))]
    >>> compose(*halves).apply(StreamState()).next_seq
    4
    """
    summarizer, at = Summarizer(), 0
    for chunk in payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]:
        summarizer.add(chunk, None if lsn is None else lsn.slice(at, len(chunk)))
        at += len(chunk)
    return summarizer.summary()
