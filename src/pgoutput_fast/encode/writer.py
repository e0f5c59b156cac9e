"""A stateful writer of pgoutput messages: the inverse of the decoder.

`Writer` acts as the output plugin. It has one method per callback, which returns the payloads that a server would send
for it. `encode.messages` has the single messages and the types for rows and relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.catalog.builtin_types import FIRST_USER_OID
from pgoutput_fast.encode.messages import (
    Cell,
    RelationSpec,
    Timestamp,
    encode_begin,
    encode_begin_prepare,
    encode_commit,
    encode_commit_prepared,
    encode_delete,
    encode_insert,
    encode_message,
    encode_origin,
    encode_prepare,
    encode_relation,
    encode_rollback_prepared,
    encode_stream_abort,
    encode_stream_commit,
    encode_stream_prepare,
    encode_stream_start,
    encode_stream_stop,
    encode_truncate,
    encode_type,
    encode_update,
)
from pgoutput_fast.protocol.lsn import Lsn

__all__ = ["Writer"]


class Writer:
    """One decoding session of the plugin, callback by callback.

    A method returns the payloads that the server would send for that callback, in order. The writer tracks the open
    transaction or stream block and the described relations:

    * The Type messages of a relation (for columns whose type has an oid >= 10000 and a name in `types`) and its
      Relation message precede the first change that needs them: once per session in plain transactions, once per
      top-level transaction in streamed ones, and again after an abort of a subtransaction. When a streamed transaction
      commits, its descriptions count for the session. Another spec for a known oid is described again everywhere.
    * Inside a stream block, changes, relations, types and messages have an xid; outside never, even if you pass `xid`.
      The default is the top-level xid of the block; pass that of the subtransaction for its changes.

    `streaming` needs proto_version 2 ("on") or 4 ("parallel"). Prepared transactions need `two_phase`, with any
    proto_version, as on servers from 15 on. `types` maps the oid of a type to its (namespace, name).

    Callbacks in an impossible order raise a `ValueError`. A call that raises changes nothing.

    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> columns = (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25))
    >>> orders = RelationSpec(16401, "public", "orders", columns)
    >>> writer = Writer()
    >>> writer.begin(xid=7, final_lsn=100, commit_timestamp=0)
    [b'B\\x00\\x00\\x00\\x00\\x00\\x00\\x00d\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07']
    >>> relation, insert = writer.change(orders, "insert", new=["1", None])
    >>> insert
    b'I\\x00\\x00@\\x11N\\x00\\x02t\\x00\\x00\\x00\\x011n'
    >>> len(writer.change(orders, "update", new=["1", "x"]))  # the relation is known by now
    1
    >>> len(writer.commit(commit_lsn=100, end_lsn=108, commit_timestamp=0))
    1
    """

    def __init__(
        self,
        proto_version: int = 4,
        *,
        streaming: Literal["off", "on", "parallel"] = "off",
        two_phase: bool = False,
        types: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        if proto_version not in (1, 2, 3, 4):
            raise ValueError("proto_version must be 1, 2, 3 or 4")
        if streaming not in _STREAMING_SINCE:
            raise ValueError('streaming must be "off", "on" or "parallel"')
        if proto_version < _STREAMING_SINCE[streaming]:
            raise ValueError(f'streaming="{streaming}" needs a higher proto_version')
        self._streaming = streaming
        self._two_phase = two_phase
        self._types = dict(types or {})
        self._open: Literal["transaction", "prepared transaction", "stream block"] | None = None
        self._block_xid: int | None = None
        self._origin_may_follow = False
        self._latest: dict[int, RelationSpec] = {}
        self._described: set[int] = set()
        self._described_in_stream: dict[int, set[int]] = {}

    def begin(self, xid: int, final_lsn: Lsn, commit_timestamp: Timestamp) -> list[bytes]:
        """Begin of a transaction that is not streamed; `final_lsn` is the start of its commit record."""
        self._require("begin", None)
        payload = encode_begin(final_lsn, commit_timestamp, xid)
        self._enter("transaction", origin_may_follow=True)
        return [payload]

    def commit(self, commit_lsn: Lsn, end_lsn: Lsn, commit_timestamp: Timestamp) -> list[bytes]:
        """Commit; `end_lsn` is the end of the commit record. Servers repeat the position and time of `begin`."""
        self._require("commit", "transaction")
        payload = encode_commit(commit_lsn, end_lsn, commit_timestamp)
        self._enter(None)
        return [payload]

    def origin(self, origin_lsn: Lsn, name: str) -> list[bytes]:
        """The origin of the transaction, directly after its begin or first stream start, without an xid."""
        if not self._origin_may_follow:
            raise ValueError("origin: must directly follow begin, begin_prepare or the first stream_start")
        payload = encode_origin(origin_lsn, name)
        self._origin_may_follow = False
        return [payload]

    def relation(self, relation: RelationSpec, *, xid: int | None = None) -> list[bytes]:
        """Describes `relation` with its types, even if it is known, as servers do after a cache invalidation."""
        prefix = self._xid_prefix("relation", xid)
        payloads = self._schema_payloads(relation, prefix)
        self._remember(relation)
        self._origin_may_follow = False
        return payloads

    def type(self, oid: int, namespace: str, name: str, *, xid: int | None = None) -> list[bytes]:
        """Names a type, now and with every later relation that has a column of this type.

        For a domain, pass its own oid and the namespace and name of its base type.
        """
        prefix = self._xid_prefix("type", xid)
        payload = encode_type(oid, namespace, name, xid=prefix)
        self._types[oid] = (namespace, name)
        self._origin_may_follow = False
        return [payload]

    def change(
        self,
        relation: RelationSpec,
        kind: Literal["insert", "update", "delete"],
        new: Sequence[Cell] | None = None,
        *,
        old: Sequence[Cell] | None = None,
        key: Sequence[Cell] | None = None,
        xid: int | None = None,
    ) -> list[bytes]:
        """A row change, after the relation if it is not known yet.

        Tuples have one cell per column of `relation`. An insert has `new`. An update has `new`, and may have `old` (the
        whole row, for replica identity full) or `key` (the columns of the identity, null elsewhere). A delete has `old`
        or `key`.
        """
        for argument, cells in (("new", new), ("old", old), ("key", key)):
            expect_list(argument, cells, "cells")
        prefix = self._xid_prefix("change", xid)
        for argument, cells in (("new", new), ("old", old), ("key", key)):
            if cells is not None and len(cells) != len(relation.columns):
                raise ValueError(f"{argument} has {len(cells)} cells for {len(relation.columns)} columns")
        if kind not in ("insert", "update", "delete"):
            raise ValueError('kind must be "insert", "update" or "delete"')
        if (new is None) != (kind == "delete"):
            raise ValueError("new is needed for an insert or update, and not allowed for a delete")
        if new is None:
            payload = encode_delete(relation.oid, old=old, key=key, xid=prefix)
        elif kind == "update":
            payload = encode_update(relation.oid, new, old=old, key=key, xid=prefix)
        elif old is not None or key is not None:
            raise ValueError("old and key do not belong to an insert")
        else:
            payload = encode_insert(relation.oid, new, xid=prefix)
        return [*self._describe([relation], prefix), payload]

    def truncate(
        self,
        relations: Sequence[RelationSpec],
        *,
        cascade: bool = False,
        restart_identity: bool = False,
        xid: int | None = None,
    ) -> list[bytes]:
        """One Truncate of all `relations`, after descriptions of the relations that are not known yet."""
        expect_list("relations", relations, "RelationSpec")
        prefix = self._xid_prefix("truncate", xid)
        if not relations:
            raise ValueError("relations must not be empty")
        oids = [relation.oid for relation in relations]
        payload = encode_truncate(oids, cascade=cascade, restart_identity=restart_identity, xid=prefix)
        return [*self._describe(relations, prefix), payload]

    def message(self, lsn: Lsn, prefix: str, content: bytes, *, transactional: bool = True) -> list[bytes]:
        """The message of a pg_logical_emit_message call.

        A transactional message belongs to the open transaction. In a stream block it has the top-level xid, even if a
        subtransaction wrote it. Other messages are sent at once, between transactions and stream blocks.
        """
        if transactional:
            xid = self._xid_prefix("message", None)
        else:
            self._require("message that is not transactional", None)
            xid = None
        payload = encode_message(lsn, prefix, content, transactional=transactional, xid=xid)
        self._origin_may_follow = False
        return [payload]

    def stream_start(self, xid: int) -> list[bytes]:
        """Opens a block of the top-level transaction `xid`: its first segment if `xid` is not open yet."""
        if self._streaming == "off":
            raise ValueError('stream_start: needs streaming="on" or "parallel"')
        self._require("stream_start", None)
        first_segment = xid not in self._described_in_stream
        payload = encode_stream_start(xid, first_segment)
        self._described_in_stream.setdefault(xid, set())
        self._enter("stream block", origin_may_follow=first_segment)
        self._block_xid = xid
        return [payload]

    def stream_stop(self) -> list[bytes]:
        """Closes the block; the transaction stays open."""
        self._require("stream_stop", "stream block")
        self._enter(None)
        return [encode_stream_stop()]

    def stream_abort(
        self,
        xid: int,
        subxid: int | None = None,
        *,
        abort_lsn: Lsn | None = None,
        abort_timestamp: Timestamp | None = None,
    ) -> list[bytes]:
        """Aborts subtransaction `subxid` of the streamed transaction `xid`, or by default the whole transaction.

        Position and time are sent with streaming="parallel" only, and are then required. After a crash the position can
        be 0.
        """
        self._require_stream("stream_abort", xid)
        if subxid is None:
            subxid = xid
        if self._streaming == "parallel":
            if abort_lsn is None or abort_timestamp is None:
                raise ValueError('abort_lsn and abort_timestamp are needed with streaming="parallel"')
            payload = encode_stream_abort(xid, subxid, abort_lsn, abort_timestamp)
        else:
            payload = encode_stream_abort(xid, subxid)
        if subxid == xid:
            del self._described_in_stream[xid]
        else:
            self._described_in_stream[xid].clear()
        return [payload]

    def stream_commit(
        self, xid: int, commit_lsn: Lsn, end_lsn: Lsn, commit_timestamp: Timestamp
    ) -> list[bytes]:
        """Commit of the streamed transaction `xid`."""
        self._require_stream("stream_commit", xid)
        payload = encode_stream_commit(xid, commit_lsn, end_lsn, commit_timestamp)
        self._described |= self._described_in_stream.pop(xid)
        return [payload]

    def stream_prepare(
        self, xid: int, prepare_lsn: Lsn, end_lsn: Lsn, prepare_timestamp: Timestamp, gid: str
    ) -> list[bytes]:
        """PREPARE TRANSACTION of the streamed transaction `xid`."""
        self._require_two_phase("stream_prepare")
        self._require_stream("stream_prepare", xid)
        payload = encode_stream_prepare(prepare_lsn, end_lsn, prepare_timestamp, xid, gid)
        del self._described_in_stream[xid]
        return [payload]

    def begin_prepare(
        self, xid: int, prepare_lsn: Lsn, end_lsn: Lsn, prepare_timestamp: Timestamp, gid: str
    ) -> list[bytes]:
        """Begin of a transaction that is sent at PREPARE TRANSACTION and not streamed."""
        self._require_two_phase("begin_prepare")
        self._require("begin_prepare", None)
        payload = encode_begin_prepare(prepare_lsn, end_lsn, prepare_timestamp, xid, gid)
        self._enter("prepared transaction", origin_may_follow=True)
        return [payload]

    def prepare(
        self, xid: int, prepare_lsn: Lsn, end_lsn: Lsn, prepare_timestamp: Timestamp, gid: str
    ) -> list[bytes]:
        """End of the transaction that `begin_prepare` opened, with the same arguments."""
        self._require("prepare", "prepared transaction")
        payload = encode_prepare(prepare_lsn, end_lsn, prepare_timestamp, xid, gid)
        self._enter(None)
        return [payload]

    def commit_prepared(
        self, xid: int, commit_lsn: Lsn, end_lsn: Lsn, commit_timestamp: Timestamp, gid: str
    ) -> list[bytes]:
        """COMMIT PREPARED, at any time after the prepare. An earlier session may have sent the prepare."""
        self._require_two_phase("commit_prepared")
        self._require("commit_prepared", None)
        return [encode_commit_prepared(commit_lsn, end_lsn, commit_timestamp, xid, gid)]

    def rollback_prepared(
        self,
        xid: int,
        prepare_end_lsn: Lsn,
        rollback_end_lsn: Lsn,
        prepare_timestamp: Timestamp,
        rollback_timestamp: Timestamp,
        gid: str,
    ) -> list[bytes]:
        """ROLLBACK PREPARED; `prepare_end_lsn` is the `end_lsn` of the prepare."""
        self._require_two_phase("rollback_prepared")
        self._require("rollback_prepared", None)
        return [
            encode_rollback_prepared(
                prepare_end_lsn, rollback_end_lsn, prepare_timestamp, rollback_timestamp, xid, gid
            )
        ]

    def _require(self, callback: str, expected: str | None) -> None:
        if self._open != expected:
            raise ValueError(f"{callback}: {_must_be_open(expected)}, but {_is_open(self._open)}")

    def _require_two_phase(self, callback: str) -> None:
        if not self._two_phase:
            raise ValueError(f"{callback}: needs two_phase=True")

    def _require_stream(self, callback: str, xid: int) -> None:
        self._require(callback, None)
        if xid not in self._described_in_stream:
            raise ValueError(f"{callback}: xid is not that of an open streamed transaction")

    def _enter(
        self,
        unit: Literal["transaction", "prepared transaction", "stream block"] | None,
        *,
        origin_may_follow: bool = False,
    ) -> None:
        self._open = unit
        self._block_xid = None
        self._origin_may_follow = origin_may_follow

    def _xid_prefix(self, callback: str, xid: int | None) -> int | None:
        """The xid to write: that of the change inside a stream block, None outside."""
        if self._open is None:
            raise ValueError(f"{callback}: a transaction or stream block must be open")
        return xid if self._block_xid is not None and xid is not None else self._block_xid

    def _scope(self) -> set[int]:
        """The oids of the relations already described for the next change."""
        return self._described if self._block_xid is None else self._described_in_stream[self._block_xid]

    def _describe(self, relations: Iterable[RelationSpec], xid: int | None) -> list[bytes]:
        """The payloads that must precede a change of `relations`."""
        scope = self._scope()
        unknown = [r for r in relations if r.oid not in scope or self._latest[r.oid] != r]
        payloads = [payload for relation in unknown for payload in self._schema_payloads(relation, xid)]
        for relation in unknown:
            self._remember(relation)
        self._origin_may_follow = False
        return payloads

    def _schema_payloads(self, relation: RelationSpec, xid: int | None) -> list[bytes]:
        # The server writes a Type message per column, even if two columns share a type.
        types = [
            encode_type(column.type_oid, *self._types[column.type_oid], xid=xid)
            for column in relation.columns
            if column.type_oid >= FIRST_USER_OID and column.type_oid in self._types
        ]
        return [*types, encode_relation(relation, xid=xid)]

    def _remember(self, relation: RelationSpec) -> None:
        if self._latest.get(relation.oid, relation) != relation:
            for scope in (self._described, *self._described_in_stream.values()):
                scope.discard(relation.oid)
        self._latest[relation.oid] = relation
        self._scope().add(relation.oid)


_STREAMING_SINCE = {"off": 1, "on": 2, "parallel": 4}


def _must_be_open(unit: str | None) -> str:
    return "no transaction or stream block may be open" if unit is None else f"a {unit} must be open"


def _is_open(unit: str | None) -> str:
    return "none is" if unit is None else f"a {unit} is"
