"""Follows a stream of messages: the transaction and the tables of each message."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast._core.protocol.headers import headers
from pgoutput_fast.base.errors import DecodeError
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.decoding.decoder import tag
from pgoutput_fast.encode import encode_begin
from pgoutput_fast.messages.fields import PREFIXED
from pgoutput_fast.protocol import kinds

__all__ = ["Context", "Message"]

# Offsets of the xid in messages that have one.
_XID_AT = {
    kinds.MSG_BEGIN: 17,
    kinds.MSG_BEGIN_PREPARE: 25,
    kinds.MSG_PREPARE: 26,
    kinds.MSG_COMMIT_PREPARED: 26,
    kinds.MSG_ROLLBACK_PREPARED: 34,
    kinds.MSG_STREAM_START: 1,
    kinds.MSG_STREAM_COMMIT: 1,
    kinds.MSG_STREAM_ABORT: 1,
    kinds.MSG_STREAM_PREPARE: 1,
}
# Offsets of the LSN of the transaction's end. A server sends transactions in the order of these LSNs.
_END_AT = {
    kinds.MSG_BEGIN: 1,
    kinds.MSG_BEGIN_PREPARE: 1,
    kinds.MSG_COMMIT_PREPARED: 2,
    kinds.MSG_ROLLBACK_PREPARED: 10,
    kinds.MSG_STREAM_COMMIT: 6,
    kinds.MSG_STREAM_PREPARE: 6,
}


@dataclass(frozen=True)
class Message:
    """A message, with the context from earlier messages.

    Attributes:
        seq: its ordinal in the input.
        data: its bytes.
        kind: its name in tables, such as `stream_start`; `unknown` for a byte that is not a tag.
        lsn: the LSN of its frame, None if the input has none.
        end_lsn: the LSN at which its transaction ends, None if no earlier message has it.
        xid: its transaction, None if unknown.
        in_stream: whether it is from a stream block, None if unknown.
        relations: its relations, as far as they are known.
    """

    seq: int
    data: bytes
    kind: str
    lsn: int | None = None
    end_lsn: int | None = None
    xid: int | None = None
    in_stream: bool | None = None
    relations: tuple[Relation, ...] = ()

    @property
    def position(self) -> int | None:
        """The LSN of the message, or otherwise of the end of its transaction."""
        return self.end_lsn if self.lsn is None else self.lsn

    @property
    def catalog(self) -> Catalog | Relation | None:
        """The relations in the form for `describe`."""
        return self.relations[0] if len(self.relations) == 1 else Catalog(self.relations)


class Context:
    """The context from the messages so far: the transaction, and the tables.

    Attributes:
        next_seq: the ordinal of the next message.

    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> writer = Writer()
    >>> wal = writer.begin(7, 100, 0)
    >>> wal += writer.change(RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23),)), "insert", new=["1"])
    >>> context = Context()
    >>> [(each.kind, each.xid, [table.name for table in each.relations]) for each in map(context.read, wal)]
    [('begin', 7, []), ('relation', 7, ['orders']), ('insert', 7, ['orders'])]
    """

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}
        self.next_seq = 0
        self._in_stream: bool | None = None
        self._xid: int | None = None
        self._end_lsn: int | None = None

    def start_session(self) -> None:
        """Notes that the server starts a new session."""
        self._in_stream, self._xid, self._end_lsn = False, None, None

    @property
    def relations(self) -> list[Relation]:
        """The relations described so far."""
        return list(self._relations.values())

    def read(self, data: bytes, lsn: int | None = None) -> Message:
        """Reads the next message.

        Args:
            data: its bytes; they may be damaged.
            lsn: the LSN of its frame, None if unknown.
        """
        kind = data[0] if data else None
        if kind in kinds.OPENINGS:
            self._end_lsn = None
        if kind in _XID_AT:
            self._xid = _number(data, _XID_AT[kind], 4)
        if kind in _END_AT:
            self._end_lsn = _number(data, _END_AT[kind], 8)
        in_stream = self._form(data) if kind in PREFIXED else self._in_stream
        xid = _number(data, 1, 4) if kind in PREFIXED and in_stream else self._xid
        at = 5 if kind in PREFIXED and in_stream else 1
        oids = _oids(data, kind, at)
        if kind == kinds.MSG_RELATION:
            self._learn(data[:1] + data[at:])
        found = Message(
            self.next_seq,
            data,
            kinds.KIND_NAMES.get(-1 if kind is None else kind, "unknown"),
            lsn or None,
            self._end_lsn,
            xid,
            in_stream,
            tuple(self._relations[oid] for oid in oids if oid in self._relations),
        )
        self.next_seq += 1
        if kind in kinds.BOUNDARIES:
            self._in_stream = kind == kinds.MSG_STREAM_START
        if kind in kinds.CLOSINGS:
            self._xid = self._end_lsn = None
        return found

    def _form(self, data: bytes) -> bool | None:
        """Whether a message is from a stream block. Without earlier messages, its bytes may show it."""
        if self._in_stream is not None:
            return self._in_stream
        form = headers(pa.array([data], pa.large_binary()))
        return bool(form["in_stream"][0].as_py()) if form["reason"][0].as_py() == 0 else None

    def _learn(self, message: bytes) -> None:
        """Records the relation in a Relation message. A damaged one is ignored."""
        try:
            _, state = tag([encode_begin(1, 0, 1), message])
        except DecodeError:
            return
        for relation in state.catalog.relations:
            self._relations[relation.oid] = relation


def _number(data: bytes, at: int, size: int) -> int | None:
    return int.from_bytes(data[at : at + size]) if len(data) >= at + size else None


def _oids(data: bytes, kind: int | None, at: int) -> tuple[int, ...]:
    """The oids of a message's relations. For a damaged message, those that are present."""
    if kind == kinds.MSG_TRUNCATE:
        count = min(_number(data, at, 4) or 0, (len(data) - at - 5) // 4)
        return tuple(int.from_bytes(data[at + 5 + 4 * k : at + 9 + 4 * k]) for k in range(count))
    if kind in kinds.ROW_CHANGES or kind == kinds.MSG_RELATION:
        oid = _number(data, at, 4)
        return () if oid is None else (oid,)
    return ()
