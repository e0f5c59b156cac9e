"""Transactions in a summary: those that are open or prepared at the beginning or at the end of a range of messages."""

from __future__ import annotations

from typing import TypeVar

from pgoutput_fast.encode.messages import encode_stream_stop
from pgoutput_fast.parallel_tag.summary import Message
from pgoutput_fast.protocol.kinds import MSG_TYPE

__all__ = ["Block", "Life", "all_of", "hear_first", "place"]

Key = TypeVar("Key")


def hear_first(firsts: dict[Key, dict[bytes, Message]], key: Key, message: Message) -> None:
    """Notes the first place of a Type message: Relation messages behind it are read with it."""
    known = firsts.setdefault(key, {})
    before = known.get(message.payload)
    if before is None or message.seq < before.seq:
        known[message.payload] = message


def all_of(said: dict[Key, Message], firsts: dict[Key, dict[bytes, Message]]) -> list[tuple[Key, Message]]:
    """The last message of each key, and the first place of each Type message, in stream order."""
    found = set(said.items())
    found |= {(key, message) for key, known in firsts.items() for message in known.values()}
    return sorted(found, key=lambda each: each[1])


class Block:
    """All stream blocks of a streamed transaction as one block.

    It has the last Relation and Type message of each oid in each subtransaction.
    """

    def __init__(self, start: Message | None) -> None:
        self.start = start
        self.origin: Message | None = None
        self.said: dict[tuple[int, int, int], Message] = {}
        self.firsts: dict[tuple[int, int, int], dict[bytes, Message]] = {}
        self.forgotten: dict[int, Message] = {}
        self._keys_of: dict[int, set[tuple[int, int, int]]] = {}  # the keys of `said`, by subtransaction

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
    """The messages to keep of an open transaction, or of an xid that may have been in use before the range.

    Attributes:
        units: what to keep, in order: blocks, and lists of messages.
        block: the block that later stream blocks are added to.
        prepared: (gid, end LSN) once the transaction is prepared, if it began in the range.
        left: whether the streamed transaction of this xid is no longer open, if it did not begin in the range.
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
    """The ordinal that gives the place of a unit among the units of all xids."""
    if isinstance(unit, Block):
        return unit.messages()[0].seq if unit.start is None else unit.start.seq
    return unit[0].seq
