"""Records of the reference decoder: relations as described, transactions, and their waiting changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reference.nested import Kind


@dataclass(frozen=True)
class Frame:
    seq: int
    lsn: int | None
    payload: bytes


@dataclass(frozen=True)
class Column:
    name: str
    type_oid: int
    type: Kind
    on_the_wire: Kind  # the same without a live server's description


@dataclass(frozen=True)
class Relation:
    oid: int
    namespace: str
    name: str
    version: int
    columns: tuple[Column, ...]

    @property
    def quoted(self) -> str:
        return f"{quote(self.namespace)}.{quote(self.name)}"


def quote(name: str) -> str:
    """A name with SQL quotes if needed. Reserved words are not handled."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Said:
    """The description of an oid in an R or a Y.

    `content` is a Relation, or the (namespace, name) of a type, or None if the message was bad. With `doubt`, changes
    of the relation cannot be decoded.
    """

    tag: str
    oid: int
    seq: int
    subxid: int | None
    content: Any
    doubt: str | None = None


@dataclass(frozen=True)
class WaitingChange:
    """A row of output: for now or, in committed mode, for the commit of its transaction.

    `subxid` is None if a rollback of the subtransaction does not remove the row.
    """

    frame: Frame
    subxid: int | None
    emit: Callable[[], None]
    relation: str | None = None  # of a change


@dataclass(eq=False)
class Transaction:
    key: int  # seq of its B, b or first S
    tag: str  # B, b or S
    xid: int
    gid: str | None = None
    commit_lsn: int | None = None
    commit_timestamp: int | None = None
    prepare_timestamp: int | None = None
    prepare_end_lsn: int | None = None
    in_doubt: bool = False  # a rejected message may have ended it, or a part of it
    may_be_over: bool = False  # it is prepared, and a rejected message may have ended it
    origin: str | None = None
    origin_lsn: int | None = None
    said: list[Said] = field(default_factory=list)  # descriptions in its stream blocks
    # Subtransactions that lost an R of an unknown relation; 0 means the whole transaction.
    unread: set[int] = field(default_factory=set)
    waiting: list[WaitingChange] = field(default_factory=list)
