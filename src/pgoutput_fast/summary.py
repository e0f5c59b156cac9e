"""What a stretch of a stream does to the state before it, whatever that is: the function state -> state, and small.

A stretch that begins anywhere is summarised without its neighbours; summaries compose associatively; and the state
before each stretch follows from the summaries alone. So stretches can be tagged side by side.

A summary is a stream of its own, which moves the state as the stretch does: its boundary, Relation and Type messages
under their own ordinals, without those whose effect the stretch itself takes back or overrides. The tagger that tags
the stretch runs over it: there is no second set of rules. Three parts follow one another:

1. until the first message behind which no transaction is open for sure, everything that moves the state, as it came;
2. what holds for all behind it: the last Relation and Type of each oid, and the xids that began (an xid that begins
   again voids what was open under it), as ranges;
3. transactions that the stretch leaves open or prepared, or that it found so: each streamed one as a single block with
   the last word of each subtransaction.

The size is that of relations and open transactions (with their rolled back subtransactions), not of transactions.
Changes, Truncates and logical messages do not move the state and are not looked into: what is wrong with them shows
when the stretch is tagged.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from pgoutput_fast._core.controls import boundary_of, control_messages, is_origin
from pgoutput_fast._core.decode import NativeDecoder
from pgoutput_fast._core.describe import Malformed, parse_type
from pgoutput_fast.catalog import fields_of
from pgoutput_fast.encode_messages import (
    encode_begin,
    encode_commit,
    encode_stream_start,
    encode_stream_stop,
)
from pgoutput_fast.options import Options
from pgoutput_fast.state import StreamState
from pgoutput_fast.xids import XidSet

__all__ = ["Summarizer", "Summary", "summarize"]

# Behind these no transaction is open, or they are an error.
_CLOSERS = b"CPEcApKr"
_BOUNDARIES = b"BbS" + _CLOSERS
_OUTSIDE, _PLAIN, _PREPARING, _STREAMING = range(4)


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
        first, said, begun, body: part 1; part 2's Relations and Types, and its xids as half-open ranges; part 3.

    The identity is `Summary()`.
    """

    count: int = 0
    failed: bool = False
    settled: bool = False
    first: tuple[Message, ...] = ()
    said: tuple[Message, ...] = ()
    begun: tuple[tuple[int, int], ...] = ()
    body: tuple[Message, ...] = ()

    def then(self, other: Summary) -> Summary:
        """The summary of both stretches, one after the other."""
        both = Summarizer()
        both.append(self)
        both.append(other)
        return both.summary()

    def apply(self, state: StreamState) -> StreamState:
        """The state after the stretch, from that before it.

        The catalog has the relation versions that the state refers to, and not all that the stretch described.

        Raises:
            DecodeError: as tagging the stretch would, if a boundary, Relation, Type or Origin message is an error.
                A change, Truncate or logical message before it may be one, too.
        """
        native = NativeDecoder(Options(), state)
        base = state.next_seq
        _replay(native, self.first, base)
        if self.settled:
            begun = XidSet(self.begun)
            values = native.state.values
            assert values is not None
            for each in [*values["streamed"], *values["prepared"]]:
                if each["xid"] in begun:
                    _replay(native, _void(each["xid"], 0), base)
            _replay(native, self.said, base)
            _replay(native, self.body, base)
        after: StreamState = native.state
        assert after.values is not None
        return StreamState(after.values | {"next_seq": base + self.count}, after.catalog)

    def to_bytes(self) -> bytes:
        """A compact form."""
        begun, at = [], 0
        for begin, end in self.begun:
            begun += [begin - at, end - begin]
            at = end
        document = {
            "count": self.count,
            "failed": self.failed,
            "settled": self.settled,
            "first": _encoded(self.first),
            "said": _encoded(self.said),
            "begun": begun,
            "body": _encoded(self.body),
        }
        return zlib.compress(json.dumps(document).encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Summary:
        """The inverse of `to_bytes`."""
        document = json.loads(zlib.decompress(data))
        begun, at = [], 0
        steps = iter(document["begun"])
        for gap, length in zip(steps, steps, strict=True):
            begun.append((at + gap, at + gap + length))
            at += gap + length
        return cls(
            document["count"],
            document["failed"],
            document["settled"],
            _decoded(document["first"]),
            _decoded(document["said"]),
            tuple(begun),
            _decoded(document["body"]),
        )


def _encoded(messages: Iterable[Message]) -> list[Any]:
    return [[seq, lsn, base64.b85encode(payload).decode()] for seq, lsn, payload in messages]


def _decoded(values: list[Any]) -> tuple[Message, ...]:
    return tuple(Message(seq, lsn, base64.b85decode(payload)) for seq, lsn, payload in values)


def _replay(native: NativeDecoder, messages: Iterable[Message], base: int) -> None:
    every = list(messages)
    if every:
        native.tag(
            [pa.array([m.payload for m in every], pa.binary())],
            pa.array([m.lsn for m in every], pa.int64()),
            pa.array([base + m.seq for m in every], pa.int64()),
        )


def _void(xid: int, seq: int) -> list[Message]:
    """An empty transaction: what was open or prepared under its xid is void."""
    return [Message(seq, 0, encode_begin(1, 0, xid)), Message(seq, 0, encode_commit(1, 1, 0))]


class _Block:
    """All blocks of a streamed transaction as one: what was said last of each oid in each subtransaction."""

    def __init__(self, start: Message | None) -> None:
        self.start = start
        self.origin: Message | None = None
        self.said: dict[tuple[int, int, int], Message] = {}
        self.forgotten: dict[int, Message] = {}

    def learn(self, kind: int, oid: int, subxid: int, message: Message) -> None:
        self.said.pop((kind, oid, subxid), None)
        self.said[kind, oid, subxid] = message

    def forget(self, subxid: int) -> None:
        for key in [key for key in self.said if key[2] == subxid]:
            del self.said[key]

    def messages(self) -> list[Message]:
        before = list(self.forgotten.values())
        if self.start is None:
            return before
        origin = [] if self.origin is None else [self.origin]
        stop = Message(self.start.seq, 0, encode_stream_stop())
        return [*before, self.start, *origin, *self.said.values(), stop]


class _Life:
    """What is kept of an xid that is not over.

    Attributes:
        here: whether it began in this stretch, so that all that is open under the xid is known.
        units: what is kept, in order: blocks, and lists of messages.
        block: the block that goes on.
        prepared: (gid, end LSN) once it is prepared, where it began here.
    """

    def __init__(self, here: bool) -> None:
        self.here = here
        self.units: list[_Block | list[Message]] = []
        self.block: _Block | None = None
        self.prepared: tuple[bytes, int] | None = None

    def open(self, start: Message | None) -> _Block:
        self.block = _Block(start)
        self.units.append(self.block)
        return self.block

    def keep(self, messages: list[Message]) -> None:
        self.units.append(messages)
        self.block = None


def _place(unit: _Block | list[Message]) -> int:
    """Where a unit stands among those of all xids."""
    if isinstance(unit, _Block):
        return unit.messages()[0].seq if unit.start is None else unit.start.seq
    return unit[0].seq


class Summarizer:
    """Builds a summary, batch by batch."""

    def __init__(self) -> None:
        self._count = 0
        self._failed = False
        self._error: Message | None = None
        self._settled = False
        self._first: list[Message] = []
        self._said: dict[tuple[int, int], Message] = {}
        self._begun = XidSet()
        self._lives: dict[int, _Life] = {}
        # What was kept of xids that were open before the stretch, and began again in it.
        self._past: dict[int, list[_Block | list[Message]]] = {}
        self._context = _OUTSIDE
        self._opened: Message | None = None  # the B, b or S that is open
        self._fields: Any = None  # its fields
        self._origin: Message | None = None  # in B and b
        self._block: _Block | None = None  # in S

    # ---- what comes in -------------------------------------------------------------------------------------------

    def add(self, payloads: pa.Array, lsn: pa.Array | None = None) -> None:
        """The next messages: a binary or large binary array, and their LSNs (int64, without nulls)."""
        base, self._count = self._count, self._count + len(payloads)
        if self._failed:
            return
        between = self._settled and self._context == _OUTSIDE
        kept, begun, xids, _ = control_messages(payloads, between)
        events = [
            (k, Message(base + k, 0 if lsn is None else lsn[k].as_py(), _bounded(payloads[k].as_buffer())))
            for k in kept
        ]
        if not len(xids):
            for _, message in events:
                self._take(message)
            return
        # Which of the xids that began must keep their place among the other messages.
        named = {*self._lives, *self._past}
        for _, message in events:
            if message.payload[:1] and message.payload[0] in _BOUNDARIES:
                fields = boundary_of(message.payload)
                named.update(() if fields is None else (fields[0],))
        values = xids.to_numpy()
        if not named.intersection(values.tolist()):
            for _, message in events:
                self._take(message)
            until = len(payloads) if self._error is None else self._error.seq - base
            self._begun.add(values[begun.to_numpy() < until])
            return
        places = zip(begun.to_pylist(), values.tolist(), strict=True)
        ordered: list[tuple[int, Message | int]] = [*events, *places]
        for _, each in sorted(ordered, key=lambda event: event[0]):
            if isinstance(each, Message):
                self._take(each)
            elif not self._failed:
                self._begin(each)

    def append(self, other: Summary) -> None:
        """A stretch that was summarised elsewhere comes next."""
        base, self._count = self._count, self._count + other.count
        for message in other.first:
            self._take(message._replace(seq=base + message.seq))
        if other.settled and not self._failed:
            begun = XidSet(other.begun)
            for xid in [xid for xid in self._lives if xid in begun]:
                self._begin(xid)
            self._begun.update(_without(begun, list(self._past)))
            for message in [*other.said, *other.body]:
                self._take(message._replace(seq=base + message.seq))
        self._failed = self._failed or other.failed

    def _fail(self, message: Message) -> None:
        """Behind an error nothing counts."""
        self._failed = True
        self._error = message

    def _take(self, message: Message) -> None:
        if self._failed:
            return
        kind = message.payload[0] if message.payload else 0
        fields = boundary_of(message.payload) if kind in _BOUNDARIES else None
        if not self._settled:
            if kind not in b"RYO" and fields is None:
                self._fail(message)
            else:
                self._first.append(message)
                self._settled = kind in _CLOSERS
        elif kind in b"RY":
            self._learn(kind, message)
        elif kind in b"O":
            self._take_origin(message)
        elif fields is None or not self._boundary(chr(kind), message, *fields):
            self._fail(message)

    # ---- what it means ---------------------------------------------------------------------------------------------

    def _learn(self, kind: int, message: Message) -> None:
        streaming = self._context == _STREAMING
        body = message.payload[5 if streaming else 1 :]
        try:
            oid = (fields_of if kind == ord("R") else parse_type)(body)[0]
        except Malformed:
            self._fail(message)
            return
        if streaming:
            assert self._block is not None
            self._block.learn(kind, oid, int.from_bytes(message.payload[1:5], "big"), message)
        else:
            self._hold(kind, oid, message)

    def _hold(self, kind: int, oid: int, message: Message) -> None:
        """For all, unless something that was said later holds already."""
        known = self._said.get((kind, oid))
        if known is None or known.seq < message.seq:
            self._said[kind, oid] = message

    def _take_origin(self, message: Message) -> None:
        if self._context == _OUTSIDE or not is_origin(message.payload):
            self._fail(message)
        elif self._block is not None:
            self._block.origin = message
        else:
            self._origin = message

    def _begin(self, xid: int) -> None:
        """An xid begins again: what was open or prepared under it is void."""
        life = self._lives.get(xid)
        if life is not None and not life.here:
            # Its end has its place behind what is kept, and needs no ordinal of its own.
            self._past[xid] = [*life.units, _void(xid, _place(life.units[-1]))]
        self._lives.pop(xid, None)
        if xid not in self._past:
            self._begun.add([xid])

    def _boundary(
        self,
        kind: str,
        message: Message,
        xid: int,
        subxid: int,
        lsn: int,
        end_lsn: int,
        gid: bytes,
        first: bool,
    ) -> bool:
        """False where it is an error for sure."""
        if kind == "E":
            return self._close(_STREAMING)
        if kind == "C":
            return self._context == _PLAIN and self._fields[2] == lsn and self._close(_PLAIN)
        if kind == "P":
            return self._prepare(message, xid, end_lsn, gid)
        if self._context != _OUTSIDE:
            return False
        if kind in "Bb":
            self._begin(xid)
            self._open(_PLAIN if kind == "B" else _PREPARING, message)
            self._fields = (xid, subxid, lsn, end_lsn, gid)
            return True
        life = self._lives.get(xid)
        if kind == "S" and first:
            self._begin(xid)
            life = self._lives[xid] = _Life(True)
            self._open(_STREAMING, message)
            self._block = life.open(message)
            return True
        if life is None:
            if xid in self._begun or xid in self._past:
                # Nothing is open or prepared under it any more.
                return kind in "AKr"
            life = self._lives[xid] = _Life(False)
        if not life.here:
            self._go_on_unknown(life, kind, message, xid, subxid)
            return True
        return self._go_on(life, kind, message, xid, subxid, lsn, end_lsn, gid)

    def _open(self, context: int, message: Message) -> None:
        self._context, self._opened, self._origin, self._block = context, message, None, None

    def _close(self, context: int) -> bool:
        if self._context != context:
            return False
        self._context, self._opened, self._origin, self._block = _OUTSIDE, None, None, None
        return True

    def _prepare(self, message: Message, xid: int, end_lsn: int, gid: bytes) -> bool:
        if self._context != _PREPARING or (self._fields[0], self._fields[4]) != (xid, gid):
            return False
        assert self._opened is not None
        life = self._lives.setdefault(xid, _Life(True))
        life.keep([each for each in (self._opened, self._origin, message) if each is not None])
        life.prepared = (gid, end_lsn)
        return self._close(_PREPARING)

    def _go_on_unknown(self, life: _Life, kind: str, message: Message, xid: int, subxid: int) -> None:
        """Of a transaction that was open before the stretch, or is not known."""
        if kind == "S":
            block = life.block if life.block is not None else life.open(message)
            block.start = block.start or message
            self._open(_STREAMING, message)
            self._block = block
        elif kind == "A" and xid != subxid:
            block = life.block if life.block is not None else life.open(None)
            block.forget(subxid)
            block.forgotten.setdefault(subxid, message)
        else:
            life.keep([message])

    def _go_on(
        self,
        life: _Life,
        kind: str,
        message: Message,
        xid: int,
        subxid: int,
        lsn: int,
        end_lsn: int,
        gid: bytes,
    ) -> bool:
        """Of a transaction that began in this stretch. False where it is an error for sure."""
        if life.prepared is not None:
            if kind in "Kr":
                if life.prepared[0] == gid and (kind == "K" or life.prepared[1] == lsn):
                    self._end(xid, life, kind == "K")
                return True
            return kind == "A"
        assert life.block is not None
        if kind == "S":
            self._open(_STREAMING, message)
            self._block = life.block
        elif kind == "A" and xid != subxid:
            life.block.forget(subxid)
        elif kind in "Ac":
            self._end(xid, life, kind == "c")
        elif kind == "p":
            life.prepared = (gid, end_lsn)
            life.keep([message])
        return True

    def _end(self, xid: int, life: _Life, committed: bool) -> None:
        """It began and ended here: only what it said may be left of it."""
        for unit in life.units if committed else ():
            for (kind, oid, _), message in unit.said.items() if isinstance(unit, _Block) else ():
                self._hold(kind, oid, message._replace(payload=bytes([kind]) + message.payload[5:]))
        del self._lives[xid]

    # ---- what comes out --------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """Of all that was added."""
        return Summary(
            self._count,
            self._failed,
            self._settled,
            tuple(self._first) + (self._errors() if not self._settled else ()),
            tuple(sorted(self._said.values())),
            tuple(self._begun.ranges()),
            tuple(self._body()) + (self._errors() if self._settled else ()),
        )

    def _errors(self) -> tuple[Message, ...]:
        return () if self._error is None else (self._error,)

    def _body(self) -> Iterator[Message]:
        units: list[tuple[int, list[Message]]] = []
        for kept in [*self._past.values(), *(life.units for life in self._lives.values())]:
            for unit in kept:
                units.append((_place(unit), unit.messages() if isinstance(unit, _Block) else unit))
        for _, messages in sorted(units, key=lambda each: each[0]):
            yield from messages
        if self._context == _STREAMING:
            assert self._opened is not None
            xid = int.from_bytes(self._opened.payload[1:5], "big")
            yield self._opened._replace(payload=encode_stream_start(xid, False))
        elif self._context != _OUTSIDE:
            assert self._opened is not None
            yield self._opened
            if self._origin is not None:
                yield self._origin


def _bounded(payload: pa.Buffer) -> bytes:
    """A message's bytes; of what is none of pgoutput's, as many as tell what it may be instead."""
    if payload.size and payload[0] not in _BOUNDARIES + b"RYO" and payload.size > 65:
        payload = payload.slice(0, 64 + (payload.size & 1))
    return bytes(payload)


def _without(xids: XidSet, left_out: list[int]) -> XidSet:
    """The set without some of its members."""
    found = sorted(xid for xid in left_out if xid in xids)
    ranges = xids.ranges()
    for xid in found:
        ranges = [
            part
            for begin, end in ranges
            for part in ([(begin, xid), (xid + 1, end)] if begin <= xid < end else [(begin, end)])
            if part[0] < part[1]
        ]
    return XidSet(ranges)


def summarize(payloads: pa.Array | pa.ChunkedArray, lsn: pa.Array | None = None) -> Summary:
    """The summary of a stretch.

    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> halves = [summarize(pa.array(wal[:2], pa.binary())), summarize(pa.array(wal[2:], pa.binary()))]
    >>> halves[0].then(halves[1]).apply(StreamState()).next_seq
    4
    """
    summarizer, at = Summarizer(), 0
    for chunk in payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]:
        summarizer.add(chunk, None if lsn is None else lsn.slice(at, len(chunk)))
        at += len(chunk)
    return summarizer.summary()
