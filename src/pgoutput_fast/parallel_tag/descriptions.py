"""The descriptions of relations and types in a range of messages."""

from __future__ import annotations

from pgoutput_fast.parallel_tag.summary import StateMessage
from pgoutput_fast.protocol.kinds import MSG_TYPE

__all__ = ["Descriptions"]

_Key = tuple[int, int, int]  # kind, oid, subxid


class Descriptions:
    """The Relation and Type messages of a range that later messages depend on.

    These are the last message of every oid in every subtransaction, and the first position of every distinct Type
    message: later Relation messages depend on it.
    """

    def __init__(self) -> None:
        self._last: dict[_Key, StateMessage] = {}
        self._first_types: dict[_Key, dict[bytes, StateMessage]] = {}
        self._keys: dict[int, set[_Key]] = {}  # the keys of `_last`, by subtransaction

    def add(self, kind: int, oid: int, message: StateMessage, subxid: int = 0) -> None:
        """Adds a message. `subxid` is 0 for a message outside of stream blocks."""
        key = kind, oid, subxid
        known = self._last.get(key)
        if known is None or known.seq < message.seq:
            self._last[key] = message
            self._keys.setdefault(subxid, set()).add(key)
        if kind == MSG_TYPE:
            firsts = self._first_types.setdefault(key, {})
            first = firsts.get(message.payload)
            if first is None or message.seq < first.seq:
                firsts[message.payload] = message

    def roll_back(self, subxid: int) -> None:
        """Removes the messages of a subtransaction."""
        for key in self._keys.pop(subxid, ()):
            del self._last[key]
            self._first_types.pop(key, None)

    def add_committed(self, other: Descriptions) -> None:
        """Adds the messages of a committed streamed transaction, as messages outside of stream blocks."""
        for (kind, oid, _), message in other._in_stream_order():
            self.add(kind, oid, message._replace(payload=bytes([kind]) + message.payload[5:]))

    def messages(self) -> list[StateMessage]:
        """The messages in stream order."""
        return [message for _, message in self._in_stream_order()]

    def _in_stream_order(self) -> list[tuple[_Key, StateMessage]]:
        kept = set(self._last.items())
        kept |= {(key, first) for key, firsts in self._first_types.items() for first in firsts.values()}
        return sorted(kept, key=lambda each: each[1])
