"""What a summary keeps of transactions that a stretch of a stream leaves open or prepared, or that it found so."""

from __future__ import annotations

from typing import TypeVar

from pgoutput_fast.encode_messages import encode_stream_stop
from pgoutput_fast.kinds import MSG_TYPE
from pgoutput_fast.summary import Message

__all__ = ["Block", "Life", "all_of", "hear_first", "place"]

Key = TypeVar("Key")


def hear_first(firsts: dict[Key, dict[bytes, Message]], key: Key, message: Message) -> None:
    """Notes where something was said of a type first: a Relation behind it was understood by it."""
    known = firsts.setdefault(key, {})
    before = known.get(message.payload)
    if before is None or message.seq < before.seq:
        known[message.payload] = message


def all_of(said: dict[Key, Message], firsts: dict[Key, dict[bytes, Message]]) -> list[tuple[Key, Message]]:
    """What was said last, and of types also first, in order."""
    found = set(said.items())
    found |= {(key, message) for key, known in firsts.items() for message in known.values()}
    return sorted(found, key=lambda each: each[1])


class Block:
    """All blocks of a streamed transaction as one: what was said last of each oid in each subtransaction."""

    def __init__(self, start: Message | None) -> None:
        self.start = start
        self.origin: Message | None = None
        self.said: dict[tuple[int, int, int], Message] = {}
        self.firsts: dict[tuple[int, int, int], dict[bytes, Message]] = {}
        self.forgotten: dict[int, Message] = {}
        self._keys_of: dict[int, set[tuple[int, int, int]]] = {}  # of `said`, by subtransaction

    def learn(self, kind: int, oid: int, subxid: int, message: Message) -> None:
        self.said[kind, oid, subxid] = message
        self._keys_of.setdefault(subxid, set()).add((kind, oid, subxid))
        if kind == MSG_TYPE:
            hear_first(self.firsts, (kind, oid, subxid), message)

    def forget(self, subxid: int) -> None:
        for key in self._keys_of.pop(subxid, ()):
            del self.said[key]
            self.firsts.pop(key, None)

    def messages(self) -> list[Message]:
        before = list(self.forgotten.values())
        if self.start is None:
            return before
        origin = [] if self.origin is None else [self.origin]
        stop = Message(self.start.seq, 0, encode_stream_stop())
        said = [message for _, message in all_of(self.said, self.firsts)]
        return [*before, self.start, *origin, *said, stop]


class Life:
    """What is kept of a transaction that is not over, or of all that came under an xid that is known from before.

    Attributes:
        units: what is kept, in order: blocks, and lists of messages.
        block: the block that goes on.
        prepared: (gid, end LSN) once it is prepared, where it began here.
        left: where it did not begin here, whether what was streamed under the xid is open no more.
    """

    def __init__(self) -> None:
        self.units: list[Block | list[Message]] = []
        self.block: Block | None = None
        self.prepared: tuple[bytes, int] | None = None
        self.left = False

    def open(self, start: Message | None) -> Block:
        self.block = Block(start)
        self.units.append(self.block)
        return self.block

    def keep(self, messages: list[Message]) -> None:
        self.units.append(messages)
        self.block = None


def place(unit: Block | list[Message]) -> int:
    """Where a unit stands among those of all xids."""
    if isinstance(unit, Block):
        return unit.messages()[0].seq if unit.start is None else unit.start.seq
    return unit[0].seq
