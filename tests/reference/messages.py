"""A slow, obvious decoder of pgoutput messages: the independent oracle for the fast one.

`decode` takes whole payloads in arrival order and returns lists of dicts. Dates are days, times and timestamps are
microseconds since 1970. It shares no code with the package under test.

`Decoder.handle` handles a message in one step: either it raises `MalformedError` and changes nothing, or the message
takes full effect. `Decoder.lost_track_after` states what becomes doubtful after a rejected message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from reference.nested import Types, resolve
from reference.output import Decoded, Output, row_of
from reference.records import Column, Frame, Relation, Said, Transaction, WaitingChange
from reference.types import MalformedError, Reader

BOUNDARIES = "BCbPKrSEcAp"
INSIDE_A_BLOCK = "RYIUDTMOE"
PREFIXED = "RYIUDTM"  # these messages carry an xid inside a stream block, and only there

MESSAGES_REMEMBERED = 1024  # number of LSNs of non-transactional messages to keep: the largest ones


class OutOfOrderError(MalformedError):
    """A message that shows that previous messages are missing or damaged."""


class OtherTypeError(MalformedError):
    """A readable Relation message that gives a column of a known version another type."""


class LooksLikeRelationError(MalformedError):
    """A change that may be a Relation message with a damaged first byte. `oid` and `subxid` are those of both."""

    def __init__(self, reason: str, offset: int, relation: str, oid: int, subxid: int | None):
        super().__init__(reason, offset, relation)
        self.oid, self.subxid = oid, subxid


def decode(
    payloads: Sequence[bytes],
    lsn: Sequence[int | None] | None = None,
    *,
    on_error: str = "raise",
    unrepresentable: str = "null",
    transactions: str = "as_sent",
    numeric: str = "string",
    sessions: Collection[int] = (),
    types: Types | None = None,
) -> Decoded:
    """Decodes everything.

    `sessions` has the index of each message that starts a new decoding session. `types` is a live server's description
    of its types.
    """
    for given, known in (
        (on_error, ("raise", "quarantine")),
        (unrepresentable, ("null", "raise")),
        (transactions, ("as_sent", "committed")),
        (numeric, ("string",)),
    ):
        if given not in known:
            raise NotImplementedError(given)
    decoder = Decoder(
        on_error == "quarantine", unrepresentable == "raise", transactions == "committed", types
    )
    for seq, payload in enumerate(payloads):
        if seq in sessions:
            decoder.start_session(seq)
        decoder.feed(Frame(seq, (lsn[seq] or None) if lsn else None, payload))
    return decoder.out


class Decoder(Output):
    def __init__(
        self, quarantine: bool, raise_unrepresentable: bool, committed: bool, types: Types | None = None
    ):
        super().__init__(quarantine, raise_unrepresentable, committed)
        self.types = types
        # position of the stream: in a plain transaction (B or b), in a block of a streamed one, or between
        self.plain: Transaction | None = None
        self.block: Transaction | None = None
        self.streams: dict[int, Transaction] = {}  # open streamed transactions by xid
        self.prepared: dict[int, Transaction] = {}
        self.said: dict[tuple[str, int], Said] = {}  # outside stream blocks, or in committed streams
        self.described: dict[int, Relation] = {}  # by version, as first described
        # doubts, which all result from rejected messages
        self.lost = False  # true from a bad boundary to the next good one
        self.forgot_relations_at = -1  # descriptions before this seq no longer count
        self.bad_type = False  # the next R needs an unreadable Y
        # LSNs of non-transactional messages: the largest ones, and the largest LSN that was dropped from them.
        self.messages_seen: set[int] = set()
        self.message_floor = 0

    # --- the frame around one message -----------------------------------------------------------------------

    def feed(self, frame: Frame) -> None:
        tag = frame.payload[:1].decode("latin-1")
        if self.lost and tag in tuple("RYIUDTMO"):
            self.reject(frame, MalformedError("follows a bad boundary message"))
            return
        if tag not in ("Y", "R"):
            self.bad_type = False  # a server sends Type messages right before their Relation message
        try:
            self.handle(frame, tag)
        except MalformedError as problem:
            self.reject(frame, problem)
            self.lost_track_after(frame, tag, problem)
        else:
            if tag in BOUNDARIES:
                self.lost = False

    def lost_track_after(self, frame: Frame, tag: str, problem: MalformedError) -> None:
        if tag in ("K", "r"):
            # The xid follows the tag, the flags and three or four fields of eight bytes.
            at = {"K": 2 + 3 * 8, "r": 2 + 4 * 8}[tag]
            named = self.prepared.pop(int.from_bytes(frame.payload[at : at + 4], "big"), None)
            if named and len(frame.payload) < at + 4:
                self.prepared[named.xid] = named
            elif named:
                self.set_aside(named)
        self.doubt_others_after(tag, problem)
        if isinstance(problem, LooksLikeRelationError):
            self.remember(
                Said("R", problem.oid, frame.seq, problem.subxid, None, "its Relation message may be bad")
            )
        if tag in tuple("IUD"):
            return
        if tag in tuple("TMOY"):
            if not isinstance(problem, OutOfOrderError):
                # Its first byte may be damaged: it may be a Type message, or a Relation message of any relation.
                self.bad_type = True
                self.forget_relations(frame, has_prefix=tag != "O")
        elif tag == "R":
            # Without its end, it may be a Type message.
            self.bad_type = problem.reason in ("ends too early", "string without its NUL")
            reader = Reader(frame.payload, 1)
            try:
                subxid = reader.u32() if self.block else None
                self.remember(Said("R", reader.u32(), frame.seq, subxid, None, "its Relation message is bad"))
            except MalformedError:  # then the message may concern any relation
                self.forget_relations(frame, has_prefix=True)
        else:  # a bad boundary or an unknown message
            if self.plain:
                self.set_aside(self.plain)
            self.plain = self.block = None
            self.lost = True
            self.forgot_relations_at = frame.seq
            for txn in self.streams.values():  # the lost messages may belong to any of them
                txn.unread.add(0)

    def forget_relations(self, frame: Frame, has_prefix: bool) -> None:
        """Records that the message may have described any relation."""
        self.forgot_relations_at = frame.seq
        if self.block:
            prefix = frame.payload[1:5] if has_prefix else b""
            self.block.unread.add(int.from_bytes(prefix, "big") if len(prefix) == 4 else 0)

    def doubt_others_after(self, tag: str, problem: MalformedError) -> None:
        """Records doubts about other transactions after a message was rejected between transactions and blocks.

        Streams end there, and lose subtransactions there. So the message may have been the end of one, and a message
        that comes too early shows that others are missing. Prepared transactions also end there, but only as a whole:
        if the end of one comes later, it is valid.
        """
        if isinstance(problem, OutOfOrderError):
            doubt = True
        elif self.plain or self.block:
            expected = {"B": "C", "b": "P"}[self.plain.tag] if self.plain else "E"
            doubt = tag in tuple(BOUNDARIES) and tag != expected
        else:
            doubt = not isinstance(problem, OtherTypeError)  # the first byte may be wrong in any case
        for txn in self.streams.values():
            txn.in_doubt |= doubt
        for txn in self.prepared.values():
            txn.may_be_over |= doubt

    def set_aside(self, txn: Transaction) -> None:
        """Rejects all waiting changes of a transaction with unknown outcome."""
        for change in txn.waiting:
            problem = MalformedError("its transaction was lost to a bad message", relation=change.relation)
            self.reject(change.frame, problem)

    def is_void(self, txn: Transaction, seq: int) -> None:
        if txn.in_doubt or txn.may_be_over:  # the transaction may have committed
            self.set_aside(txn)
        else:
            self.outcome(txn, "aborted", seq)

    def is_committed(self, txn: Transaction, seq: int) -> None:
        if txn.in_doubt:
            self.set_aside(txn)
        else:
            self.outcome(txn, "committed", seq, txn.commit_lsn, txn.commit_timestamp)
            self.release(txn)

    def start_session(self, seq: int) -> None:
        """Starts a new session. It drops what was open; prepared transactions stay."""
        void = list(self.streams.values()) + ([self.plain] if self.plain else [])
        for txn in sorted(void, key=lambda txn: txn.key):
            self.is_void(txn, seq)
        self.streams.clear()
        self.plain = self.block = None
        self.lost = self.bad_type = False

    def handle(self, frame: Frame, tag: str) -> None:
        handlers: dict[str, Callable[[Frame, Reader], None]] = {
            "B": self.begin, "C": self.commit, "b": self.begin_prepare, "P": self.prepare,
            "K": self.commit_prepared, "r": self.rollback_prepared, "S": self.stream_start,
            "E": self.stream_stop,
            "c": self.stream_commit, "A": self.stream_abort, "p": self.stream_prepare, "O": self.origin,
            "R": self.relation, "Y": self.type, "I": self.change, "U": self.change, "D": self.change,
            "T": self.truncate, "M": self.message,
        }  # fmt: skip
        if tag not in handlers:
            raise MalformedError("unknown message" if tag else "empty message")
        if self.block and tag not in INSIDE_A_BLOCK:
            raise MalformedError("not allowed inside a stream block")
        handlers[tag](frame, Reader(frame.payload, 1))

    # --- boundaries of transactions -------------------------------------------------------------------------

    def begin(self, frame: Frame, reader: Reader) -> None:
        lsn, timestamp, xid = reader.lsn(), reader.timestamp(), reader.u32()
        reader.end()
        self.require_between_transactions()
        self.void_stream(xid, frame)
        self.void_prepared(xid, frame)
        self.plain = Transaction(frame.seq, "B", xid, commit_lsn=lsn, commit_timestamp=timestamp)
        self.boundary(frame, "begin", self.plain, xid, lsn=lsn, timestamp=timestamp)

    def commit(self, frame: Frame, reader: Reader) -> None:
        reader.zero_flags()
        lsn, end_lsn, timestamp = reader.lsn(), reader.lsn(), reader.timestamp()
        reader.end()
        txn = self.close_plain("B")
        if txn and txn.commit_lsn != lsn:
            raise OutOfOrderError("commit of another transaction")
        self.plain = None
        self.boundary(
            frame, "commit", txn, txn.xid if txn else None, lsn=lsn, end_lsn=end_lsn, timestamp=timestamp,
            ends=True,
        )  # fmt: skip
        if txn:
            txn.commit_timestamp = timestamp
            self.is_committed(txn, frame.seq)

    def begin_prepare(self, frame: Frame, reader: Reader) -> None:
        lsn, end_lsn, timestamp = reader.lsn(), reader.lsn(), reader.timestamp()
        xid, gid = reader.u32(), reader.string()
        reader.end()
        self.require_between_transactions()
        self.void_stream(xid, frame)
        self.void_prepared(xid, frame)
        self.end_namesake(gid)
        self.plain = Transaction(frame.seq, "b", xid, gid, prepare_timestamp=timestamp)
        self.boundary(
            frame, "begin_prepare", self.plain, xid, lsn=lsn, end_lsn=end_lsn, timestamp=timestamp,
            prepare_timestamp=timestamp, gid=gid,
        )  # fmt: skip

    def prepare(self, frame: Frame, reader: Reader) -> None:
        lsn, end_lsn, timestamp, xid, gid = self.read_prepare(reader)
        txn = self.close_plain("b")
        if txn and (txn.xid, txn.gid) != (xid, gid):
            raise OutOfOrderError("prepare of another transaction")
        self.plain = None
        if txn:
            txn.prepare_timestamp, txn.prepare_end_lsn = timestamp, end_lsn
            self.prepared[xid] = txn
        self.boundary(
            frame, "prepare", txn, xid, lsn=lsn, end_lsn=end_lsn, timestamp=timestamp,
            prepare_timestamp=timestamp, gid=gid, ends=True,
        )  # fmt: skip

    def stream_prepare(self, frame: Frame, reader: Reader) -> None:
        lsn, end_lsn, timestamp, xid, gid = self.read_prepare(reader)
        self.require_between_transactions()
        txn = self.open_stream(xid)
        del self.streams[xid]
        self.void_prepared(xid, frame)
        self.end_namesake(gid)
        txn.gid, txn.prepare_timestamp, txn.prepare_end_lsn = gid, timestamp, end_lsn
        self.prepared[xid] = txn
        self.promote(txn)
        self.boundary(
            frame, "stream_prepare", txn, xid, lsn=lsn, end_lsn=end_lsn, timestamp=timestamp,
            prepare_timestamp=timestamp, gid=gid, ends=True,
        )  # fmt: skip

    def commit_prepared(self, frame: Frame, reader: Reader) -> None:
        reader.zero_flags()
        lsn, end_lsn, timestamp = reader.lsn(), reader.lsn(), reader.timestamp()
        xid, gid = reader.u32(), reader.string()
        reader.end()
        self.require_between_transactions()
        txn = self.take_prepared(xid, gid)
        self.boundary(
            frame, "commit_prepared", txn, xid, lsn=lsn, end_lsn=end_lsn, timestamp=timestamp,
            prepare_timestamp=txn.prepare_timestamp if txn else None, gid=gid,
        )  # fmt: skip
        if txn:
            txn.commit_lsn, txn.commit_timestamp = lsn, timestamp
            self.promote(txn)
            self.is_committed(txn, frame.seq)
        self.end_double(xid, txn, frame)

    def rollback_prepared(self, frame: Frame, reader: Reader) -> None:
        reader.zero_flags()
        prepare_end_lsn, end_lsn = reader.lsn(), reader.lsn()
        prepare_timestamp, timestamp = reader.timestamp(), reader.timestamp()
        xid, gid = reader.u32(), reader.string()
        reader.end()
        self.require_between_transactions()
        txn = self.take_prepared(xid, gid, prepare_end_lsn)
        self.boundary(
            frame, "rollback_prepared", txn, xid, lsn=prepare_end_lsn, end_lsn=end_lsn, timestamp=timestamp,
            prepare_timestamp=prepare_timestamp, gid=gid,
        )  # fmt: skip
        if txn:
            self.outcome(txn, "aborted", frame.seq)
        self.end_double(xid, txn, frame)

    def stream_start(self, frame: Frame, reader: Reader) -> None:
        xid, first = reader.u32(), reader.zero_or_one()
        reader.end()
        self.require_between_transactions()
        if first:
            self.void_stream(xid, frame)
            self.streams[xid] = Transaction(frame.seq, "S", xid)
        self.block = self.open_stream(xid)
        self.boundary(frame, "stream_start", self.block, xid, first_segment=bool(first))

    def stream_stop(self, frame: Frame, reader: Reader) -> None:
        reader.end()
        if not self.block and not self.lost:
            raise MalformedError("no stream block to stop")
        txn, self.block = self.block, None
        self.boundary(frame, "stream_stop", txn, txn.xid if txn else None)

    def stream_commit(self, frame: Frame, reader: Reader) -> None:
        xid = reader.u32()
        reader.zero_flags()
        lsn, end_lsn, timestamp = reader.lsn(), reader.lsn(), reader.timestamp()
        reader.end()
        self.require_between_transactions()
        txn = self.open_stream(xid)
        del self.streams[xid]
        self.void_prepared(xid, frame)
        txn.commit_lsn, txn.commit_timestamp = lsn, timestamp
        self.boundary(
            frame, "stream_commit", txn, xid, lsn=lsn, end_lsn=end_lsn, timestamp=timestamp, ends=True
        )
        self.promote(txn)
        self.is_committed(txn, frame.seq)

    def stream_abort(self, frame: Frame, reader: Reader) -> None:
        xid, subxid = reader.u32(), reader.u32()
        lsn = timestamp = None
        if reader.position != len(frame.payload):
            lsn, timestamp = reader.lsn(), reader.timestamp()
        reader.end()
        self.require_between_transactions()
        whole, txn = xid == subxid, self.streams.get(xid)
        self.boundary(
            frame, "stream_abort", txn, xid, subxid=subxid, lsn=lsn or None, timestamp=timestamp, ends=whole
        )
        if txn and whole:
            del self.streams[xid]
            self.outcome(txn, "aborted", frame.seq)
        elif txn:
            txn.said = [said for said in txn.said if said.subxid != subxid]
            txn.unread.discard(subxid)
            txn.waiting = [change for change in txn.waiting if change.subxid != subxid]
            self.outcome(txn, "aborted", frame.seq, subxid=subxid)

    def read_prepare(self, reader: Reader) -> tuple[int, int, int, int, str]:
        reader.zero_flags()
        lsn, end_lsn, timestamp = reader.lsn(), reader.lsn(), reader.timestamp()
        xid, gid = reader.u32(), reader.string()
        reader.end()
        return lsn, end_lsn, timestamp, xid, gid

    def require_between_transactions(self) -> None:
        if self.plain:
            raise MalformedError("not allowed inside a transaction")

    def close_plain(self, tag: str) -> Transaction | None:
        """The open transaction that began with `tag`. None is valid only after a loss."""
        if self.lost or (self.plain and self.plain.tag == tag):
            return self.plain
        raise MalformedError("ends a transaction that is not open")

    def open_stream(self, xid: int) -> Transaction:
        if xid not in self.streams:
            raise MalformedError("of a streamed transaction that is not open")
        return self.streams[xid]

    def take_prepared(self, xid: int, gid: str, end_lsn: int | None = None) -> Transaction | None:
        """Removes a prepared transaction. A gid can be reused, so a rollback also has the end of its prepare."""
        txn = self.prepared.get(xid)
        if txn is None or txn.gid != gid or end_lsn not in (None, txn.prepare_end_lsn):
            return None
        return self.prepared.pop(xid)

    def void_stream(self, xid: int, frame: Frame) -> None:
        """Voids an open stream under this xid, because another transaction starts under the xid."""
        if xid in self.streams:
            self.is_void(self.streams.pop(xid), frame.seq)

    def void_prepared(self, xid: int, frame: Frame) -> None:
        """Voids a prepared transaction under this xid, because a whole transaction takes its place.

        A stream that has not ended does not void it: the server may stream a prepared transaction again.
        """
        if xid in self.prepared:
            self.is_void(self.prepared.pop(xid), frame.seq)

    def end_double(self, xid: int, prepared: Transaction | None, frame: Frame) -> None:
        """Ends the second stream of a prepared transaction, because the transaction has ended."""
        if xid in self.streams:
            double = self.streams.pop(xid)
            if prepared is None:
                self.set_aside(double)
            else:
                self.is_void(double, frame.seq)

    def end_namesake(self, gid: str) -> None:
        """Rejects prepared transactions with this gid that may be over: a gid is prepared only once at a time."""
        for xid, txn in list(self.prepared.items()):
            if txn.may_be_over and txn.gid == gid:
                self.set_aside(self.prepared.pop(xid))

    def promote(self, txn: Transaction) -> None:
        for said in txn.said:
            plain = self.said.get((said.tag, said.oid))
            if plain is None or plain.seq < said.seq:
                self.said[said.tag, said.oid] = said

    # --- what comes inside them -----------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        txn = self.block or self.plain
        if not txn:
            raise OutOfOrderError("outside any transaction")
        return txn

    def prefix(self, reader: Reader) -> int | None:
        return reader.u32() if self.block else None

    def origin(self, frame: Frame, reader: Reader) -> None:
        lsn, name = reader.lsn(), reader.string()
        reader.end()
        txn = self.transaction()
        txn.origin, txn.origin_lsn = name, lsn

    def message(self, frame: Frame, reader: Reader) -> None:
        self.prefix(reader)
        transactional = reader.zero_or_one() == 1
        lsn, prefix = reader.lsn(), reader.string()
        content = reader.take(reader.i32())
        reader.end()
        if not transactional and lsn:
            # No two messages have the same LSN. The next session may repeat some of them.
            if lsn <= self.message_floor or lsn in self.messages_seen:
                return
            self.messages_seen.add(lsn)
            if len(self.messages_seen) > MESSAGES_REMEMBERED:
                self.message_floor = min(self.messages_seen)
                self.messages_seen.remove(self.message_floor)
        txn = self.transaction() if transactional else None
        row = {
            "seq": frame.seq, "lsn": lsn, "txn": txn.key if txn else None, "xid": txn.xid if txn else None,
            "transactional": transactional, "prefix": prefix, "content": content,
        }  # fmt: skip
        self.deliver(txn, WaitingChange(frame, None, lambda: self.out.messages.append(row)))

    def type(self, frame: Frame, reader: Reader) -> None:
        subxid, oid = self.prefix(reader), reader.u32()
        namespace, name = reader.string() or "pg_catalog", reader.string()
        reader.end()
        self.remember(Said("Y", oid, frame.seq, subxid, (namespace, name)))

    def relation(self, frame: Frame, reader: Reader) -> None:
        subxid = self.prefix(reader)
        version = hashlib.sha256(frame.payload[reader.position :]).digest()[:8]
        oid, namespace, name = reader.u32(), reader.string() or "pg_catalog", reader.string()
        if reader.char() not in "dnfi":
            raise MalformedError("unknown replica identity", reader.position - 1)
        count = reader.i16()
        if count < 0:
            raise MalformedError("negative number of columns", reader.position - 2)
        if count * 10 > len(reader.data) - reader.position:  # the least that a column takes
            raise MalformedError("ends too early", len(reader.data))
        columns: list[Column] = []
        type_offsets = []
        for _ in range(count):
            reader.zero_or_one()
            column = reader.string()
            if column in {other.name for other in columns}:
                raise MalformedError("two columns of the same name")
            type_oid, typmod = reader.u32(), reader.i32()
            explained = self.look_up("Y", type_oid)
            says = explained.content if explained else None
            means = resolve(type_oid, typmod, says, self.types)
            columns.append(Column(column, type_oid, means, resolve(type_oid, typmod, says)))
            type_offsets.append(reader.position - 8)
        reader.end()
        relation = Relation(oid, namespace, name, int.from_bytes(version, "big", signed=True), tuple(columns))
        doubt = "a Type message before its Relation message is bad" if self.bad_type else None
        self.bad_type = False
        if not doubt:
            relation = self.only_meaning(relation, type_offsets)
        self.remember(Said("R", oid, frame.seq, subxid, relation, doubt))

    def only_meaning(self, relation: Relation, type_offsets: list[int]) -> Relation:
        """The version as first described. Its id covers only the oids of the columns' types."""
        first = self.described.setdefault(relation.version, relation)
        for before, now, offset in zip(first.columns, relation.columns, type_offsets, strict=True):
            if before.on_the_wire != now.on_the_wire:
                raise OtherTypeError("a type of another kind", offset, first.quoted, now.name)
        return first

    def name_of(self, oid: int) -> str | None:
        """The name of a relation, if it never had another name."""
        names = {relation.quoted for relation in self.described.values() if relation.oid == oid}
        return names.pop() if len(names) == 1 else None

    def remember(self, said: Said) -> None:
        """Stores a description: inside a stream block only for its transaction, otherwise for all."""
        if self.block:
            self.block.said.append(said)
        else:
            self.said[said.tag, said.oid] = said

    def look_up(self, tag: str, oid: int) -> Said | None:
        for said in reversed(self.block.said if self.block else []):
            if (said.tag, said.oid) == (tag, oid):
                return said
        return self.said.get((tag, oid))

    def known_relation(self, oid: int, offset: int) -> Relation:
        said = self.look_up("R", oid)
        name = self.name_of(oid)
        if self.block and self.block.unread and said not in self.block.said:
            raise MalformedError("a Relation message of its stream is lost", offset, name)
        if said is None:
            raise MalformedError("of a relation never described", offset, name)
        if said.doubt:
            raise MalformedError(said.doubt, offset, name)
        if said.seq < self.forgot_relations_at:
            raise MalformedError(
                "its relation was not described again since messages were lost", offset, name
            )
        relation: Relation = said.content
        return relation

    def truncate(self, frame: Frame, reader: Reader) -> None:
        txn = self.transaction()
        subxid = self.prefix(reader)
        count, flags = reader.i32(), reader.u8()
        if count <= 0 or flags > 3:
            raise MalformedError("relation count or flags of a truncate", reader.position - 5)
        relations, rejected = [], False
        first = reader.position
        oids = [reader.u32() for _ in range(count)]
        reader.end()
        for k, oid in enumerate(oids):
            try:
                relations.append(self.known_relation(oid, first + 4 * k))
            except MalformedError as problem:  # the other relations are truncated nevertheless
                if not self.quarantine:
                    raise
                # The first row has the original message. Other rows have a Truncate of their relation alone.
                alone = (
                    frame.payload[: first - 5]
                    + (1).to_bytes(4, "big")
                    + bytes([flags])
                    + oid.to_bytes(4, "big")
                )
                self.reject(frame if not rejected else replace(frame, payload=alone), problem)
                rejected = True
        if not relations:
            return

        def emit() -> None:
            self.out.truncates.append(
                {
                    "seq": frame.seq, "txn": txn.key, "relations": oids,
                    "cascade": bool(flags & 1), "restart_identity": bool(flags & 2),
                }
            )  # fmt: skip
            for relation in relations:
                nothing = {column.name: None for column in relation.columns}
                self.out.rows.append(row_of(frame, txn, subxid, relation, "truncate", False, nothing, [], []))

        self.deliver(txn, WaitingChange(frame, subxid, emit))

    def change(self, frame: Frame, reader: Reader) -> None:
        txn = self.transaction()
        subxid = self.prefix(reader)
        offset = reader.position
        oid = reader.u32()
        start = reader.position
        reader.take(1)  # a change without a tuple does not go into the reorder buffer
        misfit = self.quarantine and self.misfit(frame.payload, start, oid)
        self.bad_type = bool(misfit)
        relation = self.known_relation(oid, offset)
        if misfit:
            raise LooksLikeRelationError(*misfit, relation.quoted, oid, subxid)

        def emit() -> None:
            self.decode_change(frame, txn, subxid, relation, start)

        self.deliver(txn, WaitingChange(frame, subxid, emit, relation.quoted))

    def misfit(self, payload: bytes, start: int, oid: int) -> tuple[str, int] | None:
        """(missing part, offset) if a change may be a Relation or Type message with a name there, otherwise None."""
        if payload[start] not in {b"I": b"N", b"U": b"NKO", b"D": b"KO"}[payload[:1]]:
            return "the letter of a tuple", start
        sent = payload[start + 1 : start + 3]
        if len(sent) == 2:
            count = int.from_bytes(sent, "big")
            try:
                wrong = count != len(self.known_relation(oid, 0).columns)
            except MalformedError:
                wrong = count > 0 and len(payload) > start + 3 and payload[start + 3] not in b"nutb"
            if wrong:
                return "the number of columns", start + 1
        return None
